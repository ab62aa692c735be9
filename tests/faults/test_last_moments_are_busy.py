"""What a call takes until it kills its gang is busy time: no report comes any more that could say so."""

from __future__ import annotations

import os
import signal
import time

import pytest

import phalanx
from tests.faults import work
from tests.support.cluster import Cluster
from tests.support.wait import wait_until

pytestmark = pytest.mark.slow
TOOK_S = 3.0


def end_late(how: str) -> None:
    time.sleep(TOOK_S)
    if how == "exit":
        os._exit(7)
    os.kill(os.getpid(), signal.SIGKILL)


def busy_ms(call: phalanx.Call[None]) -> int:
    return sum(each.gpu_ms for each in call.cost().phases if each.phase == "busy")


@pytest.mark.parametrize("how", ["exit", "kill"])
def test_a_call_that_kills_its_gang_is_busy_until_then(cluster: Cluster, how: str) -> None:
    call = work.gang(end_late, gpus=1).spawn(how)
    with pytest.raises(phalanx.RankDiedError):
        call.get()
    wait_until(lambda: not cluster.connect().list_gangs(), "the gang is gone", 30)
    assert TOOK_S * 1000 - 100 <= busy_ms(call) <= TOOK_S * 1000 + 1500
