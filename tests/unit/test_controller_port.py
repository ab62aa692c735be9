"""The controller is what the services take it for: a check by types, and by being one."""

from __future__ import annotations

from phalanx.core.clock import ManualClock
from phalanx_control.controller import Controller
from phalanx_control.controller_rules import Rules
from phalanx_control.log.memory import MemoryLog
from phalanx_control.service.ports import BodyReader, ControllerPort, LiveStream
from tests.support.replicas import no_peers


def test_a_replica_that_has_not_begun_is_a_standby_and_knows_no_leader() -> None:
    clock = ManualClock()
    log = MemoryLog(clock)
    controller: ControllerPort = Controller(log, clock, replica_id="a", address="a:1", rules=Rules(sign_peers=no_peers))
    bodies: BodyReader = log
    live: LiveStream = log
    assert (controller.is_leader, controller.leader_address, controller.seq) == (False, "", 0)
    assert bodies is live
