"""What counters and XIDs say of a GPU: the whole table, what is degraded, what is out of use and for how long."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from phalanx.core.clock import ManualClock
from phalanx.core.messages import GpuInfo
from phalanx.core.states import GpuState
from phalanx.core.topology.node import Gpu, Health, Link, Nic, NodeTopology
from phalanx_agent import clear_gpu
from phalanx_agent.discovery.cordons import FILE, Cordons
from phalanx_agent.discovery.health import DAY_MS, Circumstances, Look, PastXid, Vitals, judge, react
from phalanx_agent.discovery.steady import LASTS_MS, Steady
from phalanx_agent.discovery.ward import JUST_NOW_MS, Tenancy, Ward
from phalanx_agent.discovery.xid_table import Action

GPU = Gpu(uuid="GPU-3", index=3, nvlinks_active=18)
INFO = GpuInfo(uuid="GPU-3", index=3)
ALONE = Circumstances(index=3, now_ms=DAY_MS * 2)
RED = Tenancy(workspaces=("red",))

# Written out by hand from the policy, not taken from the table under test.
USER = [8, 11, 13, 25, 31, 32, 39, 40, 41, 60, 68, 69, 70, 71, 94]
IGNORED = [14, 37, 38, 43, 44, 63, 66, 67]
QUARANTINED = [46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158]
WORKFLOW = [48, 74, 144, 145, 146, 147, 148, 149, 150]
OTHERS = [54, 78, 151]
TABLE = [
    *((xid, Action.NOTE) for xid in USER),
    *((xid, Action.IGNORE) for xid in IGNORED),
    *((xid, Action.QUARANTINE) for xid in (*QUARANTINED, *WORKFLOW, *OTHERS)),
    (79, Action.LOST),
]


@pytest.mark.parametrize(("xid", "action"), TABLE)
def test_every_xid_of_the_table_leads_to_its_action(xid: int, action: Action) -> None:
    reaction = react(xid, ALONE)
    assert reaction.action is action
    assert reaction.reason.startswith(f"XID {xid}: ")
    if action in (Action.QUARANTINE, Action.LOST):
        assert "; " in reaction.reason, "a person must be told what to do"


@pytest.mark.parametrize("xid", sorted(set(range(200)) - {xid for xid, _ in TABLE} - {45}))
def test_an_xid_that_nobody_knows_quarantines(xid: int) -> None:
    assert react(xid, ALONE).action is Action.QUARANTINE


def test_a_double_bit_error_says_how_to_reset_that_gpu() -> None:
    assert "double-bit ECC error; reset the GPU: nvidia-smi --gpu-reset -i 3" in react(48, ALONE).reason
    assert "reboot the node" in react(79, ALONE).reason


def test_a_cleanup_is_routine_near_our_own_kill_and_after_a_memory_error_and_else_told() -> None:
    assert react(45, replace(ALONE, our_kill=True)).action is Action.IGNORE
    past = (PastXid(xid=48, at_ms=ALONE.now_ms - 59_000),)
    assert react(45, replace(ALONE, past=past)).action is Action.IGNORE
    old = (PastXid(xid=48, at_ms=ALONE.now_ms - 61_000),)
    assert react(45, replace(ALONE, past=old)).action is Action.NOTE
    assert react(45, ALONE).action is Action.NOTE


def of_workspaces(*names: str, age_ms: int = 0, xid: int = 31) -> tuple[PastXid, ...]:
    return tuple(PastXid(xid=xid, at_ms=ALONE.now_ms - age_ms, workspaces=(name,)) for name in names)


def test_errors_of_three_workspaces_within_a_day_are_the_hardwares() -> None:
    third = replace(ALONE, workspaces=("blue",))
    reaction = react(13, replace(third, past=of_workspaces("red", "green", age_ms=DAY_MS)))
    assert reaction.action is Action.QUARANTINE
    assert "3rd workspace" in reaction.reason
    assert react(13, replace(third, past=of_workspaces("red", "blue", "red"))).action is Action.NOTE
    assert react(13, replace(third, past=of_workspaces("red", "green", age_ms=DAY_MS + 1))).action is Action.NOTE
    assert react(13, replace(third, past=of_workspaces("red", "green", xid=45))).action is Action.NOTE


# ---- counters ----


def looked(vitals: Vitals, *, at_ms: int = 0, most_nvlinks: int = 18) -> Look:
    return Look(vitals=vitals, at_ms=at_ms, most_nvlinks=most_nvlinks)


@pytest.mark.parametrize(
    ("vitals", "words"),
    [
        (Vitals(remap_failed=True, remap_pending=False), "exchanged"),
        (Vitals(uncorrectable=1), "nvidia-smi --gpu-reset -i 3"),
    ],
)
def test_what_cannot_be_used_is_quarantined_with_what_to_do(vitals: Vitals, words: str) -> None:
    assert words in judge(GPU, looked(vitals)).quarantine


@pytest.mark.parametrize(
    ("vitals", "words"),
    [
        (Vitals(remap_pending=True, remap_failed=False, uncorrectable=1), "waits to be replaced"),
        (Vitals(remap_pending=False, remap_failed=False, uncorrectable=1), "had uncorrectable ECC errors"),
        (Vitals(slowdowns=("it is too hot (driver)",)), "slowed down: it is too hot"),
        (Vitals(pcie_width=8, pcie_width_max=16), "PCIe x8 instead of x16"),
        (Vitals(pcie_gen=3, pcie_gen_max=5, at_full_clock=True), "PCIe gen 3 instead of gen 5"),
    ],
)
def test_what_works_badly_is_degraded_and_stays_in_use(vitals: Vitals, words: str) -> None:
    found = judge(GPU, looked(vitals))
    assert found.quarantine == ""
    assert words in "; ".join(found.degraded)


def test_nothing_is_said_of_a_well_gpu_of_an_idle_one_and_of_one_that_tells_nothing() -> None:
    well = Vitals(
        uncorrectable=0, corrected=7, remap_pending=False, remap_failed=False, pcie_width=16, pcie_width_max=16
    )
    idle = Vitals(pcie_gen=1, pcie_gen_max=4, at_full_clock=False)
    for vitals in (well, idle, Vitals()):
        assert judge(GPU, looked(vitals)).degraded == ()
        assert judge(GPU, looked(vitals)).quarantine == ""


def test_a_link_that_is_down_and_links_that_repeat_much_degrade() -> None:
    assert judge(replace(GPU, nvlinks_active=17), looked(Vitals())).degraded == ("17 of 18 NVLinks work",)
    before = looked(Vitals(crc_errors=1000))
    assert judge(GPU, looked(Vitals(crc_errors=1301), at_ms=3000), before).degraded != ()
    assert judge(GPU, looked(Vitals(crc_errors=1300), at_ms=3000), before).degraded == ()


# ---- over time ----


def ward(tmp_path: Path, clock: ManualClock, boot: str = "boot-1") -> Ward:
    return Ward(tmp_path / FILE, boot_id=boot, clock=clock)


def state_of(seen: Ward) -> GpuState:
    mark = seen.mark(INFO)
    return mark.state if mark is not None else GpuState.FREE


def test_a_restart_of_the_agent_heals_nothing_and_a_reboot_starts_anew(tmp_path: Path) -> None:
    clock = ManualClock()
    ward(tmp_path, clock).heard(INFO, 48, RED, our_kill=False)
    again = ward(tmp_path, clock).mark(INFO)
    assert again is not None
    assert (again.state, again.cordon) == (GpuState.QUARANTINED, True)
    assert "double-bit" in again.reason
    assert state_of(ward(tmp_path, clock, "boot-2")) is GpuState.FREE


def test_a_gpu_that_fell_off_the_bus_is_down_and_no_later_xid_makes_it_less(tmp_path: Path) -> None:
    seen = ward(tmp_path, ManualClock())
    seen.heard(INFO, 79, RED, our_kill=False)
    seen.heard(INFO, 48, RED, our_kill=False)
    mark = seen.mark(INFO)
    assert mark is not None
    assert (mark.state, mark.cordon) == (GpuState.DOWN, False)
    topology = seen.look(NodeTopology(gpus=(GPU,), links=((Link(),),)), {})
    assert topology is not None
    assert (topology.gpus[0].health, "XID 79" in topology.gpus[0].reason) == (Health.LOST, True)


def test_the_first_fault_stays_the_reason_until_the_gpu_is_lost(tmp_path: Path) -> None:
    seen = ward(tmp_path, ManualClock())
    said: list[str] = []
    for xid in (48, 119, 120, 79):
        seen.heard(INFO, xid, RED, our_kill=False)
        mark = seen.mark(INFO)
        assert mark is not None
        said.append(mark.reason.split(":")[0])
    assert said == ["XID 48", "XID 48", "XID 48", "XID 79"]


def test_one_user_error_is_passing_and_three_tenants_make_it_the_gpus_over_a_restart(tmp_path: Path) -> None:
    clock = ManualClock()
    for name in ("red", "green"):
        seen = ward(tmp_path, clock)
        assert seen.heard(INFO, 69, Tenancy(workspaces=(name,)), our_kill=False).action is Action.NOTE
        assert state_of(seen) is GpuState.FREE
    seen = ward(tmp_path, clock)
    assert seen.heard(INFO, 69, Tenancy(workspaces=("blue",)), our_kill=False).action is Action.QUARANTINE


def test_a_reset_that_shows_in_the_counters_gives_the_gpu_back(tmp_path: Path) -> None:
    clock = ManualClock()
    seen = ward(tmp_path, clock)
    node = NodeTopology(gpus=(GPU,), links=((Link(),),))
    counted = Vitals(uncorrectable=2, corrected=5, remap_pending=True, remap_failed=False)
    seen.look(node, {"GPU-3": counted})
    seen.heard(INFO, 95, RED, our_kill=False)
    seen.look(node, {"GPU-3": counted})
    assert state_of(seen) is GpuState.QUARANTINED
    after = ward(tmp_path, clock)
    after.look(node, {"GPU-3": Vitals()})
    assert state_of(after) is GpuState.QUARANTINED, "counters that are not told prove nothing"
    after.look(node, {"GPU-3": Vitals(uncorrectable=0, corrected=0, remap_pending=False, remap_failed=False)})
    assert state_of(after) is GpuState.FREE


@pytest.mark.parametrize("restarted", [False, True])
def test_a_counter_that_is_not_told_once_is_no_reset(tmp_path: Path, *, restarted: bool) -> None:
    clock = ManualClock()
    seen = ward(tmp_path, clock)
    node = NodeTopology(gpus=(GPU,), links=((Link(),),))
    counted = Vitals(uncorrectable=2, corrected=5, remap_pending=True, remap_failed=False)
    seen.look(node, {"GPU-3": counted})
    seen.heard(INFO, 95, RED, our_kill=False)
    later = ward(tmp_path, clock) if restarted else seen
    later.look(node, {"GPU-3": replace(counted, corrected=None)})
    assert state_of(later) is GpuState.QUARANTINED


def test_a_gpu_that_replaces_rows_is_not_quarantined_where_it_says_nothing_of_them_once(tmp_path: Path) -> None:
    seen = ward(tmp_path, ManualClock())
    node = NodeTopology(gpus=(GPU,), links=((Link(),),))
    counted = Vitals(uncorrectable=1, corrected=0, remap_pending=False, remap_failed=False)
    seen.look(node, {"GPU-3": counted})
    seen.look(node, {"GPU-3": replace(counted, remap_pending=None, remap_failed=None)})
    assert state_of(seen) is GpuState.FREE


def test_the_control_plane_gets_some_seconds_to_hear_of_it(tmp_path: Path) -> None:
    clock = ManualClock(monotonic_ms=50_000)
    seen = ward(tmp_path, clock)
    assert not seen.just_cordoned("GPU-3")
    seen.heard(INFO, 48, RED, our_kill=False)
    assert seen.just_cordoned("GPU-3")
    clock.advance(JUST_NOW_MS)
    assert not seen.just_cordoned("GPU-3")


def test_a_person_clears_a_gpu_and_a_running_agent_sees_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen = ward(tmp_path, ManualClock())
    seen.heard(INFO, 119, RED, our_kill=False)
    assert clear_gpu.main(["--state-dir", str(tmp_path)]) == 0
    assert "GPU-3: XID 119" in capsys.readouterr().out
    assert clear_gpu.main(["--state-dir", str(tmp_path), "GPU-9"]) == 2
    assert "GPU-9 is not out of use here: GPU-3" in capsys.readouterr().err
    assert clear_gpu.main(["--state-dir", str(tmp_path), "GPU-3"]) == 0
    seen.look(None, {})
    assert state_of(seen) is GpuState.FREE


def test_a_person_hears_that_the_agents_files_could_not_be_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ward(tmp_path, ManualClock()).heard(INFO, 119, RED, our_kill=False)
    lock = (tmp_path / FILE).with_suffix(".lock")
    lock.unlink()
    lock.mkdir()
    assert clear_gpu.main(["--state-dir", str(tmp_path), "GPU-3"]) == 1
    heard = capsys.readouterr()
    assert (heard.out, "GPU-3 is still out of use" in heard.err) == ("", True)
    (tmp_path / FILE).unlink()
    (tmp_path / FILE).mkdir()
    assert clear_gpu.main(["--state-dir", str(tmp_path), "GPU-3"]) == 1
    assert f"{tmp_path / FILE} cannot be read" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() != 0, reason="only root acts for others")
def test_what_root_clears_stays_the_agents_to_read_and_write() -> None:
    run = "import sys; from phalanx_agent import clear_gpu; sys.exit(clear_gpu.main(sys.argv[1:]))"
    with tempfile.TemporaryDirectory() as name:
        state = Path(name)
        two = ward(state, ManualClock())
        for gpu in (INFO, replace(INFO, uuid="GPU-4")):
            two.heard(gpu, 119, RED, our_kill=False)
        for path in (state, *state.iterdir()):
            os.chown(path, 1234, 1234)
        subprocess.run([sys.executable, "-c", run, "--state-dir", name, "GPU-3"], check=True)
        assert {path.stat().st_uid for path in state.iterdir()} == {1234}
        assert set(Cordons(state / FILE, boot_id="boot-1").all()) == {"GPU-4"}


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"boot_id": "boot-1"}', '{"boot_id": "boot-1", "cordons": 3, "xids": 4}']
)
def test_a_broken_file_is_an_empty_one(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    assert Cordons(tmp_path / FILE, boot_id="boot-1").all() == {}


def test_a_file_that_cannot_be_read_for_now_gives_no_gpu_back(tmp_path: Path) -> None:
    seen = ward(tmp_path, ManualClock())
    seen.heard(INFO, 48, RED, our_kill=False)
    (tmp_path / FILE).unlink()
    (tmp_path / FILE).mkdir()
    seen.look(None, {})
    assert state_of(seen) is GpuState.QUARANTINED


def test_without_a_disk_the_quarantine_stands_in_memory(tmp_path: Path) -> None:
    seen = Ward(tmp_path / "missing" / FILE, boot_id="b", clock=ManualClock())
    seen.heard(INFO, 48, RED, our_kill=False)
    assert state_of(seen) is GpuState.QUARANTINED


def test_behind_a_switch_fewer_links_than_the_siblings_are_too_few(tmp_path: Path) -> None:
    gpus = tuple(Gpu(uuid=f"GPU-{at}", index=at, model="H100", nvlinks_active=17 if at == 1 else 18) for at in range(3))
    joined = tuple(tuple(Link() if i == j else Link(17, switched=True) for j in range(3)) for i in range(3))
    vitals = {gpu.uuid: Vitals() for gpu in gpus}
    seen = ward(tmp_path, ManualClock()).look(NodeTopology(gpus=gpus, links=joined), vitals)
    assert seen is not None
    assert [gpu.health for gpu in seen.gpus] == [Health.OK, Health.DEGRADED, Health.OK]
    bridged = tuple(tuple(Link(0 if 1 in (i, j) else 4, switched=False) for j in range(3)) for i in range(3))
    alone = Ward(tmp_path / "other", boot_id="b", clock=ManualClock()).look(
        NodeTopology(gpus=gpus, links=bridged), vitals
    )
    assert alone is not None
    assert [gpu.health for gpu in alone.gpus] == [Health.OK] * 3, "bridged GPUs have as many links as they have"


# ---- what is told ----

WELL = NodeTopology(nics=(Nic(name="mlx5_0", up=True),))
DOWN = NodeTopology(nics=(Nic(name="mlx5_0", up=False),))


def test_a_change_for_the_worse_is_told_at_the_second_look() -> None:
    steady = Steady(WELL)
    assert not steady.take(DOWN, 3000)
    assert steady.told == WELL
    assert steady.take(DOWN, 6000)
    assert steady.told == DOWN
    assert not steady.take(DOWN, 9000)


def test_a_change_for_the_better_is_told_once_it_has_lasted() -> None:
    steady = Steady(DOWN)
    told = [steady.take(WELL, at) for at in range(0, LASTS_MS + 3000, 3000)]
    assert told == [False] * (LASTS_MS // 3000) + [True]


def test_a_port_that_comes_and_goes_is_told_once() -> None:
    steady = Steady(WELL)
    changes = sum(steady.take(WELL if at // 12_000 % 2 else DOWN, at) for at in range(0, 600_000, 3000))
    assert (changes, steady.told) == (1, DOWN)


def test_what_lasts_is_told_beside_something_that_flickers() -> None:
    hot = replace(GPU, health=Health.DEGRADED, reason="slowed down: it is too hot (driver)")
    ill = replace(hot, reason=f"17 of 18 NVLinks work; {hot.reason}")
    alone = replace(hot, reason="17 of 18 NVLinks work")
    steady = Steady(NodeTopology(gpus=(GPU,)))
    told = [steady.take(NodeTopology(gpus=(ill if at % 2 else alone,)), at * 3000) for at in range(2)]
    assert told == [False, True]
    assert steady.told == NodeTopology(gpus=(ill,))


def test_a_port_that_is_gone_is_told_at_the_second_look() -> None:
    steady = Steady(WELL)
    assert [steady.take(NodeTopology(), at) for at in (3000, 6000)] == [False, True]


def test_an_improvement_is_told_beside_something_that_flickers_and_costs_one_entry() -> None:
    def node(*, hot: bool, up: bool) -> NodeTopology:
        gpu = replace(GPU, health=Health.DEGRADED, reason="slowed down: it is too hot (driver)") if hot else GPU
        return NodeTopology(gpus=(gpu,), nics=(Nic(name="mlx5_0", up=up),))

    steady = Steady(node(hot=True, up=False))
    told = [at for at in range(0, 600_000, 3000) if steady.take(node(hot=at % 6000 == 0, up=True), at)]
    assert told == [LASTS_MS]
    assert steady.told == node(hot=True, up=True)


def test_a_gpu_that_is_back_is_told_beside_something_that_flickers() -> None:
    hot = replace(GPU, health=Health.DEGRADED, reason="slowed down: it is too hot (driver)")
    back = replace(GPU, uuid="GPU-4", index=4)
    steady = Steady(NodeTopology(gpus=(hot,)))
    seen = [NodeTopology(gpus=(hot if at % 2 else GPU, back)) for at in range(12)]
    assert [at for at, each in enumerate(seen) if steady.take(each, at * 3000)] == [LASTS_MS // 3000]


def test_a_quarantine_by_counters_outlives_the_agent_until_a_reset_shows(tmp_path: Path) -> None:
    clock = ManualClock()
    node = NodeTopology(gpus=(GPU,), links=((Link(),),))
    seen = ward(tmp_path, clock)
    for _ in range(2):
        seen.look(node, {"GPU-3": Vitals(uncorrectable=2, corrected=1)})
    again = ward(tmp_path, clock)
    assert again.remembered("GPU-3")
    mark = again.mark(INFO)
    assert mark is not None
    assert (mark.state, mark.cordon) == (GpuState.QUARANTINED, True)
    assert "uncorrectable ECC errors in its memory: reset the GPU" in mark.reason
    topology = again.look(node, {"GPU-3": Vitals(uncorrectable=2, corrected=1)})
    assert topology is not None
    assert topology.gpus[0].reason == mark.reason, "one fault is one sentence"
    again.look(node, {"GPU-3": Vitals()})
    assert state_of(again) is GpuState.QUARANTINED, "a driver that says nothing proves nothing"
    again.look(node, {"GPU-3": Vitals(uncorrectable=0, corrected=0)})
    assert state_of(again) is GpuState.FREE
    assert not ward(tmp_path, clock).remembered("GPU-3")


def test_a_counter_that_is_left_out_at_one_look_quarantines_nobody_for_good(tmp_path: Path) -> None:
    clock = ManualClock()
    node = NodeTopology(gpus=(GPU,), links=((Link(),),))
    seen = ward(tmp_path, clock)
    seen.look(node, {"GPU-3": Vitals(uncorrectable=1, corrected=0)})
    assert state_of(seen) is GpuState.QUARANTINED
    seen.look(node, {"GPU-3": Vitals(uncorrectable=1, corrected=0, remap_pending=False, remap_failed=False)})
    assert state_of(seen) is GpuState.FREE


def test_a_person_cannot_clear_what_the_counters_still_show(tmp_path: Path) -> None:
    clock = ManualClock()
    node = NodeTopology(gpus=(GPU,), links=((Link(),),))
    seen = ward(tmp_path, clock)
    for _ in range(2):
        seen.look(node, {"GPU-3": Vitals(remap_failed=True, remap_pending=False)})
    assert clear_gpu.main(["--state-dir", str(tmp_path), "GPU-3"]) == 0
    seen.look(node, {"GPU-3": Vitals(remap_failed=True, remap_pending=False)})
    assert state_of(seen) is GpuState.QUARANTINED
    assert ward(tmp_path, clock).remembered("GPU-3")


def test_two_ports_of_one_name_are_told_apart() -> None:
    def ports(*states: bool) -> NodeTopology:
        return NodeTopology(nics=tuple(Nic(name="eth0", up=up) for up in states))

    steady = Steady(ports(False, True))
    assert [steady.take(ports(False, False), at) for at in (3000, 6000)] == [False, True]
    assert [steady.take(ports(False), at) for at in (9000, 12_000)] == [False, True]
