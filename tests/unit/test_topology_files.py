"""Files that people name: whatever they are, they are read in bounded time and memory or refused with the reason."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from phalanx.cli.main import root
from phalanx.cli.options import Session
from phalanx.core.errors import InvalidSpecError
from phalanx.core.topology.errors import UnreadableTopologyError
from phalanx.core.topology.importers.detect import read_node
from phalanx.core.topology.importers.text_file import text_of_file

TABLE = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV4\t0-31\nGPU1\tNV4\t X \t0-31\n"


def gpuctl(*words: str) -> None:
    root.main(list(words), prog_name="gpuctl", standalone_mode=False, obj=Session())


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_table_is_read_whichever_shell_saved_it(encoding: str, tmp_path: Path) -> None:
    (tmp_path / "topo.txt").write_text(TABLE, encoding=encoding)
    assert len(read_node(text_of_file(tmp_path / "topo.txt")).gpus) == 2


def test_a_device_without_an_end_is_not_read_to_it() -> None:
    with pytest.raises(UnreadableTopologyError, match="/dev/zero has more than"):
        text_of_file(Path("/dev/zero"))


def test_a_pipe_that_nobody_writes_to_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnreadableTopologyError, match="it is empty"):
        gpuctl("topo", "import", str(tmp_path / "pipe"))


def test_a_pipe_is_read_to_its_end() -> None:
    reading, writing = os.pipe()
    os.write(writing, TABLE.encode())
    os.close(writing)
    assert text_of_file(Path(f"/proc/self/fd/{reading}")) == TABLE
    os.close(reading)


def test_what_the_system_refuses_is_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpecError, match="/proc/self/mem cannot be read: Input/output error"):
        gpuctl("topo", "import", "/proc/self/mem")
    with pytest.raises(InvalidSpecError, match=r"nowhere/x\.svg cannot be written: No such file or directory"):
        gpuctl("topo", "hgx_h100", "--svg", str(tmp_path / "nowhere" / "x.svg"))
