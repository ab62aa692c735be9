"""Ids: 16 random bytes, written as a prefix and 26 characters, and read back exactly."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.core.ids import RAW_BYTES, id_raw, id_text, new_call_id, new_gang_id, new_raw_id

raws = st.binary(min_size=RAW_BYTES, max_size=RAW_BYTES)


@given(raws, st.sampled_from(["c", "g", "px"]))
def test_every_id_reads_back_as_its_bytes(raw: bytes, prefix: str) -> None:
    text = id_text(prefix, raw)
    assert text.startswith(prefix + "-")
    assert len(text) == len(prefix) + 1 + 26
    assert id_raw(text) == raw


@given(raws, raws)
def test_ids_sort_as_their_bytes_do(a: bytes, b: bytes) -> None:
    assert (id_text("c", a) < id_text("c", b)) == (a < b)


@given(st.text(max_size=40))
def test_anything_else_raises_value_error(text: str) -> None:
    try:
        raw = id_raw(text)
    except ValueError:
        return
    assert id_text(text.rpartition("-")[0], raw) == text


@pytest.mark.parametrize("text", ["", "c-", "c", "c-" + "0" * 25, "c-" + "u" * 26, "c-" + "z" * 26, "C-" + "O" * 26])
def test_what_is_not_an_id_is_named(text: str) -> None:
    with pytest.raises(ValueError, match="not an id"):
        id_raw(text)


def test_fresh_ids_differ_and_carry_their_kind() -> None:
    made = {new_call_id() for _ in range(1000)}
    assert len(made) == 1000
    assert all(call.startswith("c-") for call in made)
    raw = new_raw_id()
    assert new_gang_id(raw) == id_text("g", raw)
