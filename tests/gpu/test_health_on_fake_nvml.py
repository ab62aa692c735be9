"""Health, parts and fabric through the real nvidia-ml-py, on machines described by files: DGX, split, PCIe, broken."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from phalanx.core.clock import SystemClock
from phalanx.core.messages import GpuInfo
from phalanx.core.states import GpuState
from phalanx.core.topology.codec import from_json, to_json
from phalanx.core.topology.node import Health, MigDevice, NicLink
from phalanx.core.topology.node import Path as Crossing
from phalanx_agent.discovery.cordons import FILE, Cordons
from phalanx_agent.discovery.nvml import NvmlGpus
from phalanx_agent.discovery.ward import Tenancy
from phalanx_agent.discovery.watch import GpuWatch
from phalanx_agent.discovery.xid_table import Action, meaning_of
from tests.gpu.conftest import FakeMachine
from tests.support.sysfs import FakeSysfs, dgx_gpu
from tests.support.wait import wait_until
from tests.unit.test_gpu_health import TABLE

pytestmark = pytest.mark.gpu

CLUSTER = "0a1b2c3d4e5f60718293a4b5c6d7e8f9"
DOMAIN = "0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9.7"
SPEED_OF_LINKS = 90
STORM_FROM = 1000
"""Numbers that are in no table."""
BROKEN = ("pci", "mig", "ecc", "remap", "clocks", "pcie", "pstate", "field", "model", "events")


def gpus(count: int, *, lost: int = -1, model: str = "H100") -> list[str]:
    return [f"GPU-{i} {model} 81559 4 - {'lost' if i == lost else 'ok'}" for i in range(count)]


def place(index: int, pci: str = "") -> str:
    return f"gpu {index} 0000{pci or f'0000:{16 + index:02x}:00.0'} 5 9 0 {index + 1}"


@dataclass
class Heard:
    """A host that holds no gangs and remembers what it was told."""

    workspaces: tuple[str, ...] = ()
    ending: bool = False
    failed: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    noted: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    changes: int = 0

    def tenancy(self, uuid: str) -> Tenancy:  # noqa: ARG002 - the same for all
        return Tenancy(workspaces=self.workspaces, ending=self.ending)

    def gpu_failed(self, uuid: str, reason: str) -> None:
        self.failed.append((uuid, reason))

    def gpu_noted(self, uuid: str, note: str) -> None:
        self.noted.append((uuid, note))

    def gpus_changed(self) -> None:
        self.changes += 1


@asynccontextmanager
async def watched(tmp_path: Path, host: Heard) -> AsyncGenerator[GpuWatch]:
    watch = GpuWatch(NvmlGpus(), baseline_path=tmp_path / "baseline.json", boot_id="b", clock=SystemClock())
    job = asyncio.create_task(watch.run(host))
    try:
        yield watch
    finally:
        job.cancel()
        await asyncio.gather(job, return_exceptions=True)
        await until(lambda: not listeners(), "the thread has ended")


async def until(condition: Callable[[], bool], what: str, within_s: float = 5.0) -> None:
    await asyncio.to_thread(wait_until, condition, what, within_s)


def listeners() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "xids"]


def state_of(watch: GpuWatch, uuid: str) -> GpuInfo:
    return next(gpu for gpu in watch.all() if gpu.uuid == uuid)


# ---- what there is ----


def test_a_dgx_knows_its_domain_its_links_speed_and_each_gpus_own_port(
    fake_machine: FakeMachine, tmp_path: Path
) -> None:
    FakeSysfs(tmp_path / "sys").dgx()
    fake_machine.describe(*gpus(8))
    links = [f"link {i} {n} 1 2 00000000:C0:00.0" for i in range(8) for n in range(18)]
    fabric = [f"fabric {i} 3 0 7 {CLUSTER}" for i in range(8)]
    speed = [f"field {i} {SPEED_OF_LINKS} 26562" for i in range(8)]
    fake_machine.connect(*(place(i, dgx_gpu(i)) for i in range(8)), *links, *fabric, *speed)
    topology = NvmlGpus(sysfs=tmp_path / "sys").topology()
    assert topology is not None
    assert topology.nvl_domain == DOMAIN
    assert {gpu.nvlink_gbyte_s for gpu in topology.gpus} == {26.562}
    assert [gpu.numa for gpu in topology.gpus] == [(0,)] * 4 + [(1,)] * 4
    assert topology.gpus[7].cpus == "32-63"
    assert [topology.nic_links[i][i] for i in range(8)] == [NicLink(Crossing.PIX, 1)] * 8
    assert topology.nic_links[0][4].path is Crossing.SYS
    assert dict(topology.sources)["nics"] == "sysfs"
    assert from_json(to_json(topology)) == topology


@pytest.mark.parametrize(
    ("lines", "note"),
    [
        (("fabric 0 2 0 7 " + CLUSTER, "fabric 1 3 0 7 " + CLUSTER), "not registered"),
        (("fabric 0 3 999 7 " + CLUSTER, "fabric 1 3 0 7 " + CLUSTER), "failed (NVML error 999)"),
        (("fabric 0 3 0 7 " + CLUSTER, "fabric 1 3 0 8 " + CLUSTER), "different NVLink domains"),
        (("fabric 0 3 0 0 " + "0" * 32, "fabric 1 3 0 0 " + "0" * 32), ""),
        (("fabric 0 0 0 0 " + "0" * 32,), ""),
    ],
)
def test_a_domain_that_is_not_settled_is_none_and_says_why(
    fake_machine: FakeMachine, lines: tuple[str, ...], note: str
) -> None:
    fake_machine.describe(*gpus(2))
    fake_machine.connect(place(0), place(1), *lines)
    topology = NvmlGpus().topology()
    assert topology is not None
    assert topology.nvl_domain is None
    assert any(note in said for said in topology.notes) if note else not any("NVLink" in n for n in topology.notes)


def test_the_parts_of_a_split_gpu_are_told_with_their_profiles(fake_machine: FakeMachine) -> None:
    fake_machine.describe(*gpus(2))
    fake_machine.connect(place(0), place(1), "mig 0 0 MIG-a 7 1g.10gb 9728 1", "mig 0 1 MIG-b 8 - 19968 2")
    topology = NvmlGpus().topology()
    assert topology is not None
    assert topology.gpus[0].mig == (
        MigDevice(uuid="MIG-a", profile="1g.10gb", gpu_instance=7),
        MigDevice(uuid="MIG-b", profile="2g.21gb", gpu_instance=8),
    )
    assert (topology.gpus[0].mig_enabled, topology.gpus[1].mig_enabled) == (True, False)
    assert topology.gpus[1].mig == ()
    assert any("GPU 0 is split into 2 parts" in note for note in topology.notes)


@pytest.mark.parametrize("question", BROKEN)
async def test_one_broken_answer_of_one_gpu_costs_nothing_else(
    fake_machine: FakeMachine, tmp_path: Path, question: str
) -> None:
    fake_machine.describe(*gpus(2))
    counters = [f"{kind} 1 0 0" for kind in ("ecc", "remap")] + ["pcie 1 5 8 16"]
    fake_machine.connect(place(0), place(1), *counters, f"broken 0 {question}")
    async with watched(tmp_path, Heard()) as watch:
        assert [gpu.state for gpu in watch.all()] == [GpuState.FREE] * 2
        topology = watch.topology
        assert topology is not None
        assert [gpu.health for gpu in topology.gpus] == [Health.OK, Health.DEGRADED]
        fake_machine.say((1, 48))
        await until(lambda: state_of(watch, "GPU-1").state is GpuState.QUARANTINED, "the other GPU is listened to")


# ---- what happens ----


async def test_every_xid_of_the_table_does_through_nvml_what_the_policy_says(
    fake_machine: FakeMachine, tmp_path: Path
) -> None:
    """One GPU per number, so that none can lean on another's history."""
    fake_machine.describe(*gpus(len(TABLE)))
    host = Heard(workspaces=("red",))
    async with watched(tmp_path, host) as watch:
        fake_machine.say(*((index, xid) for index, (xid, _) in enumerate(TABLE)))
        expected = sum(action in (Action.QUARANTINE, Action.LOST) for _, action in TABLE)
        await until(lambda: len(host.failed) == expected, "every bad GPU is out of use")
        await until(lambda: len(host.noted) == sum(a is Action.NOTE for _, a in TABLE), "every note is said")
        for index, (xid, action) in enumerate(TABLE):
            gpu = state_of(watch, f"GPU-{index}")
            wanted = {Action.QUARANTINE: GpuState.QUARANTINED, Action.LOST: GpuState.DOWN}.get(action, GpuState.FREE)
            assert gpu.state is wanted, f"XID {xid}"
            if wanted is not GpuState.FREE:
                assert gpu.reason.startswith(f"XID {xid}: {meaning_of(xid).what}")


async def test_another_fault_ends_whoever_got_the_gpu_all_the_same(fake_machine: FakeMachine, tmp_path: Path) -> None:
    fake_machine.describe(*gpus(1))
    host = Heard(workspaces=("red",))
    async with watched(tmp_path, host) as watch:
        fake_machine.say((0, 119))
        await until(lambda: len(host.failed) == 1, "the first fault is told")
        fake_machine.say((0, 79))
        await until(lambda: len(host.failed) == 2, "the second fault is told")
        assert host.failed[1][1].startswith("XID 79")
        assert state_of(watch, "GPU-0").state is GpuState.DOWN


async def test_xids_are_heard_again_after_the_driver_could_not_tell_them(
    fake_machine: FakeMachine, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    fake_machine.describe(*gpus(1))
    fake_machine.connect(place(0), "broken 0 eventset")
    host = Heard()
    async with watched(tmp_path, host):
        await until(lambda: "XIDs are not heard for now" in caplog.messages, "the thread meets the failure")
        fake_machine.connect(place(0))
        fake_machine.say((0, 119))
        await until(lambda: bool(host.failed), "the event is heard")
    assert caplog.messages.count("XIDs are not heard for now") == 1


async def test_a_cleanup_while_a_gang_is_ended_is_nothing(fake_machine: FakeMachine, tmp_path: Path) -> None:
    fake_machine.describe(*gpus(2))
    host = Heard(workspaces=("red",), ending=True)
    async with watched(tmp_path, host) as watch:
        fake_machine.say((0, 45), (1, 48))
        await until(lambda: bool(host.failed), "the second event is heard")
        assert host.noted == []
        assert state_of(watch, "GPU-0").state is GpuState.FREE


async def test_a_restart_keeps_the_quarantine_and_tells_nobody_again(fake_machine: FakeMachine, tmp_path: Path) -> None:
    fake_machine.describe(*gpus(2))
    async with watched(tmp_path, Heard()) as watch:
        fake_machine.say((1, 119))
        await until(lambda: state_of(watch, "GPU-1").state is GpuState.QUARANTINED, "it is out of use")
    host = Heard()
    async with watched(tmp_path, host) as watch:
        assert state_of(watch, "GPU-1").reason.startswith("XID 119")
        proved = await watch.prove_clean("GPU-1", bound_ms=100)
        assert proved.state is GpuState.FREE
        assert state_of(watch, "GPU-1").state is GpuState.QUARANTINED, "clean is not healthy"
        assert host.failed == []


async def test_counters_degrade_and_quarantine_while_the_agent_runs(fake_machine: FakeMachine, tmp_path: Path) -> None:
    fake_machine.describe(*gpus(3))
    places = [place(i) for i in range(3)]
    fake_machine.connect(*places)
    host = Heard()
    async with watched(tmp_path, host) as watch:
        fake_machine.connect(*places, "remap 0 0 1", "clocks 1 32", "pstate 1 0")
        await until(lambda: bool(host.failed), "the GPU with a failed row is out of use")
        await until(lambda: _reason(watch, 1) == "slowed down: it is too hot (driver)", "heat is told", 10.0)
        assert host.failed[0][0] == "GPU-0"
        assert "exchanged" in host.failed[0][1]
        degraded = state_of(watch, "GPU-1")
        assert (degraded.state, degraded.reason) == (GpuState.FREE, "slowed down: it is too hot (driver)")
        assert state_of(watch, "GPU-2").reason == _reason(watch, 2) == ""


def _reason(watch: GpuWatch, at: int) -> str:
    return watch.topology.gpus[at].reason if watch.topology is not None else "?"


async def test_a_link_and_a_gpu_that_are_lost_are_told_within_ten_seconds(
    fake_machine: FakeMachine, tmp_path: Path
) -> None:
    fake_machine.describe(*gpus(3))
    links = [f"link {i} {n} 1 2 00000000:C0:00.0" for i in range(3) for n in range(4)]
    places = [place(i) for i in range(3)]
    fake_machine.connect(*places, *links)
    host = Heard()
    async with watched(tmp_path, host) as watch:
        fake_machine.connect(*places, *links[:-1], "link 2 3 0 2 00000000:C0:00.0")
        fake_machine.describe(*gpus(3, lost=1))
        await until(lambda: _reason(watch, 2) == "3 of 4 NVLinks work", "the lost link is told", 10.0)
        assert [uuid for uuid, _ in host.failed] == ["GPU-1"]
        topology = watch.topology
        assert topology is not None
        assert topology.gpus[1].health is Health.LOST


async def test_ten_thousand_xids_neither_hold_up_the_loop_nor_lose_the_mark(
    fake_machine: FakeMachine, tmp_path: Path
) -> None:
    fake_machine.describe(*gpus(8))
    host = Heard(workspaces=("red",))
    async with watched(tmp_path, host) as watch:
        await until(lambda: len(listeners()) == 1, "a thread listens")
        delays = _Delays()
        job = asyncio.create_task(delays.run())
        storm = [(at % 8, STORM_FROM + at) for at in range(10_000)]
        fake_machine.say(*storm)
        at, last = storm[-1]
        known = Cordons(tmp_path / FILE, boot_id="b")

        def all_known() -> bool:
            known.refresh()
            return any(past.xid == last for past in known.past(f"GPU-{at}"))

        await until(all_known, "the last one is written down", 60.0)
        job.cancel()
        print(f"the loop was held up for {delays.worst_s * 1000:.0f} ms at most; {host.changes} changes were told")
        assert delays.worst_s < 0.5
        assert len(known.all()) == 8
        assert {gpu.state for gpu in watch.all()} == {GpuState.QUARANTINED}
        assert all(cordon.xid < STORM_FROM + 8 for cordon in known.all().values()), "the first fault is the reason"


@dataclass
class _Delays:
    """How late a task that wants to run every 5 ms does run."""

    worst_s: float = 0.0

    async def run(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            began = clock()
            await asyncio.sleep(0.005)
            self.worst_s = max(self.worst_s, clock() - began - 0.005)


async def test_a_gpu_that_the_driver_no_longer_lists_is_lost_and_the_others_stay_who_they_are(
    fake_machine: FakeMachine, tmp_path: Path
) -> None:
    fake_machine.describe(*gpus(4))
    host = Heard()
    async with watched(tmp_path, host) as watch:
        fake_machine.describe(*(line for at, line in enumerate(gpus(4)) if at != 1))
        await until(lambda: state_of(watch, "GPU-1").state is GpuState.DOWN, "it is lost", 10.0)
        assert [(gpu.uuid, gpu.state) for gpu in watch.all() if gpu.uuid != "GPU-1"] == [
            (f"GPU-{at}", GpuState.FREE) for at in (0, 2, 3)
        ]
        assert host.failed == [("GPU-1", "NVML: the driver does not list it any more")]
        fake_machine.describe(*gpus(4))
        await until(lambda: state_of(watch, "GPU-1").state is GpuState.FREE, "it is back", 10.0)
        assert len(watch.all()) == 4


async def test_a_gpu_that_answers_late_is_there_once(fake_machine: FakeMachine, tmp_path: Path) -> None:
    fake_machine.describe(*gpus(2, lost=0))
    async with watched(tmp_path, Heard()) as watch:
        assert state_of(watch, "unknown-0").state is GpuState.DOWN
        fake_machine.describe(*gpus(2))
        await until(lambda: any(gpu.uuid == "GPU-0" for gpu in watch.all()), "the GPU is seen", 10.0)
        assert [(gpu.uuid, gpu.state) for gpu in watch.all()] == [(f"GPU-{i}", GpuState.FREE) for i in range(2)]


async def test_looking_and_listening_leave_no_thread_behind(fake_machine: FakeMachine, tmp_path: Path) -> None:
    fake_machine.describe(*gpus(1))
    async with watched(tmp_path, Heard()):
        await until(lambda: len(listeners()) == 1, "a thread listens")
    assert listeners() == []
