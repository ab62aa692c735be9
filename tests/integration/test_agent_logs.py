"""Output on its way off the node: followers on the data plane, and segments in the blob store."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from phalanx.core.clock import ManualClock, SystemClock
from phalanx.core.frames import NO_ID, Kind
from phalanx.core.ids import id_text
from phalanx.core.logrecords import END, LogEnd, LogRecord, decode, encode, encode_end, parse_end
from phalanx.core.tickets import sign
from phalanx_agent.dataplane.facts import CallBegan
from phalanx_agent.logs import SEGMENT_BYTES, SEGMENT_MS, LogKeeper, SpoolUploader
from tests.support.fake_keeper import hold
from tests.support.frame_client import FrameClient, make_ticket
from tests.support.plane import GANG, KEY, TestPlane, new_call
from tests.support.wait import wait_until_async

CALL = b"c" * 16
OTHER = b"o" * 16
NAME = id_text("c", CALL)


def line(text: str, *, rank: int = 0, call: bytes = CALL) -> bytes:
    return encode(LogRecord(1, rank, 5, call, text.encode()))


def end(*, call: bytes = CALL, **by_rank: int) -> bytes:
    counted = {int(k.removeprefix("r")): v for k, v in by_rank.items()}
    return encode_end(LogEnd(counted, complete=True), call=call, wall_ms=6)


class Blobs:
    """A blob store in memory that can be out of reach."""

    def __init__(self) -> None:
        self.stored: dict[str, bytes] = {}
        self.reachable = True

    async def put(self, name: str, data: bytes) -> None:
        if not self.reachable:
            raise OSError("out of reach")
        self.stored[name] = data

    def names(self) -> list[str]:
        """Returns the names in the order in which they were stored first."""
        return list(self.stored)

    def text(self, name: str) -> str:
        return "".join(r.data.decode() for r, _ in decode(self.stored[name]) if r.stream != END)


@pytest.fixture
def gang_dir(tmp_path: Path) -> Path:
    path = tmp_path / "gangs" / "g-1"
    path.mkdir(parents=True)
    return path


def append(gang_dir: Path, *records: bytes) -> None:
    with (gang_dir / "spool.log").open("ab") as file:
        file.write(b"".join(records))


def uploader(gang_dir: Path, blobs: Blobs, clock: ManualClock | None = None) -> SpoolUploader:
    return SpoolUploader(gang_dir, node_id="n0", put=blobs.put, clock=clock or ManualClock())


# ---- segments ----


async def test_a_calls_output_is_stored_when_it_ends_and_ends_with_its_counts(gang_dir: Path) -> None:
    blobs = Blobs()
    append(gang_dir, line("a\n"), line("x", call=OTHER), line("b\n", rank=1), end(r0=2, r1=2))
    await uploader(gang_dir, blobs).step()
    name = f"logs/{NAME}/n0/g-1.0"
    assert blobs.text(name) == "a\nb\n"
    last = [r for r, _ in decode(blobs.stored[name])][-1]
    assert parse_end(last) == LogEnd({0: 2, 1: 2}, complete=True)


async def test_what_goes_on_is_stored_every_five_seconds_under_rising_numbers(gang_dir: Path) -> None:
    blobs, clock = Blobs(), ManualClock()
    upload = uploader(gang_dir, blobs, clock)
    for text in ("a", "b"):
        append(gang_dir, line(text))
        await upload.step()
        clock.advance(SEGMENT_MS)
        await upload.step()
    assert [blobs.text(name) for name in blobs.names()] == ["a", "b"]


async def test_what_is_stored_again_has_the_same_name(gang_dir: Path) -> None:
    blobs = Blobs()
    append(gang_dir, line("between", call=NO_ID))
    await uploader(gang_dir, blobs).step()
    append(gang_dir, line("a"), end(r0=1))
    await uploader(gang_dir, blobs).step()
    (gang_dir / "uploaded.json").unlink()
    await uploader(gang_dir, blobs).step()
    assert [blobs.text(name) for name in blobs.names()] == ["a"]


async def test_every_attempt_of_a_call_is_stored_beside_the_others(gang_dir: Path) -> None:
    blobs = Blobs()
    upload = uploader(gang_dir, blobs)
    for attempt in ("first", "second"):
        append(gang_dir, line(attempt), end(r0=len(attempt)))
        await upload.step()
    another = gang_dir.with_name("g-2")
    another.mkdir()
    append(another, line("third"), end(r0=5))
    await uploader(another, blobs).step()
    assert [blobs.text(name) for name in blobs.names()] == ["first", "second", "third"]


async def test_much_output_is_stored_at_once_and_in_bounded_pieces(gang_dir: Path) -> None:
    blobs = Blobs()
    upload = uploader(gang_dir, blobs)
    for _ in range(40):
        append(gang_dir, line("y" * 100_000))
    while await upload.step():
        pass
    await upload.step(last=True)
    sizes = [len(data) for data in blobs.stored.values()]
    assert sum(len(blobs.text(name)) for name in blobs.stored) == 4_000_000
    assert max(sizes) <= 2 * SEGMENT_BYTES


async def test_a_restarted_agent_goes_on_behind_what_was_stored(gang_dir: Path) -> None:
    blobs = Blobs()
    append(gang_dir, line("a"))
    await uploader(gang_dir, blobs).step(last=True)
    append(gang_dir, line("b"), end(r0=2))
    await uploader(gang_dir, blobs).step()
    assert [blobs.text(name) for name in blobs.names()] == ["a", "b"]


async def test_nothing_is_lost_while_the_store_is_out_of_reach(gang_dir: Path) -> None:
    blobs = Blobs()
    blobs.reachable = False
    upload = uploader(gang_dir, blobs)
    append(gang_dir, line("a"), end(r0=1))
    with pytest.raises(OSError, match="out of reach"):
        await upload.step()
    blobs.reachable = True
    await upload.step()
    assert blobs.text(f"logs/{NAME}/n0/g-1.0") == "a"


async def test_calls_without_output_and_output_without_calls_store_nothing(gang_dir: Path) -> None:
    blobs = Blobs()
    append(gang_dir, end(), line("between", call=NO_ID))
    await uploader(gang_dir, blobs).step(last=True)
    assert not blobs.stored


async def test_it_is_known_where_the_output_of_a_call_begins(gang_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a warm gang wrote before is not read again for each call that it runs later."""
    upload = uploader(gang_dir, Blobs())
    flood = b"".join(line("y" * 100_000, call=OTHER) for _ in range(5))
    append(gang_dir, flood)
    while await upload.step():
        pass
    assert upload.starts_at(NAME) == len(flood), "not seen yet: it comes behind what was read"
    append(gang_dir, line("x"), end(r0=1), line("z"), end(call=OTHER, r0=5))
    while await upload.step():
        pass
    assert upload.starts_at(NAME) == len(flood)
    assert upload.starts_at(id_text("c", OTHER)) == 0
    monkeypatch.setattr("phalanx_agent.logs.FIRST_KNOWN", 1)
    append(gang_dir, line("new", call=b"n" * 16))
    await upload.step()
    assert upload.starts_at(NAME) in (0, len(flood)), "of a call that is forgotten all is read"
    later = uploader(gang_dir, Blobs())
    assert later.starts_at(NAME) == 0, "an agent that came later knows nothing of what was stored before it"


async def test_a_gang_that_is_over_is_stored_and_its_directory_removed(tmp_path: Path, gang_dir: Path) -> None:
    blobs = Blobs()
    keeper = LogKeeper(tmp_path / "gangs", node_id="n0", put=blobs.put, clock=SystemClock())
    append(gang_dir, line("killed in mid-"))
    keeper.open("g-1")
    opened = keeper.open_spool("g-1", NAME)
    assert opened is not None
    fd, begins = opened
    assert (os.pread(fd, 100, 0), begins) == (line("killed in mid-"), 0)
    os.close(fd)
    keeper.finish("g-1")
    await wait_until_async(lambda: not gang_dir.exists(), "the gang's directory is gone")
    assert keeper.open_spool("g-1", NAME) is None
    assert blobs.text(f"logs/{NAME}/n0/g-1.0") == "killed in mid-"
    await keeper.close()


async def test_a_stopped_agent_leaves_the_spool_for_the_next(tmp_path: Path, gang_dir: Path) -> None:
    keeper = LogKeeper(tmp_path / "gangs", node_id="n0", put=Blobs().put, clock=SystemClock())
    append(gang_dir, line("a"))
    keeper.open("g-1")
    await keeper.close()
    assert (gang_dir / "spool.log").exists()


# ---- followers ----


@pytest.fixture
def plane() -> Iterator[TestPlane]:
    with tempfile.TemporaryDirectory(prefix="pxl", dir="/tmp") as directory:
        made = TestPlane(Path(directory))
        yield made
        made.close()


def follow(plane: TestPlane, call: bytes, *, offset: int = 0, live: bool = True) -> FrameClient:
    client = FrameClient(plane.directory / "agent.sock")
    ticket = make_ticket(kind="logs", gang_id=GANG, call_id=id_text("c", call))
    client.send(Kind.FOLLOW, ticket=sign(ticket, KEY), call=id_text("c", call), offset=offset, follow=live)
    return client


def told(client: FrameClient) -> tuple[object, object]:
    """Returns what the end says of the bytes by rank, and whether that is all."""
    meta = client.expect(Kind.END).meta
    return meta["bytes_by_rank"], meta["complete"]


def test_a_follower_gets_its_calls_output_live_and_then_the_end(plane: TestPlane) -> None:
    plane.open(answer=hold)
    plane.offer(CALL)
    plane.wait_for(CallBegan)
    append(plane.directory, line("a", rank=2), line("no", call=OTHER))
    with follow(plane, CALL) as client:
        first = client.expect(Kind.LOG)
        assert (first.body, first.meta["rank"], first.meta["node"], first.meta["stream"]) == (b"a", 2, "n0", 1)
        append(plane.directory, line("b"))
        assert client.expect(Kind.LOG).body == b"b"
        append(plane.directory, end(r0=1, r2=1))
        assert told(client) == ({"0": 1, "2": 1}, True)


def test_a_follower_goes_on_where_it_was(plane: TestPlane) -> None:
    plane.open(answer=hold)
    plane.offer(CALL)
    plane.wait_for(CallBegan)
    append(plane.directory, line("a"), line("b"))
    with follow(plane, CALL) as client:
        offset = client.expect(Kind.LOG).meta["offset"]
    with follow(plane, CALL, offset=offset) as again:
        assert again.expect(Kind.LOG).body == b"b"


def test_without_follow_the_end_comes_with_what_there_is(plane: TestPlane) -> None:
    plane.open(answer=hold)
    plane.offer(CALL)
    plane.wait_for(CallBegan)
    append(plane.directory, line("a"))
    with follow(plane, CALL, live=False) as client:
        client.expect(Kind.LOG)
        assert told(client) == ({"0": 1}, False)


def test_a_follower_gets_all_though_the_gang_goes_while_it_reads(plane: TestPlane) -> None:
    plane.open()
    append(plane.directory, *(line("x" * 65_536) for _ in range(50)), end(r0=50 * 65_536))
    with follow(plane, CALL, live=False) as client:
        client.expect(Kind.LOG)
        (plane.directory / "spool.log").unlink()
        assert sum(len(client.expect(Kind.LOG).body) for _ in range(49)) == 49 * 65_536
        assert told(client) == ({"0": 50 * 65_536}, True)


def test_a_call_that_ended_without_an_end_record_is_not_called_complete(plane: TestPlane) -> None:
    plane.open()
    append(plane.directory, line("a"))
    with follow(plane, CALL) as client:
        client.expect(Kind.LOG)
        assert not client.expect(Kind.END).meta["complete"]


@pytest.mark.parametrize("live", [True, False], ids=["live", "stored"])
def test_a_follower_gets_every_attempt_that_the_gang_ran(plane: TestPlane, live: bool) -> None:
    plane.open()
    attempts = [line("a"), end(r0=1), line("other", call=OTHER), line("b", rank=1), end(r1=1)]
    append(plane.directory, *attempts)
    with follow(plane, CALL, live=live) as client:
        assert [client.expect(Kind.LOG).body for _ in range(2)] == [b"a", b"b"]
        assert told(client) == ({"0": 1, "1": 1}, True)


def test_a_ticket_opens_only_its_own_calls_output(plane: TestPlane) -> None:
    plane.open()
    with FrameClient(plane.directory / "agent.sock") as client:
        ticket = make_ticket(kind="logs", gang_id=GANG, call_id=id_text("c", new_call()))
        client.send(Kind.FOLLOW, ticket=sign(ticket, KEY), call=NAME)
        client.expect(Kind.REFUSED)
