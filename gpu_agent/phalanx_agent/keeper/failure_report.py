"""What is known of a call that failed, of this node's ranks: written once, when the ranks are gone, for people to read.

A file of the gang's folder, ``<call id>.report``: one JSON object. The agent stores it beside the call's output, so the
parts of all nodes come together there.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from phalanx.core.collectives import RankState, stands
from phalanx.core.ids import id_text
from phalanx.core.logrecords import LAST_LINES
from phalanx.core.states import Outcome
from phalanx.core.steps import RankSteps, rows_to_json
from phalanx_agent.gang_config import GangConfig
from phalanx_agent.keeper.calls import QueuedCall
from phalanx_agent.keeper.output import TAIL_BYTES, Spool
from phalanx_agent.keeper.ranks import RankProcess
from phalanx_agent.keeper.report import Evidence
from phalanx_agent.keeper.telling import Why

SUFFIX = ".report"


def write(  # noqa: PLR0913  all that a keeper knows
    gang_dir: Path,
    call: QueuedCall,
    why: Why,
    *,
    config: GangConfig,
    ranks: list[RankProcess],
    evidence: Evidence,
    states: list[RankState],
    spool: Spool,
    steps: tuple[RankSteps, ...],
    wall_ms: int,
) -> None:
    """Writes the report whole or not at all. A call that was cancelled has none."""
    if why.outcome is Outcome.CANCELLED:
        return
    by_rank = {s.rank: s for s in states}
    value = {
        "call": id_text("c", call.id),
        "attempt": call.attempt,
        "gang": config.gang_id,
        "node": config.node_id,
        "function": config.function.name,
        "world_size": config.world_size,
        "placement": config.placement,
        "gpus": list(config.member.gpus),
        "at_ms": wall_ms,
        "reason": why.error.message if why.error else why.reason,
        "steps": rows_to_json(steps),
        "ranks": [_rank(r.rank, r, evidence, by_rank.get(r.rank), spool) for r in ranks],
    }
    path = gang_dir / f"{value['call']}{SUFFIX}"
    part = path.with_suffix(".part")
    try:
        part.write_text(json.dumps(value))
        part.replace(path)
    except OSError as e:
        sys.stderr.write(f"{path.name} could not be written: {e}{os.linesep}")


def _rank(
    number: int, process: RankProcess, evidence: Evidence, state: RankState | None, spool: Spool
) -> dict[str, Any]:
    failure, death = evidence.failures.get(number), evidence.deaths.get(number)
    last = state.last[-1] if state is not None and state.last else None
    return {
        "rank": number,
        "pid": process.host_pid,
        "died": death is not None,
        "exit_code": death.exit_code if death else 0,
        "signal": death.signal if death else 0,
        "out_of_memory": death.out_of_memory if death else False,
        "type_name": failure.error.type_name if failure else "",
        "message": failure.error.message if failure else "",
        "own_error": failure is not None and not failure.peer,
        "traceback": failure.error.traceback if failure else evidence.stacks.get(number, ""),
        "last_lines": spool.last_lines(number, limit_bytes=TAIL_BYTES).splitlines()[-LAST_LINES:],
        "stood": stands(state) if state is not None else "",
        "stack": [[p.file, p.line, p.function] for p in state.places] if state is not None else [],
        "collective": last.text if last is not None else "",
        "collective_done": last.done if last is not None else False,
    }
