"""A terminal at a rank, as the person at this end has it: the debugger of one that waits, or a shell beside it.

The bytes go to the agent of the rank's node and from there to its keeper. At most TERMINAL_WINDOW bytes are under way
in each direction. Knows nothing of this end's screen or keyboard.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from phalanx.client import Client
from phalanx.core.errors import AuthError, ConnectionFailedError, NotFoundError, NotNowError, PhalanxError
from phalanx.core.frames import TERMINAL_WINDOW, Assembler, Frame, FrameError, Kind, encode_head
from phalanx.core.ids import new_raw_id
from phalanx.core.views import LogSource
from phalanx.not_now import not_now
from phalanx.streams import Stream, open_stream

ANSWER_WITHIN_S = 10.0
_TELL_TAKEN_BYTES = TERMINAL_WINDOW // 4


@dataclass(slots=True)
class Terminal:
    """``open`` once its keeper says so; ``ended`` is the last word of the other side, once it came. ``shown`` came
    before anybody could look."""

    stream: Stream
    node_id: str
    id: bytes = field(default_factory=new_raw_id)
    open: bool = False
    rank: int = -1
    where: str = ""
    shown: bytes = b""
    ended: dict[str, Any] | None = None
    notes: list[str] = field(default_factory=list[str])
    _assembler: Assembler = field(default_factory=Assembler)
    _typed: int = 0
    _typed_taken: int = 0
    _shown: int = 0
    _told: int = 0

    @property
    def room(self) -> int:
        """So many bytes may be typed now."""
        return TERMINAL_WINDOW - (self._typed - self._typed_taken)

    def type(self, data: bytes) -> None:
        """Sends what was typed, at most ``room`` bytes."""
        self._typed += len(data)
        self._send({}, data)

    def resize(self, rows: int, columns: int) -> None:
        self._send({"rows": rows, "columns": columns})

    def interrupt(self) -> None:
        """Ctrl-C, for a debugger: a shell gets the key itself."""
        self._send({"interrupt": True})

    def receive(self, within_s: float = -1) -> bytes:
        """Returns what is to be shown now, perhaps nothing. Raises ConnectionFailedError where the agent went away, or
        said nothing ``within_s``."""
        try:
            data, _ = self.stream.receive(within_s)
            frames = self._assembler.feed(data) if data else []
        except TimeoutError as e:
            raise ConnectionFailedError(f"the agent of node {self.node_id} said nothing in time") from e
        except (OSError, FrameError) as e:
            raise ConnectionFailedError(f"the connection to node {self.node_id} broke: {e}") from e
        if not data:
            raise ConnectionFailedError(f"the agent of node {self.node_id} closed the terminal")
        return self._shown_of(frames)

    def taken(self, count: int) -> None:
        """So many more bytes have been shown: there is room for others."""
        self._shown += count
        if self._shown - self._told >= _TELL_TAKEN_BYTES:
            self._send({})

    def leave(self) -> None:
        """Closes this end. A debugger's rank stays where it is; a shell ends."""
        if self.ended is None:
            try:
                self.stream.send([encode_head(Frame(Kind.CLOSED, self.id))])
            except OSError:
                self.ended = {}
        self.stream.close()

    def _send(self, meta: dict[str, Any], body: bytes = b"") -> None:
        self._told = self._shown
        try:
            self.stream.send([encode_head(Frame(Kind.TYPED, self.id, {**meta, "taken": self._shown}, body)), body])
        except OSError as e:
            raise ConnectionFailedError(f"the connection to node {self.node_id} broke: {e}") from e

    def _shown_of(self, frames: Sequence[Frame]) -> bytes:
        out = bytearray()
        for frame in frames:
            if frame.kind is Kind.SHOWN:
                out += frame.body
                self._typed_taken = max(self._typed_taken, int(frame.meta.get("taken", 0)))
                if note := frame.meta.get("note"):
                    self.notes.append(str(note))
            elif frame.kind is Kind.TERMINAL:
                self.open, self.rank = True, int(frame.meta["rank"])
                self.where = str(frame.meta.get("where", ""))
            elif frame.kind in (Kind.CLOSED, Kind.REFUSED):
                self.ended = frame.meta
        return bytes(out)


def open_terminal(client: Client, call_id: str, *, rank: int, mode: str, **wanted: Any) -> Terminal:
    """Opens one on whichever node has the rank. ``mode``: attach (``rank`` −1: to any that waits) or shell.

    Raises NotFoundError where the call does not run, has no such rank, or somebody else is there; AuthError where it is
    not allowed; ConnectionFailedError where an agent that may have the rank is not reachable.
    """
    view = client.get_call(call_id)
    refused: PhalanxError = not_now(view, "only ranks of a running call, or of one that is held, can be looked at")
    sources = client.debug_sources(call_id)
    nodes = {r.node_id for r in view.ranks if r.rank == rank}
    for source in sorted(sources, key=lambda s: s.node_id not in nodes):
        stream = open_stream(
            unix_path=source.unix_path, data_address=source.data_address, fingerprint=source.fingerprint
        )
        meta = {"ticket": source.ticket, "rank": rank, "mode": mode, **wanted}
        try:
            terminal = _ask(source, stream, meta)
        except ConnectionFailedError:
            stream.close()
            raise
        if terminal.open:
            return terminal
        stream.close()
        answer = terminal.ended or {}
        refused = _refusal(answer)
        if not answer.get("elsewhere"):
            raise refused
    raise refused


def _ask(source: LogSource, stream: Stream, meta: dict[str, Any]) -> Terminal:
    """Returns a terminal that is open, or has ``ended`` with a refusal."""
    terminal = Terminal(stream, source.node_id)
    try:
        stream.send([encode_head(Frame(Kind.TERMINAL, terminal.id, meta))])
    except OSError as e:
        raise ConnectionFailedError(f"the connection to node {source.node_id} broke: {e}") from e
    while not terminal.open and terminal.ended is None:
        terminal.shown += terminal.receive(ANSWER_WITHIN_S)
    return terminal


def _refusal(meta: dict[str, Any]) -> PhalanxError:
    kinds: dict[str, type[PhalanxError]] = {each.code: each for each in (AuthError, NotNowError)}
    kind = kinds.get(str(meta.get("code")), NotFoundError)
    return kind(str(meta.get("error", "the agent refused")), hint=str(meta.get("hint", "")))
