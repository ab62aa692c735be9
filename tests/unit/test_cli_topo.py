"""gpuctl topo on presets and files: what it draws, ranks and refuses. No cluster is asked."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from phalanx.cli.fabric_picture import fabric_picture
from phalanx.cli.fabric_text import drawing
from phalanx.cli.main import root
from phalanx.cli.options import Session
from phalanx.cli.problem import problem_of
from phalanx.cli.topology_text import drawing as node_drawing
from phalanx.client import Client
from phalanx.core.errors import InvalidSpecError, NotFoundError
from phalanx.core.topology.codec import from_json, to_json
from phalanx.core.topology.errors import UnreadableTopologyError
from phalanx.core.topology.fabric import Fabric
from phalanx.core.topology.fabric_codec import fabric_from_json
from phalanx.core.topology.node import Gpu, Health, Link, Nic, NodeTopology
from phalanx.core.topology.node import Path as Crossing
from phalanx.core.topology.presets import PRESETS, preset
from phalanx.core.views import NodeView
from tests.support.fabrics import nvl72_fabric

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
    assert max(map(len, out.splitlines())) <= 80


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


def test_a_node_of_more_gpus_than_a_table_holds_is_asked_for_its_best_set(tmp_path: Path, capsys: Output) -> None:
    gpus = tuple(Gpu(uuid=f"g{i}", index=i) for i in range(24))
    links = tuple(tuple(Link(nvlinks=4 * (i % 3 == j % 3), path=Crossing.SYS) for j in range(24)) for i in range(24))
    file = tmp_path / "large.json"
    file.write_text(to_json(NodeTopology(gpus=gpus, links=links)))
    gpuctl("topo", "rank", str(file), "8", "--json")
    best = json.loads(capsys.readouterr().out)
    assert best["gpus"] == "0 3 6 9 12 15 18 21"
    assert best["pairs_gbyte_s"] == best["ring_gbyte_s"] * 28
    with pytest.raises(InvalidSpecError, match="no set of 25"):
        gpuctl("topo", "rank", str(file), "25")


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


def test_what_topo_prints_as_json_can_be_read_again(tmp_path: Path, capsys: Output) -> None:
    gpuctl("topo", "dgx1_v100", "--json")
    file = tmp_path / "dgx1.json"
    file.write_text(capsys.readouterr().out)
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


def test_a_fabric_is_drawn_as_its_tree(tmp_path: Path, capsys: Output) -> None:
    file = tmp_path / "topology.conf"
    file.write_text("SwitchName=s1 Switches=l[1-2]\nSwitchName=l1 Nodes=n[1-2]\nSwitchName=l2 Nodes=n10\n")
    gpuctl("topo", "import", str(file))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "fabric: 2 leaves, 1 spine; 3 nodes"
    assert [line.strip() for line in lines[1:]] == ["spine s1", "leaf l1", "n1, n2", "leaf l2", "n10"]
    gpuctl("topo", "import", str(file), "--json")
    assert fabric_from_json(capsys.readouterr().out).domain_at("n10", "leaf")


def test_what_is_known_of_nodes_stands_beside_them() -> None:
    fabric = nvl72_fabric()
    odd = replace(fabric.nodes[0], domain=None, nvl_domain=None, rails=(0, 2), degraded_rails=(1,))
    lines = list(drawing(replace(fabric, nodes=(odd, *fabric.nodes[1:])), absent={"tray1102"}))
    assert lines[0] == "fabric: 4 leaves, 2 spines, 1 core; 72 nodes, of which 71 have joined"
    assert "      leaf leaf-1-1: 200 GB/s a node; oversubscription 2" in lines
    assert "        tray1102  (NVLink domain nvl-1-1, rails 0-3, has not joined)" in lines
    assert lines[-2:] == ["  no domain known", "    tray1101  (rails 0, 2, no working port on rail 1)"]


def test_a_file_about_a_node_is_no_fabric(tmp_path: Path) -> None:
    file = tmp_path / "node.json"
    file.write_text(to_json(preset("dgx1_v100")))
    with pytest.raises(UnreadableTopologyError, match="does not describe the network between nodes"):
        gpuctl("topo", "fabric", "set", str(file))
    with pytest.raises(UnreadableTopologyError):
        gpuctl("topo", "fabric", "set", str(file), "--format", "slurm")


@pytest.mark.parametrize(
    ("text", "why", "hint"),
    [
        ("", "it is empty", "save what `nvidia-smi topo -m` prints"),
        ("hello", "this is none of the formats", "save what `nvidia-smi topo -m` prints"),
        ("SwitchName=a Nodes=x[1-3", "line 1: ", "mend line 1 of "),
    ],
)
def test_a_file_that_cannot_be_read_is_named_with_the_reason_and_what_would_do(
    tmp_path: Path, text: str, why: str, hint: str
) -> None:
    file = tmp_path / "topo.txt"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UnreadableTopologyError) as caught:
        gpuctl("topo", "import", str(file))
    problem = problem_of(caught.value)
    assert problem.what == f"{file} cannot be read"
    assert problem.why.startswith(why)
    assert problem.hint.startswith(hint)


class OneNode(Client):
    """A cell of one node that has not said what it looks like."""

    def __init__(self) -> None:
        pass

    def topology(self, node_id: str) -> NodeTopology:
        raise NotFoundError(f"nothing is known of {node_id}")

    def list_nodes(self) -> tuple[NodeView, ...]:
        return (NodeView(node_id="vm"),)


def test_a_misspelled_machine_is_told_with_the_one_that_it_may_have_meant(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = OneNode()

    def client(_session: Session) -> Client:
        return cell

    monkeypatch.setattr(Session, "client", client)
    with pytest.raises(NotFoundError) as caught:
        gpuctl("topo", "rank", "dgx1_v", "2")
    problem = problem_of(caught.value)
    assert problem.what == "no node, machine or file is called 'dgx1_v'; did you mean dgx1_v100?"
    assert problem.why.startswith("nodes are vm; machines are dgx1_v100, dgx_h100")
    assert problem.hint == "gpuctl topo dgx1_v100"
    with pytest.raises(NotFoundError, match="nothing is known of vm"):
        gpuctl("topo", "rank", "vm", "2")


def test_nodes_that_look_the_same_are_drawn_once(monkeypatch: pytest.MonkeyPatch, capsys: Output) -> None:
    looks = {**{f"n{at}": preset("aws_p5") for at in range(1, 12)}, "odd": preset("pcie_l4")}

    class Cell(OneNode):
        def topology(self, node_id: str) -> NodeTopology:
            return looks[node_id]

        def list_nodes(self) -> tuple[NodeView, ...]:
            return tuple(NodeView(node_id=node_id) for node_id in looks)

    cell = Cell()

    def client(_session: Session) -> Client:
        return cell

    monkeypatch.setattr(Session, "client", client)
    gpuctl("topo")
    out = capsys.readouterr().out
    assert [line for line in out.splitlines() if " x NVIDIA" in line] == [
        "n[1-11]: 8 x NVIDIA H100 80GB HBM3, PCIe gen 5",
        "odd: 8 x NVIDIA L4, PCIe gen 4",
    ]
    assert "GPU2 nearest port: rdmap[8-11] (100 Gb/s each, rails 8-11) at PIX" in out
    gpuctl("topo", "--json")
    assert capsys.readouterr().out.count("\n") == len(looks)


# ---- short forms, and the fabric's picture ----


@pytest.mark.parametrize("name", PRESETS)
def test_a_topology_is_printed_in_ten_lines_at_most_and_repr_has_it_all(name: str) -> None:
    topology = preset(name)
    shown = str(topology)
    assert len(shown.splitlines()) <= 10
    assert shown.startswith("8 x ")
    assert topology.gpus[7].uuid in repr(topology)


def test_what_is_wrong_with_a_node_is_in_its_short_form_and_an_empty_one_has_one() -> None:
    gpus = tuple(Gpu(uuid=f"GPU-{at}", index=at, numa=(at,), health=Health.LOST) for at in range(64))
    links = tuple(tuple(Link(nvlinks=at % 9, copies=False) for at in range(64)) for _ in range(64))
    lines = str(NodeTopology(gpus=gpus, links=links)).splitlines()
    assert len(lines) <= 10
    assert "and 60 more" in lines[5]
    assert "copies come out wrong" in lines[6]
    assert "GPU 0 lost" in lines[7]
    assert str(NodeTopology()) == "no GPU"


def test_links_between_gpus_of_another_maker_have_their_own_name() -> None:
    gpus = tuple(Gpu(uuid=f"GPU-{at}", index=at, model="gfx942") for at in range(2))
    links = ((Link(), Link(1)), (Link(1), Link()))
    text = "\n".join(node_drawing("n1", NodeTopology(gpus=gpus, links=links)))
    assert "xGMI1" in text
    assert "xGMI island 0-1" in text
    assert "NV" not in text


def test_two_ports_of_one_name_are_drawn_apart() -> None:
    text = "\n".join(node_drawing("n1", NodeTopology(nics=(Nic(name="eth0", up=False), Nic(name="eth0", up=False)))))
    assert "ports that are down: eth0, eth0 (2)" in text


def test_a_fabrics_picture_holds_every_domain_and_node_in_its_place() -> None:
    fabric = nvl72_fabric()
    absent = fabric.nodes[0].id
    drawn = ElementTree.fromstring(fabric_picture(fabric, absent={absent}))
    space = "{http://www.w3.org/2000/svg}"
    titles = [each.text or "" for each in drawn.iter(f"{space}title")]
    for domain in fabric.domains:
        assert any(domain.id.removeprefix(f"{domain.level}:") in title for title in titles)
    missing = [node.id for node in fabric.nodes if not any(title.startswith(node.id) for title in titles)]
    left = sum(int(title.split()[1]) for title in titles if title.startswith("and "))
    assert len(missing) == left
    assert any(title.startswith(f"{absent}; has not joined") for title in titles)
    boxes = [each.attrib for each in drawn.iter(f"{space}rect")]
    width, height = int(drawn.attrib["width"]), int(drawn.attrib["height"])
    assert all(int(box["x"]) + int(box["width"]) <= width for box in boxes)
    assert all(int(box["y"]) + int(box["height"]) <= height for box in boxes)


def test_an_empty_fabric_is_a_picture_too() -> None:
    assert "0 nodes" in fabric_picture(Fabric())
