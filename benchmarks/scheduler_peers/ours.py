"""The product's own placement, driven job by job: `scheduler.fit.find_place` on its own picture of the fleet."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.core.ids import id_text
from phalanx.core.spec import FunctionSpec
from phalanx_control.scheduler.fit import find_place
from phalanx_control.scheduler.need import Need
from phalanx_control.scheduler.room import rooms_of
from phalanx_control.simulator.jobs import Job
from phalanx_control.simulator.live import start_of
from phalanx_control.simulator.machines import Fleet
from phalanx_control.state.model import Gang, MemberState, Owner

_OWNER = Owner(workspace="trace")


def pack_ours(fleet: Fleet, jobs: Sequence[Job], *, until: float = 1.0) -> float:
    """Returns the share of GPUs that is held once so much of the capacity was asked for, in this order of arrival."""
    rooms = rooms_of(start_of(fleet))
    specs: dict[tuple[object, ...], tuple[FunctionSpec, str]] = {}
    arrived = held = 0
    for number, job in enumerate(jobs):
        key = (job.gpus, job.gpu, job.cpus, job.memory_gb)
        if key not in specs:
            spec = job.spec(fresh=True)
            specs[key] = (spec, spec.function_id)
        spec, function_id = specs[key]
        place = find_place(Need(spec=spec, workspace=_OWNER.workspace), rooms)
        if place is not None:
            members = tuple(MemberState(member=member) for member in place.members)
            gang_id = id_text("g", number.to_bytes(16, "big"))
            rooms.put(Gang(id=gang_id, fence=number, function_id=function_id, owner=_OWNER, members=members), spec)
            held += job.milli
        arrived += job.milli
        if arrived >= until * fleet.gpus * 1000:
            break
    return held / (fleet.gpus * 1000)
