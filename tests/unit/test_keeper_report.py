"""Who was guilty: the first event that no peer explains."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from phalanx.core.messages import ErrorInfo
from phalanx.core.states import Cause
from phalanx_agent.keeper.report import Death, Evidence, Failure, death_cause, error_from_dict, error_to_dict

DEATH = Death(rank=2, pid=9, exit_code=0, signal=int(signal.SIGKILL), at_ms=1, last_lines="bye")


def peer(rank: int) -> Failure:
    return Failure(error=ErrorInfo(rank=rank, type_name="RuntimeError", message="Connection closed by peer"), peer=True)


def own(rank: int) -> Failure:
    return Failure(error=ErrorInfo(rank=rank, type_name="ValueError", message="mine"), peer=False, pickled=b"p")


def test_a_victim_that_speaks_first_is_not_the_culprit() -> None:
    evidence = Evidence("n0")
    evidence.add_failure(peer(0))
    assert evidence.only_peers
    evidence.add_failure(own(1))
    verdict = evidence.verdict(during="")
    assert (verdict.culprit, verdict.error.rank, verdict.pickled) == (1, 1, b"p")
    assert [(r.rank, r.culprit) for r in verdict.error.ranks] == [(0, False), (1, True)]


def test_a_death_explains_the_errors_of_its_peers() -> None:
    evidence = Evidence("n0")
    evidence.add_failure(peer(0))
    evidence.add_failure(peer(1))
    evidence.add_death(DEATH)
    verdict = evidence.verdict(during="before returning a result")
    assert verdict.culprit == 2
    assert "SIGKILL" in verdict.error.message
    assert verdict.error.message.endswith("it wrote last: bye")
    assert verdict.error.ranks[2].last_lines == "bye"


def test_the_first_of_two_own_failures_is_the_culprit() -> None:
    evidence = Evidence("n0")
    evidence.add_failure(own(3))
    evidence.add_failure(own(1))
    assert evidence.verdict(during="").culprit == 3


def test_the_first_of_victims_alone_is_the_culprit_where_all_ranks_are_here() -> None:
    evidence = Evidence("n0")
    evidence.add_failure(peer(1))
    evidence.add_failure(peer(0))
    verdict = evidence.verdict(during="", whole=True)
    assert (verdict.culprit, verdict.peer) == (1, False)
    assert verdict.error.cause is Cause.USER_EXCEPTION


def test_victims_alone_have_their_culprit_elsewhere() -> None:
    evidence = Evidence("n1")
    evidence.add_failure(peer(2))
    verdict = evidence.verdict(during="")
    assert (verdict.culprit, verdict.peer) == (-1, True)
    assert verdict.error.cause is Cause.INFRASTRUCTURE
    assert not any(r.culprit for r in verdict.error.ranks)


@pytest.mark.parametrize(
    ("exit_code", "number", "out_of_memory", "cause"),
    [
        (7, 0, False, Cause.USER_EXCEPTION),
        (0, 0, False, Cause.USER_EXCEPTION),
        (0, signal.SIGSEGV, False, Cause.USER_EXCEPTION),
        (0, signal.SIGKILL, False, Cause.INFRASTRUCTURE),
        (0, signal.SIGKILL, True, Cause.OUT_OF_MEMORY),
    ],
)
def test_the_cause_of_a_death_follows_from_how_it_came(
    exit_code: int, number: int, out_of_memory: bool, cause: Cause
) -> None:
    death = replace(DEATH, exit_code=exit_code, signal=int(number), out_of_memory=out_of_memory)
    assert death_cause(death) is cause


def test_an_error_survives_the_way_through_json() -> None:
    evidence = Evidence("n0")
    evidence.add_death(DEATH)
    error = evidence.verdict(during="x").error
    assert error_from_dict(error_to_dict(error)) == error


def test_only_a_crash_within_a_collective_may_be_anothers_doing() -> None:
    crashed = replace(DEATH, signal=int(signal.SIGSEGV))
    assert not crashed.is_mismatch
    assert replace(crashed, in_collective=True).is_mismatch
    assert not replace(DEATH, in_collective=True).is_mismatch, "it was killed from outside"
