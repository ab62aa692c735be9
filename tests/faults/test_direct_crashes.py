"""Direct calls that crash one after the other: each meets a gang that is ending, and still ends as what it was."""

from __future__ import annotations

import os
import signal

import pytest

import phalanx
from tests.faults import work
from tests.support.cluster import Cluster

pytestmark = pytest.mark.slow


def crash(how: str) -> None:
    if how == "exit":
        os._exit(7)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("how", ["exit", "kill"])
@pytest.mark.parametrize("gpus", [0, 2], ids=["one rank", "two ranks"])
def test_every_one_of_them_says_how_it_crashed(cluster: Cluster, gpus: int, how: str) -> None:
    function = work.gang(crash, gpus=gpus)
    for _ in range(12):
        with pytest.raises(phalanx.RankDiedError, match=r"exited 7|signal 9"):
            function.remote(how)
