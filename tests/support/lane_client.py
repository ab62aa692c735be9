"""A client at its lane to a real keeper, and a function whose calls note that they ran."""

from __future__ import annotations

import os
import signal
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phalanx.core.frames import LANE_BITS, Assembler, Frame, Kind, encode_head
from phalanx.core.ids import new_raw_id
from phalanx.core.serialization import pack
from tests.support.gang_driver import Keeper

LANE = 3


@dataclass(slots=True)
class Client:
    """The other end of one lane."""

    sock: socket.socket
    assembler: Assembler = field(default_factory=Assembler)

    def call(self, *args: Any, call_id: bytes = b"") -> bytes:
        call_id = call_id or new_raw_id()
        body = pack((args, {})).tobytes()
        self.sock.sendall(encode_head(Frame(Kind.CALL, call_id, body=body)) + body)
        return call_id

    def answer(self) -> Frame:
        while True:
            data = self.sock.recv(1 << 16)
            assert data, "the lane is closed"
            frames = self.assembler.feed(data)
            if frames:
                return frames[0]

    def is_closed(self) -> bool:
        return self.sock.recv(1) == b""


def lane_of(keeper: Keeper, clients: list[Client], number: int = LANE) -> Client:
    ours, theirs = socket.socketpair()
    ours.settimeout(20)
    keeper.ready()
    keeper.send(Frame(Kind.LANE, flags=number << LANE_BITS, fds=[theirs.fileno()]))
    theirs.close()
    clients.append(Client(ours))
    return clients[-1]


def of(keeper: Keeper, kind: Kind, call: bytes) -> Frame:
    return keeper.wait_for(lambda f: f.kind is kind and f.id == call, f"{kind.name} of the call")


def count_to(folder: str, value: int) -> int:
    """Notes the order; ``value`` below 0 waits for a word."""
    import pathlib
    import threading

    with (pathlib.Path(folder) / "order").open("a") as out:
        out.write(f"{value}\n")
    while value < 0 and not (pathlib.Path(folder) / "go").exists():
        threading.Event().wait(0.005)
    return value


def learn_that_calls_are_short(client: Client, folder: Path) -> None:
    for value in range(30):
        client.call(str(folder), value)
        client.answer()
    (folder / "order").unlink()


def ran(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "order").read_text().split()] if (folder / "order").exists() else []


def stopped(keeper: Keeper) -> int:
    """Stops the keeper, so that what is sent meanwhile comes at once."""
    os.kill(keeper.pid, signal.SIGSTOP)
    return keeper.pid
