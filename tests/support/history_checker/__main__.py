"""`python -m tests.support.history_checker HISTORY [MARKERS] [--state FILE] [--open]`: prints violations, exits 1."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tests.support.history_checker.check import check


def main(arguments: list[str]) -> int:
    """Returns 0 when nothing is broken, 1 when something is, 2 when the files do not parse."""
    parser = argparse.ArgumentParser(prog="history_checker", description=__doc__)
    parser.add_argument("history", type=Path, help="one batch of the log per line, as JSON")
    parser.add_argument("markers", type=Path, nargs="?", help="folder of the ranks' marker files")
    parser.add_argument("--state", type=Path, help="the product's own state, as JSON, to compare with the history")
    parser.add_argument("--open", action="store_true", help="the run goes on: live calls and leases are no fault")
    given = parser.parse_args(arguments)
    try:
        state = json.loads(given.state.read_text()) if given.state else None
        found = check(given.history, given.markers, state=state, still_open=given.open)
    except (OSError, ValueError) as e:
        print(f"cannot read: {e}", file=sys.stderr)
        return 2
    for violation in found:
        print(violation)
    print(f"{len(found)} violations", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
