"""The agent decides which gangs verify links, keeps what they found for this boot, and tells it with the topology."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest

from phalanx.core.clock import ManualClock, SystemClock
from phalanx.core.errors import InvalidSpecError
from phalanx.core.messages import Member
from phalanx.core.spec import EnvSpec, FunctionSpec, Resources
from phalanx.core.topology.presets import preset
from phalanx_agent import clear_gpu, settings
from phalanx_agent.dataplane.facts import RankSaid
from phalanx_agent.discovery.simulated import SimulatedGpus
from phalanx_agent.discovery.watch import GpuWatch
from phalanx_agent.gang_config import GangConfig, config_from_json, config_to_json
from phalanx_agent.preflight import Preflight
from phalanx_agent.preflight_book import FILE
from phalanx_agent.preflight_modes import Mode
from tests.support.builders import node_info
from tests.support.cells import Cell
from tests.support.gang_configs import gang_config

NODE = "n0"


class Bench:
    """An agent's preflight on a node like a DGX H100, and gangs on it."""

    def __init__(self, folder: Path, mode: Mode = Mode.LEASE, *, boot: str = "b1", like: str = "dgx_h100") -> None:
        self.folder = folder
        source = SimulatedGpus(node_id=NODE, count=4, like=preset(like) if like else None)
        watch = GpuWatch(source, baseline_path=folder / "baseline.json", boot_id=boot, clock=SystemClock())
        self.uuids = tuple(gpu.uuid for gpu in watch.all())
        self.preflight = Preflight(mode, watch, state_dir=folder, boot_id=boot, clock=ManualClock())

    def gang(self, *places: int, mode: str = "", gang_id: str = "g-1") -> GangConfig:
        variables = (("PHALANX_PREFLIGHT", mode),) if mode else ()
        function = FunctionSpec(name="f", resources=Resources(gpus=len(places)), env=EnvSpec(variables=variables))
        member = Member(node_id=NODE, ranks=len(places), gpus=tuple(self.uuids[at] for at in places))
        return gang_config(function, member, gang_id=gang_id)

    def tried(self, *places: int, wrong: tuple[int, int] = (-1, -1), slow: tuple[int, int] = (-1, -1)) -> bool:
        """A gang tries its pairs; says whether the topology changed."""
        planned = self.preflight.plan(self.gang(*places))
        pairs = tuple(
            (a, b, (places[a], places[b]) != wrong, 0.5 if (places[a], places[b]) == slow else 20.0)
            for a, b, _ in planned.pairs
        )
        said = RankSaid(gang_id="g-1", rank=0, event="verified", pairs=pairs, all_reduce_gbyte_s=12.5)
        return self.preflight.heard(said)

    def placed(self, gpus: int) -> set[int]:
        """Returns the places of the GPUs that the scheduler would give to a gang."""
        from phalanx.core.topology.codec import to_json

        topology = self.preflight.topology
        info = node_info(NODE, gpus=len(self.uuids))
        named = tuple(replace(gpu, uuid=uuid) for gpu, uuid in zip(info.gpus, self.uuids, strict=True))
        cell = Cell.of(None, [replace(info, gpus=named, topology=to_json(topology) if topology else "")])
        (member,) = cell.place(gpus).members
        return {self.uuids.index(uuid) for uuid in member.gpus}


def test_a_pair_that_copies_wrongly_is_told_and_the_next_gang_goes_elsewhere(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    assert bench.placed(2) == {0, 1}
    assert bench.tried(0, 1, wrong=(0, 1))
    assert not {0, 1} <= bench.placed(2)
    assert not {0, 1} <= bench.placed(7)
    assert bench.preflight.wrong_pair(bench.uuids[:4]).startswith(f"copies between {min(bench.uuids[:2])} and")
    assert not bench.preflight.wrong_pair(bench.uuids[1:])


def test_a_slow_pair_is_told_and_the_next_gang_goes_elsewhere(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    assert bench.tried(0, 1, 2, 3, slow=(0, 1))
    assert not {0, 1} <= bench.placed(2)
    assert not bench.preflight.wrong_pair(bench.uuids)


def test_a_node_of_unknown_links_keeps_its_wrong_pairs_apart_too(tmp_path: Path) -> None:
    bench = Bench(tmp_path, like="")
    assert bench.preflight.topology is None
    assert bench.tried(0, 1, wrong=(0, 1))
    assert not {0, 1} <= bench.placed(2)


def test_what_was_found_survives_a_restart_and_is_forgotten_at_another_boot(tmp_path: Path) -> None:
    Bench(tmp_path).tried(*range(8), wrong=(2, 5))
    again = Bench(tmp_path)
    assert not {2, 5} <= again.placed(7)
    assert again.preflight.topology is not None
    assert again.preflight.topology.all_reduce_gbyte_s == 12.5
    rebooted = Bench(tmp_path, boot="b2")
    assert rebooted.preflight.topology == rebooted.preflight._gpus.topology  # pyright: ignore[reportPrivateUsage]
    assert rebooted.tried(0, 1)
    assert '"b2"' in (tmp_path / FILE).read_text()


def test_a_person_lets_a_pair_be_tried_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench = Bench(tmp_path)
    bench.tried(0, 1, wrong=(0, 1))
    assert clear_gpu.main(["--state-dir", str(tmp_path)]) == 0
    assert f"{bench.uuids[1]}: copies to and from {bench.uuids[0]} come out wrong" in capsys.readouterr().out
    assert clear_gpu.main(["--state-dir", str(tmp_path), bench.uuids[1]]) == 0
    assert bench.preflight.refresh()
    assert bench.placed(2) == {0, 1}
    assert not bench.preflight.refresh()


def test_figures_that_differ_as_measurements_do_change_nothing_that_is_told(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    assert bench.tried(0, 1, 2, 3)
    told = bench.preflight.topology
    assert not bench.tried(0, 1, 2, 3)
    assert bench.preflight.topology is told


def test_the_first_gang_of_a_boot_tries_a_pair_and_no_later_one(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Mode.BOOT)
    assert [pair[:2] for pair in bench.preflight.plan(bench.gang(4, 5, 6)).pairs] == [(0, 1), (0, 2), (1, 2)]
    bench.tried(4, 5, 6)
    assert bench.preflight.plan(bench.gang(4, 5, 6)) == bench.gang(4, 5, 6)
    assert [pair[:2] for pair in bench.preflight.plan(bench.gang(4, 5, 7)).pairs] == [(0, 2), (1, 2)]


@pytest.mark.parametrize("asked", ["lease", "verify"])
def test_a_function_may_ask_for_it_where_the_node_does_not(tmp_path: Path, asked: str) -> None:
    bench = Bench(tmp_path, Mode.OFF)
    assert bench.preflight.plan(bench.gang(0, 1)) == bench.gang(0, 1)
    planned = bench.preflight.plan(bench.gang(0, 1, mode=asked))
    assert (planned.preflight, planned.pairs) == (asked, ((0, 1, "NV18 switched"),))
    assert config_from_json(config_to_json(planned)) == planned


def test_nonsense_that_a_function_asks_for_is_named(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    with pytest.raises(OSError, match="PHALANX_PREFLIGHT='sometimes' of f: give one of off, boot, lease, verify"):
        bench.preflight.plan(bench.gang(0, 1, mode="sometimes"))


def test_ranks_that_hold_several_gpus_or_a_part_of_one_try_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    for member in (
        Member(node_id=NODE, ranks=1, gpus=bench.uuids[:1]),
        Member(node_id=NODE, ranks=1, gpus=bench.uuids[:4]),
        Member(node_id=NODE, ranks=1),
    ):
        gang = replace(bench.gang(0), members=(member,))
        assert bench.preflight.plan(gang) == gang


def test_only_what_the_agent_asked_for_is_believed(tmp_path: Path) -> None:
    bench = Bench(tmp_path, Mode.BOOT)
    claim = RankSaid(gang_id="g-1", rank=0, event="verified", pairs=((0, 1, False, 1.0),))
    assert not bench.preflight.heard(claim)
    bench.tried(0, 1)
    bench.preflight.plan(bench.gang(0, 1, 2))
    assert bench.preflight.heard(replace(claim, pairs=((0, 1, False, 1.0), (0, 2, True, 20.0), (5, 9, False, 1.0))))
    assert not bench.preflight.wrong_pair(bench.uuids)
    assert not bench.preflight.heard(claim)


def test_all_pairs_of_a_full_node_are_tried(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    planned = bench.preflight.plan(bench.gang(*range(8)))
    assert [pair[:2] for pair in planned.pairs] == list(combinations(range(8), 2))


def test_a_file_that_cannot_be_read_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text('{"boot_id": "b1", "pairs": [{"gpus": 3}]}')
    assert Bench(tmp_path).placed(2) == {0, 1}


def test_a_file_that_cannot_be_read_for_now_brings_no_wrong_pair_back(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.tried(*range(8), wrong=(2, 5))
    (tmp_path / FILE).unlink()
    (tmp_path / FILE).mkdir()
    assert not bench.preflight.refresh()
    assert not {2, 5} <= bench.placed(7)
    assert "come out wrong" in bench.preflight.wrong_pair((bench.uuids[2], bench.uuids[5]))


def test_the_setting_is_off_unless_it_is_given_and_nonsense_is_named() -> None:
    needed = ["--control", "h:1", "--ca", "ca.pem", "--run-dir", "/tmp/r"]
    assert settings.read(needed, {}).preflight is Mode.OFF
    assert settings.read(needed, {"PHALANX_AGENT_PREFLIGHT": "boot"}).preflight is Mode.BOOT
    with pytest.raises(InvalidSpecError, match="--preflight 'verify': give one of off, boot, lease"):
        settings.read([*needed, "--preflight", "verify"], {})
