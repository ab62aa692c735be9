"""What the leader does to tell the ends of calls: looks who is due, posts, and lets the log say what came of it.

Whom to tell is in the state, so a new leader goes on where the one before it stopped. What was posted and not yet
written down when a leader ended is posted again, under the same ``webhook-id``: receivers hear of every end at least
once. Attempts run side by side, few to one receiver, so that a slow one holds up nobody but itself: how many are due to
it costs the others nothing, and a lookup that hangs is a place of its own receiver until it ends.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Protocol

from phalanx.core.clock import Clock
from phalanx.core.errors import PhalanxError
from phalanx.core.views import CostView
from phalanx.core.webhooks import ID_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, signature
from phalanx_control.lifecycle.webhooks import DELIVERED, GIVEN_UP, MAX_ERROR_CHARS, REFUSED, RETRY_AFTER_S
from phalanx_control.state import untold
from phalanx_control.state.commands import NoteWebhooks
from phalanx_control.state.events import Events, WebhookTry
from phalanx_control.state.model import Call, State
from phalanx_control.webhook_post import BadAnswerError, post
from phalanx_control.webhook_targets import ForbiddenTargetError, Lookups, find

_logger = logging.getLogger(__name__)

ROUND_S = 0.25
TIMEOUT_S = 10.0
AT_ONCE = 16
TO_ONE_HOST = 4
JITTER = 0.2
_GONE = 410


class Log(Protocol):
    """The controller, as far as webhooks need it."""

    @property
    def is_leader(self) -> bool: ...

    @property
    def state(self) -> State: ...

    async def execute(self, command: NoteWebhooks) -> Events: ...


class Pictures(Protocol):
    def label(self, state: State, function_id: str) -> str: ...

    def call_cost(self, state: State, call: Call) -> CostView: ...


class Keys(Protocol):
    def signing(self, workspace: str) -> tuple[bytes, ...]:
        """Returns the secrets that sign now, the newest first."""
        ...


@dataclass(slots=True, kw_only=True)
class WebhookTeller:
    """Works only while ``controller`` leads."""

    controller: Log
    pictures: Pictures
    keys: Keys
    clock: Clock
    allow_private: bool = False
    timeout_s: float = TIMEOUT_S
    round_s: float = ROUND_S
    draw: Callable[[], float] = random.random
    lookups: Lookups = field(default_factory=lambda: Lookups(AT_ONCE))
    _busy: dict[str, str] = field(default_factory=dict[str, str])
    """Calls whose ends are being told now, or whose attempt is being written down, and to which receiver."""
    _done: list[WebhookTry] = field(default_factory=list[WebhookTry])

    async def run(self) -> None:
        """Goes on until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                if self.controller.is_leader:
                    self._begin(tasks)
                    await self._note()
                await asyncio.sleep(self.round_s)

    def _begin(self, tasks: asyncio.TaskGroup) -> None:
        state = self.controller.state
        places = Counter(self._busy.values()) | self.lookups.places()
        room = AT_ONCE - places.total()
        for receiver, call_ids in untold.due(state.untold, self.clock.wall_ms()):
            here = min(room, TO_ONE_HOST - places[receiver])
            begun = list(islice((each for each in call_ids if each not in self._busy), max(0, here)))
            for call_id in begun:
                self._busy[call_id] = receiver
                tasks.create_task(self._tell(state.calls[call_id]))
            room -= len(begun)
            if room <= 0:
                return

    async def _tell(self, call: Call) -> None:
        """One attempt, whatever comes of it."""
        headers, body = self._message(call)
        status, error, refused = 0, "", False
        try:
            async with asyncio.timeout(self.timeout_s):
                target = await find(call.webhook, self.lookups, allow_private=self.allow_private)
                status = await post(target, headers, body)
        except ForbiddenTargetError as e:
            error, refused = str(e), True
            _logger.warning("webhook refused", extra={"call": call.id, "host": e.host, "address": e.address})
        except TimeoutError:
            error = f"no answer within {self.timeout_s:g} s"
        except (OSError, BadAnswerError, UnicodeError) as e:
            error = str(e) or type(e).__name__
        self._done.append(self._outcome(call, status, error, refused=refused or status == _GONE))

    def _message(self, call: Call) -> tuple[dict[str, str], bytes]:
        state = self.controller.state
        cost = self.pictures.call_cost(state, call)
        body = json.dumps(payload(call, self.pictures.label(state, call.function_id), cost)).encode()
        seconds = self.clock.wall_ms() // 1000
        signatures = [signature(key, call.id, seconds, body) for key in self.keys.signing(call.owner.workspace)]
        headers = {ID_HEADER: call.id, TIMESTAMP_HEADER: str(seconds), SIGNATURE_HEADER: " ".join(signatures)}
        return headers, body

    def _outcome(self, call: Call, status: int, error: str, *, refused: bool) -> WebhookTry:
        assert call.delivery is not None
        tried = call.delivery.attempts
        over = DELIVERED if 200 <= status < 300 else REFUSED if refused else ""
        if not over and tried >= len(RETRY_AFTER_S):
            over = GIVEN_UP
        if 300 <= status < 400:
            error = f"answered {status}, and redirects are not followed"
        wait_s = 0.0 if over else RETRY_AFTER_S[tried] * (1 + JITTER * (2 * self.draw() - 1))
        return WebhookTry(
            call_id=call.id,
            status=status,
            error=error[:MAX_ERROR_CHARS],
            over=over,
            next_wall_ms=0 if over else self.clock.wall_ms() + round(wait_s * 1000),
        )

    async def _note(self) -> None:
        """What cannot be written down now is so in a later round; until then nobody is told twice."""
        tries = tuple(self._done)
        if not tries:
            return
        try:
            await self.controller.execute(NoteWebhooks(tries=tries))
        except PhalanxError as e:
            _logger.warning("webhook attempts not noted yet", extra={"attempts": len(tries), "why": str(e)})
            if self.controller.is_leader:
                return
        del self._done[: len(tries)]
        for each in tries:
            self._busy.pop(each.call_id, None)


def payload(call: Call, function: str, cost: CostView) -> dict[str, Any]:
    """Returns what a receiver is told: no result and no message, which are the owner's business alone."""
    return {
        "id": call.id,
        "function": function,
        "state": call.state.value,
        "attempt": call.attempt,
        "cause": call.error.cause.value if call.error is not None else None,
        "started": _time(call.started_wall_ms),
        "ended": _time(call.ended_wall_ms),
        "charge": {"amount": cost.money, "currency": cost.currency},
        "map": call.map_id or None,
    }


def _time(wall_ms: int) -> str | None:
    if not wall_ms:
        return None
    return datetime.fromtimestamp(wall_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
