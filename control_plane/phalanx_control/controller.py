"""The controller: one replica of the control plane, following or leading. The only writer of the log.

    run:   open the log → [ follow → elected → lead → step down ] → …

Everything that changes the state goes through :meth:`Controller.execute`; whatever is read here is durable. It knows no
protocol, no page and no scheduler: rules are given to it, messages to agents leave through functions that it is given.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping
from typing import Any, Literal

from phalanx.core.clock import Clock
from phalanx.core.errors import NotFoundError
from phalanx.core.messages import Report
from phalanx_control.controller_delivery import Delivery, Send
from phalanx_control.controller_draft import Pending
from phalanx_control.controller_facts import Facts
from phalanx_control.controller_feed import Feed, Reader
from phalanx_control.controller_parts import MakeSnapshot, Parts
from phalanx_control.controller_peers import Peers
from phalanx_control.controller_rules import Rules, Timing
from phalanx_control.controller_term import Term
from phalanx_control.log.errors import LogLostError, NotLeaderError, StoreUnavailableError
from phalanx_control.log.leadership import LeaderRecord
from phalanx_control.log.log import LogStore
from phalanx_control.standby import Standby
from phalanx_control.state.commands import AgentSaid, Command
from phalanx_control.state.events import Events
from phalanx_control.state.model import BodyRef, State

_logger = logging.getLogger(__name__)

RESIGN_S = 1.0
WAIT_FOR_SEQ_S = 5.0
_NO_BODIES: Mapping[str, bytes] = {}


class Controller:
    """One replica. ``address`` is where clients reach it; standbys hand it out while this one leads."""

    def __init__(
        self,
        log: LogStore,
        clock: Clock,
        *,
        replica_id: str,
        address: str,
        rules: Rules,
        make_snapshot: MakeSnapshot | None = None,
        timing: Timing | None = None,
    ) -> None:
        self._log = log
        self._timing = timing or Timing()
        self._address = address
        self._term: Term | None = None
        self.leader_id = f"{replica_id}.{os.urandom(4).hex()}"
        """Names this process, not the replica: one that restarts is another leader."""
        self.facts = Facts(clock)
        self._feed = Feed()
        self._delivery = Delivery(log.body, rules.sign_peers, lost_args=self._submit_unasked)
        self._parts = Parts(
            log=log,
            clock=clock,
            rules=rules,
            timing=self._timing,
            feed=self._feed,
            facts=self.facts,
            delivery=self._delivery,
            peers=Peers(log, self.leader_id),
            make_snapshot=make_snapshot,
        )
        self._standby = Standby(self._parts, leader_id=self.leader_id, address=address)

    # ---- what is known ----

    @property
    def state(self) -> State:
        """The state after the last durable batch."""
        return self._feed.state

    @property
    def seq(self) -> int:
        return self._feed.state.seq

    @property
    def schema(self) -> int:
        """The newest schema version that every live replica reads, and that may be written."""
        return self._parts.peers.writable(self.state)

    @property
    def is_leader(self) -> bool:
        return self._term is not None and self._term.is_open

    @property
    def role(self) -> Literal["leader", "standby"]:
        return "leader" if self.is_leader else "standby"

    @property
    def leader_address(self) -> str:
        """Where the leader is, as last read; empty while there is none."""
        return self._address if self.is_leader else self._standby.record.address

    @property
    def cannot_lead(self) -> str:
        """Why this replica must not lead; empty when it may."""
        return self._standby.cannot_lead

    def changes(self) -> Reader:
        """Returns an iterator over ``(before, events, after)`` of each durable batch from now on.

        A reader that falls far behind gets one change without events, and looks at ``after`` afresh.
        """
        return self._feed.changes()

    async def wait_for_seq(self, seq: int, timeout_s: float = WAIT_FOR_SEQ_S) -> None:
        """Returns when :attr:`state` reflects ``seq``. Raises ConnectionFailedError after ``timeout_s``."""
        await self._feed.wait_for_seq(seq, timeout_s)

    async def body(self, ref: BodyRef) -> bytes:
        """Returns the bytes that the store holds for ``ref``. Raises NotFoundError when expired, or kept as a blob."""
        if ref.blob:
            raise NotFoundError(f"{ref.blob} is a blob, not a body in the store")
        return await self._log.body(ref.key) if ref.key else b""

    # ---- what is asked ----

    async def execute(self, command: Command, bodies: Mapping[str, bytes] = _NO_BODIES) -> Events:
        """Decides ``command`` and returns its events once they are durable, together with the ``bodies`` that they
        refer to by key.

        Raises the PhalanxError of a refusal, NotLeaderError, or StoreUnavailableError; after the last the command may
        still have been written, and asking again with the same ids is harmless.
        """
        self._note(command)
        answer: asyncio.Future[Events] = asyncio.get_running_loop().create_future()
        self._leading().submit(Pending(command=command, bodies=bodies, answer=answer))
        try:
            async with asyncio.timeout(self._timing.answer_s):
                return await answer
        except TimeoutError as e:
            raise StoreUnavailableError(f"not known to be durable after {self._timing.answer_s} s") from e

    def attach(self, node_id: str, send: Send) -> None:
        """Messages for the node's agent go to ``send`` from now on."""
        self._delivery.attach(node_id, send)

    def detach(self, node_id: str, send: Send) -> None:
        """Forgets ``send``, unless another session of that node has taken its place."""
        self._delivery.detach(node_id, send)

    def note_report(self, node_id: str, report: Report) -> None:
        """Keeps an agent's fast facts; what it says of its GPUs is decided on when it has changed."""
        if self.facts.note_report(node_id, report):
            self._submit_unasked(AgentSaid(node_id=node_id, message=report))

    async def put_live(self, fact: Mapping[str, Any]) -> None:
        """Puts a fact into the live stream; it is lost when the store is away."""
        try:
            await self._log.put_live(fact)
        except StoreUnavailableError as e:
            _logger.debug("live fact lost", extra={"why": str(e)})

    # ---- the life of a replica ----

    async def run(self) -> None:
        """Runs until cancelled. Raises VolatileStoreError at once where the store is not to be trusted."""
        await self._open()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._delivery.run())
            tasks.create_task(self._parts.peers.run())
            tasks.create_task(self._follow_and_lead())

    async def _open(self) -> None:
        while True:
            try:
                await self._log.open()
            except StoreUnavailableError as e:
                _logger.warning("store out of reach", extra={"why": str(e)})
                await asyncio.sleep(self._timing.poll_s)
            else:
                return

    async def _follow_and_lead(self) -> None:
        while True:
            record = await self._standby.until_elected()
            await self._lead(record)

    async def _lead(self, record: LeaderRecord) -> None:
        term = self._term = Term(self._parts, record)
        try:
            await term.run()
        except LogLostError as e:
            _logger.error("store lost acknowledged batches", extra={"why": str(e)})  # noqa: TRY400
            self._standby.reload()
        finally:
            self._term = None
            await self._step_down(term, record)

    async def _step_down(self, term: Term, record: LeaderRecord) -> None:
        """Leaves the record to whoever is next and sends the askers there."""
        try:
            async with asyncio.timeout(RESIGN_S):
                await self._log.resign(record.epoch, record.leader_id)
                self._standby.record = await self._log.leader()
        except (StoreUnavailableError, TimeoutError) as e:
            _logger.warning("leadership not handed on", extra={"why": str(e)})
        term.fail_waiting(NotLeaderError(self.leader_address))

    def _note(self, command: Command) -> None:
        if isinstance(command, AgentSaid) and isinstance(command.message, Report):
            self.facts.note_report(command.node_id, command.message)
        elif isinstance(command, AgentSaid):
            self.facts.heard(command.node_id)

    def _leading(self) -> Term:
        if self._term is None or not self._term.is_open:
            raise NotLeaderError(self.leader_address)
        return self._term

    def _submit_unasked(self, command: AgentSaid) -> None:
        """Queues what nobody waits for; it is said again by its agent, or seen again at the next tick."""
        if self.is_leader:
            self._leading().submit(Pending(command=command))
