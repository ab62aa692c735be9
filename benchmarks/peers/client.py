"""Starts a peer process and asks it one thing at a time."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

HERE = Path(__file__).parent
PEER_PYTHON = Path(sys.prefix) / "peers" / "bin" / "python"


class PeerProcess:
    """A peer driven over JSON lines; `with` ends it."""

    def __init__(self, script: str) -> None:
        self._process = subprocess.Popen(
            [str(PEER_PYTHON), str(HERE / script)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.ask("quit")
        self._process.wait(60)

    def ask(self, op: str, **arguments: Any) -> dict[str, Any]:
        """Returns the peer's answer. Raises RuntimeError when it has died."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps({"op": op, **arguments}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the peer ended while doing {op!r}; run {self._process.args} by hand to see why")
        return json.loads(line)
