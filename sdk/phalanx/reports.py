"""A failed call as a whole: what the control plane knows of it, and what each node's keeper wrote of its ranks.

Reads only. A part that is missing is named, and leaves the rest as it is.
"""

from __future__ import annotations

import json
import threading
import time
from collections import deque
from dataclasses import dataclass, fields, replace
from typing import Any

from phalanx.client import Client
from phalanx.core.collectives import stands
from phalanx.core.errors import NotFoundError, PhalanxError
from phalanx.core.logrecords import LAST_LINES
from phalanx.core.remote_errors import replay_command
from phalanx.core.stacks import Place, RankStack, alike, ranks_text
from phalanx.core.states import CallState, Cause, GangState, GpuState, Phase
from phalanx.core.steps import RankSteps, rows_from_json, slow_text
from phalanx.core.views import AttemptView, CallView, GangView
from phalanx.logs import read_logs
from phalanx.not_now import not_now
from phalanx.ranks_now import ranks_now

PARTS_WITHIN_S = 10.0
_AGAIN_S = 0.1
_FAILED = (CallState.FAILED, CallState.TIMED_OUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """One rank when its gang ended. ``role``: culprit; failed, of itself too; victim; returned; or undetermined: nobody
    could be named.
    """

    rank: int
    node_id: str = ""
    role: str = "victim"
    pid: int = 0
    died: bool = False
    """By itself, before the gang was ended."""
    exit_code: int = 0
    signal: int = 0
    out_of_memory: bool = False
    type_name: str = ""
    message: str = ""
    own_error: bool = False
    """No other rank's end explains it."""
    traceback: str = ""
    last_lines: tuple[str, ...] = ()
    stood: str = ""
    """``waits in all_reduce #41``; empty where it could not be asked any more."""
    stack: tuple[Place, ...] = ()
    """Innermost frame first."""
    collective: str = ""
    collective_done: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CallReport:
    """Why a call failed. ``str()`` is the report as people read it."""

    call_id: str
    function: str = ""
    state: str = ""
    attempt: int = 0
    earlier: tuple[AttemptView, ...] = ()
    """Attempts before the last one, of which the rest of the report is."""
    cause: str = ""
    type_name: str = ""
    message: str = ""
    traceback: str = ""
    culprits: tuple[int, ...] = ()
    """Empty: it could not be known."""
    gang_id: str = ""
    placement: str = ""
    nodes: tuple[str, ...] = ()
    missing_nodes: tuple[str, ...] = ()
    """Of these nothing was stored: they were lost, or the gang never ended there."""
    held: str = ""
    """For how long its gang is kept for people, and how they get there; empty where it is not."""
    ranks: tuple[RankReport, ...] = ()
    health: tuple[str, ...] = ()
    """What is reported now of GPUs that it ran on."""
    steps: tuple[RankSteps, ...] = ()
    """How long its ranks' last steps took, where they marked any."""
    charged: str = ""
    rerun: str = ""

    def __str__(self) -> str:
        return "\n".join(lines_of(self))


def call_report(client: Client, call_id: str) -> CallReport:
    """Returns the report of a call that failed or ran out of time. Raises NotFoundError for any other."""
    view = client.get_call(call_id)
    if CallState(view.state) not in _FAILED:
        raise not_now(view, "there is a report of calls that failed")
    view, gang, parts = _gather(client, view)
    gang_nodes = gang.nodes if gang is not None else ()
    error = view.error
    culprits = tuple(r.rank for r in error.ranks if r.culprit) or ((error.rank,) if error.rank >= 0 else ())
    ranks = _ranks(view, parts, culprits)
    complete = _is_held(view) or _left_its_gang(view, gang)
    if _is_held(view):
        ranks = _held_ranks(client, view, ranks, culprits)
    elif complete and not parts:
        ranks = _one_rank(client, view)
    return CallReport(
        call_id=call_id,
        function=view.function,
        state=view.state,
        attempt=view.attempt,
        earlier=view.earlier,
        cause=error.cause.value,
        type_name=error.type_name,
        message=error.message,
        traceback=error.traceback,
        culprits=culprits,
        gang_id=view.gang_id,
        placement=view.placement,
        nodes=gang_nodes,
        missing_nodes=() if complete else tuple(node for node in gang_nodes if node not in parts),
        held=view.reason if _is_held(view) else "",
        ranks=ranks,
        health=_health(client, frozenset(gang.gpus) if gang is not None else frozenset()),
        steps=tuple(row for part in parts.values() for row in rows_from_json(part.get("steps", []))),
        charged=f"{view.cost.money} {view.cost.currency}",
        rerun=replay_command(call_id),
    )


def _gather(client: Client, view: CallView) -> tuple[CallView, GangView | None, dict[str, dict[str, Any]]]:
    """Returns the call and its gang, and what each of its nodes wrote, which they do a moment after it has failed. That
    a gang is held is known a moment later, too.
    """
    until = time.monotonic() + PARTS_WITHIN_S
    while True:
        gang = _gang(client, view)
        nodes = gang.nodes if gang is not None else ()
        parts = {node: part for node in nodes if (part := _part(client, view, node)) is not None}
        late = _is_held(view) or _left_its_gang(view, gang) or time.monotonic() > until
        over = gang is None or GangState(gang.state).terminal or late
        if over or len(parts) == len(nodes):
            return view, gang, parts
        threading.Event().wait(_AGAIN_S)
        view = client.get_call(view.call_id)


def _is_held(view: CallView) -> bool:
    """Its gang is kept for people: its nodes write down what they know when that ends."""
    return view.phase == Phase.DEBUG.value


def _held_ranks(
    client: Client, view: CallView, known: tuple[RankReport, ...], culprits: tuple[int, ...]
) -> tuple[RankReport, ...]:
    """What the call says of its ranks, where these stand now, and what they wrote."""
    found = {rank.rank: rank for rank in known}
    lines: dict[int, deque[str]] = {}
    for line in read_logs(client, view.call_id, follow=False):
        lines.setdefault(line.rank, deque(maxlen=LAST_LINES)).append(line.text)
    try:
        states = ranks_now(client, view.call_id)
    except PhalanxError:  # none can be asked, or the hold has just ended: the rest is told all the same
        states = []
    for state in states:
        last = state.last[-1] if state.last else None
        found[state.rank] = replace(
            found.get(state.rank, RankReport(rank=state.rank, role=_role(state.rank, culprits))),
            node_id=state.node_id,
            role=_role(state.rank, culprits, stands(state)),
            pid=state.pid,
            died=not state.alive,
            stood=stands(state),
            stack=state.places,
            collective=last.text if last is not None else "",
            collective_done=last.done if last is not None else False,
        )
    return tuple(replace(found[n], last_lines=tuple(lines.get(n, found[n].last_lines))) for n in sorted(found))


def _left_its_gang(view: CallView, gang: GangView | None) -> bool:
    """An exception in the one rank of a gang, which goes on with other calls: its node has nothing else to say."""
    alone = gang is not None and gang.world_size == 1
    how = (view.error.exit_code, view.error.signal)
    return alone and view.error.cause is Cause.USER_EXCEPTION and how == (0, 0)


def _one_rank(client: Client, view: CallView) -> tuple[RankReport, ...]:
    """What the call itself says of its one rank, with the end of its output."""
    lines = deque((line.text for line in read_logs(client, view.call_id, follow=False)), maxlen=LAST_LINES)
    return tuple(replace(rank, last_lines=tuple(lines)) for rank in _ranks(view, {}, (0,)))


def _gang(client: Client, view: CallView) -> GangView | None:
    try:
        return client.explain_gang(view.gang_id).gang if view.gang_id else None
    except NotFoundError:
        return None


def _part(client: Client, view: CallView, node: str) -> dict[str, Any] | None:
    try:
        return json.loads(client.get_blob(f"logs/{view.call_id}/{node}/{view.gang_id}.report"))
    except NotFoundError:
        return None


def _ranks(view: CallView, parts: dict[str, dict[str, Any]], culprits: tuple[int, ...]) -> tuple[RankReport, ...]:
    found: dict[int, RankReport] = {}
    for failure in view.error.ranks:
        found[failure.rank] = RankReport(
            rank=failure.rank,
            node_id=failure.node_id,
            role=_role(failure.rank, culprits),
            exit_code=failure.exit_code,
            signal=failure.signal,
            type_name=failure.type_name,
            message=failure.message,
            traceback=failure.traceback,
            last_lines=tuple(failure.last_lines.splitlines()),
        )
    for node, part in parts.items():
        for rank in part["ranks"]:
            values: dict[str, Any] = {
                **{name: value for name, value in rank.items() if name in _KNOWN},
                "node_id": node,
                "role": _role(int(rank["rank"]), culprits, rank["stood"], own_error=bool(rank.get("own_error"))),
                "last_lines": tuple(rank["last_lines"]),
                "stack": tuple(Place(*place) for place in rank["stack"]),
            }
            found[int(rank["rank"])] = RankReport(**values)
    return tuple(found[rank] for rank in sorted(found))


_KNOWN = frozenset(each.name for each in fields(RankReport))
"""A newer agent's report may hold more."""


def _role(rank: int, culprits: tuple[int, ...], stood: str = "", *, own_error: bool = False) -> str:
    if rank not in culprits and stood.startswith("has returned"):
        return "returned"
    if rank in culprits or not culprits:
        return "culprit" if culprits else "undetermined"
    return "failed" if own_error else "victim"


def _health(client: Client, gpus: frozenset[str]) -> tuple[str, ...]:
    if not gpus:
        return ()
    infos = [(node.node_id, gpu.info) for node in client.list_nodes() for gpu in node.gpus]
    told = [(node, gpu) for node, gpu in infos if gpu.uuid in gpus and gpu.reason]
    # while one is cleaned its reason is the gang's own end
    return tuple(f"{node} {gpu.uuid}: {gpu.reason}" for node, gpu in told if gpu.state is not GpuState.CLEANING)


def lines_of(report: CallReport) -> list[str]:
    """Returns the report as people read it: the error, each rank in a line, stacks once each, output of who failed."""
    who = ranks_text(report.culprits) if report.culprits else "could not be determined"
    rows = [
        ("call", f"{report.call_id}  {report.state}  {report.function}  attempt {report.attempt}"),
        ("error", f"{report.type_name or report.cause}: {report.message}"),
        ("culprit", who),
        *((f"attempt {each.attempt}", str(each)) for each in report.earlier),
        ("gang", f"{report.gang_id}  on {', '.join(report.nodes)}" if report.gang_id else "none"),
        ("held", report.held.removeprefix("held ")),
        ("why there", report.placement),
        *(("no word of", node) for node in report.missing_nodes),
        *(("health", line) for line in report.health),
        ("slow", slow_text(report.steps)),
        ("charged", report.charged),
        ("rerun", report.rerun),
    ]
    lines = [f"{name:<10} {value}" for name, value in rows if value]
    if report.ranks:
        lines += ["", *(_rank_line(rank) for rank in report.ranks)]
    return [*lines, *_traces(report), *_stacks(report), *_output(report)]


def _rank_line(rank: RankReport) -> str:
    how = [f"{rank.type_name}: {rank.message}".strip(": ").partition("\n")[0][:160]]
    if rank.out_of_memory:
        how.append("killed by the kernel: out of memory")
    elif rank.signal:
        how.append(f"signal {rank.signal}")
    elif rank.died:
        how.append(f"exit code {rank.exit_code}")
    how.append(rank.stood)
    if rank.collective and "collective" not in rank.stood and rank.collective not in rank.stood:
        how.append(f"last collective {rank.collective}")
    where = f"  {rank.node_id}" if rank.node_id else ""
    return f"rank {rank.rank:<4} {rank.role:<12}{where}  {'; '.join(h for h in how if h) or 'was ended with the gang'}"


def _traces(report: CallReport) -> list[str]:
    own = report.traceback.rstrip()
    whose = ranks_text(report.culprits[:1]) if report.culprits else "the error"
    return ["", f"traceback of {whose}", own] if own else []


def _stacks(report: CallReport) -> list[str]:
    lines: list[str] = []
    stood = [RankStack(rank=r.rank, node_id=r.node_id, places=r.stack) for r in report.ranks if r.stack]
    for ranks, found in alike(stood):
        lines += ["", f"stack of {ranks_text(ranks)} {'now' if report.held else 'when the gang was ended'}"]
        lines += [f"  {p.shown}  {p.function}" for p in reversed(found.places)]
    return lines


def _output(report: CallReport) -> list[str]:
    lines: list[str] = []
    for rank in report.ranks:
        if rank.last_lines and (rank.role != "victim" or len(report.ranks) <= 2):
            lines += ["", f"last output of rank {rank.rank}", *(f"  {line}" for line in rank.last_lines)]
    return lines
