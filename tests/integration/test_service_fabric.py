"""The RPCs of the fabric: who may tell the cell, what comes back, and how large it may be."""

from __future__ import annotations

import grpc

from phalanx.core.topology.fabric_codec import MOST_STORED_BYTES, fabric_from_json, fabric_to_json
from phalanx.wire_errors import to_exception
from phalanx_control.replica import Replica
from phalanx_proto.v1 import control_pb2
from tests.support.cells import tree
from tests.support.control_plane import Client, client_of

FABRIC = tree({"a": "n1 n2"})
TEXT = control_pb2.FabricText(fabric=fabric_to_json(FABRIC))


async def test_what_an_operator_sets_everybody_reads_until_it_is_cleared(admin: Client, replica: Replica) -> None:
    answer = await admin.ask("SetFabric", TEXT)
    assert (answer.is_set, list(answer.absent)) == (True, ["n1", "n2"])
    async with client_of(replica, await admin.token_for("other", "viewer")) as viewer:
        assert fabric_from_json((await viewer.ask("GetFabric")).fabric) == FABRIC
    await admin.ask("SetFabric", control_pb2.FabricText())
    assert not (await admin.ask("GetFabric")).is_set


async def test_only_admins_of_the_operators_set_it(admin: Client, replica: Replica) -> None:
    for workspace, role in (("default", "member"), ("other", "admin")):
        async with client_of(replica, await admin.token_for(workspace, role)) as other:
            assert (await other.refused("SetFabric", TEXT)).code() is grpc.StatusCode.PERMISSION_DENIED
    assert not (await admin.ask("GetFabric")).is_set


async def test_one_that_is_too_large_is_refused_with_the_bound(admin: Client) -> None:
    large = control_pb2.FabricText(fabric="x" * (MOST_STORED_BYTES + 1))
    assert f"a cell keeps {MOST_STORED_BYTES}" in str(to_exception(await admin.refused("SetFabric", large)))
