"""The agents' RPCs: the session, blobs, and certificate renewal. Protobuf ends here.

An agent speaks for the node that its certificate names and for no other. Only the leader holds sessions: an agent that
comes to a standby is told so and goes to the next address.
"""

# ruff: noqa: N802, ARG002 (names and signatures are the generated servicer's)
from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from phalanx import wire
from phalanx.core.errors import AuthError, ConnectionFailedError, InvalidSpecError, VersionError
from phalanx.core.messages import Hello
from phalanx_control.certificates import fingerprint
from phalanx_control.service.agent_session import AgentSession, Sessions
from phalanx_control.service.blob_api import AgentBlobs
from phalanx_control.service.caller import caller
from phalanx_control.service.enrol import Enrolment
from phalanx_control.service.ports import ControllerPort
from phalanx_control.service.ticket_office import TicketOffice
from phalanx_proto.v1 import agent_pb2, agent_pb2_grpc, common_pb2

PROTOCOL = 1


class AgentApi(agent_pb2_grpc.AgentsServicer):
    """Serves the agents' port."""

    def __init__(
        self,
        controller: ControllerPort,
        *,
        sessions: Sessions,
        tickets: TicketOffice,
        blobs: AgentBlobs,
        enrolment: Enrolment,
    ) -> None:
        self._controller = controller
        self._sessions = sessions
        self._tickets = tickets
        self._blobs = blobs
        self._enrolment = enrolment

    async def Session(
        self, request_iterator: AsyncIterator[agent_pb2.FromAgent], context: Any
    ) -> AsyncIterator[agent_pb2.ToAgent]:
        if not self._controller.is_leader:
            raise ConnectionFailedError(
                "this replica does not lead; agents speak to the leader", hint="try the next address"
            )
        hello = await self._hello(request_iterator, context)
        session = AgentSession(self._controller, self._tickets, self._blobs.store, caller().node_id)
        async with self._sessions.only(session):
            async for message in session.run(hello, request_iterator):
                yield wire.wrap_to_agent(message)

    async def PutBlob(self, request_iterator: AsyncIterator[common_pb2.BlobChunk], context: Any) -> common_pb2.BlobName:
        return await self._blobs.put(request_iterator)

    async def GetBlob(self, request: common_pb2.BlobName, context: Any) -> AsyncIterator[common_pb2.BlobChunk]:
        async for chunk in self._blobs.get(request.name):
            yield chunk

    async def RenewCertificate(self, request: agent_pb2.CertificateRequest, context: Any) -> agent_pb2.Certificate:
        return self._enrolment.renew(request)

    async def _hello(self, messages: AsyncIterator[agent_pb2.FromAgent], context: Any) -> Hello:
        """Returns the first message, with the fingerprint of the certificate that was really shown."""
        first = await anext(aiter(messages), None)
        hello = wire.unwrap_from_agent(first) if first is not None else None
        if not isinstance(hello, Hello):
            raise InvalidSpecError("a session begins with Hello")
        if hello.protocol != PROTOCOL:
            raise VersionError(
                f"agent {hello.node.agent_version} speaks protocol {hello.protocol}, this control plane {PROTOCOL}",
                hint="install the same version of phalanx on both machines",
            )
        if hello.node.node_id != caller().node_id:
            raise AuthError(f"the certificate names node {caller().node_id!r}, Hello {hello.node.node_id[:80]!r}")
        return replace(hello, node=replace(hello.node, fingerprint=_shown_fingerprint(context)))


def _shown_fingerprint(context: Any) -> str:
    return fingerprint(next(iter(context.auth_context()["x509_pem_cert"])))
