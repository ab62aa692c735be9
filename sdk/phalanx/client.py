"""The control plane over gRPC, as plain methods with plain data. No policy of calls lives here.

Every call may be repeated, because ids are made by the client; so a control plane that is not reachable is asked again
for RETRY_S, with growing pauses. Reads see this process's own writes. Imported only when first used: it needs grpc.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import threading
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import grpc

from phalanx import wire, wire_errors
from phalanx.connection import Connection
from phalanx.core.clock import Clock, SystemClock
from phalanx.core.errors import ConnectionFailedError, NotFoundError
from phalanx.core.messages import Body, CallTerms
from phalanx.core.spec import FunctionSpec
from phalanx.core.states import CallState
from phalanx.core.views import (
    CallView,
    CostView,
    FunctionView,
    GangAddress,
    GangExplanation,
    GangView,
    LogSource,
    NodeView,
    PastView,
    QueueView,
    ServerInfo,
    StartView,
    TokenInfo,
    WebhookSecret,
)
from phalanx_proto.v1 import common_pb2, control_pb2, control_pb2_grpc

if TYPE_CHECKING:
    from phalanx.core.topology.fabric import Fabric
    from phalanx.core.topology.node import NodeTopology

RETRY_S = 30.0
DEADLINE_S = 15.0
BLOB_DEADLINE_S = 600.0
_CHUNK_BYTES = 1 << 20
_MAX_MESSAGE_BYTES = 16 << 20
_FIRST_PAUSE_S = 0.05
_MAX_PAUSE_S = 2.0
_SERVER_NAME = "phalanx-control"
_ENDED = frozenset(state.value for state in CallState if state.terminal)
_EMPTY = control_pb2.Empty()
_OPTIONS: tuple[tuple[str, str | int], ...] = (
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.keepalive_time_ms", 20_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),
)


@dataclass(frozen=True, slots=True)
class CallInput:
    """``args`` without data and blob: the cell never had them, as those of direct calls, or they have expired."""

    function: FunctionSpec
    args: Body
    gang_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFabric:
    """``is_set``: somebody told the cell. ``absent``: nodes that the fabric names and that have not joined."""

    fabric: Fabric
    is_set: bool
    absent: tuple[str, ...]


class Client:
    """Thread-safe. One channel; opened lazily by gRPC, so making a client does no I/O besides reading the CA."""

    def __init__(
        self,
        connection: Connection,
        *,
        clock: Clock | None = None,
        retry_s: float = RETRY_S,
        renew: Callable[[], Connection] | None = None,
    ) -> None:
        """``renew`` finds the cluster again when it is not reachable: the embedded one may have moved."""
        self.connection = connection
        self._clock = clock or SystemClock()
        self._retry_s = retry_s
        self._renew = renew
        self._min_seq = 0
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._channel = self._open(connection)
        self._stub: Any = control_pb2_grpc.ControlStub(self._channel)

    def close(self) -> None:
        self._closed.set()
        self._channel.close()

    # ---- functions and blobs ----

    def register(self, spec: FunctionSpec) -> str:
        """Returns the function's id; its code must have been put."""
        request = control_pb2.RegisterFunctionRequest(function=wire.to_proto(spec))
        return self._unary("RegisterFunction", request).function_id

    def deploy(self, app: str, specs: Iterable[FunctionSpec]) -> tuple[int, tuple[FunctionView, ...]]:
        """Deploys all functions of ``app`` or none. Returns the new version and what it holds."""
        request = control_pb2.DeployAppRequest(app=app, functions=[wire.to_proto(s) for s in specs])
        answer = self._unary("DeployApp", request)
        return answer.version, tuple(wire.from_proto(FunctionView, f) for f in answer.functions)

    def resolve(self, app: str, name: str) -> tuple[FunctionView, FunctionSpec]:
        """Returns what ``app/name`` stands for now. Raises NotFoundError."""
        answer = self._unary("ResolveFunction", control_pb2.ResolveFunctionRequest(app=app, name=name))
        return wire.from_proto(FunctionView, answer.view), wire.from_proto(FunctionSpec, answer.function)

    def put_missing(self, blobs: dict[str, bytes]) -> None:
        """Uploads those of ``blobs``, by content name, that the cluster lacks."""
        if not blobs:
            return
        missing = self._unary("MissingBlobs", control_pb2.BlobNames(names=list(blobs))).names
        for name in missing:
            self._put(name, blobs[name])

    def put_blob(self, data: bytes | bytearray | memoryview) -> str:
        """Uploads ``data`` where the cluster lacks it, and returns its name."""
        name = f"sha256:{hashlib.sha256(data).hexdigest()}"
        if self._unary("MissingBlobs", control_pb2.BlobNames(names=[name])).names:
            self._put(name, data)
        return name

    def get_blob(self, name: str) -> bytearray:
        """Returns a blob's content. Raises NotFoundError."""

        def fetch() -> bytearray:
            out = bytearray()
            for chunk in self._stub.GetBlob(
                common_pb2.BlobName(name=name), timeout=BLOB_DEADLINE_S, metadata=self._metadata()
            ):
                out += chunk.data
            return out

        return self._retried(fetch)

    # ---- calls ----

    def submit(
        self,
        call_id: str,
        function_id: str,
        args: Body,
        *,
        timeout_ms: int = 0,
        parent: str = "",
        terms: CallTerms | None = None,
    ) -> str:
        """Returns the call's id once it is durable: another one where ``terms`` hold an idempotency key that was used
        before. ``parent``: the call from inside which it is made.
        """
        request = control_pb2.SubmitCallRequest(
            call_id=call_id,
            function_id=function_id,
            args=wire.to_proto(args),
            timeout_ms=timeout_ms,
            parent=parent,
            terms=None if terms is None else wire.to_proto(terms),
        )
        answer = self._unary("SubmitCall", request)
        self._saw(answer.log_seq)
        return answer.call_id or call_id

    def get_call(self, call_id: str) -> CallView:
        """Returns the call as it is now. Raises NotFoundError."""
        return wire.from_proto(CallView, self._unary("GetCall", control_pb2.CallId(call_id=call_id)))

    def knows(self, call_id: str) -> bool:
        """Says whether the control plane has heard of the call."""
        try:
            self.get_call(call_id)
        except NotFoundError:
            return False
        return True

    def list_calls(
        self, *, state: str = "", function: str = "", limit: int = 0, ended_too: bool = False, parent: str = ""
    ) -> tuple[CallView, ...]:
        """Returns calls, the newest first; ``parent``: those that were made from inside that call."""
        request = control_pb2.ListCallsRequest(
            state=state, function=function, limit=limit, all=ended_too, parent=parent
        )
        return tuple(wire.from_proto(CallView, c) for c in self._unary("ListCalls", request).calls)

    def call_states(self, call_ids: Sequence[str]) -> list[str]:
        """Returns the states of up to 1000 calls, in order; "" for one that is not known."""
        return list(self._unary("GetCallStates", control_pb2.CallIds(call_ids=call_ids)).states)

    def watch(self, call_id: str, *, until_ms: int | None = None) -> Iterator[CallView]:
        """Yields the call as it is, then at each change; ends after a terminal state, or at ``until_ms`` (monotonic).

        A lost stream is opened again. Raises ConnectionFailedError when that fails for RETRY_S.
        """
        pauses = _pauses()
        failing_since: int | None = None
        while True:
            try:
                with self._watch_stream(call_id, until_ms) as stream:
                    for message in stream:
                        failing_since, pauses = None, _pauses()
                        view = wire.from_proto(CallView, message)
                        yield view
                        if is_terminal(view):
                            return
            except grpc.RpcError as e:
                error = wire_errors.to_exception(e)
                if until_ms is not None and self._clock.monotonic_ms() >= until_ms:
                    return
                if not isinstance(error, ConnectionFailedError):
                    raise error from e
                failing_since = failing_since or self._clock.monotonic_ms()
                self._pause_or_raise(next(pauses), failing_since, error)

    def cancel(self, call_id: str) -> CallView:
        """Asks for the call's end; it is CANCELLING until its processes are gone."""
        return wire.from_proto(CallView, self._unary("CancelCall", control_pb2.CallId(call_id=call_id)))

    def gang_address(self, function_id: str, call_id: str = "", *, gang_id: str = "") -> GangAddress:
        """Returns a warm gang of the function, the one that has ``call_id`` or is ``gang_id`` where that is given, and
        a ticket to it; no ticket when none is warm."""
        request = control_pb2.GangAddressRequest(function_id=function_id, call_id=call_id, gang_id=gang_id)
        return wire.from_proto(GangAddress, self._unary("GetGangAddress", request))

    def log_sources(self, call_id: str) -> tuple[LogSource, ...]:
        answer = self._unary("GetLogSources", control_pb2.CallId(call_id=call_id))
        return tuple(wire.from_proto(LogSource, s) for s in answer.sources)

    def debug_sources(self, call_id: str) -> tuple[LogSource, ...]:
        """Returns the agents of the call's gang, with tickets to terminals at its ranks; none where it has ended."""
        answer = self._unary("GetDebugSources", control_pb2.CallId(call_id=call_id))
        return tuple(wire.from_proto(LogSource, s) for s in answer.sources)

    def call_input(self, call_id: str, *, function_id: str = "") -> CallInput:
        """Returns what a call ran with, or the function of that id alone. Raises NotFoundError."""
        request = control_pb2.CallInputRequest(call_id=call_id, function_id=function_id)
        answer = self._unary("GetCallInput", request)
        args = wire.from_proto(Body, answer.args)
        return CallInput(wire.from_proto(FunctionSpec, answer.function), args, answer.gang_id)

    # ---- the cluster ----

    def server_info(self) -> ServerInfo:
        return wire.from_proto(ServerInfo, self._unary("GetServerInfo", _EMPTY))

    def list_nodes(self) -> tuple[NodeView, ...]:
        return tuple(wire.from_proto(NodeView, n) for n in self._unary("ListNodes", _EMPTY).nodes)

    def set_node_state(self, node_id: str, state: str, *, reason: str = "", deadline_ms: int = -1) -> NodeView:
        """Cordons, drains ("draining") or gives back ("ready") a node, and returns what it is then.

        ``deadline_ms``: how long calls may still run on a node that drains; negative: what was said before, or ten
        minutes. Raises NotFoundError, AuthError where the caller is no admin of the cell.
        """
        request = control_pb2.NodeStateRequest(node_id=node_id, state=state, reason=reason, deadline_in_ms=deadline_ms)
        return wire.from_proto(NodeView, self._unary("SetNodeState", request))

    def topology(self, node_id: str) -> NodeTopology:
        """Returns what a node looks like. Raises NotFoundError where the node, or its topology, is not known."""
        from phalanx.core.topology.codec import from_json  # few programs ask

        return from_json(self._unary("GetTopology", control_pb2.NodeId(node_id=node_id)).topology)

    def fabric(self) -> KnownFabric:
        """Returns the network between nodes, as the cell was told and as its agents found it."""
        return _known_fabric(self._unary("GetFabric", _EMPTY))

    def set_fabric(self, fabric: Fabric | None) -> KnownFabric:
        """Tells the cell its fabric, or to forget it, and returns what is known then. Raises InvalidSpecError where
        it is larger than a cell keeps.
        """
        from phalanx.core.topology.fabric_codec import fabric_to_json, within_limits

        text = within_limits(fabric_to_json(fabric)) if fabric is not None else ""
        return _known_fabric(self._unary("SetFabric", control_pb2.FabricText(fabric=text)))

    def policy(self) -> tuple[str, str]:
        """Returns who gets how much, as JSON, "" where nobody has said; and what of it cannot be had now, or ""."""
        answer = self._unary("GetPolicy", _EMPTY)
        return answer.policy, answer.warning

    def set_policy(self, policy: str) -> tuple[str, str]:
        """Tells the cell its policy as JSON, or to forget it for "", and returns what `policy` does.

        Raises InvalidSpecError for what is none, AuthError where the caller is no admin of the cell.
        """
        answer = self._unary("SetPolicy", control_pb2.PolicyText(policy=policy))
        return answer.policy, answer.warning

    def queue(self, *, limit: int = 0) -> QueueView:
        """Returns what waits, in the order in which it is served, and what accounts hold."""
        return wire.from_proto(QueueView, self._unary("GetQueue", control_pb2.QueueRequest(limit=limit)))

    def past(self, at_ms: int) -> PastView:
        """Returns the cell as it was at a wall time. Raises NotFoundError where the history begins later."""
        return wire.from_proto(PastView, self._unary("GetPast", control_pb2.PastRequest(at_ms=at_ms)))

    def start_of(self, spec: FunctionSpec) -> StartView:
        """Returns when a gang of the function could start. Raises UnschedulableError where it never could."""
        return wire.from_proto(
            StartView, self._unary("GetStart", control_pb2.StartRequest(function=wire.to_proto(spec)))
        )

    def list_gangs(self) -> tuple[GangView, ...]:
        return tuple(wire.from_proto(GangView, g) for g in self._unary("ListGangs", _EMPTY).gangs)

    def explain_gang(self, gang_id: str) -> GangExplanation:
        """Returns where a gang stands, or stood, and what its ranks got. Raises NotFoundError."""
        return wire.from_proto(GangExplanation, self._unary("ExplainGang", control_pb2.GangId(gang_id=gang_id)))

    def costs(self, *, call_id: str = "", group_by: str = "") -> tuple[CostView, ...]:
        """Returns the cost of one call, or of all by "function", "user" or "phase"."""
        request = control_pb2.CostRequest(call_id=call_id, group_by=group_by)
        return tuple(wire.from_proto(CostView, c) for c in self._unary("GetCost", request).costs)

    def create_token(self, *, workspace: str, user: str, role: str, lifetime_ms: int = 0) -> tuple[str, str]:
        """Returns a new token and its id; the token is shown this once."""
        request = control_pb2.CreateTokenRequest(workspace=workspace, user=user, role=role, lifetime_ms=lifetime_ms)
        answer = self._unary("CreateToken", request)
        return answer.token, answer.token_id

    def revoke_token(self, token_id: str) -> None:
        self._unary("RevokeToken", control_pb2.RevokeTokenRequest(token_id=token_id))

    def list_tokens(self) -> tuple[TokenInfo, ...]:
        """Returns the tokens of the caller's workspace, without their secrets."""
        return tuple(wire.from_proto(TokenInfo, t) for t in self._unary("ListTokens", _EMPTY).tokens)

    def webhook_secret(self) -> WebhookSecret:
        """Returns what webhooks of the caller's workspace are signed with."""
        return wire.from_proto(WebhookSecret, self._unary("GetWebhookSecret", control_pb2.WebhookSecretRequest()))

    def rotate_webhook_secret(self) -> WebhookSecret:
        """Lets a new secret sign, and returns it. A request whose answer is lost, and is asked again, rotates once."""
        request = control_pb2.WebhookSecretRequest(rotate=True, from_version=self.webhook_secret().version)
        return wire.from_proto(WebhookSecret, self._unary("GetWebhookSecret", request))

    def login_link(self) -> str:
        """Returns a link to the page that signs its opener in once."""
        return self._unary("CreateLoginLink", _EMPTY).url

    def create_join_token(self) -> tuple[str, int]:
        """Returns a one-time token for a new node, and when it expires (wall ms)."""
        answer = self._unary("CreateJoinToken", _EMPTY)
        return answer.join_token, answer.expires_ms

    # ---- inside ----

    def _open(self, connection: Connection) -> grpc.Channel:
        ca = connection.read_ca()
        options = [*_OPTIONS]
        if ca is not None:
            options.append(("grpc.ssl_target_name_override", _SERVER_NAME))
        if connection.address.startswith(("127.", "localhost:", "[::1]:")):
            options.append(("grpc.enable_http_proxy", 0))
        return grpc.secure_channel(connection.address, grpc.ssl_channel_credentials(ca), options=options)

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        metadata: list[tuple[str, str]] = []
        if self.connection.token:
            metadata.append(("authorization", f"Bearer {self.connection.token}"))
        if self._min_seq:
            metadata.append((wire_errors.MIN_SEQ_KEY, str(self._min_seq)))
        return tuple(metadata)

    def _unary(self, method: str, request: Any) -> Any:
        def ask() -> Any:
            rpc = getattr(self._stub, method)
            answer, call = rpc.with_call(request, timeout=DEADLINE_S, metadata=self._metadata())
            said = wire_errors.metadata_dict(call.trailing_metadata()).get(wire_errors.LOG_SEQ_KEY, "")
            if said.isdecimal():
                self._saw(int(said))
            return answer

        return self._retried(ask)

    def _retried(self, ask: Callable[[], Any]) -> Any:
        since = self._clock.monotonic_ms()
        for pause in _pauses():
            try:
                return ask()
            except grpc.RpcError as e:
                error = wire_errors.to_exception(e)
                if not isinstance(error, ConnectionFailedError):
                    raise error from e
                self._pause_or_raise(pause, since, error)
            except ValueError as e:
                raise ConnectionFailedError("this client is closed") from e
        raise AssertionError

    def _pause_or_raise(self, pause_s: float, since_ms: int, error: ConnectionFailedError) -> None:
        if self._clock.monotonic_ms() - since_ms > self._retry_s * 1000 or self._closed.is_set():
            raise ConnectionFailedError(
                f"the control plane at {self.connection.address} is not reachable: {error}", hint=error.hint
            ) from error
        self._find_again()
        self._closed.wait(pause_s)

    def _find_again(self) -> None:
        if self._renew is None:
            return
        found = self._renew()
        with self._lock:
            if found != self.connection:
                self.connection = found
                self._channel.close()
                self._channel = self._open(found)
                self._stub = control_pb2_grpc.ControlStub(self._channel)

    @contextlib.contextmanager
    def _watch_stream(self, call_id: str, until_ms: int | None) -> Generator[Any]:
        left_s = None if until_ms is None else max(0.001, (until_ms - self._clock.monotonic_ms()) / 1000)
        stream = self._stub.WatchCall(
            control_pb2.CallId(call_id=call_id), timeout=left_s, metadata=self._metadata(), wait_for_ready=False
        )
        try:
            yield stream
        finally:
            stream.cancel()

    def _put(self, name: str, data: bytes | bytearray | memoryview) -> None:
        view = memoryview(data)

        def chunks() -> Iterator[common_pb2.BlobChunk]:
            for at in range(0, max(1, len(view)), _CHUNK_BYTES):
                yield common_pb2.BlobChunk(name=name if at == 0 else "", data=bytes(view[at : at + _CHUNK_BYTES]))

        self._retried(lambda: self._stub.PutBlob(chunks(), timeout=BLOB_DEADLINE_S, metadata=self._metadata()))

    def _saw(self, seq: int) -> None:
        with self._lock:
            self._min_seq = max(self._min_seq, seq)


def _known_fabric(answer: control_pb2.FabricText) -> KnownFabric:
    from phalanx.core.topology.fabric_codec import fabric_from_json  # few programs ask

    return KnownFabric(fabric=fabric_from_json(answer.fabric), is_set=answer.is_set, absent=tuple(answer.absent))


def is_terminal(view: CallView) -> bool:
    """Says whether the call has ended for good."""
    return view.state in _ENDED


def _pauses() -> Iterator[float]:
    return (min(_MAX_PAUSE_S, _FIRST_PAUSE_S * 2**n) for n in itertools.count())
