"""``python -m phalanx.embedded HOME IDLE_MS``: detaches, then supervises an embedded cluster. Started by `ensure`."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from phalanx.embedded.paths import Home
from phalanx.embedded.supervisor import Supervisor


def main() -> None:
    """Forks once, so that nobody has to wait for the supervisor, and runs it in a session of its own."""
    if os.fork():
        os._exit(0)
    os.setsid()
    os.umask(0o077)
    sys.exit(Supervisor(Home(Path(sys.argv[1])), int(sys.argv[2])).run())


if __name__ == "__main__":
    main()
