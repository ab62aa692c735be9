"""Where a running call's ranks stand at this moment, and how long their steps take: asked of the keepers, through the
agents of the call's gang.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from phalanx.client import Client
from phalanx.core.collectives import RankState, from_dict
from phalanx.core.errors import ConnectionFailedError, NotFoundError
from phalanx.core.frames import Decoder, Frame, Kind, encode_head
from phalanx.core.ids import id_raw, new_raw_id
from phalanx.core.steps import RankSteps, rows_from_json
from phalanx.core.views import LogSource
from phalanx.streams import Stream, open_stream

ANSWER_WITHIN_S = 5.0


def ranks_now(client: Client, call_id: str) -> list[RankState]:
    """Returns every rank's stack and last collectives, by rank; a rank that cannot be asked has neither.

    Raises NotFoundError where the call does not run, ConnectionFailedError where no agent of its gang is reachable.
    """
    view = client.get_call(call_id)
    states = [from_dict(rank) for seen in _answers(client, call_id) for rank in seen["ranks"]]
    if not states:
        raise NotFoundError(
            f"call {call_id} is {view.state}: only the ranks of a running call stand anywhere",
            hint=f"gpuctl report {call_id}",
        )
    return sorted(states, key=lambda s: s.rank)


def steps_now(client: Client, call_id: str) -> tuple[RankSteps, ...]:
    """Returns how long the ranks' steps take, by rank; empty before a rank has marked two.

    Raises NotFoundError where the call does not run, ConnectionFailedError where its gang's lead node does not answer.
    """
    view = client.get_call(call_id)
    answers = _answers(client, call_id, steps=True)
    if not answers:
        raise NotFoundError(
            f"call {call_id} is {view.state}: only the steps of a running call are measured",
            hint=f"gpuctl report {call_id}",
        )
    return tuple(row for seen in answers for row in rows_from_json(seen["steps"]))


def _answers(client: Client, call_id: str, *, steps: bool = False) -> list[dict[str, Any]]:
    """Returns what the keepers of its gang say, asked all at once: where ranks stand, or how long ``steps`` take."""
    asked = [
        (source, stream)
        for source in client.log_sources(call_id)
        if not source.blob and (stream := _ask(call_id, source, steps=steps)) is not None
    ]
    until = time.monotonic() + ANSWER_WITHIN_S
    return [seen for source, stream in asked for seen in _seen(call_id, source, stream, until)]


def _ask(call_id: str, source: LogSource, *, steps: bool) -> Stream | None:
    try:
        stream = open_stream(
            unix_path=source.unix_path, data_address=source.data_address, fingerprint=source.fingerprint
        )
        meta = {"ticket": source.ticket, "call": call_id} | ({"steps": True} if steps else {})
        stream.send([encode_head(Frame(Kind.LOOK, new_raw_id(), meta))])
    except (ConnectionFailedError, OSError):
        return None
    return stream


def _seen(call_id: str, source: LogSource, stream: Stream, until: float) -> Iterator[dict[str, Any]]:
    """Yields what one node's keeper answers; nothing where the call does not run there any more."""
    try:
        for frame in _frames(stream, until):
            if frame.kind is Kind.SEEN and frame.meta.get("call") == id_raw(call_id).hex():
                yield frame.meta
            return
        raise ConnectionFailedError(f"the agent of node {source.node_id} did not say in time where its ranks stand")
    finally:
        stream.close()


def _frames(stream: Stream, until: float) -> Iterator[Frame]:
    decoder = Decoder()
    while (left := until - time.monotonic()) > 0 and stream.wait_readable(left):
        data, _ = stream.receive()
        if not data:
            return
        decoder.feed(data)
        yield from decoder.frames()
