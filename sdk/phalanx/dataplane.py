"""Direct calls to one gang: frames over one connection, many ids in flight.

Whoever waits also reads: the first waiting thread reads for all (leader), the others wait to be told or to take over
(followers), so a plain blocking call passes through no other thread. Only when somebody wants to be called back
(asyncio, `map(order=False)`) does a thread of this connection read. Losing the connection ends every waiting call
with `lost`; what then happened to it is asked elsewhere.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import deque
from collections.abc import Generator, Sequence
from typing import Any

from phalanx.core.clock import Clock, SystemClock
from phalanx.core.frames import SENT_AHEAD, Assembler, Frame, Kind, call_meta, chunks, encode_call_head, encode_head
from phalanx.core.serialization import Packed
from phalanx.core.sockets import Part, close_fds
from phalanx.core.views import GangAddress
from phalanx.greeting import greet
from phalanx.lanes import Lane
from phalanx.memfds import MEMFD_FROM_BYTES, MemfdPool, map_body
from phalanx.pending import Callback, Pending
from phalanx.streams import Stream, open_stream

ACK_AT_ONCE_BYTES = 64 * 1024
ACK_AT_ONCE_MS = 150
STRAIGHT_BYTES = 32 * 1024
"""What a lane takes whole or not at all."""
_MAX_OWED = 128
_COALESCE_BYTES = 256 * 1024
_ID_AT = 16
_ACK_HEAD = encode_head(Frame(Kind.ACK))[:_ID_AT]
_OUTCOMES = (Kind.RESULT, Kind.FAILURE, Kind.BUSY, Kind.UNKNOWN)


class GangConnection:
    """Thread-safe. Opens in the constructor; raises ConnectionFailedError, or AuthError when the ticket is refused."""

    def __init__(self, address: GangAddress, *, client: str, pool: MemfdPool, clock: Clock | None = None) -> None:
        self.gang_id = address.gang_id
        self.pid = os.getpid()
        self.window = 1
        self.open = True
        self._clock = clock or SystemClock()
        self._pool = pool
        self._stream: Stream = open_stream(
            unix_path=address.unix_path, data_address=address.data_address, fingerprint=address.fingerprint
        )
        self._lane = Lane(self._stream.fileno()) if self._stream.passes_fds else None
        self._straight = False
        """The keeper takes calls over the lane."""
        self._assembler = Assembler()
        self._pending: dict[bytes, Pending] = {}
        self._waiters: dict[bytes, Pending] = {}
        self._reading = threading.Lock()
        self._sending = threading.Lock()
        self._state = threading.Lock()
        self._owed: deque[bytes] = deque()
        """Encoded ACK and RELEASE frames that ride along with the next one."""
        self._buffer: list[Part] = []
        self._buffered: list[Pending] = []
        self._buffer_bytes = 0
        self._straight_buffer: list[Part] = []
        self._straight_buffered: list[Pending] = []
        self._straight_bytes = 0
        self._readers_wanted = 0
        self._pump: threading.Thread | None = None
        self._greet(address.ticket, client)

    # ---- sending ----

    def call(
        self,
        raw_id: bytes,
        packed: Packed,
        *,
        flush: bool = True,
        short: bool = False,
        callback: Callback | None = None,
        timeout_ms: int = 0,
    ) -> Pending:
        """Sends a call. With ``flush`` False it may wait in the buffer for `flush` or for more to send along.

        ``short``: calls of this function take a few milliseconds, as far as is known. ``callback`` is as in
        `when_done`, but somebody else must read. ``timeout_ms`` 0: its function's.
        """
        pending = Pending(raw_id, self._clock.monotonic_ms())
        pending.callback = callback
        self._add(pending)
        if packed.nbytes >= MEMFD_FROM_BYTES:
            self._send_large(pending, packed, call_meta(timeout_ms))
            return pending
        head = encode_call_head(raw_id, packed.nbytes, timeout_ms)
        with self._sending:
            if self._goes_straight(packed, SENT_AHEAD if short else 1):
                pending.straight = True
                self._straight_buffer += (head, *packed.parts)
                self._straight_buffered.append(pending)
                self._straight_bytes += len(head) + packed.nbytes
                if flush:
                    self._flush_calls()
                return pending
            self._buffer += (head, *packed.parts)
            self._buffered.append(pending)
            self._buffer_bytes += len(head) + packed.nbytes
            if flush or self._buffer_bytes > _COALESCE_BYTES:
                self._flush()
        return pending

    def stream(self, raw_id: bytes, packed: Packed | None, timeout_ms: int = 0) -> Pending:
        """Sends a call whose items are wanted; without arguments, asks for those of a call that is held."""
        pending = Pending(raw_id, self._clock.monotonic_ms())
        pending.items = deque()
        self._add(pending)
        if packed is None:
            self.say(Frame(Kind.CREDIT, raw_id, {"taken": 0}), pending)
        elif packed.nbytes >= MEMFD_FROM_BYTES:
            self._send_large(pending, packed, call_meta(timeout_ms))
        else:
            self.say(Frame(Kind.CALL, raw_id, call_meta(timeout_ms), packed.tobytes()), pending)
        return pending

    def next_item(self, pending: Pending) -> Frame | None:
        """Returns an item of a stream that has come; None where there is none yet, or where the stream has ended."""
        return pending.take(self._state)

    def ask(self, raw_id: bytes) -> Pending:
        """Asks what became of a call."""
        pending = Pending(raw_id, self._clock.monotonic_ms())
        self._add(pending)
        self.say(Frame(Kind.ASK, raw_id), pending)
        return pending

    def cancel(self, raw_id: bytes, *, reason: str = "cancelled") -> None:
        """Asks the agent to end a call; its outcome still comes."""
        encoded = encode_head(Frame(Kind.CANCEL, raw_id, {"reason": reason}))
        pending = self._pending.get(raw_id)
        with self._sending:
            self._flush_straight()
            if pending is not None and pending.straight and self._send_straight((encoded,)):
                return  # behind its call
            self._buffer.append(encoded)
            self._flush()

    def say(self, frame: Frame, pending: Pending | None = None) -> None:
        """Sends a small frame now. ``pending`` waits for what it brings."""
        with self._sending:
            self._buffer += [encode_head(frame), frame.body]
            if pending is not None:
                self._buffered.append(pending)
            self._flush()

    def flush(self) -> None:
        """Sends the calls that wait in the buffer."""
        with self._sending:
            self._flush_calls()

    # ---- waiting ----

    def wait(self, pending: Pending, *, until_ms: int | None = None) -> bool:
        """Returns True when ``pending`` is done, False when ``until_ms`` (monotonic) came first."""
        if self._buffer or self._straight_buffer:
            self.flush()
        if not pending.ready and self._reading.acquire(blocking=False):
            self._lead(pending, until_ms)
        try:
            while not pending.ready:
                if until_ms is not None and self._clock.monotonic_ms() >= until_ms:
                    return False
                self._follow(pending, until_ms)
            return True
        finally:
            if self._waiters and not self._reading.locked():
                self._promote()

    def when_done(self, pending: Pending, callback: Callback) -> None:
        """Calls ``callback`` once when ``pending`` is ready, at once when it already is; reads until it is done.

        A callback runs on whichever thread reads, and must neither block nor use this connection.
        """
        with self._state:
            if not pending.ready:
                pending.callback = callback
                if not pending.reads:
                    pending.reads = True
                    self._want_reading()
                return
        callback(pending)

    @contextlib.contextmanager
    def reading(self) -> Generator[None]:
        """Inside, a thread of this connection reads, for callbacks of calls that nobody waits for."""
        with self._state:
            self._want_reading()
        try:
            yield
        finally:
            with self._state:
                self._readers_wanted -= 1

    @property
    def in_flight(self) -> int:
        """Calls that wait for their outcome."""
        return len(self._pending)

    def notice_end(self) -> None:
        """Reads what has come meanwhile, so that a connection that the agent ended is seen as closed. Never waits."""
        if self.open and self._reading.acquire(blocking=False):
            try:
                while self.open and self._wait_readable(0):
                    self._read_once()
            finally:
                self._reading.release()
                if self._waiters:
                    self._promote()

    def close(self) -> None:
        """Ends the connection; calls that wait are lost."""
        self.open = False
        self._close_streams()
        self._lose_all()

    # ---- inside: sending ----

    def _greet(self, ticket: str, client: str) -> None:
        try:
            answer = greet(self._stream, self._lane, self._assembler, ticket=ticket, client=client)
        except BaseException:
            self._close_streams()
            raise
        self.window = max(1, int(answer.meta.get("window") or 1))
        self._straight = bool(answer.meta.get("straight"))

    def _add(self, pending: Pending) -> None:
        with self._state:
            self._pending[pending.id] = pending
        if not self.open:
            self._complete(pending, None)

    def _flush(self) -> None:
        """Sends what is buffered and then what is owed, as one write: calls do not wait for thanks.

        Called with the sending lock held.
        """
        self._flush_straight()
        parts, buffered = self._buffer, self._buffered
        self._buffered, self._buffer, self._buffer_bytes = [], [], 0
        while self._owed:
            parts.append(self._owed.popleft())
        if parts and self._write(parts):
            for pending in buffered:
                pending.sent = True

    def _write(self, parts: list[Part], fds: tuple[int, ...] = ()) -> bool:
        try:
            self._stream.send(parts, fds)
        except (OSError, ValueError):
            self.close()
            return False
        except BaseException:
            self.close()  # part of a frame may have left
            raise
        return True

    def _goes_straight(self, packed: Packed, at_most: int) -> bool:
        """Further calls would wait at the agent, and reach it sooner without the detour."""
        room = STRAIGHT_BYTES - self._straight_bytes
        return self._straight and len(self._pending) <= at_most and not self._buffer and packed.nbytes <= room

    def _flush_calls(self) -> None:
        """Called with the sending lock held. Thanks stay owed where all calls go straight: the agent can wait."""
        self._flush_straight()
        if self._buffer:
            self._flush()

    def _flush_straight(self) -> None:
        """Called with the sending lock held. What the lane does not take goes with the rest."""
        if not self._straight_buffer:
            return
        parts, buffered = self._straight_buffer, self._straight_buffered
        self._straight_buffer, self._straight_buffered, self._straight_bytes = [], [], 0
        if self._send_straight(parts):
            for pending in buffered:
                pending.sent = True
            return
        for pending in buffered:
            pending.straight = False
        self._buffer[:0] = parts
        self._buffered[:0] = buffered

    def _send_straight(self, parts: Sequence[Part]) -> bool:
        """Called with the sending lock held. True also where the connection has ended over it."""
        if self._lane is None or not self._lane.open:
            return False
        try:
            return self._lane.send(parts)
        except OSError:
            self.close()
            return True
        except BaseException:
            self.close()  # part of a frame may have left
            raise

    def _send_large(self, pending: Pending, packed: Packed, meta: dict[str, Any]) -> None:
        slot = self._pool.put(packed) if self._stream.passes_fds else None
        if slot is None:
            self._send_chunks(pending, packed, meta)
            return
        pending.slot = slot.number
        meta["fds"] = [{"size": packed.nbytes, "slot": slot.number}]
        frame = Frame(Kind.CALL, pending.id, meta, fds=[slot.fd])
        with self._sending:
            self._flush()
            pending.sent = self._write([encode_head(frame)], (slot.fd,))

    def _send_chunks(self, pending: Pending, packed: Packed, meta: dict[str, Any]) -> None:
        """Other frames may go in between: nobody waits behind a large body."""
        for piece in chunks(Frame(Kind.CALL, pending.id, meta, packed.tobytes())):
            with self._sending:
                self._flush()
                if not self._write([encode_head(piece), piece.body]):
                    return
        pending.sent = True

    # ---- inside: reading ----

    def _lead(self, pending: Pending, until_ms: int | None) -> None:
        try:
            while not pending.ready:
                if until_ms is not None and not self._readable_until(until_ms):
                    return
                self._read_once()
        except BaseException:
            self.close()  # part of what came may be lost; whoever waits here asks again over a new connection
            raise
        finally:
            self._reading.release()
            if self._waiters:
                self._promote()

    def _readable_until(self, until_ms: int) -> bool:
        left_ms = until_ms - self._clock.monotonic_ms()
        return left_ms > 0 and self._wait_readable(left_ms / 1000)

    def _wait_readable(self, timeout_s: float) -> bool:
        source = self._lane if self._lane is not None and self._lane.open else self._stream
        return source.wait_readable(timeout_s)

    def _follow(self, pending: Pending, until_ms: int | None) -> None:
        event = threading.Event()
        with self._state:
            if pending.ready:
                return
            pending.event = event
            self._waiters[pending.id] = pending
        try:
            if self._reading.acquire(blocking=False):
                self._lead(pending, until_ms)
                return
            event.wait(None if until_ms is None else max(0, until_ms - self._clock.monotonic_ms()) / 1000)
        finally:
            with self._state:
                self._waiters.pop(pending.id, None)
                pending.event = None

    def _promote(self) -> None:
        """Wakes one follower that still waits: it reads on. Whoever stops waiting while nobody reads calls this too."""
        with self._state:
            for waiter in self._waiters.values():
                if waiter.event is not None and not waiter.ready:
                    waiter.event.set()
                    return

    def _want_reading(self) -> None:
        """Called with the state lock held."""
        self._readers_wanted += 1
        if self._pump is None and self.open:
            self._pump = threading.Thread(target=self._pump_callbacks, name="phalanx-pump", daemon=True)
            self._pump.start()

    def _pump_callbacks(self) -> None:
        while True:
            with self._state:
                if self._readers_wanted == 0 or not self.open:
                    self._pump = None
                    break
            with self._reading:
                if self._readers_wanted and self.open:
                    self._read_once()
        if self._waiters:
            self._promote()

    def _read_once(self) -> None:
        """Receives once and hands out what came. Called with the reading lock held; a lost connection ends all."""
        try:
            frames = self._receive_lane()
            if frames is None:
                data, fds = self._stream.receive()
                frames = self._assembler.feed(data, fds) if data else None
            if frames is not None:
                for frame in frames:
                    self._deliver(frame)
                return
        except (OSError, ValueError):
            pass
        self.close()

    def _receive_lane(self) -> list[Frame] | None:
        lane = self._lane
        if lane is None or not lane.open:
            return None
        frames = lane.receive()
        if not lane.open and self.open:
            self._lane_ended()
        return frames

    def _lane_ended(self) -> None:
        """What was sent over it is the agent's from now on, or died with the keeper: the agent is asked."""
        lost = [p.id for p in self._pending.values() if p.straight]
        with self._sending:
            self._straight = False
            self._buffer += [encode_head(Frame(Kind.ASK, call)) for call in lost]
            self._flush()

    def _deliver(self, frame: Frame) -> None:
        pending = self._pending.get(frame.id)
        if frame.kind in _OUTCOMES:
            if pending is not None:
                self._complete(pending, frame)
            elif frame.kind in (Kind.RESULT, Kind.FAILURE):
                close_fds(frame.fds)
                self._owe(_ACK_HEAD + frame.id)
        elif frame.kind is Kind.ITEM:
            self._item(pending, frame)
        elif frame.kind is Kind.PING:
            self._owe(encode_head(Frame(Kind.PONG)), at_once=True)

    def _item(self, pending: Pending | None, frame: Frame) -> None:
        if pending is None or pending.items is None:
            close_fds(frame.fds)
            return
        if frame.fds:
            map_body(frame, lambda _slots: None)  # one-time memory: nobody waits for it
        with self._state:
            pending.items.append(frame)
            callback = pending.wake()
        if callback is not None:
            callback(pending)

    def _complete(self, pending: Pending, frame: Frame | None) -> None:
        if frame is not None:
            self._settle(pending, frame)
        with self._state:
            self._pending.pop(pending.id, None)
            if pending.done:
                return
            pending.frame = frame
            pending.lost = frame is None
            pending.done = True
            callback = pending.wake()
            self._readers_wanted -= pending.reads
        if callback is not None:
            callback(pending)

    def _settle(self, pending: Pending, frame: Frame) -> None:
        """Gives memory back, maps the result's, and acknowledges what needs it."""
        if pending.slot:
            self._pool.settle(pending.slot, frame.meta.get("released") or ())
        large = bool(frame.fds) or len(frame.body) > ACK_AT_ONCE_BYTES
        if frame.fds:
            owed, raw_id = self._owed, frame.id  # not the frame: it holds the memory
            map_body(frame, lambda slots: owed.append(encode_head(Frame(Kind.RELEASE, raw_id, {"slots": slots}))))
        if frame.kind in (Kind.RESULT, Kind.FAILURE):
            took_ms = self._clock.monotonic_ms() - pending.started_ms
            self._owe(_ACK_HEAD + frame.id, at_once=large or took_ms >= ACK_AT_ONCE_MS)

    def _owe(self, encoded: bytes, *, at_once: bool = False) -> None:
        self._owed.append(encoded)
        if (at_once or len(self._owed) > _MAX_OWED) and self._sending.acquire(blocking=False):
            try:
                self._flush()
            finally:
                self._sending.release()

    def _close_streams(self) -> None:
        self._stream.close()
        if self._lane is not None:
            self._lane.close()

    def _lose_all(self) -> None:
        close_fds(self._assembler.take_fds())
        for pending in list(self._pending.values()):
            if pending.slot:
                self._pool.settle(pending.slot, ())
            self._complete(pending, None)
