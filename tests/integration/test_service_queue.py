"""The RPCs of the queue and the policy: who may tell the cell, and what others see."""

from __future__ import annotations

import json

import grpc

from phalanx import wire
from phalanx.core.spec import FunctionSpec, Resources
from phalanx.wire_errors import to_exception
from phalanx_control.replica import Replica
from phalanx_proto.v1 import control_pb2
from tests.support.control_plane import Client, client_of

POLICY = {"half_life": "1h", "workspaces": {"other": {"gpus": 4}, "default": {"limit": 2}}}
TEXT = control_pb2.PolicyText(policy=json.dumps(POLICY))


async def test_a_policy_is_set_by_operators_and_each_workspace_sees_its_own_part(
    admin: Client, replica: Replica
) -> None:
    answer = await admin.ask("SetPolicy", TEXT)
    assert json.loads(answer.policy) == POLICY
    assert answer.warning == "4 GPUs are guaranteed, and nodes that take work have 0"
    async with client_of(replica, await admin.token_for("other", "viewer")) as viewer:
        seen = await viewer.ask("GetPolicy")
        assert json.loads(seen.policy) == {"half_life": "1h", "workspaces": {"other": {"gpus": 4}}}
        assert [a.account for a in (await viewer.ask("GetQueue", control_pb2.QueueRequest())).accounts] == ["other"]
    queue = await admin.ask("GetQueue", control_pb2.QueueRequest())
    assert [each.account for each in queue.accounts] == ["default", "other"]
    assert not (await admin.ask("SetPolicy", control_pb2.PolicyText())).policy


async def test_only_admins_of_the_operators_set_it_and_what_is_wrong_is_named(admin: Client, replica: Replica) -> None:
    for workspace, role in (("default", "member"), ("other", "admin")):
        async with client_of(replica, await admin.token_for(workspace, role)) as other:
            assert (await other.refused("SetPolicy", TEXT)).code() is grpc.StatusCode.PERMISSION_DENIED
    wrong = control_pb2.PolicyText(policy='{"workspaces": {"lab": {"limit": -1}}}')
    assert "workspaces.lab.limit=-1" in str(to_exception(await admin.refused("SetPolicy", wrong)))


async def test_when_a_gang_could_start_is_answered_or_refused(admin: Client) -> None:
    spec = FunctionSpec(name="a gang", resources=Resources(gpus=4))
    request = control_pb2.StartRequest(function=wire.to_proto(spec))
    answer = await admin.ask("GetStart", request)
    assert (answer.now, answer.at_ms) == (False, 0)
    assert answer.sentence == "no set of nodes that take work could hold it"
    await admin.ask("SetPolicy", TEXT)
    refused = to_exception(await admin.refused("GetStart", request))
    assert "a gang asks for 4 GPUs; default may have 2 at most" in str(refused)
