"""Drives real keepers without an agent: a launcher, gangs of simulated GPUs, and frames over keeper.sock."""

from __future__ import annotations

import asyncio
import os
import select
import shutil
import socket
import tempfile
import time
import types
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from phalanx.core.frames import NO_ID, Assembler, Frame, Kind, encode_head
from phalanx.core.ids import id_text, new_raw_id
from phalanx.core.logrecords import LogRecord, decode
from phalanx.core.messages import Member
from phalanx.core.serialization import pack, unpack
from phalanx.core.spec import EnvSpec, FunctionSpec, Limits, Resources
from phalanx.loader import dump_callable
from phalanx_agent.equipping import Equipper
from phalanx_agent.gang_config import GangConfig
from phalanx_agent.keeper.channel import receive_some
from phalanx_agent.launcher import Launcher
from phalanx_agent.traces import tmp_prefix
from tests.support.wait import wait_until

PATIENCE_S = 30.0
T = TypeVar("T")


def by_value(function: Callable[..., Any]) -> bytes:
    """Returns ``function`` as it would travel from a script: ranks must not import the tests."""
    copy = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    copy.__module__ = "__main__"
    copy.__qualname__ = function.__name__
    copy.__kwdefaults__ = getattr(function, "__kwdefaults__", None)
    return dump_callable(copy)


def process_exists(pid: int) -> bool:
    """True while ``pid`` runs; zombies do not count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@dataclass
class Keeper:
    """One keeper as an agent sees it: a socket, and everything that it has said."""

    pid: int
    gang_dir: Path
    seen: list[Frame] = field(default_factory=list[Frame])
    sock: socket.socket | None = None
    assembler: Assembler = field(default_factory=Assembler)

    def attach(self) -> Keeper:
        """Connects as a (new) agent."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self.gang_dir / "keeper.sock"))
        self.assembler = Assembler()
        self.send(Frame(Kind.ATTACH, NO_ID, {"epoch": 1}))
        return self

    def detach(self) -> None:
        assert self.sock is not None
        self.sock.close()
        self.sock = None

    def send(self, frame: Frame) -> None:
        assert self.sock is not None
        head = encode_head(frame)
        if frame.fds:
            socket.send_fds(self.sock, [head], frame.fds)
        else:
            self.sock.sendall(head)
        if len(frame.body):
            self.sock.sendall(frame.body)

    def wait_for(self, predicate: Callable[[Frame], bool], description: str, *, within_s: float = PATIENCE_S) -> Frame:
        """Returns the first frame, said already or still to come, that ``predicate`` accepts."""
        deadline = time.monotonic() + within_s
        looked = 0
        while True:
            for frame in self.seen[looked:]:
                if predicate(frame):
                    return frame
            looked = len(self.seen)
            self._read(deadline, description)

    def _read(self, deadline: float, description: str) -> None:
        assert self.sock is not None
        left = deadline - time.monotonic()
        said = [(f.kind.name, f.meta) for f in self.seen]
        assert left > 0, f"not in time: {description}; heard {said}"
        if select.select([self.sock], [], [], left)[0]:
            data, fds = receive_some(self.sock)
            assert data, f"the keeper closed the connection: {description}; heard {said}"
            self.seen += self.assembler.feed(data, fds)

    def call(self, *args: Any, timeout_ms: int = 0, attempt: int = 1) -> bytes:
        """Sends a call and returns its id."""
        call_id = new_raw_id()
        body = pack((args, {})).tobytes()
        self.send(Frame(Kind.CALL, call_id, {"attempt": attempt, "timeout_ms": timeout_ms}, body))
        return call_id

    def outcome(self, call_id: bytes, *, within_s: float = PATIENCE_S) -> Frame:
        def ends(frame: Frame) -> bool:
            return frame.id == call_id and frame.kind in (Kind.RESULT, Kind.FAILURE)

        return self.wait_for(ends, f"the outcome of {call_id.hex()}", within_s=within_s)

    def result(self, call_id: bytes) -> Any:
        frame = self.outcome(call_id)
        assert frame.kind is Kind.RESULT, frame.meta
        return unpack(frame.body)

    def error(self, call_id: bytes, *, within_s: float = PATIENCE_S) -> dict[str, Any]:
        frame = self.outcome(call_id, within_s=within_s)
        assert frame.kind is Kind.FAILURE, f"a result came: {frame.meta}"
        return frame.meta["error"]

    def ready(self) -> Frame:
        def says_so(frame: Frame) -> bool:
            if frame.kind is Kind.STATE:
                return frame.meta["phase"] in ("ready", "busy")
            return frame.kind is Kind.RANK and frame.meta["rank"] == -1

        return self.wait_for(says_so, "READY of all local ranks")

    def pids(self) -> list[int]:
        """The ranks' process ids, in rank order."""
        return list(self.ready().meta["pids"])

    def ended(self, *, within_s: float = PATIENCE_S) -> dict[str, Any]:
        return self.wait_for(lambda f: f.kind is Kind.ENDED, "ENDED", within_s=within_s).meta

    def stop(self, *, grace_ms: int = 2000, reason: str = "test") -> dict[str, Any]:
        self.send(Frame(Kind.STOP, NO_ID, {"reason": reason, "grace_ms": grace_ms}))
        return self.ended()

    def leave(self) -> None:
        """Acknowledges the report and waits until the keeper is gone."""
        self.send(Frame(Kind.ACK, NO_ID))
        wait_until(lambda: not process_exists(self.pid), "the keeper exits")

    def records(self) -> list[LogRecord]:
        return [record for record, _ in decode((self.gang_dir / "spool.log").read_bytes())]

    def text(self, stream: int = 1) -> str:
        data = b"".join(r.data for r in self.records() if r.stream == stream)
        return data.decode("utf-8", "replace")


class Gangs:
    """A launcher and the keepers started through it; `close` ends them all."""

    def __init__(self, run_dir: Path, **options: Any) -> None:
        self.run_dir = run_dir
        self._runner = asyncio.Runner()
        self.launcher = Launcher(run_dir, **options)
        self.equipper = Equipper(run_dir)
        self.keepers: list[Keeper] = []

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(coroutine)

    def start(  # noqa: PLR0913  the options of a function, as its decorator has them
        self,
        function: Callable[..., Any],
        *,
        ranks: int = 1,
        nodes: int = 1,
        gpus: float = -1,
        limits: Limits | None = None,
        env: EnvSpec | None = None,
        returns: str = "rank0",
        memory_gb: float = 0,
        cpus: float = 0,
        code: bytes = b"",
        real_gpus: tuple[str, ...] = (),
    ) -> list[Keeper]:
        """Starts one gang of ``ranks`` ranks over ``nodes`` keepers on this machine, and attaches to each."""
        resources = Resources(gpus=ranks if gpus < 0 else gpus, nodes=nodes, memory_gb=memory_gb, cpus=cpus)
        spec = FunctionSpec(
            name="tested", resources=resources, limits=limits or Limits(), env=env or EnvSpec(), returns=returns
        )
        rendezvous = socket.socket()
        rendezvous.bind(("127.0.0.1", 0))
        rendezvous.listen(64)
        try:
            return self._start_on(spec, code or by_value(function), nodes, rendezvous, real_gpus)
        finally:
            rendezvous.close()

    def one(self, function: Callable[..., Any], **options: Any) -> Keeper:
        """Starts a gang on one node."""
        return self.start(function, **options)[0]

    def close(self) -> None:
        for keeper in self.keepers:
            if process_exists(keeper.pid):
                os.kill(keeper.pid, 9)
        self.run(self.launcher.close())
        self._runner.close()
        for gang_dir in (self.run_dir / "gangs").glob("*"):  # a killed keeper leaves it to its agent, and here is none
            for left in Path(tempfile.gettempdir()).glob(f"{tmp_prefix(gang_dir.name)}*"):
                shutil.rmtree(left, ignore_errors=True)

    def _start_on(
        self, spec: FunctionSpec, code: bytes, nodes: int, rendezvous: socket.socket, real_gpus: tuple[str, ...]
    ) -> list[Keeper]:
        path = self.run_dir / f"callable-{new_raw_id().hex()}"
        path.write_bytes(code)
        ranks = spec.world_size
        each = ranks // nodes
        prefix = new_raw_id().hex()[:6]
        members = tuple(
            Member(
                node_id=f"n{n}",
                first_rank=n * each,
                ranks=each,
                gpus=(real_gpus or tuple(f"SIM-{prefix}-{n}-{i}" for i in range(each))) if spec.resources.gpus else (),
                share=min(1, spec.resources.gpus),
            )
            for n in range(nodes)
        )
        started: list[Keeper] = []
        for n in range(nodes):
            config = GangConfig(
                gang_id=id_text("g", new_raw_id()),
                fence=1,
                function_id=spec.function_id,
                function=spec,
                workspace="w",
                user="u",
                node_id=f"n{n}",
                members=members,
                node_rank=n,
                world_size=ranks,
                rendezvous=f"127.0.0.1:{rendezvous.getsockname()[1]}",
                simulated=not real_gpus,
                placement="side by side",
                callable_path=str(path),
                bundle_dir="",
                checkpoint_dir="",
            )
            listen_fd = rendezvous.fileno() if n == 0 else None
            config = self.equipper.equip(config, None)
            pid = self.run(self.launcher.start_gang(config, listen_fd=listen_fd))
            started.append(Keeper(pid, self.run_dir / "gangs" / config.gang_id).attach())
        self.keepers += started
        return started
