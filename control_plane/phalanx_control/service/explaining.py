"""What is known of one gang: of a living one everything, of an ended one what its ledger lines keep. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from phalanx.core.spec import FunctionSpec
from phalanx.core.states import GangState
from phalanx.core.views import GangExplanation, GangView, MemberExplanation
from phalanx_control.state.model import Gang, LedgerLine, State
from phalanx_control.state.queries import function_label


def of_living(gang: Gang, view: GangView) -> GangExplanation:
    return GangExplanation(
        gang=view,
        members=tuple(
            MemberExplanation(
                node_id=each.member.node_id,
                first_rank=each.member.first_rank,
                ranks=each.member.ranks,
                gpus=each.member.gpus,
                equipment=each.equipment,
            )
            for each in gang.members
        ),
    )


def of_ended(state: State, lines: Sequence[LedgerLine]) -> GangExplanation:
    """Returns where a gang stood. What its ranks got is forgotten with it."""
    first = lines[0]
    call = state.calls.get(first.for_call)
    function = state.functions.get(first.function_id)
    view = GangView(
        gang_id=first.gang_id,
        function_id=first.function_id,
        function=function_label(state, first.function_id) if function is not None else "",
        state=GangState.RELEASED.value,
        workspace=first.owner.workspace,
        user=first.owner.user,
        world_size=_ranks(function.spec, lines) if function is not None else 0,
        nodes=tuple(line.node_id for line in lines),
        gpus=tuple(gpu for line in lines for gpu in line.gpus),
        placement=call.placement if call is not None and call.gang_id == first.gang_id else "",
        created_ms=min(line.opened_wall_ms for line in lines),
    )
    members = tuple(MemberExplanation(node_id=line.node_id, gpus=tuple(line.gpus)) for line in lines)
    return GangExplanation(gang=view, members=members)


def _ranks(spec: FunctionSpec, lines: Sequence[LedgerLine]) -> int:
    """An elastic gang of one rank per GPU had as many as it had GPUs."""
    if spec.resources.max_gpus and spec.launch == "per_gpu":
        return sum(len(line.gpus) for line in lines)
    return spec.world_size
