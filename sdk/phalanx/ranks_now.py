"""Where a running call's ranks stand at this moment, and how long their steps take: asked of the keepers, through the
agents of the call's gang.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from phalanx.client import Client
from phalanx.core.collectives import RankState, from_dict
from phalanx.core.errors import ConnectionFailedError, PhalanxError
from phalanx.core.frames import Decoder, Frame, FrameError, Kind, encode_head
from phalanx.core.ids import id_raw, new_raw_id
from phalanx.core.states import CallState
from phalanx.core.steps import RankSteps, rows_from_json
from phalanx.core.views import CallView, LogSource
from phalanx.not_now import not_now
from phalanx.streams import Stream, open_stream

ANSWER_WITHIN_S = 5.0


def ranks_now(client: Client, call_id: str) -> list[RankState]:
    """Returns every rank's stack and last collectives, by rank; a rank that cannot be asked has neither.

    Raises NotFoundError where the call does not run, ConnectionFailedError where no agent of its gang could be asked.
    """
    view = client.get_call(call_id)
    seen, unasked = _answers(client, call_id)
    states = [from_dict(rank) for each in seen for rank in each["ranks"]]
    if not states:
        raise _why_nothing(view, "the ranks of a running call stand anywhere", unasked)
    states += [RankState(rank=r.rank, node_id=r.node_id, pid=r.pid) for r in view.ranks if r.node_id in unasked]
    return sorted(states, key=lambda s: s.rank)


def steps_now(client: Client, call_id: str) -> tuple[RankSteps, ...]:
    """Returns how long the ranks' steps take, by rank; empty before a rank has marked two.

    Raises NotFoundError where the call does not run, ConnectionFailedError where its gang's lead node does not answer.
    """
    view = client.get_call(call_id)
    seen, unasked = _answers(client, call_id, steps=True)
    rows = tuple(row for each in seen for row in rows_from_json(each["steps"]))
    if not seen or (unasked and not rows):
        raise _why_nothing(view, "the steps of a running call are measured", unasked)
    return rows


def _why_nothing(view: CallView, only: str, unasked: dict[str, ConnectionFailedError]) -> PhalanxError:
    if unasked and not CallState(view.state).terminal:
        return next(iter(unasked.values()))
    return not_now(view, f"only {only}")


def _answers(
    client: Client, call_id: str, *, steps: bool = False
) -> tuple[list[dict[str, Any]], dict[str, ConnectionFailedError]]:
    """Returns what the keepers of its gang say, asked all at once: where ranks stand, or how long ``steps`` take; and
    by node, why an agent could not be asked."""
    seen: list[dict[str, Any]] = []
    unasked: dict[str, ConnectionFailedError] = {}
    asked: list[tuple[LogSource, Stream]] = []
    try:
        for source in client.log_sources(call_id):
            if not source.blob:
                with _noting(source, unasked):
                    asked.append((source, _ask(call_id, source, steps=steps)))
        until = time.monotonic() + ANSWER_WITHIN_S
        for source, stream in asked:
            with _noting(source, unasked):
                seen += _seen(call_id, stream, until)
    finally:
        for _, stream in asked:
            stream.close()
    return seen, unasked


@contextmanager
def _noting(source: LogSource, unasked: dict[str, ConnectionFailedError]) -> Generator[None]:
    """What goes wrong with one node's agent hides no other's answer."""
    try:
        yield
    except (ConnectionFailedError, OSError, FrameError) as e:
        unasked[source.node_id] = ConnectionFailedError(
            f"the agent of node {source.node_id} cannot be asked: {e}", hint="gpuctl nodes says whether it is there"
        )


def _ask(call_id: str, source: LogSource, *, steps: bool) -> Stream:
    stream = open_stream(unix_path=source.unix_path, data_address=source.data_address, fingerprint=source.fingerprint)
    meta = {"ticket": source.ticket, "call": call_id} | ({"steps": True} if steps else {})
    try:
        stream.send([encode_head(Frame(Kind.LOOK, new_raw_id(), meta))])
    except OSError:
        stream.close()
        raise
    return stream


def _seen(call_id: str, stream: Stream, until: float) -> list[dict[str, Any]]:
    """Returns what one node's keeper answers; nothing where the call does not run there any more. Raises OSError."""
    decoder = Decoder()
    while True:
        data, _ = stream.receive(max(0.0, until - time.monotonic()))
        if not data:
            raise ConnectionResetError("it closed the connection")
        decoder.feed(data)
        for frame in decoder.frames():
            mine = frame.kind is Kind.SEEN and frame.meta.get("call") == id_raw(call_id).hex()
            return [frame.meta] if mine else []
