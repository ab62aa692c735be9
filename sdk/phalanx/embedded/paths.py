"""Where the embedded cluster keeps its things. Names only: nothing here starts, stops or talks to anything."""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

from phalanx.core.errors import PhalanxError

_MAX_RUN_PATH_CHARS = 52
"""A Unix socket path has 107 characters; `gangs/<id>/keeper.sock` below the run directory takes 47 and `agent/` 6."""


@dataclass(frozen=True, slots=True)
class Home:
    """The folder of one embedded cluster, private to its owner."""

    root: Path

    @property
    def record(self) -> Path:
        return self.root / "cluster.json"

    @property
    def failure(self) -> Path:
        return self.root / "failed.json"

    @property
    def stopped(self) -> Path:
        """There from `gpuctl down` until somebody new starts the cluster again."""
        return self.root / "stopped"

    @property
    def start_lock(self) -> Path:
        """Held by whoever starts the cluster, so that two scripts at once start one."""
        return self.root / "lock"

    @property
    def alive_lock(self) -> Path:
        """Held by the supervisor for its whole life; it holds the number of its process."""
        return self.root / "alive"

    @property
    def clients_lock(self) -> Path:
        """Held, shared, by every client for its whole life."""
        return self.root / "clients"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def run(self) -> Path:
        """Sockets and run state: below the root where the path is short enough, else in the temporary folder."""
        inside = self.root / "run"
        if len(str(inside)) <= _MAX_RUN_PATH_CHARS:
            return inside
        name = hashlib.sha256(str(self.root).encode()).hexdigest()[:10]
        return Path("/tmp") / f"px-{os.getuid()}-{name}"  # noqa: S108 (private_folder checks its owner and mode)

    def make(self) -> None:
        """Creates the folders. Raises PhalanxError when one of them belongs to somebody else."""
        self.root.parent.mkdir(parents=True, exist_ok=True)
        for folder in (self.root, self.logs, self.run):
            private_folder(folder)


def default_home() -> Home:
    """Returns ``$PHALANX_HOME/embedded``, by default ``~/.phalanx/embedded``."""
    base = os.environ.get("PHALANX_HOME") or "~/.phalanx"
    return Home(Path(base).expanduser().absolute() / "embedded")


def private_folder(path: Path) -> None:
    """Creates ``path`` for its owner alone. Raises PhalanxError when it exists and is not the caller's own folder."""
    path.mkdir(mode=0o700, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PhalanxError(
            f"{path} is not a folder of user {os.getuid()}: somebody else made it",
            hint="set PHALANX_HOME to a short path of your own",
        )
    if stat.S_IMODE(found.st_mode) != 0o700:
        path.chmod(0o700)
