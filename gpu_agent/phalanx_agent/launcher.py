"""Environments, zygotes and gang starts, for the agent. Runs in the agent's event loop, imports no torch, never forks.

A zygote is started with posix_spawn, lives as long as its lifeline (a pipe held here), and is asked for a gang over its
Unix socket. Where one may not fork, its environment's gangs come from a light zygote and import modules themselves.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from phalanx.core.files import replace_file
from phalanx.core.spec import EnvSpec
from phalanx_agent.gang_config import GangConfig, config_to_json
from phalanx_agent.zygote_process import StartError, ZygoteProcess, ZygoteRefusedError
from phalanx_agent.zygote_spawn import Spawned, ZygoteKey, spawn

__all__ = ["BuildError", "Launcher", "StartError"]

MAX_HEAVY_ZYGOTES = 3


class BuildError(RuntimeError):
    """An environment that cannot be made; the message ends with pip's last lines."""


class Launcher:
    """Starts keepers. ``rank_user`` names the unprivileged user that ranks run as, where the agent is root.

    ``ahead``: a zygote that was started before the agent's own imports.
    """

    def __init__(
        self, run_dir: Path, *, python: str = sys.executable, rank_user: str = "", ahead: Spawned | None = None
    ) -> None:
        self._run_dir = run_dir
        self._python = python
        self._rank_user = rank_user
        self._ahead = ahead
        self._zygotes: dict[ZygoteKey, ZygoteProcess] = {}
        self._unforkable: set[str] = set()
        self._locks: dict[str, asyncio.Lock] = {}
        for name in ("zygotes", "gangs", "envs"):
            (run_dir / name).mkdir(parents=True, exist_ok=True)
        if rank_user:
            for path in (run_dir, run_dir / "envs", run_dir / "gangs"):
                path.chmod(0o711)

    @property
    def zygotes(self) -> tuple[ZygoteProcess, ...]:
        """The zygotes held now, least recently used first."""
        return tuple(self._zygotes.values())

    async def build(self, env: EnvSpec, on_line: Callable[[str], None]) -> None:
        """Makes the environment of ``env`` unless it exists; pip's lines go to ``on_line``. Raises BuildError."""
        if not env.pip:
            return
        async with self._lock(f"env {env.digest}"):
            if (self._env_dir(env) / ".complete").exists():
                return
            try:
                await self._build(env, on_line)
            except BuildError:
                shutil.rmtree(self._env_dir(env), ignore_errors=True)
                raise

    async def warm(self, env: EnvSpec) -> None:
        """Starts the environment's zygote ahead of need. Raises StartError."""
        await self._zygote(self._key(env, light=False))

    async def start_gang(self, config: GangConfig, *, listen_fd: int | None) -> int:
        """Forks a keeper and its ranks. Returns the keeper's pid; its socket accepts. Raises StartError.

        ``listen_fd`` is the bound rendezvous socket on the lead; it stays the caller's.
        """
        gang_dir = self._run_dir / "gangs" / config.gang_id
        gang_dir.mkdir(mode=0o711 if self._rank_user else 0o700, parents=True, exist_ok=True)
        if self._rank_user and not config.rank_user:
            config = replace(config, rank_user=self._rank_user)
        replace_file(gang_dir / "gang.json", config_to_json(config))
        env = config.function.env
        light = config.function.resources.gpus == 0 or env.digest in self._unforkable
        try:
            return await self._start(self._key(env, light=light), gang_dir, listen_fd)
        except ZygoteRefusedError:
            self._unforkable.add(env.digest)
            await self._drop(self._key(env, light=False))
            return await self._start(self._key(env, light=True), gang_dir, listen_fd)

    async def close(self) -> None:
        """Ends all zygotes. Keepers live on."""
        if self._ahead is not None:
            await ZygoteProcess(self._ahead).close()
        for key in list(self._zygotes):
            await self._drop(key)

    async def _start(self, key: ZygoteKey, gang_dir: Path, listen_fd: int | None) -> int:
        """Asks a zygote; one that turns out to be dead is replaced once."""
        for attempt in (1, 2):
            zygote = await self._zygote(key)
            try:
                return await zygote.start_gang(gang_dir, listen_fd)
            except ConnectionError as e:
                await self._drop(key)
                if attempt == 2:
                    raise StartError(f"zygote {key.name!r} ended twice while starting a gang: {e}") from e
        raise AssertionError("unreachable")

    async def _zygote(self, key: ZygoteKey) -> ZygoteProcess:
        async with self._lock(f"zygote {key.name}"):
            zygote = self._zygotes.pop(key, None)
            if zygote is None or not zygote.alive():
                if zygote is not None:
                    await zygote.close()
                zygote = await ZygoteProcess.ready(self._spawned(key))
            self._zygotes[key] = zygote
        heavy = [k for k in self._zygotes if not k.light]
        for old in heavy[:-MAX_HEAVY_ZYGOTES]:
            await self._drop(old)
        return zygote

    def _spawned(self, key: ZygoteKey) -> Spawned:
        ahead = self._ahead
        if ahead is None or ahead.key != key:
            return spawn(key, self._run_dir / "zygotes")
        self._ahead = None
        return ahead

    async def _drop(self, key: ZygoteKey) -> None:
        zygote = self._zygotes.pop(key, None)
        if zygote is not None:
            await zygote.close()

    def _key(self, env: EnvSpec, *, light: bool) -> ZygoteKey:
        python = str(self._env_dir(env) / "bin" / "python") if env.pip else self._python
        unforkable = env.digest in self._unforkable
        return ZygoteKey(
            digest=env.digest, light=light, python=python, preload=() if light and unforkable else env.preload
        )

    def _env_dir(self, env: EnvSpec) -> Path:
        return self._run_dir / "envs" / env.digest

    def _lock(self, name: str) -> asyncio.Lock:
        return self._locks.setdefault(name, asyncio.Lock())

    async def _build(self, env: EnvSpec, on_line: Callable[[str], None]) -> None:
        target = self._env_dir(env)
        shutil.rmtree(target, ignore_errors=True)
        python = str(target / "bin" / "python")
        await _run([self._python, "-m", "venv", "--system-site-packages", str(target)], on_line)
        _see_parents_packages(target)
        await _run(
            [
                python,
                "-m",
                "pip",
                "install",
                "--disable-pip-version-check",
                "--no-input",
                "--progress-bar=off",
                *env.pip,
            ],
            on_line,
        )
        (target / ".complete").touch()


def _see_parents_packages(target: Path) -> None:
    """A venv made from a venv sees the base interpreter's packages only; this line adds those of the agent's own."""
    parents = [p for p in sys.path if p.endswith("site-packages")]
    lines = [f"import site; site.addsitedir({path!r})" for path in parents]
    for packages in target.glob("lib/python*/site-packages"):
        (packages / "zz_phalanx_parent.pth").write_text("\n".join(lines) + "\n")


async def _run(command: list[str], on_line: Callable[[str], None]) -> None:
    """Runs a build step. Raises BuildError with its last lines."""
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    last: list[str] = []
    try:
        assert process.stdout is not None
        async for raw in process.stdout:
            line = raw.decode("utf-8", "replace").rstrip()
            last = [*last, line][-15:]
            on_line(line)
        code = await process.wait()
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if code != 0:
        raise BuildError(
            f"the environment could not be built ({' '.join(command[1:4])} ended with {code}):\n" + "\n".join(last)
        )
