"""A client's connection to a fake gang, and what tests of its lanes say over it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from phalanx.core.ids import new_raw_id
from phalanx.core.serialization import pack_arguments
from phalanx.dataplane import GangConnection
from phalanx.memfds import MemfdPool
from phalanx.outcomes import value_of_frame
from phalanx.pending import Pending
from tests.support.fake_gang import Answer, FakeGang

Make = Callable[[Answer], tuple[FakeGang, GangConnection]]


@contextmanager
def fake_gangs(*, lanes: bool = False, straight: bool = False) -> Generator[Make]:
    """Yields what makes a gang that answers as told, and a connection to it; both are closed at the end."""
    opened: list[Any] = []
    with tempfile.TemporaryDirectory(prefix="px") as folder:

        def gang(answer: Answer) -> tuple[FakeGang, GangConnection]:
            fake = FakeGang(Path(folder), answer, lanes=lanes, straight=straight)
            opened.extend((GangConnection(fake.address, client="test", pool=MemfdPool()), fake))
            return fake, opened[-2]

        try:
            yield gang
        finally:
            for each in opened:
                each.close()


def call(connection: GangConnection, value: object, **options: Any) -> Pending:
    return connection.call(new_raw_id(), pack_arguments((value,), {}), **options)


def result(connection: GangConnection, pending: Pending) -> Any:
    assert connection.wait(pending, until_ms=None)
    assert pending.frame is not None
    return value_of_frame(pending.frame, "rank0")
