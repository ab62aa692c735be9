"""What the simulator reads, and what it says of files that it cannot."""

from __future__ import annotations

import json
import random

import pytest

from phalanx.core.errors import InvalidSpecError
from phalanx_control.simulator.jobs import Job
from phalanx_control.simulator.machines import Fleet, from_file, from_words
from phalanx_control.simulator.traces import read_jobs

PODS = "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time\n"
PHILLY = "timestamp,duration,num_gpus,gpu_time,cluster\n"


def jobs_of(text: str, seed: int = 1) -> tuple[Job, ...]:
    return read_jobs(text, name="t.csv", shuffle=random.Random(seed).shuffle)


def test_pods_are_read_with_fractions_models_and_what_they_took_beside_gpus() -> None:
    first, second = jobs_of(
        f"{PODS}p1,6000,12288,1,460,T4|P100,LS,Running,100,160,110\np0,4000,1024,2,1000,,LS,Running,90,95,90\n"
    )
    assert (second.gpus, second.gpu, second.at_ms, second.duration_ms) == (0.46, "T4|P100", 10_000, 50_000)
    assert (first.gpus, first.cpus, first.one_node, first.workspace) == (2, 4.0, True, "default")
    assert second.memory_gb == pytest.approx(12_288 * 2**20 / 1e9)


def test_pods_without_times_come_one_a_second_in_an_order_drawn_from_the_seed() -> None:
    text = "name,cpu_milli,memory_mib,num_gpu,gpu_milli\n" + "".join(f"p{n},0,0,{n},1000\n" for n in range(1, 9))
    one, again, other = jobs_of(text, 1), jobs_of(text, 1), jobs_of(text, 2)
    assert one == again
    assert [job.gpus for job in one] != [job.gpus for job in other]
    assert [job.at_ms for job in one] == [1000 * at for at in range(8)]
    assert {job.duration_ms for job in one} == {None}


def test_phillys_virtual_clusters_are_workspaces() -> None:
    (job,) = jobs_of(f"{PHILLY}2017-10-09 07:01:55,66.0,4,66.0,11cb48\n")
    assert (job.workspace, job.gpus, job.at_ms, job.duration_ms, job.one_node) == ("11cb48", 4, 0, 66_000, False)


def test_our_own_lines_are_read() -> None:
    (job,) = jobs_of(
        '{"at": 5, "duration": 2.5, "gpus": 8, "workspace": "w", "user": "ana", "gpu": "H100", "preemptible": true}\n'
    )
    assert (job.at_ms, job.duration_ms, job.gpus, job.workspace, job.user, job.gpu) == (0, 2500, 8, "w", "ana", "H100")
    assert (job.preemptible, job.priority) == (True, 0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{PHILLY}2017-10-09 07:01:55,x,4,66.0,11cb48\n", "t.csv, line 2, column 'duration': 'x' is no number"),
        (f"{PHILLY}yesterday,1,4,66.0,11cb48\n", "t.csv, line 2, column 'timestamp': 'yesterday' is no time"),
        (f"{PHILLY}2017-10-09 07:01:55,1,4\n", "t.csv, line 2: 3 cells where the first line names 5"),
        (f"{PODS}p,1,1,1,1500,,LS,Running,1,2,1\n", "t.csv, line 2, column 'gpu_milli': '1500' must be 1 to 1000"),
        ("name,gpu_milli\n", "t.csv, line 1: a list of pods needs the column 'cpu_milli'"),
        ("hello\n", "t.csv is no list of jobs: it begins with 'hello'"),
        ('{"at": 0, "gpus": 1}\n{"at": 0 "gpus": 1}\n', "t.csv, line 2, column 10: Expecting ',' delimiter"),
        ('{"at": 0, "gpus": 1.5}\n', 't.csv, line 1, key "gpus": 1.5 is neither a whole number nor a fraction'),
        ('{"at": 0, "gpus": 1, "gpu_type": 2}\n', "t.csv, line 1: unknown key 'gpu_type'"),
        ('{"at": -1, "gpus": 1}\n', "t.csv, line 1, key \"at\": '-1' is no number of 0 or more"),
    ],
)
def test_mistakes_are_told_by_line_and_column(text: str, said: str) -> None:
    with pytest.raises(InvalidSpecError) as e:
        jobs_of(text)
    assert str(e.value).startswith(said)


def test_fleets_are_written_as_words() -> None:
    fleet = from_words("2 x aws_p5 3x4 gpu=A100, 1 x 8")
    assert [len(node.gpus) for node in fleet.nodes] == [8, 8, 4, 4, 4, 8]
    assert [node.gpus[0].model for node in fleet.nodes[1:3]] == ["NVIDIA H100 80GB HBM3", "A100"]
    assert len({node.node_id for node in fleet.nodes}) == 6
    assert all(gpu.uuid in node.topology for node in fleet.nodes[:2] for gpu in node.gpus)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("64 aws_p5", "'64 aws_p5' is no number of machines"),
        ("4 x aws_p55", "no machine 'aws_p55': did you mean aws_p5?"),
        ("0 x 8", "'0 x 8': give 1 to 100,000 nodes"),
        ("", "no machines are named"),
    ],
)
def test_words_that_are_no_fleet_are_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidSpecError) as e:
        from_words(text)
    assert str(e.value).startswith(said)


def test_fleets_are_read_from_openbs_list_and_from_json() -> None:
    openb = from_file("sn,cpu_milli,memory_mib,gpu,model\nn0,64000,262144,2,P100\nn1,32000,1024,0,\n", name="n.csv")
    assert [(node.node_id, node.cpus, len(node.gpus)) for node in openb.nodes] == [("n0", 64, 2), ("n1", 32, 0)]
    said = {"nodes": [{"name": "a", "gpus": 8, "gpu": "H100", "count": 2}, {"name": "b", "preset": "dgx1_v100"}]}
    fleet = from_file(json.dumps(said), name="f.json")
    assert [node.node_id for node in fleet.nodes] == ["a-1", "a-2", "b"]
    assert fleet.gpus == 24


def test_two_nodes_of_one_name_are_refused() -> None:
    fleet: Fleet = from_words("1x8")
    with pytest.raises(InvalidSpecError, match="two nodes are called 'node-1'"):
        fleet.beside(from_words("1x8"))
