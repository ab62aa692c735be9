"""The first words between a client and a gang's agent: HELLO with a ticket, and WELCOME."""

from __future__ import annotations

from phalanx.core.errors import AuthError, ConnectionFailedError
from phalanx.core.frames import Assembler, Frame, FrameError, Kind, encode_head
from phalanx.lanes import Lane
from phalanx.streams import CONNECT_TIMEOUT_S, Stream


def greet(stream: Stream, lane: Lane | None, assembler: Assembler, *, ticket: str, client: str) -> Frame:
    """Returns WELCOME; the lane's other end goes along. Raises ConnectionFailedError, or AuthError when refused."""
    fds = [lane.other_end] if lane is not None else []
    hello = Frame(Kind.HELLO, meta={"ticket": ticket, "client": client}, fds=fds)
    try:
        stream.send([encode_head(hello)], fds)
        if lane is not None:
            lane.sent()
        answer = _first_frame(stream, assembler)
    except (OSError, FrameError) as e:
        raise ConnectionFailedError(f"the gang's agent did not answer: {e}") from e
    if answer.kind is not Kind.WELCOME:
        raise AuthError(f"the agent refused the ticket: {answer.meta.get('error', answer.kind.name)}")
    return answer


def _first_frame(stream: Stream, assembler: Assembler) -> Frame:
    while True:
        data, fds = stream.receive(CONNECT_TIMEOUT_S)
        if not data:
            raise OSError("it closed the connection")
        frames = assembler.feed(data, fds)
        if frames:
            return frames[0]
