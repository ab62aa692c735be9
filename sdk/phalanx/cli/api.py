"""What gpuctl asks of the control plane, as views. One connection, bounded waits, errors of our own tree.

Reads and cancels only; functions are run and deployed through the SDK itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import grpc

from phalanx import wire_errors
from phalanx.cli.target import Target
from phalanx.core import views
from phalanx.core.errors import InvalidSpecError, NotFoundError
from phalanx.wire import from_proto
from phalanx_proto.v1 import control_pb2, control_pb2_grpc

T = TypeVar("T")

_RPC_TIMEOUT_S = 10.0
_ID_CHARS = 28
_PREFIX_SEARCH = 1000


class Api:
    """A connection to one control plane."""

    def __init__(self, target: Target, *, timeout_s: float | None = None) -> None:
        self.target = target
        self._timeout_s = timeout_s or _RPC_TIMEOUT_S
        self._channel = _channel(target)
        self._stub: Any = control_pb2_grpc.ControlStub(self._channel)
        self._metadata = (("authorization", f"Bearer {target.token}"),)

    def close(self) -> None:
        self._channel.close()

    def info(self) -> views.ServerInfo:
        return from_proto(views.ServerInfo, self._ask(self._stub.GetServerInfo, control_pb2.Empty()))

    def calls(self, *, everything: bool = False, state: str = "", function: str = "", limit: int = 100) -> list[views.CallView]:
        request = control_pb2.ListCallsRequest(state=state, function=function, limit=limit, all=everything)
        found = self._ask(self._stub.ListCalls, request).calls
        return [from_proto(views.CallView, call) for call in found]

    def call(self, call_id: str) -> views.CallView:
        return from_proto(views.CallView, self._ask(self._stub.GetCall, control_pb2.CallId(call_id=call_id)))

    def watch(self, call_id: str) -> Iterator[views.CallView]:
        """Yields the present view, then one per change; the last one is terminal."""
        stream = self._stub.WatchCall(control_pb2.CallId(call_id=call_id), metadata=self._metadata)
        try:
            for view in stream:
                yield from_proto(views.CallView, view)
        except grpc.RpcError as e:
            raise wire_errors.to_exception(e) from None
        finally:
            stream.cancel()

    def cancel(self, call_id: str) -> views.CallView:
        return from_proto(views.CallView, self._ask(self._stub.CancelCall, control_pb2.CallId(call_id=call_id)))

    def nodes(self) -> list[views.NodeView]:
        return [from_proto(views.NodeView, n) for n in self._ask(self._stub.ListNodes, control_pb2.Empty()).nodes]

    def gangs(self) -> list[views.GangView]:
        return [from_proto(views.GangView, g) for g in self._ask(self._stub.ListGangs, control_pb2.Empty()).gangs]

    def costs(self, *, call_id: str = "", group_by: str = "") -> list[views.CostView]:
        request = control_pb2.CostRequest(call_id=call_id, group_by=group_by)
        return [from_proto(views.CostView, c) for c in self._ask(self._stub.GetCost, request).costs]

    def login_link(self) -> str:
        return self._ask(self._stub.CreateLoginLink, control_pb2.Empty()).url

    def create_token(self, *, user: str, workspace: str, role: str, lifetime_ms: int) -> tuple[str, str]:
        """Returns the new token's id and the token itself, which is shown this once only."""
        request = control_pb2.CreateTokenRequest(workspace=workspace, user=user, role=role, lifetime_ms=lifetime_ms)
        made = self._ask(self._stub.CreateToken, request)
        return made.token_id, made.token

    def revoke_token(self, token_id: str) -> None:
        self._ask(self._stub.RevokeToken, control_pb2.RevokeTokenRequest(token_id=token_id))

    def tokens(self) -> list[dict[str, Any]]:
        names = ("token_id", "workspace", "user", "role", "created_ms", "expires_ms")
        found = self._ask(self._stub.ListTokens, control_pb2.Empty()).tokens
        return [{name: getattr(token, name) for name in names} for token in found]

    def full_id(self, text: str) -> str:
        """Returns the whole call id that ``text`` begins. Raises NotFoundError, or InvalidSpecError for several."""
        if len(text) >= _ID_CHARS:
            return text
        wanted = text if text.startswith("c-") else f"c-{text}"
        known = [call.call_id for call in self.calls(everything=True, limit=_PREFIX_SEARCH)]
        found = [call_id for call_id in known if call_id.startswith(wanted)]
        if not found:
            raise NotFoundError(f"no call {text!r} is known: ids begin with c-", hint="gpuctl ps --all")
        if len(found) > 1:
            raise InvalidSpecError(
                f"{text!r} begins {len(found)} call ids: {', '.join(found[:3])}", hint="give more of the id"
            )
        return found[0]

    def _ask(self, method: Callable[..., T], request: Any) -> T:
        try:
            return method(request, metadata=self._metadata, timeout=self._timeout_s)
        except grpc.RpcError as e:
            raise wire_errors.to_exception(e) from None


def _channel(target: Target) -> grpc.Channel:
    root = Path(target.ca_path).read_bytes() if target.ca_path else None
    options = (("grpc.max_receive_message_length", 64 << 20),)
    return grpc.secure_channel(target.address, grpc.ssl_channel_credentials(root), options=options)
