"""The agent's small parts: settings, outbox, GPUs and their cleanliness, host facts, code names."""

from __future__ import annotations

from pathlib import Path

import pytest

from phalanx.core.clock import SystemClock
from phalanx.core.errors import InvalidSpecError, SerializationError
from phalanx.core.messages import CallStarted
from phalanx.core.spec import CodeRef
from phalanx.core.states import GpuState
from phalanx_agent import rendezvous
from phalanx_agent.code import CodeStore
from phalanx_agent.discovery.clean import judge, load_baselines, prove_clean, save_baselines
from phalanx_agent.discovery.host import read_host
from phalanx_agent.discovery.simulated import SimulatedGpus
from phalanx_agent.discovery.source import GpuUse
from phalanx_agent.discovery.watch import GpuWatch
from phalanx_agent.outbox import Outbox
from phalanx_agent.settings import read

NEEDED = ["--control", "127.0.0.1:1", "--ca", "/ca.pem", "--node-id", "n0", "--run-dir", "/tmp/r"]


# ---- settings ----


def test_flags_win_over_variables() -> None:
    environ = {"PHALANX_AGENT_SIMULATE_GPUS": "2", "PHALANX_AGENT_POOL": "p"}
    settings = read([*NEEDED, "--simulate-gpus", "4"], environ)
    assert (settings.simulate_gpus, settings.pool) == (4, "p")


def test_several_control_addresses_are_kept_in_order() -> None:
    settings = read([*NEEDED, "--control", "a:1, b:2"], {})
    assert settings.control == ("a:1", "b:2")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--ca", "x"], "--control is missing"),
        (["--control", "a:1"], "--ca is missing"),
        ([*NEEDED, "--control", "nonsense"], "host:port"),
        ([*NEEDED, "--node-id", "a b"], "--node-id"),
        ([*NEEDED, "--simulate-gpus", "1.5"], "whole number"),
        ([*NEEDED, "--simulate-memory-gb", "lots"], "positive number"),
        ([*NEEDED, "--listen", "0.0.0.0:0"], "--advertise"),
        ([*NEEDED, "--run-dir", "/" + "x" * 80], "shorter path"),
    ],
)
def test_wrong_settings_say_which_and_what_is_right(argv: list[str], words: str) -> None:
    with pytest.raises(InvalidSpecError, match=words):
        read(argv, {})


# ---- outbox ----


def test_messages_are_said_once_per_session_and_again_in_the_next() -> None:
    outbox = Outbox()
    outbox.add(CallStarted(call_id="c-1"))
    outbox.add(CallStarted(call_id="c-2"))
    assert [e.seq for e in outbox.unsent()] == [1, 2]
    assert outbox.unsent() == []
    outbox.acknowledge(1)
    outbox.restart()
    assert [e.seq for e in outbox.unsent()] == [2]


def test_acknowledgements_run_their_consequences_once_and_in_order() -> None:
    outbox = Outbox()
    stored: list[int] = []
    for number in (1, 2, 3):
        outbox.add(CallStarted(), lambda n=number: stored.append(n))
    outbox.acknowledge(2)
    outbox.acknowledge(2)
    assert stored == [1, 2]
    assert len(outbox) == 1


# ---- GPUs ----

BASE = GpuUse(memory_bytes=500 << 20, pids=frozenset({10}))


def test_a_gpu_at_its_baseline_is_free() -> None:
    assert judge(BASE, BASE).state is GpuState.FREE
    slack = GpuUse(memory_bytes=BASE.memory_bytes and BASE.memory_bytes + (10 << 20), pids=BASE.pids)
    assert judge(slack, BASE).state is GpuState.FREE


def test_a_strangers_process_makes_it_external_and_is_named() -> None:
    verdict = judge(GpuUse(memory_bytes=0, pids=frozenset({10, 4242})), BASE)
    assert verdict.state is GpuState.EXTERNAL
    assert "4242" in verdict.reason


def test_memory_that_does_not_come_back_makes_it_quarantined() -> None:
    assert judge(GpuUse(memory_bytes=2 << 30, pids=BASE.pids), BASE).state is GpuState.QUARANTINED


def test_what_the_driver_does_not_say_is_not_held_against_the_gpu() -> None:
    assert judge(GpuUse(pids=BASE.pids), BASE).state is GpuState.FREE
    assert judge(GpuUse(memory_bytes=2 << 30, pids=BASE.pids), GpuUse(pids=BASE.pids)).state is GpuState.FREE


def test_a_gpu_that_another_gang_shares_is_not_judged_by_its_memory() -> None:
    use = GpuUse(memory_bytes=4 << 30, pids=frozenset({77}))
    assert judge(use, BASE, ours=frozenset({77}), shared=True).state is GpuState.FREE


class Settling(SimulatedGpus):
    """A GPU whose last process goes away after a few looks."""

    def __init__(self, looks: int) -> None:
        super().__init__(node_id="n0", count=1)
        self.looks = looks

    def use(self, uuid: str) -> GpuUse:
        del uuid
        self.looks -= 1
        return GpuUse(memory_bytes=0, pids=frozenset({5}) if self.looks >= 0 else frozenset())


async def test_a_gpu_that_settles_within_the_bound_is_free() -> None:
    source = Settling(2)
    proved = await prove_clean(source, source.gpus()[0], GpuUse(), clock=SystemClock(), bound_ms=5000)
    assert proved.state is GpuState.FREE


async def test_a_gpu_that_does_not_is_what_it_was_at_the_end() -> None:
    source = Settling(1000)
    proved = await prove_clean(source, source.gpus()[0], GpuUse(memory_bytes=0), clock=SystemClock(), bound_ms=150)
    assert proved.state is GpuState.EXTERNAL


def test_baselines_survive_a_restart_and_not_a_reboot(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    save_baselines(path, {"a": BASE}, boot_id="b1")
    assert load_baselines(path, boot_id="b1") == {"a": BASE}
    assert load_baselines(path, boot_id="b2") == {}
    path.write_text("{")
    assert load_baselines(path, boot_id="b1") == {}


def test_simulated_gpus_keep_their_names_and_differ_between_nodes() -> None:
    first = SimulatedGpus(node_id="n0", count=4, memory_bytes=1).gpus()
    assert first == SimulatedGpus(node_id="n0", count=4, memory_bytes=1).gpus()
    other = SimulatedGpus(node_id="n1", count=4, memory_bytes=1).gpus()
    assert len({g.uuid for g in (*first, *other)}) == 8


def test_a_quarantined_gpu_is_reported_until_it_is_proved_clean(tmp_path: Path) -> None:
    source = SimulatedGpus(node_id="n0", count=2, memory_bytes=1)
    watch = GpuWatch(source, baseline_path=tmp_path / "b.json", boot_id="b", clock=SystemClock())
    uuid = watch.all()[1].uuid
    watch.quarantine(uuid, "stuck")
    assert [g.state for g in watch.all()] == [GpuState.FREE, GpuState.QUARANTINED]


async def test_proving_it_clean_frees_it(tmp_path: Path) -> None:
    source = SimulatedGpus(node_id="n0", count=1, memory_bytes=1)
    watch = GpuWatch(source, baseline_path=tmp_path / "b.json", boot_id="b", clock=SystemClock())
    uuid = watch.all()[0].uuid
    watch.quarantine(uuid, "stuck")
    assert (await watch.prove_clean(uuid)).state is GpuState.FREE
    assert watch.all()[0].state is GpuState.FREE
    assert (await watch.prove_clean("nobody")).state is GpuState.DOWN


def test_the_host_is_described_without_importing_torch() -> None:
    host = read_host()
    assert host.cpus > 0
    assert host.memory_bytes > 1 << 20
    assert host.boot_id


# ---- rendezvous and code ----


async def test_a_rendezvous_that_is_bound_can_be_reached_and_a_closed_one_cannot() -> None:
    sock, address = rendezvous.bind("127.0.0.1")
    await rendezvous.check(address)
    sock.close()
    with pytest.raises(OSError, match="cannot be reached"):
        await rendezvous.check(address)


async def test_code_is_fetched_once_and_checked_against_its_name(tmp_path: Path) -> None:
    import hashlib

    data = b"code"
    name = f"sha256:{hashlib.sha256(data).hexdigest()}"
    asked: list[str] = []

    async def fetch(blob: str) -> bytes:
        asked.append(blob)
        return data

    store = CodeStore(tmp_path / "code", fetch)
    for _ in range(2):
        path, bundle = await store.get(CodeRef(callable_blob=name))
        assert path.read_bytes() == data
        assert bundle is None
    assert asked == [name]
    with pytest.raises(SerializationError, match="other bytes"):
        await store.get(CodeRef(callable_blob=f"sha256:{'0' * 64}"))


@pytest.mark.parametrize("blob", ["", "logs/x/y/0", "sha256:../../etc/passwd", "sha256:zz"])
async def test_names_that_are_no_content_are_refused(tmp_path: Path, blob: str) -> None:
    async def fetch(_blob: str) -> bytes:
        return b""

    with pytest.raises(SerializationError):
        await CodeStore(tmp_path / "code", fetch).get(CodeRef(callable_blob=blob))
