"""What a running function knows of its gang, and what it may say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from phalanx.context import MAX_STEP, Context
from phalanx.core.errors import InvalidSpecError


def reporting() -> tuple[Context, list[tuple[int, int]]]:
    said: list[tuple[int, int]] = []
    return Context(report_progress=lambda step, total: said.append((step, total))), said


@pytest.mark.parametrize(("step", "total"), [(0, 0), (3, 10), (np.int64(3), 10), (2.0, 4.9), (MAX_STEP, MAX_STEP)])
def test_progress_takes_numbers_of_any_make(step: Any, total: Any) -> None:
    context, said = reporting()
    context.progress(step, total)
    assert said == [(int(step), int(total))]


@pytest.mark.parametrize("step", [-1, 10**30, float("inf"), float("nan"), "x", None])
def test_progress_that_nobody_could_store_is_refused_where_it_is_said(step: Any) -> None:
    context, said = reporting()
    with pytest.raises(InvalidSpecError, match="progress: step="):
        context.progress(step)
    assert not said


def test_a_calls_id_is_that_of_its_frame() -> None:
    assert Context().call_id == ""
    assert Context(raw_call_id=bytes(16)).call_id == "c-" + "0" * 26
