"""gpuctl topo on presets and files: what it draws, ranks and refuses. No cluster is asked."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from phalanx.cli.main import root
from phalanx.cli.options import Session
from phalanx.core.errors import InvalidSpecError
from phalanx.core.topology.codec import from_json, to_json
from phalanx.core.topology.errors import UnreadableTopologyError
from phalanx.core.topology.presets import PRESETS, preset

Output = pytest.CaptureFixture[str]


def gpuctl(*words: str) -> None:
    root.main(list(words), prog_name="gpuctl", standalone_mode=False, obj=Session())


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_drawn(name: str, capsys: Output) -> None:
    gpuctl("topo", name)
    out = capsys.readouterr().out
    assert out.startswith(f"{name}: 8 x ")
    assert "NUMA 0  GPU 0" in out
    assert "GPU7" in out


def test_a_mesh_shows_its_links_and_what_they_carry(capsys: Output) -> None:
    gpuctl("topo", "show", "dgx1_v100")
    out = capsys.readouterr().out
    assert "NVLink island 0-1-2-3-4-5-6-7" in out
    assert "NV2 40" in out
    assert "SYS 6" in out
    assert "GPU4 nearest port: mlx5_2 (100 Gb/s, rail 2) at PIX" in out


def test_sets_are_ranked_with_the_reasons(capsys: Output) -> None:
    gpuctl("topo", "rank", "dgx1_v100", "2", "--free", "0,1,4")
    lines = capsys.readouterr().out.splitlines()
    assert "ring 0-4 at 40.0 GB/s" in lines[0]
    assert lines[2].split()[:3] == ["best", "0", "4"]
    assert "slower ring" in lines[3]


def test_json_names_the_fields(capsys: Output) -> None:
    gpuctl("topo", "rank", "hgx_h100", "4", "--json", "--top", "2")
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first == {
        "gpus": "0 1 2 3",
        "ring": "0-1-2-3",
        "ring_gbyte_s": 370.8,
        "pairs_gbyte_s": 2224.8,
        "why_not": "",
    }
    assert second["why_not"]


def test_a_picture_is_svg(tmp_path: Path, capsys: Output) -> None:
    for name in PRESETS:
        file = tmp_path / f"{name}.svg"
        gpuctl("topo", name, "--svg", str(file))
        drawn = ElementTree.parse(file).getroot()
        assert drawn.tag.endswith("svg")
        texts = [e.text for e in drawn.iter() if e.tag.endswith("text")]
        assert [t for t in texts if t and t.startswith("GPU ")] == [f"GPU {i}" for i in range(8)]
    assert capsys.readouterr().out == ""


def test_a_file_is_read_and_comes_back_as_json(tmp_path: Path, capsys: Output) -> None:
    file = tmp_path / "node.json"
    file.write_text(to_json(preset("dgx1_v100")))
    gpuctl("topo", "import", str(file))
    assert "NVLink island" in capsys.readouterr().out
    gpuctl("topo", "import", str(file), "--json")
    assert from_json(capsys.readouterr().out) == preset("dgx1_v100")


def test_a_file_of_something_else_is_refused_with_what_is_read(tmp_path: Path) -> None:
    file = tmp_path / "poem.txt"
    file.write_text("roses are red")
    with pytest.raises(UnreadableTopologyError, match="nvidia-smi topo -m"):
        gpuctl("topo", "import", str(file))


@pytest.mark.parametrize(
    ("words", "message"),
    [(("--free", "0,9"), "GPU '9'"), (("--free", "3"), "2 GPUs are asked for and 1 free")],
)
def test_what_cannot_be_ranked_says_why(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(InvalidSpecError, match=message):
        gpuctl("topo", "rank", "dgx1_v100", "2", *words)
