"""Enrolment of agents: a join token and a certificate request become a node certificate; certificates are renewed.

A join token is in the log: a one-time one, or the reusable one of this machine's join-token file. The names in the
certificate come from the checked node id, never from the request.
"""

from __future__ import annotations

import hashlib
import re

from phalanx.core.clock import Clock
from phalanx.core.errors import AuthError, InvalidSpecError
from phalanx_control.certificates import Authority
from phalanx_control.service.caller import caller
from phalanx_control.service.ports import ControllerPort
from phalanx_control.state.commands import UseJoinToken
from phalanx_proto.v1 import agent_pb2

JOIN_TOKEN_LIFETIME_MS = 15 * 60_000
_NODE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\-]{0,63}")


class Enrolment:
    """Signs node certificates for whoever proves that it may have one."""

    def __init__(self, controller: ControllerPort, authority: Authority, clock: Clock, *, agents_address: str) -> None:
        self._controller = controller
        self._authority = authority
        self._clock = clock
        self._agents_address = agents_address

    async def enrol(self, request: agent_pb2.CertificateRequest) -> agent_pb2.Certificate:
        """Answers an agent that comes to this cell, or to this replica, for the first time.

        Raises AuthError, or InvalidSpecError on names and requests.
        """
        certificate = self._sign(request)
        if request.certificate_pem and self._knows(request):
            return certificate
        digest = hash_join_token(request.join_token)
        await self._controller.execute(UseJoinToken(sha256=digest, node_id=request.node_id))
        return certificate

    def renew(self, request: agent_pb2.CertificateRequest) -> agent_pb2.Certificate:
        """Answers an agent that shows its present certificate."""
        if request.node_id != caller().node_id:
            raise AuthError(f"the certificate names node {caller().node_id!r}, the request {request.node_id[:80]!r}")
        return self._sign(request)

    def _knows(self, request: agent_pb2.CertificateRequest) -> bool:
        """A one-time token is used up at the first replica: at the others the agent shows what it got for it."""
        now = self._clock.wall_ms()
        return self._authority.has_signed(request.certificate_pem, request.csr_pem, request.node_id, now)

    def _sign(self, request: agent_pb2.CertificateRequest) -> agent_pb2.Certificate:
        check_node_id(request.node_id)
        signed = self._authority.sign_agent(request.csr_pem, request.node_id, self._clock.wall_ms())
        return agent_pb2.Certificate(
            certificate_pem=signed, ca_pem=self._authority.pem, agents_address=self._agents_address
        )


def hash_join_token(text: str) -> str:
    """Returns what the log keeps of a join token."""
    return hashlib.sha256(text.encode()).hexdigest()


def check_node_id(node_id: str) -> None:
    """Refuses what cannot stand in a certificate, a blob name or a file name."""
    if not _NODE_ID.fullmatch(node_id):
        raise InvalidSpecError(
            f"node id {node_id[:80]!r}: use 1 to 64 letters, digits, '.', '_' and '-', a letter or digit first"
        )
