"""One replica, put together: store, CA, blobs, controller, the two gRPC services and the page. The wiring, all of it.

Parts are made in the order in which they need each other; nothing is served before all of them are there. What the
parts do stands in their own files.
"""

from __future__ import annotations

import asyncio
import logging
import os
from functools import partial

from phalanx.core.clock import Clock
from phalanx.core.errors import ConnectionFailedError
from phalanx_control import blobs, certificates
from phalanx_control.archive_calls import CallArchive
from phalanx_control.archive_index import ArchiveIndex
from phalanx_control.archive_keeper import ArchiveKeeper
from phalanx_control.archive_sweep import Sweep
from phalanx_control.controller import Controller
from phalanx_control.controller_rules import Rules
from phalanx_control.lifecycle import outbox
from phalanx_control.lifecycle.decide import decide
from phalanx_control.log.past import Moment, past_in_process
from phalanx_control.log.redis_log import RedisLog
from phalanx_control.log.snapshot import snapshot_in_process
from phalanx_control.service.agent_api import AgentApi
from phalanx_control.service.agent_session import Sessions
from phalanx_control.service.blob_api import AgentBlobs, ClientBlobs
from phalanx_control.service.blob_reach import BlobReach
from phalanx_control.service.bootstrap import FirstTokens, load_first_tokens
from phalanx_control.service.doors import GrpcDoor, WebDoor, agent_credentials, client_credentials
from phalanx_control.service.enrol import Enrolment
from phalanx_control.service.fabric import FabricDesk
from phalanx_control.service.follow import Follower
from phalanx_control.service.forward import LeaderForwarder
from phalanx_control.service.gate import Gate
from phalanx_control.service.log_sources import Directory
from phalanx_control.service.node_desk import NodeDesk
from phalanx_control.service.parts import Parts
from phalanx_control.service.past_desk import PastDesk
from phalanx_control.service.pictures import StatePictures, load_price_book
from phalanx_control.service.queries import Queries
from phalanx_control.service.queue_desk import QueueDesk
from phalanx_control.service.sdk_api import SdkApi
from phalanx_control.service.server_info import AboutServer
from phalanx_control.service.submit import SubmitChecks
from phalanx_control.service.ticket_office import TicketOffice
from phalanx_control.service.tokens import TokenDesk
from phalanx_control.service.watch import ChangeHub
from phalanx_control.service.webhook_desk import WebhookDesk
from phalanx_control.settings import Settings
from phalanx_control.state.model import State
from phalanx_control.web.api import Api
from phalanx_control.web.app import make_app
from phalanx_control.web.page_model import PageModel, plain
from phalanx_control.web.sessions import PageSessions
from phalanx_control.web.sse import LiveHub, Publisher
from phalanx_control.webhook_teller import WebhookTeller
from phalanx_proto.v1 import agent_pb2_grpc, control_pb2_grpc

DRAIN_S = 0.8
_WATCH_S = 0.05
_RETRY_S = 0.2
logger = logging.getLogger(__name__)


class Replica:
    """Made by :meth:`make`; :meth:`run` serves until cancelled."""

    def __init__(self, settings: Settings, clock: Clock, *, secret: bytes, blob_identity: str) -> None:
        self._settings = settings
        self._clock = clock
        self._secret = secret
        self._authority = certificates.load_or_make(settings.data_dir, settings.cell, clock.wall_ms())
        self._first: FirstTokens = load_first_tokens(secret, settings.bootstrap_token_file, settings.join_token_file)
        self._log = RedisLog(
            settings.store,
            cell=settings.cell,
            allow_volatile=settings.allow_volatile_store,
            replicas=settings.store_replicas,
        )
        self._tickets = TicketOffice(secret, clock)
        self._blobs = blobs.open_blobs(settings.blobs)
        self._reach = BlobReach(secret, blob_identity, declared_shared=settings.blobs_shared)
        self._open_doors()
        self._controller = self._make_controller()
        self._sessions = Sessions()
        self._hub = ChangeHub(self._controller)
        self._book = book = load_price_book(settings.price_book)
        self._pictures = StatePictures(self._controller.facts, book)
        self._index = ArchiveIndex(settings.data_dir / "archive" / f"index-{blob_identity[:16]}.db")
        self._archive = CallArchive(self._blobs, self._index, clock)
        sweep = Sweep(self._blobs, self._archive)
        self._webhooks = WebhookDesk(self._controller, secret, clock)
        self._teller = WebhookTeller(
            controller=self._controller,
            pictures=self._pictures,
            keys=self._webhooks,
            clock=clock,
            allow_private=settings.allow_private_webhooks,
        )
        self._keeper = ArchiveKeeper(self._controller, self._archive, book, clock, sweep)
        self._forwarder = LeaderForwarder(
            self._controller,
            replica_id=settings.replica_id,
            own_address=self._clients.address,
            ca_pem=self._authority.pem,
            reach=self._reach,
        )
        self._assemble_services()

    @classmethod
    async def make(cls, settings: Settings, clock: Clock) -> Replica:
        """Makes everything and binds the ports. Raises InvalidSpecError on what cannot be used."""
        secret = certificates.load_cell_secret(settings.data_dir)
        identity = await blobs.open_blobs(settings.blobs).identity()
        return cls(settings, clock, secret=secret, blob_identity=identity)

    @property
    def ca_pem(self) -> bytes:
        """What clients and agents trust."""
        return self._authority.pem

    @property
    def is_leader(self) -> bool:
        return self._controller.is_leader

    def addresses(self) -> dict[str, str]:
        """Returns what others need to reach this replica."""
        return {
            "address": self._clients.address,
            "agents_address": self._agents.address,
            "page": self._web.page,
            "ca": str(self._authority.path),
            "replica_id": self._settings.replica_id,
        }

    async def run(self) -> None:
        """Serves until cancelled. Raises VolatileStoreError where the store is not to be trusted."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._controller.run())
            tasks.create_task(self._hub.run())
            tasks.create_task(self._keeper.run())
            tasks.create_task(self._teller.run())
            tasks.create_task(self._publisher.run())
            tasks.create_task(self._live_hub.run())
            tasks.create_task(self._watch_leadership())
            await self._clients.server.start()
            await self._agents.server.start()
            tasks.create_task(self._web.serve(self._app))

    async def ready(self) -> None:
        """Returns when somebody leads, the first tokens work here, and the page is live."""
        while not self._is_ready():  # noqa: ASYNC110 (three sources, none with an event)
            await asyncio.sleep(_WATCH_S)

    def _is_ready(self) -> bool:
        controller = self._controller
        return bool(controller.leader_address) and self._first.known_to(controller.state) and self._live_hub.is_live

    async def drain(self) -> None:
        """Takes no more requests and gives those in progress a moment."""
        self._sessions.close_all("this replica stops")
        self._live_hub.close()
        self._web.close()
        await asyncio.gather(self._clients.server.stop(DRAIN_S), self._agents.server.stop(DRAIN_S))

    async def close(self) -> None:
        self._web.close()
        await self._forwarder.close()
        await self._log.close()
        self._index.close()

    def _open_doors(self) -> None:
        settings = self._settings
        hosts = (settings.public_host, settings.listen.host, settings.agents_listen.host)
        pair = self._authority.server_pair(hosts, self._clock.wall_ms())
        self._gates = Gate(self._clock), Gate(self._clock)
        self._clients = GrpcDoor(settings.listen, settings.public_host, self._gates[0], client_credentials(pair))
        credentials = agent_credentials(pair, self._authority.pem)
        self._agents = GrpcDoor(settings.agents_listen, settings.public_host, self._gates[1], credentials)
        self._web = WebDoor(settings.web_listen)

    def _make_controller(self) -> Controller:
        settings = self._settings
        rules = Rules(decide=decide, outbox=outbox, sign_peers=self._tickets.for_peers, raw_ids=os.urandom)
        archive = settings.data_dir / "archive"
        return Controller(
            self._log,
            self._clock,
            replica_id=settings.replica_id,
            address=self._clients.address,
            rules=rules,
            make_snapshot=partial(snapshot_in_process, store=settings.store, cell=settings.cell, folder=archive),
        )

    def _assemble_services(self) -> None:
        controller, clock = self._controller, self._clock
        page_sessions = PageSessions(lambda: controller.state, clock, self._secret, self._web.page)
        client_blobs = ClientBlobs(controller, self._blobs, self._reach)
        enrolment = Enrolment(controller, self._authority, clock, agents_address=self._agents.address)
        queries = Queries(controller, self._pictures, self._archive)
        parts = Parts(
            controller=controller,
            queries=queries,
            client_blobs=client_blobs,
            directory=Directory(self._tickets, self._blobs),
            tokens=TokenDesk(controller, page_sessions, clock),
            enrolment=enrolment,
            follower=Follower(controller, self._hub, queries, self._pictures, self._log),
            submit=SubmitChecks(client_blobs, self._reach),
            fabric=FabricDesk(controller),
            nodes=NodeDesk(controller, queries),
            queue=QueueDesk(controller, self._clock),
            past=PastDesk(self._state_at, self._archive, self._book, clock),
            webhooks=self._webhooks,
            about=AboutServer(
                controller=controller,
                reach=self._reach,
                cell=self._settings.cell,
                page=self._web.page,
                started_wall_ms=clock.wall_ms(),
            ),
        )
        agent_api = AgentApi(
            controller,
            sessions=self._sessions,
            tickets=self._tickets,
            blobs=AgentBlobs(controller, self._blobs),
            enrolment=enrolment,
        )
        for gate in self._gates:
            gate.open(controller, self._forwarder, self._reach)
        control_pb2_grpc.add_ControlServicer_to_server(SdkApi(parts), self._clients.server)
        agent_pb2_grpc.add_AgentsServicer_to_server(agent_api, self._agents.server)
        self._assemble_page(parts, page_sessions)

    def _assemble_page(self, parts: Parts, sessions: PageSessions) -> None:
        model = PageModel(self._pictures)
        about = parts.about
        self._publisher = Publisher(self._controller, model, self._log, self._clock)
        self._live_hub = LiveHub(self._controller, model, self._log, self._clock, server=lambda: plain(about.view()))
        api = Api(parts.queries, parts.follower, about, self._live_hub)
        hosts = frozenset({"127.0.0.1", "localhost", "[::1]", self._settings.web_listen.host})
        self._app = make_app(api, sessions, controller=self._controller, clock=self._clock, hosts=hosts)

    async def _state_at(self, wall_ms: int) -> tuple[Moment, State]:
        settings = self._settings
        folder = settings.data_dir / "archive"
        return await past_in_process(store=settings.store, cell=settings.cell, folder=folder, wall_ms=wall_ms)

    async def _watch_leadership(self) -> None:
        """A new leader makes the first tokens known; one that leads no more sends its agents away."""
        led = False
        while True:
            leads = self._controller.is_leader
            if led and not leads:
                self._sessions.close_all("this replica does not lead any more")
            led = leads
            if leads and not self._first.known_to(self._controller.state):
                await self._make_first_tokens()
            await asyncio.sleep(_WATCH_S)

    async def _make_first_tokens(self) -> None:
        try:
            await self._first.ensure(self._controller)
        except ConnectionFailedError as e:
            logger.warning("first tokens not written yet", extra={"why": str(e)})
            await asyncio.sleep(_RETRY_S)
