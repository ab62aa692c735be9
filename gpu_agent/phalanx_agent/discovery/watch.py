"""The node's GPUs over time: what there is, what connects and occupies them, which are marked and why.

Marks: DOWN (does not answer, or fell off the bus), EXTERNAL (a stranger computes on it), QUARANTINED (not clean after a
lease, or the hardware reported a fault). All are looked at again every few seconds: a GPU is free again once it is
proved clean, and a fault of the hardware stays until it was mended (`ward.py`). A thread only gathers; what that
means is decided on the event loop.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from phalanx.core.clock import Clock
from phalanx.core.messages import GpuInfo
from phalanx.core.states import GpuState
from phalanx.core.topology.node import NodeTopology
from phalanx_agent.discovery.clean import (
    BOUND_MS,
    judge,
    load_baselines,
    measure_baselines,
    prove_clean,
    save_baselines,
)
from phalanx_agent.discovery.cordons import FILE
from phalanx_agent.discovery.health import Vitals
from phalanx_agent.discovery.offloop import Behind, Inbox
from phalanx_agent.discovery.source import GpuSource, GpuUse, placeholder
from phalanx_agent.discovery.steady import Steady, ailments
from phalanx_agent.discovery.ward import OUT_OF_USE, Tenancy, Ward
from phalanx_agent.discovery.xid_table import Action

log = logging.getLogger(__name__)

LOOK_EVERY_S = 3.0
OUR_KILL_MS = 10_000


class Host(Protocol):
    """What the watch asks of the agent, and tells it; on the event loop."""

    def tenancy(self, uuid: str) -> Tenancy: ...

    def gpu_failed(self, uuid: str, reason: str) -> None:
        """The GPU is out of use from now on: whoever runs on it ends."""
        ...

    def gpu_noted(self, uuid: str, note: str) -> None:
        """Something that the gang on the GPU did to itself."""
        ...

    def gpus_changed(self) -> None:
        """What is reported of the GPUs is not what it was."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """What one look gathered. ``uses``: of GPUs that nobody leases, or why one does not answer."""

    gpus: tuple[GpuInfo, ...] = ()
    topology: NodeTopology | None = None
    vitals: Mapping[str, Vitals] = field(default_factory=dict[str, Vitals])
    uses: Mapping[str, GpuUse | OSError] = field(default_factory=dict[str, "GpuUse | OSError"])


class GpuWatch:
    """Knows every GPU of the node by UUID."""

    def __init__(self, source: GpuSource, *, baseline_path: Path, boot_id: str, clock: Clock) -> None:
        """Looks once. Blocking; raises OSError where the state directory cannot be written."""
        self._source = source
        self._clock = clock
        self._saving = Behind()
        self._ward = Ward(baseline_path.with_name(FILE), boot_id=boot_id, clock=clock, later=self._saving.ask)
        self._proved_ms: dict[str, int] = {}
        facts = self._gather(())
        self._gpus = {g.uuid: g for g in facts.gpus}
        self._steady = Steady(self._ward.look(facts.topology, facts.vitals))
        self._marks: dict[str, GpuInfo] = {u: g for u, g in self._gpus.items() if g.state is GpuState.DOWN}
        self._failed = {g.uuid for g in self.all() if self._ward.remembered(g.uuid)}
        known = load_baselines(baseline_path, boot_id=boot_id)
        self._baselines = measure_baselines(source, known)
        save_baselines(baseline_path, self._baselines, boot_id=boot_id)

    @property
    def simulated(self) -> bool:
        return self._source.simulated

    @property
    def static(self) -> bool:
        """Nothing can happen to these GPUs."""
        return self._source.static

    @property
    def topology(self) -> NodeTopology | None:
        """What connects the GPUs, with their health; changes only when that has stayed so."""
        return self._steady.told

    def all(self) -> tuple[GpuInfo, ...]:
        """Returns every GPU, FREE unless it is marked; one that works badly says so in its reason."""
        ails = {gpu.uuid: gpu.reason for gpu in self.topology.gpus} if self.topology is not None else {}
        return tuple(
            self._standing(replace(gpu, reason=gpu.reason or ails.get(gpu.uuid, "")))
            for gpu in sorted(self._gpus.values(), key=lambda gpu: gpu.index)
        )

    def just_cordoned(self, uuid: str) -> str:
        """Returns why the GPU was put out of use a moment ago, when the control plane may not know; else ""."""
        mark = self._ward.mark(self._gpus[uuid]) if uuid in self._gpus else None
        return mark.reason if mark is not None and self._ward.just_cordoned(uuid) else ""

    async def prove_clean(
        self, uuid: str, *, ours: frozenset[int] = frozenset(), shared: bool = False, bound_ms: int = BOUND_MS
    ) -> GpuInfo:
        """Returns the GPU with its proved state, and marks it where that is not FREE.

        A clean GPU with a fault of its hardware is FREE here: the control plane judges who may have it.
        """
        gpu = self._gpus.get(uuid)
        if gpu is None:
            return GpuInfo(uuid=uuid, state=GpuState.DOWN, reason="this node has no such GPU")
        sick = self._ward.mark(gpu)
        if sick is not None and sick.state is GpuState.DOWN:
            return sick
        self._proved_ms[uuid] = self._clock.monotonic_ms()
        proved = await prove_clean(
            self._source,
            gpu,
            self._baseline(uuid),
            clock=self._clock,
            ours=ours,
            shared=shared,
            bound_ms=bound_ms,
        )
        self._mark(proved)
        return proved

    def quarantine(self, uuid: str, reason: str) -> GpuInfo:
        """Marks a GPU whose ranks could not be ended."""
        marked = replace(self._gpus.get(uuid, GpuInfo(uuid=uuid)), state=GpuState.QUARANTINED, reason=reason)
        self._mark(marked)
        return marked

    async def run(self, host: Host) -> None:
        """Listens to XIDs and looks again every few seconds; for ever."""
        if self._source.static:
            return
        inbox = Inbox[tuple[str, int]](asyncio.get_running_loop(), lambda xids: self._heard(xids, host))
        end = self._source.listen(lambda uuid, xid: inbox.put((uuid, xid)))
        try:
            async with asyncio.TaskGroup() as jobs:
                jobs.create_task(self._saving.run(self._ward.save))
                jobs.create_task(self._look_again(host))
        finally:
            end()

    async def _look_again(self, host: Host) -> None:
        self._tell_failed(host)
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            idle = tuple(uuid for uuid in self._gpus if not host.tenancy(uuid).workspaces)
            self._take(await asyncio.to_thread(self._gather, idle), host)

    # ---- XIDs ----

    def _heard(self, xids: Sequence[tuple[str, int]], host: Host) -> None:
        """Takes XIDs as they came; what they lead to is told once for all of them."""
        broken = {uuid for uuid, xid in xids if self._broke(uuid, xid, host)}
        if broken:
            self._failed -= broken  # a pool may have had to give it to somebody all the same
            self._tell_failed(host)
            host.gpus_changed()

    def _broke(self, uuid: str, xid: int, host: Host) -> bool:
        """Says whether the XID puts the GPU out of use."""
        gpu = self._gpus.get(uuid)
        if gpu is None:
            return False
        tenancy = host.tenancy(uuid)
        just_proved = self._clock.monotonic_ms() - self._proved_ms.get(uuid, -OUR_KILL_MS) < OUR_KILL_MS
        reaction = self._ward.heard(gpu, xid, tenancy, our_kill=tenancy.ending or just_proved)
        log.warning("xid", extra={"gpu": uuid, "xid": xid, "action": reaction.action.value, "reason": reaction.reason})
        if reaction.action is Action.NOTE:
            host.gpu_noted(uuid, reaction.reason)
        return reaction.action in OUT_OF_USE

    def _tell_failed(self, host: Host) -> None:
        """Tells of every GPU once that it is out of use for what happened to it."""
        failed = {gpu.uuid: gpu for gpu in self.all() if gpu.state is GpuState.DOWN or gpu.cordon}
        for uuid in failed.keys() - self._failed:
            host.gpu_failed(uuid, failed[uuid].reason)
        self._failed = set(failed)

    # ---- looks ----

    def _gather(self, idle: tuple[str, ...]) -> _Facts:
        """Asks the machine; in a thread."""
        return _Facts(
            gpus=self._source.gpus(),
            topology=self._source.topology(),
            vitals=self._source.vitals(),
            uses={uuid: self._use(uuid) for uuid in idle},
        )

    def _use(self, uuid: str) -> GpuUse | OSError:
        try:
            return self._source.use(uuid)
        except OSError as e:
            return e

    def _take(self, facts: _Facts, host: Host) -> None:
        """Decides what a look means, and tells what has changed."""
        before = self.all()
        for gpu in facts.gpus:
            if gpu.uuid not in self._gpus:
                self._meet(gpu)
            if gpu.state is GpuState.DOWN:
                self._mark(gpu)
            elif gpu.uuid in facts.uses and not host.tenancy(gpu.uuid).workspaces:
                self._judge_free(gpu, facts.uses[gpu.uuid])
        seen = self._ward.look(facts.topology, facts.vitals)
        changed = self._steady.take(seen, self._clock.monotonic_ms())
        self._tell_failed(host)
        if changed or self.all() != before:
            host.gpus_changed()
        if changed:
            log.warning("topology changed", extra={"ailments": sorted(ailments(seen))})

    def _meet(self, gpu: GpuInfo) -> None:
        """Takes up a GPU that was not known; one that answers at last is no longer the nameless one that it was."""
        self._gpus[gpu.uuid] = gpu
        nameless = placeholder(gpu.index)
        if gpu.uuid != nameless:
            self._gpus.pop(nameless, None)
            self._marks.pop(nameless, None)

    def _judge_free(self, gpu: GpuInfo, use: GpuUse | OSError) -> None:
        if isinstance(use, OSError):
            self._mark(replace(gpu, state=GpuState.DOWN, reason=str(use)))
            return
        verdict = judge(use, self._baseline(gpu.uuid))
        if verdict.state is not GpuState.QUARANTINED or gpu.uuid in self._marks:
            self._mark(replace(gpu, state=verdict.state, reason=verdict.reason))

    def _standing(self, gpu: GpuInfo) -> GpuInfo:
        """A GPU that is gone is gone; one that is dirty may not be given at all; one that is ill, perhaps."""
        mark, sick = self._marks.get(gpu.uuid), self._ward.mark(gpu)
        if sick is not None and (mark is None or sick.state is GpuState.DOWN):
            return sick
        return mark or gpu

    def _mark(self, gpu: GpuInfo) -> None:
        former = self._marks.get(gpu.uuid)
        if gpu.state is GpuState.FREE:
            self._marks.pop(gpu.uuid, None)
        else:
            self._marks[gpu.uuid] = gpu
        if (former.state if former else GpuState.FREE) is not gpu.state:
            log.warning("gpu changed", extra={"gpu": gpu.uuid, "state": gpu.state.value, "reason": gpu.reason})

    def _baseline(self, uuid: str) -> GpuUse:
        return self._baselines.get(uuid, GpuUse())
