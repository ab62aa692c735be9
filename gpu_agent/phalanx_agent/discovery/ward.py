"""The health of a node's GPUs over time: each look's judgement, XIDs as they come, and who is out of use and why.

It decides with `health.py` and remembers with `cordons.py`; it asks no GPU anything.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from phalanx.core.clock import Clock
from phalanx.core.messages import GpuInfo
from phalanx.core.states import GpuState
from phalanx.core.topology.node import Gpu, Health, NodeTopology
from phalanx_agent.discovery.cordons import Cordon, Cordons
from phalanx_agent.discovery.health import Circumstances, Judgement, Look, PastXid, Reaction, Vitals, judge, react
from phalanx_agent.discovery.xid_table import Action

log = logging.getLogger(__name__)

JUST_NOW_MS = 10_000
"""So long the control plane may not have heard of a cordon, and offers the GPU."""
OUT_OF_USE = frozenset({Action.QUARANTINE, Action.LOST})


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenancy:
    """Who holds a GPU. ``ending``: a gang on it is being ended."""

    workspaces: tuple[str, ...] = ()
    ending: bool = False


class Ward:
    """Lives on the event loop, but for `save`; ``later`` has that called soon. Without it, it saves at once."""

    def __init__(self, path: Path, *, boot_id: str, clock: Clock, later: Callable[[], None] | None = None) -> None:
        self._cordons = Cordons(path, boot_id=boot_id, later=later)
        self._clock = clock
        self._judged: dict[str, Judgement] = {}
        self._looks: dict[str, Look] = {}
        self._most_nvlinks: dict[str, int] = {}
        self._put_ms: dict[str, int] = {}

    def save(self) -> None:
        """Writes down what is not saved yet. Blocking."""
        self._cordons.save()

    def mark(self, gpu: GpuInfo) -> GpuInfo | None:
        """Returns the GPU as health has it, where it may not be given."""
        cordon = self._cordons.get(gpu.uuid)
        if cordon is not None:
            hard = cordon.state is GpuState.DOWN
            return replace(gpu, state=cordon.state, reason=cordon.reason, cordon=not hard)
        judgement = self._judged.get(gpu.uuid)
        if judgement is not None and judgement.quarantine:
            return replace(gpu, state=GpuState.QUARANTINED, reason=judgement.quarantine, cordon=True)
        return None

    def remembered(self, uuid: str) -> bool:
        """Says whether a former agent put the GPU out of use, and ended what ran there."""
        return self._cordons.get(uuid) is not None

    def just_cordoned(self, uuid: str) -> bool:
        """Says whether the control plane may not know yet that the GPU is out of use."""
        return self._clock.monotonic_ms() - self._put_ms.get(uuid, -JUST_NOW_MS) < JUST_NOW_MS

    def heard(self, gpu: GpuInfo, xid: int, tenancy: Tenancy, *, our_kill: bool) -> Reaction:
        """Takes an XID and returns what it leads to; a GPU that it puts out of use is so when this returns."""
        now = self._clock.monotonic_ms()
        around = Circumstances(
            index=gpu.index,
            now_ms=now,
            workspaces=tenancy.workspaces,
            our_kill=our_kill,
            past=self._cordons.past(gpu.uuid),
        )
        reaction = react(xid, around)
        self._cordons.note(gpu.uuid, PastXid(xid=xid, at_ms=now, workspaces=tenancy.workspaces))
        if reaction.action in OUT_OF_USE:
            state = GpuState.DOWN if reaction.action is Action.LOST else GpuState.QUARANTINED
            errors = self._looks[gpu.uuid].vitals.ecc_errors if gpu.uuid in self._looks else 0
            self._cordons.put(gpu.uuid, Cordon(state=state, reason=reaction.reason, xid=xid, ecc_errors=errors))
            self._put_ms[gpu.uuid] = now
        return reaction

    def look(self, topology: NodeTopology | None, vitals: Mapping[str, Vitals]) -> NodeTopology | None:
        """Judges what a look saw; returns the topology with every GPU's health in it."""
        self._cordons.refresh()
        if topology is None:
            return None
        now = self._clock.monotonic_ms()
        self._count_nvlinks(topology)
        return replace(topology, gpus=tuple(self._judge(gpu, vitals.get(gpu.uuid), now) for gpu in topology.gpus))

    def _judge(self, gpu: Gpu, vitals: Vitals | None, now_ms: int) -> Gpu:
        if vitals is not None and gpu.health is not Health.LOST:
            before = self._looks.get(gpu.uuid)
            told = vitals.after(before.vitals) if before is not None else vitals
            look = Look(vitals=told, at_ms=now_ms, most_nvlinks=self._most_nvlinks.get(gpu.uuid, 0))
            self._lift_after_reset(gpu.uuid, look, before)
            self._looks[gpu.uuid] = look
            self._keep(gpu.uuid, judge(gpu, look, before), look)
        return self._with_health(gpu)

    def _keep(self, uuid: str, judgement: Judgement, look: Look) -> None:
        """A quarantine counts at once, and for good at the second look: a driver leaves a counter out now and then."""
        before = self._judged.get(uuid, Judgement())
        self._judged[uuid] = judgement
        if not judgement.quarantine:
            return
        if not before.quarantine:
            self._put_ms[uuid] = look.at_ms
        else:
            errors = look.vitals.ecc_errors
            self._cordons.put(
                uuid, Cordon(state=GpuState.QUARANTINED, reason=judgement.quarantine, xid=0, ecc_errors=errors)
            )

    def _with_health(self, gpu: Gpu) -> Gpu:
        cordon = self._cordons.get(gpu.uuid)
        if gpu.health is Health.LOST or (cordon is not None and cordon.state is GpuState.DOWN):
            return replace(gpu, health=Health.LOST, reason=cordon.reason if cordon is not None else gpu.reason)
        judgement = self._judged.get(gpu.uuid, Judgement())
        ails = [cordon.reason] if cordon is not None else []
        ails += [judgement.quarantine] if judgement.quarantine else []
        ails += judgement.degraded
        return replace(gpu, health=Health.DEGRADED, reason="; ".join(dict.fromkeys(ails))) if ails else gpu

    def _lift_after_reset(self, uuid: str, look: Look, before: Look | None) -> None:
        """Error counters begin anew with a reset, and with nothing else within a boot."""
        cordon = self._cordons.get(uuid)
        counted = max(cordon.ecc_errors if cordon else 0, before.vitals.ecc_errors if before else 0)
        all_told = None not in (look.vitals.uncorrectable, look.vitals.corrected)
        if cordon is not None and all_told and look.vitals.ecc_errors < counted:
            log.warning("gpu was reset: it is looked at afresh", extra={"gpu": uuid, "was": cordon.reason})
            self._cordons.lift(uuid)

    def _count_nvlinks(self, topology: NodeTopology) -> None:
        """Behind a switch all GPUs of a model have equally many links; elsewhere each had those that ever worked."""
        models = {
            gpu.model for gpu, row in zip(topology.gpus, topology.links, strict=False) if any(x.switched for x in row)
        }
        for gpu in topology.gpus:
            alike = topology.gpus if gpu.model in models else (gpu,)
            most = _most(each.nvlinks_active for each in alike if each.model == gpu.model)
            self._most_nvlinks[gpu.uuid] = max(self._most_nvlinks.get(gpu.uuid, 0), most)


def _most(counts: Iterable[int | None]) -> int:
    return max((count for count in counts if count is not None), default=0)
