"""Nothing that a rank prints reaches a terminal as anything but text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.terminal_text import harmless


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain text, with ünïcode", "plain text, with ünïcode"),
        ("a\x1b[2J\x1b[Hb", "ab"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;https://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b]52;c;never ends", ""),
        ("bell\x07 back\x08", "bell\\x07 back\\x08"),
        ("\x9b2Jc1", "c1"),
        ("tab\tstays", "tab\tstays"),
        ("\u202eright to left", "�right to left"),
    ],
)
def test_escapes_are_taken_out_and_controls_are_shown(text: str, shown: str) -> None:
    assert harmless(text) == shown


def test_colours_stay_where_they_are_wanted_and_end_with_the_line() -> None:
    assert harmless("\x1b[31mred\x1b[2J", colours=True) == "\x1b[31mred\x1b[0m"
    assert harmless("none", colours=True) == "none"


@given(st.text())
def test_no_text_keeps_an_escape(text: str) -> None:
    assert not set(harmless(text)) & {"\x1b", "\x9b", "\x07", "\n", "\r"}
