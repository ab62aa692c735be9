"""Errors of CUDA's wait for the driver's word: a GPU's fault is not the user's, and theirs comes a little later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from phalanx.core.frames import Kind
from phalanx.core.tickets import sign
from phalanx_agent.dataplane.facts import CallEnded, KeeperAttached, KeeperEnded, PeerSpec
from phalanx_agent.dataplane.suspects import HOLD_MS
from tests.support.fake_keeper import FakeKeeper, hold
from tests.support.frame_client import make_ticket
from tests.support.plane import GANG, KEY, TestPlane, new_call
from tests.support.wait import wait_until

CUDA: dict[str, Any] = {
    "type_name": "RuntimeError",
    "message": "CUDA error: an illegal memory access was encountered",
    "rank": 1,
}
FAULT = "GPU GPU-1 on n0 failed: XID 48: double-bit ECC error"


@pytest.fixture
def keeper(plane: TestPlane) -> FakeKeeper:
    keeper = plane.open(answer=hold, gpus_may_fail=True)
    plane.wait_for(KeeperAttached)
    return keeper


def offered(plane: TestPlane, keeper: FakeKeeper) -> bytes:
    call = new_call()
    assert plane.offer(call, b"x")
    wait_until(lambda: call in keeper.calls(), "it is at the keeper")
    return call


def test_the_drivers_word_makes_it_the_gpus_fault(plane: TestPlane, keeper: FakeKeeper) -> None:
    keeper.fail(offered(plane, keeper), **CUDA)
    plane.plane.blame(GANG, FAULT)
    (ended,) = plane.wait_for(CallEnded)
    assert ended.error.cause == "infrastructure"
    assert ended.error.message.startswith(FAULT)
    assert "illegal memory access" in ended.error.message


def test_without_it_the_error_is_the_users_after_a_while(plane: TestPlane, keeper: FakeKeeper) -> None:
    keeper.fail(offered(plane, keeper), **CUDA)
    wait_until(lambda: plane.plane.snapshots().result(5)[0].in_flight == 0, "it left the ranks")
    assert not plane.heard(CallEnded)
    (ended,) = plane.wait_for(CallEnded)
    assert (ended.error.cause, ended.error.message) == ("user_exception", CUDA["message"])


def test_what_comes_after_the_drivers_word_is_the_gpus_fault_too(plane: TestPlane, keeper: FakeKeeper) -> None:
    call = offered(plane, keeper)
    plane.plane.blame(GANG, FAULT)
    keeper.fail(call, **CUDA)
    (ended,) = plane.wait_for(CallEnded)
    assert ended.error.cause == "infrastructure"


@pytest.mark.parametrize(
    "error",
    [
        {"type_name": "ValueError", "message": "no"},
        {"type_name": "OutOfMemoryError", "message": "CUDA out of memory. Tried to allocate 2 GiB"},
        {"type_name": "RuntimeError", "message": "CUDA error: out of memory"},
    ],
    ids=["its own", "memory", "memory by the driver"],
)
def test_other_errors_do_not_wait(plane: TestPlane, keeper: FakeKeeper, error: dict[str, Any]) -> None:
    keeper.fail(offered(plane, keeper), **error)
    wait_until(lambda: bool(plane.heard(CallEnded)), "it is told at once", HOLD_MS / 1000 / 2)


def test_ranks_without_gpus_do_not_wait(plane: TestPlane) -> None:
    keeper = plane.open(answer=hold)
    keeper.fail(offered(plane, keeper), **CUDA)
    wait_until(lambda: bool(plane.heard(CallEnded)), "it is told at once", HOLD_MS / 1000 / 2)


def test_the_end_of_the_gang_is_told_after_it(plane: TestPlane, keeper: FakeKeeper) -> None:
    keeper.fail(offered(plane, keeper), **CUDA)
    keeper.end(error={"cause": "user_exception", "message": CUDA["message"]}, clean=False)
    plane.wait_for(KeeperEnded)
    kinds = [type(e) for e in plane.events if isinstance(e, (CallEnded, KeeperEnded))]
    assert kinds == [CallEnded, KeeperEnded]


def test_the_next_call_does_not_wait_with_it(plane: TestPlane, keeper: FakeKeeper) -> None:
    keeper.fail(offered(plane, keeper), **CUDA)
    keeper.finish(offered(plane, keeper))
    (ended,) = plane.wait_for(CallEnded)
    assert ended.outcome == "succeeded"


def test_another_nodes_gpu_is_blamed_at_the_lead(plane: TestPlane, tmp_path: Path) -> None:
    other = TestPlane(tmp_path / "n1", node_id="n1")
    try:
        theirs = other.open(lead=False, answer=hold, gpus_may_fail=True)
        ticket = make_ticket(kind="peer", node_id="n1", gang_id=GANG, expires_wall_ms=1)
        peer = PeerSpec(
            node_id="n1",
            data_address=f"127.0.0.1:{other.plane.port}",
            fingerprint=other.fingerprint,
            ticket=sign(ticket, KEY),
        )
        ours = plane.open(answer=hold, peers=(peer,), gpus_may_fail=True)
        call = offered(plane, ours)
        wait_until(lambda: call in theirs.calls(), "it is at both keepers")
        ours.finish(call)
        theirs.fail(call, **CUDA)
        ours.wait_for(Kind.STOP)
        other.plane.blame(GANG, FAULT)
        (ended,) = plane.wait_for(CallEnded)
        assert ended.error.cause == "infrastructure"
    finally:
        other.close()
