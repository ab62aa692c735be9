"""What a gang's end says of the GPUs that it ran on. Pure."""

from __future__ import annotations

from dataclasses import replace

from phalanx.core.messages import ErrorInfo, Member, RankFailure
from phalanx.core.states import Cause


def hardware_error(member: Member, gpu: str, reason: str) -> ErrorInfo:
    """Names the ranks on the GPU, so that the attempt is over for certain, and not by their fault."""
    places = [place for place, held in enumerate(member.gpus) if held == gpu]
    ranks = [member.first_rank + place for place in places if place < member.ranks] or [member.first_rank]
    return ErrorInfo(
        cause=Cause.INFRASTRUCTURE,
        message=f"GPU {gpu} on {member.node_id} failed: {reason}",
        node_id=member.node_id,
        rank=ranks[0],
        ranks=tuple(RankFailure(rank=rank, node_id=member.node_id, culprit=True, message=reason) for rank in ranks),
    )


def with_notes(error: ErrorInfo, notes: tuple[str, ...]) -> ErrorInfo:
    """Adds what the GPUs reported while the gang ran."""
    if not notes:
        return error
    said = "; ".join(notes)
    return replace(error, message=f"{error.message} ({said})" if error.message else said)
