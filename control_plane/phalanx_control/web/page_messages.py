"""The page's events as bytes, for one workspace: its own calls and gangs, and the nodes without others' names.

    snapshot   {"nodes": [fields…], "calls": […], "gangs": […], "server": {…}, "now_ms": wall ms}
    patch      {"nodes": [[id, changed fields]…], "calls": …, "gangs": …, "server", "now_ms",
                "removed": {"calls": [id…]}}
    reset      {}        what came before is no longer certain: open the stream again
    ping       {"now_ms": wall ms}

Between replicas a patch travels as `Shared`, whole, with the owner of every gang that it mentions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from phalanx_control.service.queries import OTHER_USER
from phalanx_control.state.model import State
from phalanx_control.web.page_model import NODES, Change, Item, Key

FACT_KIND = "page"
_encode = msgspec.json.Encoder().encode


class Shared(msgspec.Struct, frozen=True):
    """One entry of the live stream. ``reset``: a new leader speaks, former patches may be missing some."""

    changes: tuple[Change, ...] = ()
    owners: dict[str, str] = {}
    """Gang id → workspace, for the gangs that changed nodes hold."""
    reset: bool = False
    now_ms: int = 0


def to_fact(shared: Shared) -> dict[str, Any]:
    """Returns what is put into the live stream."""
    return {"kind": FACT_KIND, **msgspec.to_builtins(shared)}


def from_fact(fact: Mapping[str, Any]) -> Shared | None:
    """Reads it again; None for other facts, and for those of another version."""
    if fact.get("kind") != FACT_KIND:
        return None
    try:
        return msgspec.convert({key: value for key, value in fact.items() if key != "kind"}, Shared)
    except msgspec.ValidationError:
        return None


def owners_of(state: State) -> dict[str, str]:
    """Returns the workspace of every gang."""
    return {gang.id: gang.owner.workspace for gang in state.gangs.values()}


def snapshot(
    items: Mapping[Key, Item], owners: Mapping[str, str], workspace: str, server: dict[str, Any], now_ms: int
) -> dict[str, Any]:
    """Returns the whole picture for one workspace."""
    out: dict[str, Any] = {"nodes": [], "calls": [], "gangs": [], "server": server, "now_ms": now_ms}
    for (kind, _), item in items.items():
        if kind == NODES or item.workspace == workspace:
            out[kind].append(_masked(kind, item.fields, owners, workspace))
    return out


def patch(shared: Shared, workspace: str, server: dict[str, Any]) -> dict[str, Any]:
    """Returns what changed, for one workspace."""
    out: dict[str, Any] = {"server": server, "now_ms": shared.now_ms}
    removed: dict[str, list[str]] = {}
    for change in _visible(shared.changes, workspace):
        kind, subject = change.key
        if change.fields is None:
            removed.setdefault(kind, []).append(subject)
        else:
            out.setdefault(kind, []).append([subject, _masked(kind, change.fields, shared.owners, workspace)])
    return {**out, "removed": removed} if removed else out


def event(name: str, data: dict[str, Any], event_id: str = "") -> bytes:
    """Returns one server-sent event."""
    head = f"id: {event_id}\n" if event_id else ""
    return f"{head}event: {name}\ndata: ".encode() + _encode(data) + b"\n\n"


def _visible(changes: Iterable[Change], workspace: str) -> Iterable[Change]:
    return (change for change in changes if change.key[0] == NODES or change.workspace == workspace)


def _masked(kind: str, fields: dict[str, Any], owners: Mapping[str, str], workspace: str) -> dict[str, Any]:
    if kind != NODES or "gpus" not in fields:
        return fields
    return {**fields, "gpus": [_masked_gpu(gpu, owners, workspace) for gpu in fields["gpus"]]}


def _masked_gpu(gpu: dict[str, Any], owners: Mapping[str, str], workspace: str) -> dict[str, Any]:
    if not gpu["gang_id"] or owners.get(gpu["gang_id"]) == workspace:
        return gpu
    return {**gpu, "function": "", "user": OTHER_USER}
