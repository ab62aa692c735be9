"""A short run of chaos. A failing one is repeated with `python -m tests.faults.chaos --seed N`."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.faults import chaos

FAULTS = 24
CALLS = 300


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_whatever_is_killed_or_stopped_no_caller_is_told_a_lie(tmp_path: Path) -> None:
    seed = int(os.environ.get("CHAOS_SEED") or random.SystemRandom().randrange(1 << 32))
    print(f"seed {seed}")
    load = chaos.run(tmp_path, seed=seed, faults=FAULTS, calls=CALLS, seconds=150)
    assert not load.wrong, f"seed {seed}: {load.wrong}"
    assert load.calls >= CALLS, f"seed {seed}: {dict(load.done)}"
