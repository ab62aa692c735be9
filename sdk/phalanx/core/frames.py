"""The data plane's one frame protocol: bytes in, frames out, no I/O.

A frame is a fixed 32-byte header, a small JSON object and a body of raw bytes:

    u8 version | u8 kind | u8 flags | u8 fd_count | u32 meta_bytes | u64 body_bytes | 16 bytes id | meta | body

The same frames run between client and lead agent (Unix socket or TLS), between agents of one gang (TLS), between
agent and keeper (Unix socket) and between keeper and rank (socketpair). Over Unix sockets a body may travel as
sealed-size memory instead: ``fd_count`` descriptors ride on the header's first byte and ``meta["fds"]`` lists
``{"size": bytes, "slot": id}`` for each. Bodies longer than CHUNK_BYTES are split into several frames of the same id
and kind, all but the last with MORE set, so that nobody waits behind a large one. A meta key that is left out means
0, "", false or none; ``attempt`` left out means 1: short calls travel without any meta. The flags above MORE are the
number of a lane between agent and keeper: on CALL to the keeper, where the outcome may go; on RESULT, where it has
gone; on STARTED, and in the meta of an outcome that has not gone there, where a call came from that the agent has not
seen; on other frames to the agent, whose they are: a client's, as if they had come over its connection.

    kind      from → to               meta
    HELLO     client → agent          ticket, client          also lead → peer agent: ticket of kind "peer";
                                                              a client's descriptor is the other end of its lane
    LANE      agent → keeper          a client's lane opens, or closes where no descriptor comes along
              keeper → agent          it is closed, and nothing more comes from there
    WELCOME   agent → client          gang, window, node, straight: the keeper takes calls over the lane
    REFUSED   agent → client          error; of a TERMINAL also code, hint, elsewhere: another node may have the rank
    CALL      client → agent → keeper → rank   function, timeout_ms, attempt, fds, client; ahead: after the one before
    RESULT    rank → keeper → agent → client   rank, busy_ms, released, world_seq      body = envelope
    FAILURE   same                    rank, error; withdrawn: it never began           body = pickled exception
    BUSY      agent → client          depth, retry_ms         the client goes durable
    STARTED   keeper → agent          busy_ms, timeout_ms, waits   ranks began to run id, or (waits) one has it
    CANCEL    client → agent → keeper → rank   reason, grace_ms      to a rank: id is not to begin
    ASK       client → agent          what became of id: RESULT, FAILURE, STARTED, UNKNOWN, or BUSY: ask again
              agent → keeper          the same; after UNKNOWN the keeper takes id over no lane
    UNKNOWN   agent → client          never_ran               the gang never had the call: it may be sent again
    ACK       client → agent → keeper the outcome of id may be forgotten
    RELEASE   rank → … → client       slots                   memory that may be written again
    ATTACH    agent → keeper          epoch                   a (new) agent takes over
    STATE     keeper → agent          gang, pids, phase, running, queued, timeouts_ms, finished, stopped, counters
    RANK      rank → keeper → agent   rank, event (started | context | ready | dead | progress | slow | stalled |
                                      breakpoint | goes_on | paused | leaves | verified), …
              peer agent → lead → keeper   rank, marks, entered, ahead_us     progress of another node's rank
    STOP      agent → keeper          grace_ms, reason, hold  hold: for which call's failure the gang is held instead
    ENDED     keeper → agent          report
    BLAME     peer agent → lead       reason                  a GPU of the gang has failed there
    FOLLOW    client → agent          ticket, call, offset
    LOG       agent → client          rank, node, stream, at_ms, offset                body = bytes
    END       agent → client          bytes_by_rank, complete
    ITEM      rank → keeper → agent → client   n, fds, parts, window, full   the stream's item number n, from 0; body =
                                                              envelope; full: nothing more before a CREDIT
    CREDIT    client → agent → keeper → rank   taken              so many items of the stream have been taken; the first
                                                                  one makes its sender the reader of a held stream
    LOOK      keeper, client → agent → keeper   full, ticket, call     where ranks stand: of other nodes, or of a call;
                                                                       with ``steps``, how long their steps take
    SEEN      keeper → agent → keeper, client   ranks, signs, steps    answers the LOOK of the same id
    TERMINAL  client → agent → keeper   ticket, call, rank, mode (attach | shell), command, rows, columns,
                                                       term, plain; from the agent, user: who it is
              keeper → agent → client   rank, where         the terminal of this id is open
    TYPED     client → agent → keeper   taken, rows, columns, interrupt        body = bytes
    SHOWN     keeper → agent → client   taken, note         note: a line for the person     body = bytes
    CLOSED    either way                reason, exit_code   the terminal of this id is over
    PAUSE     agent → keeper            ranks, call         who waits at breakpoints on the gang's other nodes
    PING/PONG either way                                      PONG between agents: wall_ns, the clock of who answers

Either end of a terminal sends at most TERMINAL_WINDOW bytes beyond what the other says it has ``taken`` in all.

A CALL with ``held`` to a generator function makes nothing before a CREDIT comes. CANCEL with the reason "closed" says
that the reader has left: RESULT then has ``closed``, unless the generator had ended before.

Where a gang spans nodes its keepers tell the lead more: RESULT has ``seqs``, each rank's number of collectives; FAILURE
has ``states``, where the ranks stood (`core.collectives`), and ``peer`` where no rank there failed but in collectives.
A keeper that holds its gang after a failure says so in that FAILURE, in RANK ``paused`` and in STATE: ``held``.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, cast

VERSION = 1
_HEADER = struct.Struct("!BBBBIQ16s")
_unpack_head = _HEADER.unpack_from
_pack_head = _HEADER.pack
_to_json = json.JSONEncoder(separators=(",", ":")).encode
_from_json = json.JSONDecoder().decode
HEADER_BYTES = _HEADER.size
CHUNK_BYTES = 1 << 20
MAX_META_BYTES = 1 << 20
MORE = 1
LANE_BITS = 1
"""A lane's number stands in the flags above so many bits."""
MAX_LANES = 127
SHORT_CALL_MS = 5.0
SENT_AHEAD = 16
"""So many calls of one function are at its keeper at once, from one client or the agent, where they are short."""
NO_ID = bytes(16)
TERMINAL_WINDOW = 64 * 1024
ATTACH, SHELL = "attach", "shell"
"""What a terminal may be opened at: the debugger of a rank that waits, or a shell beside it."""


class Kind(IntEnum):
    HELLO = 1
    WELCOME = 2
    REFUSED = 3
    CALL = 4
    RESULT = 5
    FAILURE = 6
    BUSY = 7
    STARTED = 8
    CANCEL = 9
    ASK = 10
    UNKNOWN = 11
    ACK = 12
    RELEASE = 13
    ATTACH = 14
    STATE = 15
    RANK = 16
    STOP = 17
    ENDED = 18
    FOLLOW = 19
    LOG = 20
    END = 21
    PING = 22
    PONG = 23
    LANE = 24
    BLAME = 25
    LOOK = 30
    SEEN = 31
    ITEM = 26
    CREDIT = 27
    TERMINAL = 40
    TYPED = 41
    SHOWN = 42
    CLOSED = 43
    PAUSE = 44


_KINDS = {int(k): k for k in Kind}


class FrameError(ValueError):
    """Bytes that are not frames; the connection that sent them is closed."""


@dataclass(slots=True)
class Frame:
    kind: Kind
    id: bytes = NO_ID
    meta: dict[str, Any] = field(default_factory=dict[str, Any])
    body: bytes | bytearray | memoryview = b""
    flags: int = 0
    fds: list[int] = field(default_factory=list[int])

    @property
    def more(self) -> bool:
        return bool(self.flags & MORE)

    @property
    def lane(self) -> int:
        """0: none."""
        return self.flags >> LANE_BITS


def encode_head(frame: Frame) -> bytes:
    """Returns header and meta; the body follows as it is, uncopied, from ``frame.body``."""
    meta = _to_json(frame.meta).encode() if frame.meta else b""
    head = _pack_head(VERSION, frame.kind, frame.flags, len(frame.fds), len(meta), len(frame.body), frame.id)
    return head + meta if meta else head


def encode_call_head(raw_id: bytes, body_bytes: int, timeout_ms: int = 0) -> bytes:
    """Returns header and meta of a small CALL, of which there may be many: most bring no timeout of their own."""
    if not timeout_ms:
        return b"".join((_CALL, body_bytes.to_bytes(8, "big"), raw_id))
    meta = _to_json(call_meta(timeout_ms)).encode()
    return _pack_head(VERSION, Kind.CALL, 0, 0, len(meta), body_bytes, raw_id) + meta


def call_meta(timeout_ms: int) -> dict[str, Any]:
    """Returns what a client's CALL says beside its arguments."""
    return {"timeout_ms": timeout_ms} if timeout_ms else {}


_CALL = encode_head(Frame(Kind.CALL))[:8]
"""What stands before the size of the body."""


class Decoder:
    """Turns a byte stream into frames. ``feed`` bytes, then take from ``frames()``; holds one partial frame at most.

    Descriptors that arrived with the bytes are queued with ``feed_fds`` and handed to the frames that own them.
    Raises FrameError on a wrong version, an unknown kind, or a size above the limits; memory held never exceeds
    ``max_body_bytes`` plus one read.
    """

    def __init__(self, *, max_body_bytes: int = 1 << 31) -> None:
        self._buffer = bytearray()
        self._fds: list[int] = []
        self._max_body_bytes = max_body_bytes

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        self._buffer += data

    def feed_fds(self, fds: list[int]) -> None:
        self._fds += fds

    def take_fds(self) -> list[int]:
        """Returns descriptors that no frame has claimed, for closing."""
        fds, self._fds = self._fds, []
        return fds

    def frames(self) -> list[Frame]:
        """Returns every whole frame received so far."""
        out: list[Frame] = []
        at = 0
        buffer = self._buffer
        size = len(buffer)
        while size - at >= HEADER_BYTES:
            version, kind, flags, fd_count, meta_bytes, body_bytes, raw_id = _unpack_head(buffer, at)
            if version != VERSION:
                raise FrameError(f"frame version {version}, expected {VERSION}")
            if meta_bytes > MAX_META_BYTES or body_bytes > self._max_body_bytes:
                raise FrameError(f"frame of {meta_bytes} + {body_bytes} bytes is over the limit")
            body_at = at + HEADER_BYTES + meta_bytes
            end = body_at + body_bytes
            if size < end:
                break
            meta = _read_meta(buffer[at + HEADER_BYTES : body_at], kind) if meta_bytes else {}
            known = _KINDS.get(kind)
            if known is None:
                raise FrameError(f"frame of kind {kind} does not parse: there is no such kind")
            if len(self._fds) < fd_count:
                raise FrameError(f"frame of kind {kind} lacks its meta object or its descriptors")
            fds = self._claim(fd_count) if fd_count else []
            body = bytes(memoryview(buffer)[body_at:end]) if body_bytes else b""
            out.append(Frame(known, raw_id, meta, body, flags, fds))
            at = end
        if at == size:
            buffer.clear()
        elif at:
            del buffer[:at]
        return out

    def _claim(self, count: int) -> list[int]:
        fds, self._fds = self._fds[:count], self._fds[count:]
        return fds


class Assembler:
    """A Decoder whose frames are whole: bodies in several chunks are put together.

    Raises FrameError as the decoder does, and where the bodies that are not yet whole exceed ``max_body_bytes``.
    """

    def __init__(self, *, max_body_bytes: int = 1 << 31) -> None:
        self._decoder = Decoder(max_body_bytes=max_body_bytes)
        self._partial: dict[tuple[bytes, Kind], bytearray] = {}
        self._partial_bytes = 0
        self._max_body_bytes = max_body_bytes

    def feed(self, data: bytes | bytearray | memoryview, fds: list[int] | None = None) -> list[Frame]:
        """Takes bytes and the descriptors that came with them, and returns the frames that are now complete."""
        if fds:
            self._decoder.feed_fds(fds)
        self._decoder.feed(data)
        frames = self._decoder.frames()
        if not self._partial:
            for frame in frames:
                if frame.flags & MORE:
                    break
            else:
                return frames
        return [whole for f in frames if (whole := self._whole(f)) is not None]

    def take_fds(self) -> list[int]:
        """Returns descriptors that no frame has claimed, for closing; forgets bodies that are not whole."""
        self._partial.clear()
        return self._decoder.take_fds()

    def _whole(self, frame: Frame) -> Frame | None:
        key = (frame.id, frame.kind)
        if frame.more:
            if frame.id == NO_ID:
                raise FrameError("a body in chunks needs an id")
            self._partial.setdefault(key, bytearray()).extend(frame.body)
            self._partial_bytes += len(frame.body)
            if self._partial_bytes > self._max_body_bytes:
                raise FrameError(f"bodies of {self._partial_bytes} bytes are being put together: over the limit")
            return None
        begun = self._partial.pop(key, None)
        if begun is not None:
            self._partial_bytes -= len(begun)
            begun += frame.body
            frame.body = begun
        return frame


def chunks(frame: Frame) -> Sequence[Frame]:
    """Splits a body above CHUNK_BYTES; meta and descriptors ride on the last piece."""
    if len(frame.body) <= CHUNK_BYTES:
        return (frame,)
    body = memoryview(frame.body)
    starts = range(0, len(body), CHUNK_BYTES)
    pieces = [Frame(frame.kind, frame.id, {}, body[at : at + CHUNK_BYTES], MORE) for at in starts]
    pieces[-1] = Frame(frame.kind, frame.id, frame.meta, pieces[-1].body, 0, frame.fds)
    return pieces


def _read_meta(data: bytearray, kind: int) -> dict[str, Any]:
    try:
        meta = _from_json(data.decode())
    except (ValueError, RecursionError) as e:
        raise FrameError(f"frame of kind {kind} does not parse: {e}") from e
    if not isinstance(meta, dict):
        raise FrameError(f"frame of kind {kind} lacks its meta object")
    return cast("dict[str, Any]", meta)
