"""A standby's way to the leader: the same request, the same bearer token, the rest of the deadline.

Nothing is retried here: whether a change may be asked for twice is the client's knowledge. A request is forwarded at
most once, so two replicas that each take the other for the leader cannot send it round in circles.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio

from phalanx.core.errors import ConnectionFailedError
from phalanx.core.tasks import is_cancelled
from phalanx.wire_errors import LOG_SEQ_KEY, metadata_dict
from phalanx_control.certificates import REPLICA_NAME
from phalanx_control.service.blob_reach import BLOBS_KEY, BlobReach
from phalanx_control.service.limits import CHANNEL_OPTIONS
from phalanx_control.service.ports import Leadership
from phalanx_proto.v1 import control_pb2_grpc

FORWARDED_KEY = "px-forwarded-by"
LEADER_WAIT_S = 5.0
_POLL_S = 0.05
_PASSED_ON = ("authorization", "min-seq")
DEFAULT_TIMEOUT_S = 30.0


class LeaderForwarder:
    """Keeps one channel, to the present leader."""

    def __init__(
        self,
        leadership: Leadership,
        *,
        replica_id: str,
        own_address: str,
        ca_pem: bytes,
        reach: BlobReach,
        leader_wait_s: float = LEADER_WAIT_S,
    ) -> None:
        self._leadership = leadership
        self._replica_id = replica_id
        self._own_address = own_address
        self._reach = reach
        self._leader_wait_s = leader_wait_s
        self._credentials = grpc.ssl_channel_credentials(ca_pem)
        self._channel: grpc.aio.Channel | None = None
        self._address = ""

    async def leader_elsewhere(self) -> str:
        """Returns the leader's address, "" where this replica leads. Waits for one as long as a take-over may last."""
        try:
            async with asyncio.timeout(self._leader_wait_s):
                while not self._leadership.is_leader:
                    address = self._leadership.leader_address
                    if address not in ("", self._own_address):
                        return address
                    await asyncio.sleep(_POLL_S)
        except TimeoutError as e:
            raise ConnectionFailedError("no leader is known", hint="try again in a moment") from e
        return ""

    async def forward(self, leader: str, method: str, request: Any, context: Any) -> Any:
        """Returns the answer of the leader at that address, or ends the RPC with its error."""
        metadata = metadata_dict(context.invocation_metadata())
        if FORWARDED_KEY in metadata:
            raise ConnectionFailedError(
                f"replica {self._replica_id} does not lead (any more)", hint="try again in a moment"
            )
        stub = await self._stub(leader)
        passed = [(key, metadata[key]) for key in _PASSED_ON if key in metadata]
        call = getattr(stub, method.rpartition("/")[2])(
            request,
            metadata=(*passed, (FORWARDED_KEY, self._replica_id), (BLOBS_KEY, self._reach.statement())),
            timeout=context.time_remaining() or DEFAULT_TIMEOUT_S,
        )
        try:
            reply = await call
        except asyncio.CancelledError as e:
            if is_cancelled():
                raise
            raise _changed() from e
        except grpc.aio.AioRpcError as e:
            if e.code() is grpc.StatusCode.CANCELLED:
                raise _changed() from e
            await context.abort(e.code(), e.details() or "", tuple(e.trailing_metadata() or ()))
            raise
        said = metadata_dict(await call.trailing_metadata())
        self._reach.heard(said.get(BLOBS_KEY, ""))
        context.set_trailing_metadata(((LOG_SEQ_KEY, said.get(LOG_SEQ_KEY, "0")),))
        return reply

    async def close(self) -> None:
        if self._channel is not None:
            await self._channel.close(grace=0)

    async def _stub(self, address: str) -> control_pb2_grpc.ControlStub:
        former = self._channel
        if former is None or address != self._address:
            options = (*CHANNEL_OPTIONS, ("grpc.ssl_target_name_override", REPLICA_NAME))
            self._channel = grpc.aio.secure_channel(address, self._credentials, options=options)
            self._address = address
            if former is not None:
                await former.close(grace=0)
        return control_pb2_grpc.ControlStub(self._channel)


def _changed() -> ConnectionFailedError:
    return ConnectionFailedError("the leader changed meanwhile", hint="ask again with the same ids")
