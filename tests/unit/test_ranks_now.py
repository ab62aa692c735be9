"""What a client learns of a running call's ranks where some of their agents cannot be asked. The agents are sockets."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from phalanx import ranks_now, terminal
from phalanx.client import Client
from phalanx.core.collectives import RankState, describe, to_dict
from phalanx.core.errors import ConnectionFailedError, NotFoundError
from phalanx.core.frames import Decoder, Frame, Kind, encode_head
from phalanx.core.ids import id_raw, new_call_id
from phalanx.core.steps import RankSteps, rows_to_json
from phalanx.core.views import CallView, LogSource, RankView
from phalanx.streams import TlsStream
from tests.support.plane import make_certificate

CALL = new_call_id()
ROW = RankSteps(rank=0, node_id="n0", gpu="GPU-0", step=9, steps=8, step_ms=20, own_ms=None, ratio=1, slow=False)


class Asked:
    """A control plane that knows one call: rank k is on node nk."""

    def __init__(self, *sources: LogSource, state: str = "running") -> None:
        self.sources = sources
        self.state = state

    def get_call(self, call_id: str) -> CallView:
        ranks = tuple(RankView(rank=n, node_id=f"n{n}", pid=100 + n) for n in range(2))
        return CallView(call_id=call_id, state=self.state, ranks=ranks)

    def log_sources(self, call_id: str) -> tuple[LogSource, ...]:
        assert call_id == CALL
        return self.sources

    debug_sources = log_sources


def client(*sources: LogSource, state: str = "running") -> Client:
    return cast("Client", Asked(*sources, state=state))


NOWHERE = LogSource(node_id="n1", unix_path="/nowhere/agent.sock")


@contextmanager
def agent(folder: Path, answer: Callable[[], dict[str, Any] | None], node_id: str = "n0") -> Generator[LogSource]:
    """An agent of one question; without an answer it closes the connection."""
    with socket.socket(socket.AF_UNIX) as door:
        door.bind(str(folder / f"{node_id}.sock"))
        door.listen()

        def serve() -> None:
            one, _ = door.accept()
            with one:
                decoder = Decoder()
                while not (frames := list(decoder.frames())):
                    decoder.feed(one.recv(65536))
                meta = answer()
                if meta is not None:
                    frame = Frame(Kind.SEEN, frames[0].id, {"call": id_raw(CALL).hex(), **meta})
                    one.sendall(encode_head(frame))

        thread = threading.Thread(target=serve)
        thread.start()
        yield LogSource(node_id=node_id, unix_path=str(folder / f"{node_id}.sock"))
        thread.join(10)
        assert not thread.is_alive()


def stands() -> dict[str, Any]:
    return {"ranks": [to_dict(RankState(rank=0, node_id="n0", answered=True))]}


def test_a_lead_that_cannot_be_reached_is_no_call_without_steps(tmp_path: Path) -> None:
    with (
        agent(tmp_path, lambda: {"steps": []}) as member,
        pytest.raises(ConnectionFailedError, match=r"node n1 cannot be asked: the gang's agent is not"),
    ):
        ranks_now.steps_now(client(member, NOWHERE), CALL)


def test_steps_of_a_lead_are_told_though_another_agent_is_away(tmp_path: Path) -> None:
    with agent(tmp_path, lambda: {"steps": rows_to_json([ROW])}) as lead:
        assert ranks_now.steps_now(client(lead, NOWHERE), CALL) == (ROW,)


def test_ranks_of_a_node_that_cannot_be_asked_do_not_answer(tmp_path: Path) -> None:
    with agent(tmp_path, stands) as lead:
        states = ranks_now.ranks_now(client(NOWHERE, lead), CALL)
    assert describe(states) == "rank 0 is in user code, rank 1 does not answer"


@pytest.mark.parametrize("ask", [ranks_now.ranks_now, ranks_now.steps_now], ids=["ranks", "steps"])
def test_a_running_call_with_no_reachable_agent_is_not_said_not_to_run(ask: Callable[[Client, str], Any]) -> None:
    with pytest.raises(ConnectionFailedError, match=r"the agent of node n1 cannot be asked") as raised:
        ask(client(NOWHERE), CALL)
    assert "gpuctl" in raised.value.hint
    with pytest.raises(NotFoundError, match=r"is succeeded: only"):
        ask(client(NOWHERE, state="succeeded"), CALL)
    with pytest.raises(NotFoundError, match=r"is queued: only"):
        ask(client(state="queued"), CALL)


def test_an_agent_that_goes_away_or_is_silent_hides_no_others_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranks_now, "ANSWER_WITHIN_S", 0.2)
    opened = recorded(monkeypatch)
    go = threading.Event()
    with (
        agent(tmp_path, lambda: None, "n1") as gone,
        agent(tmp_path, lambda: None if go.wait(10) else {}, "n2") as silent,
        agent(tmp_path, stands) as lead,
    ):
        states = ranks_now.ranks_now(client(gone, silent, lead), CALL)
        go.set()
    assert [s.rank for s in states if s.answered] == [0]
    assert len(opened) == 3
    assert all(stream.fileno() == -1 for stream in opened), "a connection was left open"


def recorded(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    opened: list[Any] = []
    really = ranks_now.open_stream

    def open_stream(**where: str) -> Any:
        opened.append(really(**where))
        return opened[-1]

    monkeypatch.setattr(ranks_now, "open_stream", open_stream)
    return opened


@contextmanager
def silent_tls(folder: Path) -> Generator[LogSource]:
    """An agent that says nothing, but for the tickets that TLS sends after each handshake."""
    context, fingerprint = make_certificate(folder)
    end = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as door:

        def serve() -> None:
            raw, _ = door.accept()
            with context.wrap_socket(raw, server_side=True):
                end.wait(30)

        thread = threading.Thread(target=serve)
        thread.start()
        address = f"127.0.0.1:{door.getsockname()[1]}"
        yield LogSource(node_id="n0", data_address=address, fingerprint=fingerprint)
        end.set()
        thread.join(10)


def test_what_tls_says_by_itself_is_no_data(tmp_path: Path) -> None:
    with silent_tls(tmp_path) as source:
        stream = TlsStream(source.data_address, source.fingerprint)
        assert stream.wait_readable(5), "the tickets of TLS 1.3 came"
        with pytest.raises(TimeoutError, match=r"nothing came in time"):
            stream.receive(0.1)
        stream.close()


def test_an_agent_behind_tls_has_so_long_to_answer_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks_now, "ANSWER_WITHIN_S", 0.2)
    monkeypatch.setattr(terminal, "ANSWER_WITHIN_S", 0.2)
    with silent_tls(tmp_path) as source, pytest.raises(ConnectionFailedError, match=r"node n0 cannot be asked"):
        ranks_now.ranks_now(client(source), CALL)
    with silent_tls(tmp_path) as source, pytest.raises(ConnectionFailedError, match=r"node n0 said nothing in time"):
        terminal.open_terminal(client(source), CALL, rank=0, mode="shell")
