"""Batches as lines of the archive."""

from __future__ import annotations

from dataclasses import replace

import pytest

from phalanx_control.log.errors import UnreadableLogError
from phalanx_control.log.folding import fold_batch
from phalanx_control.log.log import batch_from_line, batch_to_line
from phalanx_control.state.model import SCHEMA_VERSION, State
from tests.support.batches import batch


def test_a_batch_survives_its_line() -> None:
    line = batch_to_line(batch(7, mark='quotes " and\nlines'))
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert batch_from_line(line) == batch(7, mark='quotes " and\nlines')


def test_a_newer_schema_is_refused_with_both_versions() -> None:
    line = batch_to_line(replace(batch(1), schema=SCHEMA_VERSION + 1))
    with pytest.raises(UnreadableLogError, match=rf"schema version {SCHEMA_VERSION + 1}.*up to {SCHEMA_VERSION}"):
        batch_from_line(line)


def test_an_unknown_kind_is_refused_with_its_batch() -> None:
    line = batch_to_line(batch(5)).replace(b"CallWaits", b"CallDances")
    with pytest.raises(UnreadableLogError, match="batch 5"):
        batch_from_line(line)


def test_a_torn_line_is_refused() -> None:
    with pytest.raises(UnreadableLogError):
        batch_from_line(batch_to_line(batch(1))[:-10])


def test_folding_refuses_a_batch_out_of_turn_and_one_that_does_not_fit() -> None:
    with pytest.raises(UnreadableLogError, match="batches between them are missing"):
        fold_batch(State(), batch(2))
    with pytest.raises(UnreadableLogError, match="do not know"):
        fold_batch(State(), batch(1))
