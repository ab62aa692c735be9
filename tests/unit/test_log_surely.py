"""What becomes of an append whose batch is in the log and not durable yet."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from phalanx.core.clock import ManualClock
from phalanx_control.log.errors import AppendUncertainError, FencedOutError, StoreUnavailableError
from phalanx_control.log.leadership import LeaderRecord
from phalanx_control.log.log import Batch, NewBody
from phalanx_control.log.memory import MemoryLog
from phalanx_control.log.surely import append_surely
from tests.support.batches import batch

LACKING = "batch 1 is in the log, but 0 of 1 replicas have it"


class LaggingLog(MemoryLog):
    """Writes, and does not know that it is durable before it was asked for ``answers`` in turn."""

    def __init__(self, *answers: Exception | bool) -> None:
        super().__init__(ManualClock())
        self.answers = list(answers)
        self.appends = 0

    async def append(self, batch: Batch, bodies: Sequence[NewBody] = ()) -> None:
        self.appends += 1
        await super().append(batch, bodies)
        if self.answers:
            raise AppendUncertainError(LACKING)

    async def confirm(self, batch: Batch) -> bool:
        assert batch in await self.read_after(0), "asked for a batch that was not found"
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def forget_last(self) -> None:
        del self._batches[-1]


async def led(log: LaggingLog) -> LaggingLog:
    await log.acquire(LeaderRecord(), leader_id="a", address="")
    return log


def reasons(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [str(getattr(r, "why", "")) for r in caplog.records if r.message == "append uncertain"]


async def test_it_asks_until_the_replicas_have_it_and_writes_and_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    away = StoreUnavailableError("away")
    log = await led(LaggingLog(*[AppendUncertainError(LACKING)] * 5, away, AppendUncertainError(LACKING), True))
    await append_surely(log, batch(1), (), retry_s=0)
    assert log.answers == []
    assert log.appends == 1
    assert reasons(caplog) == [LACKING]


async def test_another_reason_is_said_as_well(caplog: pytest.LogCaptureFixture) -> None:
    log = await led(LaggingLog(AppendUncertainError("1 of 2"), AppendUncertainError("1 of 2"), True))
    await append_surely(log, batch(1), (), retry_s=0)
    assert reasons(caplog) == [LACKING, "1 of 2"]


async def test_what_a_promoted_replica_lacks_is_sent_again() -> None:
    class Promoted(LaggingLog):
        async def confirm(self, batch: Batch) -> bool:
            answer = await super().confirm(batch)
            if not answer:
                self.forget_last()
            return answer

    log = await led(Promoted(False))
    await append_surely(log, batch(1), (), retry_s=0)
    assert log.appends == 2
    assert await log.read_after(0) == [batch(1)]


async def test_a_leader_that_was_followed_while_it_waited_is_told_so() -> None:
    log = await led(LaggingLog(AppendUncertainError(LACKING), FencedOutError(2, "b")))
    with pytest.raises(FencedOutError):
        await append_surely(log, batch(1), (), retry_s=0)
