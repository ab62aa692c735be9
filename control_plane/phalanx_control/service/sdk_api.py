"""The clients' RPCs: SDK, gpuctl. Protobuf ends here; what may be asked of the state is asked as commands.

Every lookup is within the caller's workspace: what belongs to another one is answered as if it did not exist.
"""

# ruff: noqa: N802, ARG002 (names and signatures are the generated servicer's)
from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from phalanx import wire
from phalanx.core.messages import Body, CallTerms
from phalanx.core.spec import FunctionSpec
from phalanx_control.service.caller import caller
from phalanx_control.service.parts import Parts
from phalanx_control.service.queries import require_call_id
from phalanx_control.service.submit import digest_of
from phalanx_control.state.commands import Cancel, DeployApp, RegisterFunction, Submit
from phalanx_control.state.queries import function_key, held_gang
from phalanx_proto.v1 import agent_pb2, common_pb2, control_pb2, control_pb2_grpc


class SdkApi(control_pb2_grpc.ControlServicer):
    """Serves the clients' port. Each method is one RPC of `control.proto`."""

    def __init__(self, parts: Parts) -> None:
        self._controller = parts.controller
        self._queries = parts.queries
        self._blobs = parts.client_blobs
        self._directory = parts.directory
        self._tokens = parts.tokens
        self._enrolment = parts.enrolment
        self._follower = parts.follower
        self._submit = parts.submit
        self._about = parts.about
        self._fabric = parts.fabric
        self._queue = parts.queue
        self._past = parts.past
        self._nodes = parts.nodes
        self._webhooks = parts.webhooks

    async def GetServerInfo(self, request: control_pb2.Empty, context: Any) -> control_pb2.ServerInfo:
        return wire.to_proto(self._about.view())

    # ---- blobs ----

    async def PutBlob(self, request_iterator: AsyncIterator[common_pb2.BlobChunk], context: Any) -> common_pb2.BlobName:
        return await self._blobs.put(request_iterator)

    async def GetBlob(self, request: common_pb2.BlobName, context: Any) -> AsyncIterator[common_pb2.BlobChunk]:
        async for chunk in self._blobs.get(request.name):
            yield chunk

    async def MissingBlobs(self, request: control_pb2.BlobNames, context: Any) -> control_pb2.BlobNames:
        return control_pb2.BlobNames(names=await self._blobs.missing(request.names))

    # ---- functions ----

    async def RegisterFunction(
        self, request: control_pb2.RegisterFunctionRequest, context: Any
    ) -> control_pb2.RegisterFunctionResponse:
        spec = wire.from_proto(FunctionSpec, request.function)
        await self._submit.check_code((spec,))
        await self._controller.execute(RegisterFunction(owner=caller().owner, spec=spec))
        function_id = function_key(self._controller.state, caller().owner.workspace, spec)
        return control_pb2.RegisterFunctionResponse(function_id=function_id)

    async def DeployApp(self, request: control_pb2.DeployAppRequest, context: Any) -> control_pb2.DeployAppResponse:
        specs = tuple(wire.from_proto(FunctionSpec, each) for each in request.functions)
        await self._submit.check_code(specs)
        await self._controller.execute(DeployApp(owner=caller().owner, app=request.app, specs=specs))
        app = self._queries.app(request.app)
        views = [wire.to_proto(view) for view in self._queries.functions_of(app)]
        return control_pb2.DeployAppResponse(version=app.version, functions=views)

    async def ResolveFunction(
        self, request: control_pb2.ResolveFunctionRequest, context: Any
    ) -> control_pb2.ResolvedFunction:
        view, function = self._queries.resolve(request.app, request.name)
        return control_pb2.ResolvedFunction(view=wire.to_proto(view), function=wire.to_proto(function.spec))

    # ---- calls ----

    async def SubmitCall(self, request: control_pb2.SubmitCallRequest, context: Any) -> control_pb2.SubmitCallResponse:
        args, bodies = await self._submit.args(request.call_id, wire.from_proto(Body, request.args))
        over = await self._queries.archived(request.call_id)
        if over is not None:
            return control_pb2.SubmitCallResponse(log_seq=self._controller.seq, state=over.state, call_id=over.id)
        function = self._queries.function(request.function_id)
        terms = wire.from_proto(CallTerms, request.terms)
        command = Submit(
            call_id=request.call_id,
            function_id=function.id,
            owner=caller().owner,
            args=args,
            timeout_ms=request.timeout_ms,
            parent=request.parent,
            terms=terms,
            args_sha256=digest_of(request.args) if terms.idempotency_key else "",
        )
        await self._controller.execute(command, bodies)
        found = await self._queries.find(self._queries.submitted(function, command))
        return control_pb2.SubmitCallResponse(
            log_seq=self._controller.seq, state=found.call.state, call_id=found.call.id
        )

    async def GetCall(self, request: control_pb2.CallId, context: Any) -> control_pb2.CallView:
        return wire.to_proto(await self._follower.view(await self._queries.find(request.call_id)))

    async def ListCalls(self, request: control_pb2.ListCallsRequest, context: Any) -> control_pb2.CallList:
        calls = await self._queries.calls(
            state=request.state,
            function=request.function,
            limit=request.limit,
            ended_too=request.all,
            parent=request.parent,
        )
        return control_pb2.CallList(calls=[wire.to_proto(view) for view in calls])

    async def GetCallStates(self, request: control_pb2.CallIds, context: Any) -> control_pb2.CallStates:
        return control_pb2.CallStates(states=await self._queries.states(tuple(request.call_ids)))

    async def WatchCall(self, request: control_pb2.CallId, context: Any) -> AsyncIterator[control_pb2.CallView]:
        async for view in self._follower.follow(request.call_id):
            yield wire.to_proto(view)

    async def CancelCall(self, request: control_pb2.CallId, context: Any) -> control_pb2.CallView:
        require_call_id(request.call_id)
        found = await self._queries.find(request.call_id)
        if not found.call.state.terminal or held_gang(found.state, found.call) is not None:
            await self._controller.execute(Cancel(call_id=found.call.id, owner=caller().owner))
            found = await self._queries.find(found.call.id)
        return wire.to_proto(await self._follower.view(found))

    async def GetGangAddress(self, request: control_pb2.GangAddressRequest, context: Any) -> control_pb2.GangAddress:
        function = self._queries.function(request.function_id)
        state = self._controller.state
        gang_id = request.gang_id
        if request.call_id:
            gang_id = (await self._queries.find(request.call_id)).call.gang_id
        if function.spec.fresh and not gang_id:
            return control_pb2.GangAddress()
        address = self._directory.gang_address(state, function.id, caller().owner, self._queries.depth, gang_id=gang_id)
        return wire.to_proto(address)

    async def GetLogSources(self, request: control_pb2.CallId, context: Any) -> control_pb2.LogSources:
        found = await self._queries.find(request.call_id)
        sources = await self._directory.log_sources(found.state, found.call, caller().owner)
        return control_pb2.LogSources(sources=[wire.to_proto(source) for source in sources])

    async def GetDebugSources(self, request: control_pb2.CallId, context: Any) -> control_pb2.LogSources:
        found = await self._queries.find(request.call_id)
        sources = self._directory.debug_sources(found.state, found.call, caller().owner)
        return control_pb2.LogSources(sources=[wire.to_proto(source) for source in sources])

    async def GetCallInput(self, request: control_pb2.CallInputRequest, context: Any) -> control_pb2.CallInput:
        if not request.call_id:
            return control_pb2.CallInput(function=wire.to_proto(self._queries.function(request.function_id).spec))
        call = (await self._queries.find(request.call_id)).call
        function = self._queries.function(call.function_id)
        args = await self._follower.arguments(call)
        return control_pb2.CallInput(
            function=wire.to_proto(function.spec), args=wire.to_proto(args), gang_id=call.gang_id
        )

    # ---- the cluster ----

    async def ListNodes(self, request: control_pb2.Empty, context: Any) -> control_pb2.NodeList:
        return control_pb2.NodeList(nodes=[wire.to_proto(view) for view in self._queries.nodes()])

    async def SetNodeState(self, request: control_pb2.NodeStateRequest, context: Any) -> control_pb2.NodeView:
        return wire.to_proto(await self._nodes.set_state(request))

    async def GetTopology(self, request: control_pb2.NodeId, context: Any) -> control_pb2.TopologyText:
        text = self._queries.topology(request.node_id)
        return control_pb2.TopologyText(node_id=request.node_id, topology=text)

    async def SetFabric(self, request: control_pb2.FabricText, context: Any) -> control_pb2.FabricText:
        return await self._fabric.set(request.fabric)

    async def GetFabric(self, request: control_pb2.Empty, context: Any) -> control_pb2.FabricText:
        return await self._fabric.get()

    async def SetPolicy(self, request: control_pb2.PolicyText, context: Any) -> control_pb2.PolicyText:
        return await self._queue.set_policy(request.policy)

    async def GetPolicy(self, request: control_pb2.Empty, context: Any) -> control_pb2.PolicyText:
        return self._queue.policy()

    async def GetQueue(self, request: control_pb2.QueueRequest, context: Any) -> control_pb2.QueueView:
        return wire.to_proto(self._queue.queue(request.limit))

    async def GetPast(self, request: control_pb2.PastRequest, context: Any) -> control_pb2.PastView:
        return wire.to_proto(await self._past.at(request.at_ms))

    async def GetStart(self, request: control_pb2.StartRequest, context: Any) -> control_pb2.StartView:
        return wire.to_proto(self._queue.start(wire.from_proto(FunctionSpec, request.function)))

    async def ListGangs(self, request: control_pb2.Empty, context: Any) -> control_pb2.GangList:
        return control_pb2.GangList(gangs=[wire.to_proto(view) for view in self._queries.gangs()])

    async def ExplainGang(self, request: control_pb2.GangId, context: Any) -> control_pb2.GangExplanation:
        return wire.to_proto(await self._queries.explain(request.gang_id))

    async def GetCost(self, request: control_pb2.CostRequest, context: Any) -> control_pb2.CostList:
        costs = await self._queries.costs(request.call_id, request.group_by)
        return control_pb2.CostList(costs=[wire.to_proto(view) for view in costs])

    # ---- tokens ----

    async def CreateToken(
        self, request: control_pb2.CreateTokenRequest, context: Any
    ) -> control_pb2.CreateTokenResponse:
        token = await self._tokens.create(request.workspace, request.user, request.role, request.lifetime_ms)
        return control_pb2.CreateTokenResponse(token=token.text, token_id=token.id)

    async def RevokeToken(self, request: control_pb2.RevokeTokenRequest, context: Any) -> control_pb2.Empty:
        await self._tokens.revoke(request.token_id)
        return control_pb2.Empty()

    async def ListTokens(self, request: control_pb2.Empty, context: Any) -> control_pb2.TokenList:
        return control_pb2.TokenList(tokens=self._tokens.infos())

    async def GetWebhookSecret(
        self, request: control_pb2.WebhookSecretRequest, context: Any
    ) -> control_pb2.WebhookSecret:
        if request.rotate:
            return wire.to_proto(await self._webhooks.rotate(request.from_version))
        return wire.to_proto(self._webhooks.secret())

    async def CreateLoginLink(self, request: control_pb2.Empty, context: Any) -> control_pb2.LoginLink:
        return control_pb2.LoginLink(url=self._tokens.login_link())

    async def Enroll(self, request: agent_pb2.CertificateRequest, context: Any) -> agent_pb2.Certificate:
        return await self._enrolment.enrol(request)

    async def CreateJoinToken(self, request: control_pb2.Empty, context: Any) -> control_pb2.JoinToken:
        text, expires_ms = await self._tokens.create_join_token()
        return control_pb2.JoinToken(join_token=text, expires_ms=expires_ms)
