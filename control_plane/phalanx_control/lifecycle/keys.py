"""Idempotency keys: the same key of the same function stands for one call, for a day.

A key is taken by the same batch that accepts its call, so that it holds over any failure and however many ask at once.
The function is known by its name, whatever its code and resources: a new version must not do the same order twice.
"""

from __future__ import annotations

from phalanx.core.errors import InvalidSpecError
from phalanx.core.spec import MAX_NAME_CHARS
from phalanx_control.lifecycle.draft import Draft
from phalanx_control.state import events, ordered, queries
from phalanx_control.state.commands import Submit
from phalanx_control.state.model import Function, KeyUse

KEPT_MS = 24 * 3600 * 1000
FORGOTTEN_AT_ONCE = 256
"""Keys whose time is over that one tick forgets."""


def check(key: str) -> None:
    """Raises InvalidSpecError for text that is no key."""
    if len(key) > MAX_NAME_CHARS or not key.isprintable():
        raise InvalidSpecError(
            f"idempotency_key={key[:40]!r}: give 1 to {MAX_NAME_CHARS} printable characters, such as 'order-17'"
        )


def is_in_use(draft: Draft, function: Function, command: Submit) -> bool:
    """Says whether the command's key, where it has one, stands for a call already.

    Raises InvalidSpecError where that call has other arguments.
    """
    key = command.terms.idempotency_key
    use = queries.key_use(draft.state, function, key, draft.now.log_ms)
    if use is None:
        return False
    if use.args_sha256 != command.args_sha256:
        raise InvalidSpecError(
            f"idempotency_key={key!r} of {function.spec.name} stands for call {use.call_id}, which has other arguments",
            hint=f"use another key for other arguments; gpuctl explain {use.call_id} shows the first call",
        )
    return True


def take(draft: Draft, function: Function, command: Submit) -> None:
    """Lets the key, where the command has one, stand for the call that was accepted with it."""
    key = command.terms.idempotency_key
    if not key:
        return
    until_ms = draft.now.log_ms + KEPT_MS
    use = KeyUse(call_id=command.call_id, args_sha256=command.args_sha256, until_ms=until_ms)
    draft.add(events.KeyTaken(name=queries.key_name(function, key), use=use))


def forget_old(draft: Draft) -> None:
    """Forgets keys whose time is over, those first that have been over longest."""
    names: list[str] = []
    for until_ms, name in ordered.in_order(draft.state.keys_line):
        if until_ms > draft.now.log_ms or len(names) == FORGOTTEN_AT_ONCE:
            break
        names.append(name)
    if names:
        draft.add(events.KeysForgotten(names=tuple(names)))
