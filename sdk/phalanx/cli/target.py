"""Which cluster a command talks to: the configuration's, else the embedded one, which only some commands may start."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from phalanx import config, connection
from phalanx.client import Client
from phalanx.core.errors import ConnectionFailedError, InvalidSpecError, NotFoundError

_RETRY_S = 3.0
_ID_CHARS = 28
_PREFIX_SEARCH = 1000


@dataclass(frozen=True, slots=True)
class Target:
    """A connection and where its address came from."""

    connection: connection.Connection
    origin: str


def resolve(profile: str, *, start: bool, say: Callable[[str], None]) -> Target:
    """Returns the target. Raises ConnectionFailedError when nothing is configured and nothing may be started."""
    settings = config.resolve({"profile": profile})
    if not settings.embedded:
        found = connection.Connection(settings.address.text, settings.token.text, settings.ca.text)
        return Target(found, settings.address.origin)
    from phalanx import embedded

    if not start and embedded.running() is None:
        raise ConnectionFailedError(
            "no cluster is running: none is configured, and the embedded one is down", hint="gpuctl up"
        )
    here = embedded.ensure(say=say)
    return Target(connection.Connection(here.address, here.token, here.ca_path, embedded=True), config.EMBEDDED)


def open_client(target: Target, *, timeout_s: float | None) -> Client:
    """Returns a client that gives up on an unreachable control plane after a few seconds."""
    return Client(target.connection, retry_s=min(_RETRY_S, timeout_s or _RETRY_S))


def full_id(client: Client, text: str) -> str:
    """Returns the whole call id that ``text`` begins. Raises NotFoundError, or InvalidSpecError for several."""
    if len(text) >= _ID_CHARS:
        return text
    wanted = text if text.startswith("c-") else f"c-{text}"
    known = [call.call_id for call in client.list_calls(ended_too=True, limit=_PREFIX_SEARCH)]
    found = [call_id for call_id in known if call_id.startswith(wanted)]
    if not found:
        raise NotFoundError(f"no call {text!r} is known: it is not the beginning of a call id", hint="gpuctl ps --all")
    if len(found) > 1:
        raise InvalidSpecError(f"{text!r} begins {len(found)} call ids: {', '.join(found[:3])}", hint="give more of it")
    return found[0]
