"""A machine with GPUs where there are none: NVIDIA's own Python binding on a small NVML of ours; and the real ones."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.gang_driver import Gangs


@dataclass(frozen=True, slots=True)
class FakeMachine:
    """The description file of the fake library."""

    path: Path

    def describe(self, *lines: str) -> None:
        """Each line: ``uuid model total_mib used_mib pids state``."""
        self.path.write_text("\n".join(lines) + "\n")

    def connect(self, *lines: str) -> None:
        """What connects the GPUs; the lines are those of the fake library's second file."""
        self.links.write_text("\n".join(lines) + "\n")

    def say(self, *events: tuple[int, int]) -> None:
        """Each event: the index of a GPU, and the XID that it reports."""
        with self.events.open("a") as file:
            file.writelines(f"{index} {xid}\n" for index, xid in events)

    @property
    def links(self) -> Path:
        return self.path.with_name("links.txt")

    @property
    def events(self) -> Path:
        return self.path.with_name("events.txt")

    @property
    def environment(self) -> dict[str, str]:
        """Where the fake library looks."""
        return {
            "PHALANX_FAKE_NVML": str(self.path),
            "PHALANX_FAKE_NVML_LINKS": str(self.links),
            "PHALANX_FAKE_NVML_EVENTS": str(self.events),
        }


@pytest.fixture(scope="session")
def fake_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Builds the library and loads it under NVML's own name, so that nvidia-ml-py finds it there."""
    if has_real_nvml():
        pytest.skip("a real NVML is installed: the fake one would hide it")
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is needed to build the fake NVML library")
    target = tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("fake_nvml.c")
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wl,-soname,libnvidia-ml.so.1", "-o", str(target), str(source)]
    subprocess.run(command, check=True)
    ctypes.CDLL(str(target), mode=ctypes.RTLD_GLOBAL)
    return target


@pytest.fixture
def fake_machine(fake_library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeMachine:
    assert fake_library.exists()
    machine = FakeMachine(tmp_path / "gpus.txt")
    machine.describe()
    for name, value in machine.environment.items():
        monkeypatch.setenv(name, value)
    return machine


@pytest.fixture(scope="session")
def gpu_gangs() -> Iterator[Gangs]:
    """A launcher on a machine with at least one real GPU; skips elsewhere."""
    if not has_real_nvml():
        pytest.skip("no NVIDIA driver on this machine: libnvidia-ml.so.1 is not there")
    run_dir = Path(tempfile.mkdtemp(prefix="px-run-"))
    made = Gangs(run_dir)
    yield made
    made.close()
    shutil.rmtree(run_dir, ignore_errors=True)


def has_real_nvml() -> bool:
    """True where the driver's library loads from the system's own path."""
    found = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    return "libnvidia-ml.so.1" in found
