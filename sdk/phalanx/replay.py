"""Running a call again on this machine: the same code and arguments, in processes of this program's own.

Fetches, tells what differs here, starts one process per rank (`phalanx.replay_rank`) and waits for them. The first rank
that fails ends the others. Nothing of it reaches the cluster: no call is made, nothing is charged.
"""

from __future__ import annotations

import json
import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from phalanx import kept_arguments
from phalanx.client import CallInput, Client
from phalanx.core.errors import InvalidSpecError, NotFoundError
from phalanx.core.messages import Body
from phalanx.core.spec import FunctionSpec
from phalanx.loader import python_version, unpack_bundle

GRACE_S = 3.0
"""How long ranks may take to end once one has failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan:
    """What a rank of the replay reads; JSON. Paths are absolute; ``bundle`` is "" where there is none."""

    call_id: str
    function: str
    callable_path: str
    bundle: str
    args_path: str
    world_size: int
    returns: str
    port: int
    variables: dict[str, str]
    debug: bool
    launch: str = "per_gpu"


def fetch(client: Client, call_id: str) -> CallInput:
    """Returns what the call ran with. Raises NotFoundError where its arguments are nowhere any more."""
    kept = kept_arguments.find(call_id)
    try:
        found = client.call_input(call_id)
    except NotFoundError:
        if kept is None:
            raise
        found = client.call_input("", function_id=kept.function_id)
    if found.args.blob:
        return replace(found, args=Body(data=bytes(client.get_blob(found.args.blob))))
    if found.args.data:
        return found
    if kept is None:
        raise NotFoundError(
            f"the arguments of call {call_id} are not known\n"
            f"a direct call's never reach the control plane, and others expire; of direct ones that failed the machine "
            f"that made them keeps {kept_arguments.MAX_FILES}",
            hint="replay where the call was made, or make it again with .spawn(...)",
        )
    return replace(found, args=Body(data=kept.args))


def lay_out(client: Client, call_id: str, found: CallInput, folder: Path, *, ranks: int = 0, debug: bool) -> ReplayPlan:
    """Writes code and arguments below ``folder`` and returns the plan. Raises InvalidSpecError for another Python."""
    spec = found.function
    if spec.code.python and spec.code.python != python_version():
        raise InvalidSpecError(
            f"the call ran on Python {spec.code.python} and this is {python_version()}; code does not fit both",
            hint=f"run gpuctl from an environment with Python {spec.code.python}",
        )
    (folder / "callable").write_bytes(client.get_blob(spec.code.callable_blob))
    (folder / "args").write_bytes(found.args.data)
    bundle = ""
    if spec.code.bundle_blob:
        unpack_bundle(bytes(client.get_blob(spec.code.bundle_blob)), folder / "bundle")
        bundle = str(folder / "bundle")
    plan = ReplayPlan(
        call_id=call_id,
        function=spec.name,
        callable_path=str(folder / "callable"),
        bundle=bundle,
        args_path=str(folder / "args"),
        world_size=ranks or spec.resources.world_size,
        returns=spec.returns,
        port=_free_port(),
        variables=dict(spec.env.variables),
        debug=debug,
        launch=spec.launch,
    )
    (folder / "plan.json").write_text(json.dumps(asdict(plan)))
    return plan


def differences(spec: FunctionSpec, *, gpus_here: int, ranks: int) -> list[str]:
    """Returns what is not as it was in the gang, one sentence each."""
    found: list[str] = []
    wanted = spec.resources.gpus
    if wanted and gpus_here < ranks:
        has = f"this machine has {gpus_here} that are free to see" if gpus_here else "this machine has none"
        found.append(f"GPUs: the call had {wanted:g}, {has}; ranks run on CPUs with gloo")
    elif wanted:
        found.append("GPUs: others than the call's")
    if ranks != spec.resources.world_size:
        found.append(f"ranks: {ranks} instead of {spec.resources.world_size}")
    if spec.env.pip:
        found.append(f"packages: the call's environment had {', '.join(spec.env.pip)}; here is what is installed")
    if spec.resources.memory_gb or spec.resources.cpus:
        found.append("limits: memory and processors are not limited here")
    if not spec.code.bundle_blob:
        found.append("modules: those that the function imports are the ones installed here")
    found.append("environment variables: this shell's, with those of env(vars=...); what the node set is not here")
    found.append("checkpoint_dir, attempt and placement are empty, 1 and unset")
    return found


def run(folder: Path, plan: ReplayPlan, *, died: Callable[[int, int], None] = lambda _rank, _code: None) -> int:
    """Runs all ranks to their end. Returns 0, or the exit code of the first that failed; ``died`` is told of each."""
    environment = {**os.environ, **plan.variables, "PYTHONUNBUFFERED": "1"}
    argv = [sys.executable, "-m", "phalanx.replay_rank", str(folder / "plan.json")]
    ranks = [subprocess.Popen([*argv, str(rank)], env=environment) for rank in range(plan.world_size)]
    try:
        return _first_failure(ranks, died)
    finally:
        _end(ranks)


def _first_failure(ranks: list[subprocess.Popen[bytes]], died: Callable[[int, int], None]) -> int:
    ended: queue.SimpleQueue[tuple[int, int]] = queue.SimpleQueue()
    for rank, process in enumerate(ranks):
        threading.Thread(target=_tell_end, args=(rank, process, ended), daemon=True).start()
    for _ in ranks:
        rank, code = ended.get()
        if code:
            died(rank, code)
            return code if code > 0 else 128 - code
    return 0


def _tell_end(rank: int, process: subprocess.Popen[bytes], ended: queue.SimpleQueue[tuple[int, int]]) -> None:
    ended.put((rank, process.wait()))


def _end(ranks: list[subprocess.Popen[bytes]]) -> None:
    alive = [process for process in ranks if process.poll() is None]
    for process in alive:
        process.terminate()
    for process in alive:
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
