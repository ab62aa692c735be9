"""Whose fault a failure in collectives is, where no rank failed or died otherwise: one error out of all ranks' states.

Pure. The keeper asks for a gang on one node, the lead's agent for a gang on several.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import replace

from phalanx.core.collectives import Finding, RankState, at_fault, stands
from phalanx.core.messages import ErrorInfo, RankFailure
from phalanx.core.stacks import ranks_text, stack_text
from phalanx.core.states import Cause


def judged(said: ErrorInfo, states: Sequence[RankState]) -> ErrorInfo:
    """Returns the error to tell. ``said`` is what the failure showed itself as first, with the records of all ranks
    that failed; ``states`` are all ranks of the gang as they stood then, or none, and then nobody is named.
    """
    dead = tuple(r.rank for r in said.ranks if r.signal or r.exit_code)
    failed = tuple(r.rank for r in said.ranks if r.rank not in dead)
    crashed = tuple(r.rank for r in said.ranks if r.signal not in (0, signal.SIGABRT))
    finding = at_fault(states, failed=failed, dead=dead, crashed=crashed)
    said = replace(said, cause=Cause.USER_EXCEPTION, ranks=_flagged(said.ranks, finding.culprits, states))
    if not finding.culprits:
        return _of_nobody(said, finding)
    if not finding.what and said.rank in finding.culprits:
        return said
    return _of_odd(said, finding, states)


def _flagged(
    records: Sequence[RankFailure], culprits: Sequence[int], states: Sequence[RankState]
) -> tuple[RankFailure, ...]:
    """Returns a record for each rank that failed or is at fault."""
    by_rank = {r.rank: replace(r, culprit=r.rank in culprits) for r in records}
    for state in states:
        if state.rank in culprits and state.rank not in by_rank:
            own = RankFailure(rank=state.rank, node_id=state.node_id, culprit=True, message=stands(state))
            by_rank[state.rank] = own
    return tuple(by_rank[r] for r in sorted(by_rank))


def _of_nobody(said: ErrorInfo, finding: Finding) -> ErrorInfo:
    """The users' own exception is kept where every rank raised one in the same collective."""
    if finding.alike:
        return replace(said, rank=-1)
    why = f"ranks failed in collectives, and which is at fault cannot be told: {finding.text}; {said.message}"
    return replace(said, rank=-1, message=why, pickled=b"", exit_code=0, signal=0)


def _of_odd(said: ErrorInfo, finding: Finding, states: Sequence[RankState]) -> ErrorInfo:
    first = finding.culprits[0]
    own = next(r for r in said.ranks if r.rank == first)
    places = next((s.places for s in states if s.rank == first), ())
    did = finding.what or "failed in a collective"
    return replace(
        said,
        message=f"{ranks_text(finding.culprits)} {did}: {finding.text}; {said.message}",
        traceback=own.traceback or stack_text(places),
        rank=first,
        node_id=own.node_id,
        exit_code=own.exit_code,
        signal=own.signal,
        pickled=b"",
    )
