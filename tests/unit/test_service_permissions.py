"""Every RPC and every route has a row in the one permission table, and no row is without its RPC or route."""

from __future__ import annotations

import pytest
from google.protobuf.descriptor import FileDescriptor

from phalanx_control.service.permissions import AGENTS, CONTROL, ROLES, ROUTES, RPCS, Need, allows
from phalanx_control.web.app import Pages, routes
from phalanx_proto.v1 import agent_pb2, control_pb2


def _methods(file: FileDescriptor) -> set[str]:
    return {
        f"/{service.full_name}/{method.name}"
        for service in file.services_by_name.values()
        for method in service.methods
    }


def test_every_rpc_of_the_protocol_has_a_row_and_every_row_an_rpc() -> None:
    assert set(RPCS) == _methods(control_pb2.DESCRIPTOR) | _methods(agent_pb2.DESCRIPTOR)


def test_every_route_of_the_page_has_a_row_and_every_row_a_route() -> None:
    declared = routes(_Anything(), _Anything())  # pyright: ignore[reportArgumentType]
    assert set(ROUTES) == {route.path for route in declared}


def test_every_route_only_reads() -> None:
    declared = routes(_Anything(), _Anything())  # pyright: ignore[reportArgumentType]
    assert {method for route in declared for method in route.methods or ()} == {"GET", "HEAD"}


def test_only_enrolment_and_signing_in_need_no_token() -> None:
    open_rpcs = {method for method, row in RPCS.items() if row.need is Need.NOTHING}
    open_routes = {path for path, need in ROUTES.items() if need is Need.NOTHING}
    assert open_rpcs == {CONTROL + "Enroll"}
    assert open_routes == {"/login"}


def test_the_agents_service_is_for_node_certificates_alone() -> None:
    assert {row.need for method, row in RPCS.items() if method.startswith(AGENTS)} == {Need.AGENT}
    assert not any(row.need is Need.AGENT for method, row in RPCS.items() if method.startswith(CONTROL))


def test_whatever_changes_state_needs_a_member_at_least_and_goes_to_the_leader() -> None:
    changing = {method: row for method, row in RPCS.items() if row.to_leader and method != CONTROL + "GetPast"}
    assert {row.need for row in changing.values()} <= {Need.MEMBER, Need.ADMIN, Need.NOTHING}
    assert not any(row.streams for row in changing.values())


@pytest.mark.parametrize("role", [*ROLES, "", "root"])
@pytest.mark.parametrize("need", list(Need))
def test_a_role_is_enough_for_its_own_needs_and_lower_ones(role: str, need: Need) -> None:
    rank = {"": 0, "root": 0, "viewer": 1, "member": 2, "admin": 3}[role]
    expected = need is Need.NOTHING or (need is not Need.AGENT and rank >= need)
    assert allows(need, role) is expected


class _Anything(Pages):
    """Stands in for handlers: routes are only declared with it."""

    def __init__(self) -> None:
        return

    def __getattr__(self, name: str) -> object:
        return name
