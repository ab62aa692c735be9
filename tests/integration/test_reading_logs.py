"""A call's output while what holds it changes: the gang has just been stored, or its agent begins anew."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from phalanx.client import Client
from phalanx.core.errors import NotFoundError
from phalanx.core.ids import id_text
from phalanx.core.logrecords import LogEnd, LogRecord, encode, encode_end
from phalanx.core.tickets import sign
from phalanx.core.views import CallView, LogSource
from phalanx.logs import CallLogs
from tests.support.frame_client import make_ticket
from tests.support.plane import GANG, KEY, TestPlane

CALL = b"c" * 16
NAME = id_text("c", CALL)
STORED = LogSource(node_id="n0", blob=f"logs/{NAME}/n0/{GANG}.0")


def line(text: str) -> bytes:
    return encode(LogRecord(1, 0, 5, CALL, f"{text}\n".encode()))


def end(count: int) -> bytes:
    return encode_end(LogEnd({0: count}, complete=True), call=CALL, wall_ms=6)


@dataclass
class Sources:
    """A control plane that tells of one call: its states one after the other, its sources one after the other."""

    states: list[str]
    sources: list[tuple[LogSource, ...]]
    blobs: dict[str, bytes] = field(default_factory=dict[str, bytes])

    def get_call(self, _: str) -> CallView:
        return self._view(self.states[0])

    def watch(self, _: str) -> Iterator[CallView]:
        while len(self.states) > 1:
            yield self._view(self.states.pop(0))
        yield self._view(self.states[0])

    def log_sources(self, _: str) -> tuple[LogSource, ...]:
        return self.sources.pop(0) if len(self.sources) > 1 else self.sources[0]

    def get_blob(self, name: str) -> bytes:
        if name not in self.blobs:
            raise NotFoundError(name)
        return self.blobs[name]

    def _view(self, state: str) -> CallView:
        return CallView(call_id=NAME, gang_id=GANG, state=state, fence=1)


@pytest.fixture
def plane() -> Iterator[TestPlane]:
    with tempfile.TemporaryDirectory(prefix="pxr", dir="/tmp") as directory:
        made = TestPlane(Path(directory))
        yield made
        made.close()


def agent(plane: TestPlane) -> LogSource:
    ticket = sign(make_ticket(kind="logs", gang_id=GANG, call_id=NAME), KEY)
    return LogSource(node_id="n0", unix_path=str(plane.directory / "agent.sock"), ticket=ticket)


def write(plane: TestPlane, *records: bytes) -> None:
    with (plane.directory / "spool.log").open("ab") as spool:
        spool.write(b"".join(records))


def texts(logs: CallLogs, *, live: bool) -> list[str]:
    return [each.text for each in (logs.live() if live else logs.now())]


@pytest.mark.parametrize("live", [True, False], ids=["live", "now"])
def test_output_that_is_stored_while_one_asks_its_agent_comes_from_the_store(plane: TestPlane, live: bool) -> None:
    cell = Sources(["failed"], [(agent(plane),), (STORED,)], {STORED.blob: line("a") + end(2)})
    logs = CallLogs(cast("Client", cell), NAME)
    assert texts(logs, live=live) == ["a"]
    assert logs.tally.complete, logs.tally.words


def test_what_an_agent_told_before_it_was_gone_does_not_come_again_from_the_store(plane: TestPlane) -> None:
    """The agent's END is missing: it broke off."""
    write(plane, line("a"))
    cell = Sources(["running", "failed"], [(agent(plane),), (STORED,)], {STORED.blob: line("a") + line("b") + end(4)})
    plane.open()  # a gang that runs no such call: what follows it is over at once, without an end record
    logs = CallLogs(cast("Client", cell), NAME)
    assert texts(logs, live=True) == ["a", "b"]
    assert logs.tally.complete, logs.tally.words


def test_a_reading_that_broke_off_goes_on_where_it_was(plane: TestPlane, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its agent begins anew: for a moment it is not there."""
    monkeypatch.setattr("phalanx.logs._AGAIN_S", (0.01, 0.01))
    write(plane, line("a"))
    plane.open()
    nowhere = LogSource(node_id="n0", unix_path=os.devnull)
    cell = Sources(["running"] * 4 + ["succeeded"], [(agent(plane),), (nowhere,), (nowhere,), (agent(plane),)])
    logs = CallLogs(cast("Client", cell), NAME)
    lines = logs.live()
    assert next(lines).text == "a"
    write(plane, line("b"), end(4))
    assert [each.text for each in lines] == ["b"]
    assert logs.tally.complete, logs.tally.words


def test_the_output_of_a_killed_gang_ends_though_no_end_was_written(plane: TestPlane) -> None:
    write(plane, line("a"))
    plane.open()
    cell = Sources(["running", "failed"], [(agent(plane),)])
    logs = CallLogs(cast("Client", cell), NAME)
    assert texts(logs, live=True) == ["a"]
    assert logs.tally.words == "2 bytes, up to where ranks were ended"
