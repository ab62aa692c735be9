"""Who may do what: one row for every RPC and every route of the page. What has no row is refused.

Roles of a workspace: admin > member > viewer. Agents are known by their node certificate, on a port of their own.
A test enumerates the protocol's descriptors and the page's routes, and fails on a missing or superfluous row.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

CONTROL = "/phalanx.v1.Control/"
AGENTS = "/phalanx.v1.Agents/"


class Need(IntEnum):
    """The least that a caller must show; the roles are ordered."""

    NOTHING = 0
    """The handler itself checks what the request carries: a join token, or a login link's token."""
    VIEWER = 1
    MEMBER = 2
    ADMIN = 3
    AGENT = 9
    """A node certificate, which no role replaces."""


ROLES: dict[str, Need] = {"viewer": Need.VIEWER, "member": Need.MEMBER, "admin": Need.ADMIN}


@dataclass(frozen=True, slots=True)
class Row:
    """``to_leader``: a standby forwards it: it changes state, or needs the history, which the leader writes.
    ``streams``: has no deadline of its own.
    """

    need: Need
    to_leader: bool = False
    streams: bool = False


RPCS: dict[str, Row] = {
    CONTROL + "GetServerInfo": Row(Need.VIEWER),
    CONTROL + "PutBlob": Row(Need.MEMBER, streams=True),
    CONTROL + "GetBlob": Row(Need.VIEWER, streams=True),
    CONTROL + "MissingBlobs": Row(Need.MEMBER),
    CONTROL + "RegisterFunction": Row(Need.MEMBER, to_leader=True),
    CONTROL + "DeployApp": Row(Need.MEMBER, to_leader=True),
    CONTROL + "ResolveFunction": Row(Need.VIEWER),
    CONTROL + "SubmitCall": Row(Need.MEMBER, to_leader=True),
    CONTROL + "GetCall": Row(Need.VIEWER),
    CONTROL + "ListCalls": Row(Need.VIEWER),
    CONTROL + "GetCallStates": Row(Need.VIEWER),
    CONTROL + "WatchCall": Row(Need.VIEWER, streams=True),
    CONTROL + "CancelCall": Row(Need.MEMBER, to_leader=True),
    CONTROL + "GetGangAddress": Row(Need.MEMBER),
    CONTROL + "GetLogSources": Row(Need.VIEWER),
    CONTROL + "GetDebugSources": Row(Need.MEMBER),
    CONTROL + "GetCallInput": Row(Need.MEMBER),
    CONTROL + "ListNodes": Row(Need.VIEWER),
    CONTROL + "SetNodeState": Row(Need.ADMIN, to_leader=True),
    CONTROL + "GetTopology": Row(Need.VIEWER),
    CONTROL + "SetFabric": Row(Need.ADMIN, to_leader=True),
    CONTROL + "GetFabric": Row(Need.VIEWER),
    CONTROL + "SetPolicy": Row(Need.ADMIN, to_leader=True),
    CONTROL + "GetPolicy": Row(Need.VIEWER),
    CONTROL + "GetQueue": Row(Need.VIEWER),
    CONTROL + "GetPast": Row(Need.VIEWER, to_leader=True),
    CONTROL + "GetStart": Row(Need.VIEWER),
    CONTROL + "ListGangs": Row(Need.VIEWER),
    CONTROL + "ExplainGang": Row(Need.VIEWER),
    CONTROL + "GetCost": Row(Need.VIEWER),
    CONTROL + "CreateToken": Row(Need.ADMIN, to_leader=True),
    CONTROL + "RevokeToken": Row(Need.ADMIN, to_leader=True),
    CONTROL + "ListTokens": Row(Need.ADMIN),
    CONTROL + "GetWebhookSecret": Row(Need.ADMIN, to_leader=True),
    CONTROL + "CreateLoginLink": Row(Need.VIEWER),
    CONTROL + "Enroll": Row(Need.NOTHING, to_leader=True),
    CONTROL + "CreateJoinToken": Row(Need.ADMIN, to_leader=True),
    AGENTS + "Session": Row(Need.AGENT, streams=True),
    AGENTS + "PutBlob": Row(Need.AGENT, streams=True),
    AGENTS + "GetBlob": Row(Need.AGENT, streams=True),
    AGENTS + "RenewCertificate": Row(Need.AGENT),
}

ROUTES: dict[str, Need] = {
    "/login": Need.NOTHING,
    "/": Need.VIEWER,
    "/static/{path:path}": Need.VIEWER,
    "/api/v1/overview": Need.VIEWER,
    "/api/v1/calls": Need.VIEWER,
    "/api/v1/calls/{call_id}": Need.VIEWER,
    "/api/v1/nodes": Need.VIEWER,
    "/api/v1/gangs": Need.VIEWER,
    "/api/v1/cost": Need.VIEWER,
    "/api/v1/events": Need.VIEWER,
}
"""By the path template that the route is declared with; all of them answer GET and HEAD only."""


def allows(need: Need, role: str) -> bool:
    """True when a token of ``role`` is enough. An unknown role is enough for nothing but NOTHING."""
    return need is Need.NOTHING or (need is not Need.AGENT and ROLES.get(role, Need.NOTHING) >= need)
