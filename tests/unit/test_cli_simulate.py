"""How gpuctl shows a simulation, and what it makes of a cluster's own calls. The simulator itself is not run."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

import pytest

from phalanx.cli.main import root
from phalanx.cli.options import Session
from phalanx.cli.simulation_history import fleet_of, jobs_of
from phalanx.cli.simulation_picture import picture
from phalanx.cli.simulation_text import headlines, wait_rows
from phalanx.core.errors import InvalidSpecError
from phalanx.core.messages import GpuInfo
from phalanx.core.views import CallView, GpuView, NodeView
from phalanx_control.simulator.jobs import Job
from phalanx_control.simulator.machines import from_file, from_words
from phalanx_control.simulator.play import Asked, play
from phalanx_control.simulator.traces import read_jobs


def results() -> dict[str, Any]:
    jobs = [Job(number=0, at_ms=1000 * at, duration_ms=60_000, gpus=8, workspace=f"w{at % 2}") for at in range(3)]
    return play(jobs, from_words("1x8"), Asked())


def test_a_table_and_what_is_true_of_the_whole_run() -> None:
    assert wait_rows(results())[-1] == ("all", "3", "59 s", "59 s", "1m 58s", "1m 58s", "")
    lines = headlines(results())
    assert lines[0] == "3 jobs on 1 node, 8 GPUs; they ask for 9000% of it; policy live"
    assert lines[1] == "100.0% of GPUs held while jobs arrived; all done after 3m 00s"


def test_the_picture_is_well_formed_and_has_a_bar_pair_for_each_size_and_three_lines() -> None:
    tree = ElementTree.fromstring(picture(results()))
    tags = [element.tag.rpartition("}")[2] for element in tree.iter()]
    assert tags.count("rect") == 2 * len(results()["waits"])
    assert tags.count("polyline") == 3


def test_a_clusters_calls_are_lines_that_the_simulator_reads() -> None:
    calls = [
        CallView(call_id="c2", state="running", gpus=8, user="ana", submitted_ms=5_000, started_ms=6_000),
        CallView(call_id="c3", state="queued", gpus=1, submitted_ms=7_000),
        CallView(call_id="c1", gpus=0.5, workspace="w", submitted_ms=1_000, started_ms=2_000, ended_ms=4_500),
    ]
    said, left_out = jobs_of(calls, now_ms=10_000)
    first, second = read_jobs("\n".join(map(json.dumps, said)), name="calls", shuffle=lambda _: None)
    assert left_out == 1
    assert (first.gpus, first.workspace, first.duration_ms) == (0.5, "w", 2_500)
    assert (second.user, second.at_ms, second.duration_ms) == ("ana", 4_000, 4_000)


def test_a_clusters_nodes_are_a_fleet_and_played_ones_count_as_what_they_play() -> None:
    gpus = tuple(GpuView(info=GpuInfo(uuid=f"u{at}", index=at, model="played NVIDIA H100")) for at in range(8))
    nodes = [NodeView(node_id="n1", cpus=64, gpus=gpus), NodeView(node_id="n2", state="lost", gpus=gpus)]
    fleet = from_file(json.dumps(fleet_of(nodes)), name="nodes")
    assert [(node.node_id, node.cpus, node.gpus[0].model) for node in fleet.nodes] == [("n1", 64, "NVIDIA H100")]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--fleet", "8x8"], "name one file of jobs, or --live"),
        (["t.jsonl", "--live"], "name one file of jobs, or --live"),
        (["t.jsonl"], "no fleet is named"),
    ],
)
def test_what_is_missing_is_told(words: list[str], said: str) -> None:
    with pytest.raises(InvalidSpecError, match=said):
        root.main(["simulate", *words], prog_name="gpuctl", standalone_mode=False, obj=Session())
