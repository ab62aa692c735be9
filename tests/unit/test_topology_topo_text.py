"""Reading `nvidia-smi topo -m` and `-mp`: the samples' answers, the tool's habits, and what people do to its text."""

from __future__ import annotations

import re
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.topology.errors import UnreadableTopologyError
from phalanx.core.topology.importers.topo_text import read_topo_text
from phalanx.core.topology.node import Link, NodeTopology, Path
from phalanx.core.topology.nvlink_islands import islands
from tests.support.topologies import (
    PRINTED,
    SAMPLES,
    Printed,
    cube_mesh,
    gpus,
    grace_tray,
    needs_samples,
    pcie_node,
    sample,
    switched_node,
)
from tests.support.topology_answers import answers_of, check, pairs, word_of

TOPO_M = sorted(path.name.removesuffix(".txt") for path in SAMPLES.glob("*.topo-m.txt"))


def facts(node: NodeTopology) -> tuple[object, ...]:
    return node.gpus, node.links, node.nics, node.nic_links


@needs_samples
@pytest.mark.parametrize("name", TOPO_M)
def test_every_answer_of_a_sample_is_found(name: str) -> None:
    answers = answers_of(f"{name}.md")
    node = read_topo_text(sample(f"{name}.txt"))
    assert {"gpus", "nics", "gpu pair classes", "nvlink", "numa of each gpu", "cpu affinity"} <= answers.keys()
    for key, answer in answers.items():
        check(node, key, answer)


@needs_samples
def test_all_samples_are_there() -> None:
    assert len(TOPO_M) == 21


@needs_samples
def test_only_the_table_that_was_cut_off_and_the_one_without_nvlinks_have_notes() -> None:
    noted = {name: read_topo_text(sample(f"{name}.txt")).notes for name in TOPO_M}
    assert {name for name, notes in noted.items() if notes} == {"a100_mp_pcie_only.topo-m", "dgx_h100_12nic.topo-m"}
    assert noted["dgx_h100_12nic.topo-m"] == ("the table is cut off: no row for NIC6, NIC7, NIC8, NIC9, NIC10, NIC11",)


@needs_samples
@pytest.mark.parametrize("name", TOPO_M)
@pytest.mark.parametrize("width", [60, 80, 97, 132])
def test_a_sample_that_a_terminal_wrapped_says_the_same(name: str, width: int) -> None:
    text = sample(f"{name}.txt")
    assert facts(read_topo_text(wrapped(text, width))) == facts(read_topo_text(text))


@pytest.mark.parametrize("name", PRINTED)
@pytest.mark.parametrize("width", [33, 60, 80, 97, 132])
def test_a_table_that_a_terminal_wrapped_says_the_same(name: str, width: int) -> None:
    text = PRINTED[name]().text()
    assert facts(read_topo_text(wrapped(text, width))) == facts(read_topo_text(text))


def indented(rows: list[str]) -> str:
    return "\n".join(f"   {row.expandtabs(8)}" for row in rows)


def wrapped(text: str, width: int) -> str:
    lines = (line.expandtabs(8).rstrip() for line in re.sub(r"\x1b\[[0-9]*m", "", text).split("\n"))
    return "\n".join(line[at : at + width] for line in lines for at in range(0, len(line) or 1, width))


@pytest.mark.parametrize("name", PRINTED)
def test_tabs_lost_indentation_and_a_prompt_change_nothing(name: str) -> None:
    printed = PRINTED[name]()
    node = read_topo_text(printed.text())
    assert facts(read_topo_text(printed.spaced())) == facts(node)
    quoted = f"$ nvidia-smi topo -m\r\n{indented(printed.text().splitlines())}\n$ exit\n"
    assert facts(read_topo_text(quoted)) == facts(node)
    assert not node.notes


def test_the_cube_mesh_has_six_nvlinks_a_gpu_and_its_nics_keep_the_columns_order() -> None:
    node = read_topo_text(cube_mesh().text())
    assert [sum(link.nvlinks or 0 for link in row) for row in node.links] == [6] * 8
    assert islands(node) == ((0, 1, 2, 3, 4, 5, 6, 7),)
    assert [nic.name for nic in node.nics] == ["mlx5_0", "mlx5_2", "mlx5_1", "mlx5_3"]
    assert [link.path for link in node.nic_links[4]] == [Path.SYS, Path.PIX, Path.SYS, Path.PHB]
    assert node.links[0][3] == Link(nvlinks=2)
    assert node.links[0][5] == Link(nvlinks=0, path=Path.SYS)
    assert node.links[2][2] == Link()
    assert {gpu.numa for gpu in node.gpus} == {None}
    assert [gpu.uuid for gpu in node.gpus[:2]] == ["index-0", "index-1"]
    assert dict(node.sources) == {"links": "topo_text", "nics": "topo_text", "cpus": "topo_text"}


def test_nics_get_their_names_from_the_legend_and_more_nvlinks_than_a_gpu_has_mean_a_switch() -> None:
    node = read_topo_text(switched_node().text())
    assert [nic.name for nic in node.nics] == [f"mlx5_{at}" for at in range(4, 12)]
    assert {node.links[one][two] for one, two in pairs(node)} == {Link(nvlinks=18, switched=True)}
    assert {gpu.numa for gpu in node.gpus} == {(0,), (2,)}
    assert {gpu.memory_numa for gpu in node.gpus} == {None}


def test_a_gpus_memory_is_a_numa_node_of_its_own_and_affinity_a_list_of_ranges() -> None:
    node = read_topo_text(grace_tray().text())
    assert [gpu.memory_numa for gpu in node.gpus] == [2, 10, 18, 26]
    assert node.gpus[0].numa == (0, 3, 4, 5)


def test_old_drivers_say_soc_and_escapes_and_carriage_returns_are_no_words() -> None:
    text = (
        pcie_node().text().replace("SYS", "SOC").replace("\tGPU0", "\t\x1b[4mGPU0", 1).replace("\n", "\x1b[0m\r\n", 1)
    )
    node = read_topo_text(text)
    assert word_of(node, 0, 2) == "SYS"
    assert facts(read_topo_text(text.replace("\x1b", ""))) == facts(node)


@pytest.mark.parametrize("hide", ["legend", "command", "nothing"])
def test_where_nvlinks_are_not_shown_their_number_is_unknown_and_not_zero(hide: str) -> None:
    printed = pcie_node()
    text = Printed(printed.labels, printed.cells, printed.affinity, nvlink_in_legend=hide != "legend").text()
    if hide == "command":
        text = f"# nvidia-smi topo -mp\n{text}"
    node = read_topo_text(text)
    assert {node.links[one][two].nvlinks for one, two in pairs(node)} == ({0} if hide == "nothing" else {None})
    assert bool(node.notes) == (hide != "nothing")
    assert {node.links[one][two].path for one, two in pairs(node)} == {Path.PIX, Path.SYS}


def test_without_a_legend_an_nvlink_somewhere_says_that_the_others_have_none() -> None:
    legendless = "\n".join(cube_mesh().rows())
    assert read_topo_text(legendless).links[0][5].nvlinks == 0
    unknown = read_topo_text("\n".join(pcie_node().rows()))
    assert unknown.links[0][1].nvlinks is None


@pytest.mark.parametrize(
    ("words", "cpus", "numa", "memory"),
    [
        ("0-7\t\tN/A\t\tN/A", "0-7", None, None),
        ("0-7\t\t0-1\t\tN/A", "0-7", (0, 1), None),
        ("\t0\t\tN/A", None, (0,), None),
        ("\t\t0\t\t4", None, (0,), 4),
        ("\t\t\tN/A", None, None, None),
        ("\t\t\t4", None, None, 4),
        ("0-55,112-167\t\t\t4", "0-55,112-167", None, 4),
        ("0-7,16-23,32-39,48-55\t3\t\t4", "0-7,16-23,32-39,48-55", (3,), 4),
        ("0-7,16-23,32-39,48-55\t3", "0-7,16-23,32-39,48-55", (3,), None),
        ("6,14,22,30\t5\t\tN/A", "6,14,22,30", (5,), None),
        ("0-7, 16-23\t5\t\tN/A", "0-7,16-23", (5,), None),
        ("", None, None, None),
        ("N/A\t\tN/A\t\tN/A", None, None, None),
    ],
)
def test_affinity_columns_may_be_blank(
    words: str, cpus: str | None, numa: tuple[int, ...] | None, memory: int | None
) -> None:
    rows = ["\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID"]
    rows += [f"GPU0\t X \tNV4\t{words}", f"GPU1\tNV4\t X \t{words}"]
    for text in ("\n".join(rows), "\n".join(rows).expandtabs(8), indented(rows)):
        gpu = read_topo_text(text).gpus[1]
        assert (gpu.cpus, gpu.numa, gpu.memory_numa) == (cpus, numa, memory)


def test_affinity_that_cannot_be_told_apart_is_unknown_with_a_note() -> None:
    node = read_topo_text("GPU0 GPU1 CPU Affinity NUMA Affinity\nGPU0 X NV4 0\nGPU1 NV4 X 0-7 1\n")
    assert node.gpus[0].cpus is None
    assert node.gpus[0].numa is None
    assert (node.gpus[1].cpus, node.gpus[1].numa) == ("0-7", (1,))
    assert node.notes == ("line 2: GPU0: cannot tell which of CPU Affinity, NUMA Affinity '0' is",)


def test_a_word_that_is_no_list_is_unknown_with_a_note() -> None:
    node = read_topo_text("\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t7-0\t\tfirst")
    assert (node.gpus[0].cpus, node.gpus[0].numa) == (None, None)
    assert node.notes == (
        "line 2: GPU0: CPU Affinity '7-0': expected a list such as 0-1 or N/A",
        "line 2: GPU0: NUMA Affinity 'first': expected a list such as 0-1 or N/A",
    )


def test_words_wrapped_in_the_middle_are_put_together() -> None:
    heading = "\tGPU0\tGPU1\tCPU Aff\ninity\tNUMA Affinity\n"
    rows = "GPU0\t X \tN\nV4\t0-1\n5\tN\n/A\nGPU1\tNV4\n\t X\t0-15,\n32-47\t1\n"
    node = read_topo_text(heading + rows)
    assert [(gpu.cpus, gpu.numa) for gpu in node.gpus] == [("0-15", None), ("0-15,32-47", (1,))]
    assert node.links[0][1].nvlinks == 4
    assert node.notes == ()


def test_a_gpu_missing_from_the_matrix_leaves_the_others_as_they_are() -> None:
    printed = cube_mesh()
    left = tuple(label for label in printed.labels if label != "GPU3")
    node = read_topo_text(Printed(left, printed.cells, printed.affinity, printed.headings).text())
    assert [gpu.index for gpu in node.gpus] == [0, 1, 2, 4, 5, 6, 7]
    assert node.links[0][3].nvlinks == 2
    assert node.notes == ("missing from the matrix: GPU3",)


def test_a_gpu_whose_row_is_missing_is_linked_by_its_column() -> None:
    rows = cube_mesh().rows()
    node = read_topo_text("\n".join((*rows[:4], *rows[5:], *cube_mesh().legend())))
    full = read_topo_text(cube_mesh().text())
    assert node.links == full.links
    assert node.nic_links == full.nic_links
    assert node.gpus[3].cpus is None
    assert "GPU3 has a column and no row: its affinity is unknown" in node.notes


@pytest.mark.parametrize("keep", [1, 2, 4, 6])
def test_a_table_cut_off_below_keeps_what_it_says(keep: int) -> None:
    node = read_topo_text("\n".join(switched_node().rows()[: keep + 1]))
    assert len(node.gpus) == len(node.nics) == 8
    assert [gpu.numa for gpu in node.gpus] == [(0,)] * min(keep, 4) + [(2,)] * max(0, keep - 4) + [None] * (8 - keep)
    assert node.links[0][7].nvlinks == 18
    assert node.links[7][6].nvlinks is None
    assert node.notes


def test_a_table_cut_off_at_the_right_keeps_the_gpus_whose_columns_are_gone() -> None:
    text = "\n".join(line.expandtabs(8)[:40] for line in cube_mesh().rows())
    node = read_topo_text(text)
    full = read_topo_text(cube_mesh().text())
    assert [gpu.index for gpu in node.gpus] == list(range(8))
    assert [row[:4] for row in node.links] == [row[:4] for row in full.links]
    assert node.links[6][7] == Link()


def test_a_table_whose_heading_was_cut_off_names_its_columns_after_its_rows() -> None:
    node = read_topo_text("\n".join(cube_mesh().rows()[1:]))
    full = read_topo_text(cube_mesh().text())
    assert (node.links, node.nics, node.nic_links) == (full.links, full.nics, full.nic_links)
    assert node.gpus[0].cpus is None
    assert node.notes[0].startswith("the heading is missing")


def test_a_row_cut_off_in_the_middle_is_completed_from_the_other_side() -> None:
    rows = cube_mesh().rows()
    rows[8] = rows[8].expandtabs(8)[:26]
    node = read_topo_text("\n".join(rows))
    assert node.links == read_topo_text(cube_mesh().text()).links
    assert "line 9: GPU7 has 3 of 12 columns" in node.notes


def test_rows_of_mig_devices_are_left_out_and_tell_that_mig_is_on() -> None:
    rows = pcie_node().rows()
    rows[2:2] = ["MIG 1g.10gb\tN/A\tN/A", "MIG0\tX\tN/A"]
    rows.append("GPU3/MIG1\tN/A\tN/A")
    node = read_topo_text("\n".join((*rows, *pcie_node().legend())))
    assert [gpu.mig_enabled for gpu in node.gpus] == [True, None, None, True]
    assert node.links == read_topo_text(pcie_node().text()).links
    assert node.notes == ("3 rows of MIG devices are left out",)


def test_words_nobody_knows_and_rows_that_disagree_are_told() -> None:
    text = "\tGPU0\tGPU1\tGPU2\nGPU0\t X \tNV4\tQPX\nGPU1\tSYS\t X \tN/A\nGPU2\tQPX\tN/A\t X \n"
    node = read_topo_text(text)
    assert node.links[0][1] == node.links[1][0] == Link(nvlinks=None, path=Path.SYS)
    assert node.links[0][2] == node.links[1][2] == Link()
    assert any("GPU0 to GPU1 is NV4, and back SYS" in note for note in node.notes)
    assert any("GPU0 to GPU2 is 'QPX': expected NV#" in note for note in node.notes)


def test_a_row_that_stands_askew_or_twice_is_left_out() -> None:
    rows = pcie_node().rows()
    rows[2] = "GPU1\t X \tPIX\tSYS\tSYS\t0-7\t\t0"
    node = read_topo_text("\n".join((*rows, rows[3], *pcie_node().legend())))
    assert node.links == read_topo_text(pcie_node().text()).links
    assert node.gpus[1].numa == (0,)
    assert [note.split(":")[0] for note in node.notes] == ["line 3", "line 6"]


def test_only_the_first_of_two_tables_is_read() -> None:
    both = "\n".join((*pcie_node().rows(), "", *cube_mesh().rows()))
    assert len(read_topo_text(both).gpus) == 4


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 0, "expected a row such as"),
        ("GPU 0: NVIDIA H100 (UUID: GPU-1)\n", 0, "expected a row such as"),
        ("\tGPU0\tGPU1\tGPU1\nGPU0\tX\tNV1\tNV1", 1, "two columns are called GPU1"),
        ("\n" + " ".join(gpus(700)) + "\nGPU0 X", 2, "700 columns"),
        (" ".join(gpus(200)) + "\nGPU0 X", 0, "200 GPUs and 0 network cards"),
        ("GPU0 NV1 NV2\nGPU1 NV1 NV2", 1, "expected the heading"),
        ("\nGPU0 NV1 = NV2", 2, "expected the heading"),
        ("x" * 70_000, 1, "70000 characters: a line of the text of `nvidia-smi topo -m` has at most"),
        ("\n" * (5 << 20), 0, "characters: at most 4194304 are read"),
        ("\n" * 60_000, 0, "60001 lines: the text of `nvidia-smi topo -m` has at most 50000"),
    ],
)
def test_what_is_no_table_is_refused_with_the_line_and_what_was_expected(text: str, line: int, message: str) -> None:
    with pytest.raises(UnreadableTopologyError, match=message) as caught:
        read_topo_text(text)
    assert caught.value.line == line


@pytest.mark.parametrize(
    "text",
    [
        "\tGPU0\nGPU0\t X \n" + "MIG0\tX\n" * 49_000,
        "\tGPU0\nGPU0\t X \n" + ("0," * 30_000 + "\n") * 60,
        "\tGPU0\nGPU0\t X \n" + "GPU0\t X \n" * 49_000,
        "".join(f"GPU{at}\tSYS\t X \n" for at in range(10_000)) * 4,
        "GPU0 X " + "SYS " * 16_000 + "\n" + "GPU1 SYS X \n" * 40_000,
        " ".join(f"N{at}" for at in range(9_000)) + "\n" + "GPU0 X\n",
    ],
)
def test_a_long_text_is_read_or_refused_in_time(text: str) -> None:
    began = process_time()
    try:
        notes = read_topo_text(text).notes
    except UnreadableTopologyError:
        notes = ()
    assert process_time() - began < 5
    assert len(notes) <= 41


WORDS = st.sampled_from(
    [
        *(
            "GPU0",
            "GPU1",
            "NIC0",
            "MIG0",
            "X",
            "NV1",
            "NV",
            "SYS",
            "PIX",
            "N/A",
            "0-3",
            "0,",
            "CPU",
            "Affinity",
            "NUMA",
        ),
        *("ID", "Legend:", "=", "\t", "\n", "\n", " ", "\x1b[4m", "mlx5_0", "NIC0:", "-mp", "topo", "9" * 30),
    ]
)


@given(st.text() | st.lists(WORDS, max_size=60).map(" ".join) | st.lists(WORDS, max_size=60).map("\t".join))
def test_whatever_the_text_only_our_error_is_raised(text: str) -> None:
    try:
        node = read_topo_text(text)
    except UnreadableTopologyError:
        return
    assert len(node.links) == len(node.gpus) > 0
    assert all(len(row) == len(node.nics) for row in node.nic_links)


@given(st.data())
def test_a_good_text_that_was_damaged_raises_only_our_error(data: st.DataObject) -> None:
    text = PRINTED[data.draw(st.sampled_from(sorted(PRINTED)))]().text()
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(text)))
        length = data.draw(st.integers(0, 200))
        text = text[:at] + data.draw(WORDS | st.text(max_size=5)) + text[at + length :]
    try:
        node = read_topo_text(text)
    except UnreadableTopologyError:
        return
    assert all(node.links[one][two] == node.links[two][one] for one, two in pairs(node))
    assert len({gpu.uuid for gpu in node.gpus}) == len(node.gpus)
