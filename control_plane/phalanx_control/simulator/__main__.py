"""The simulator as a program: reads files, writes one JSON document, and says how far it is on standard error.

What is wrong with the files or the words goes to standard output as ``{"error": …}``, with exit status 2.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import tomllib
from pathlib import Path
from typing import TextIO

from phalanx.core.errors import InvalidSpecError, PhalanxError
from phalanx.policy import policy_of
from phalanx_control.simulator.live import Options
from phalanx_control.simulator.machines import Fleet, from_file, from_words
from phalanx_control.simulator.play import LIVE, POLICIES, Asked, play
from phalanx_control.simulator.traces import read_jobs

EXIT_WRONG = 2


def main() -> int:
    """Returns the exit status."""
    options = _parser().parse_args()
    gc.disable()  # nothing here makes cycles, and looking for them takes a fifth of the time
    try:
        fleet = fleet_of(options.fleet)
        for words in options.add:
            fleet = fleet.beside(fleet_of(words, prefix="more-"))
        dice = random.Random(options.seed)  # noqa: S311 (an order of arrival, no secret)
        jobs = read_jobs(_text_of(options.trace), name=options.trace, shuffle=dice.shuffle)
        found = play(
            jobs, fleet, _asked(options), lambda arrived, _: _write(sys.stderr, f"{arrived:,} of {len(jobs):,} jobs")
        )
    except PhalanxError as e:
        _write(sys.stdout, json.dumps({"error": {"message": str(e), "hint": e.hint}}))
        return EXIT_WRONG
    _write(sys.stdout, json.dumps(found, separators=(",", ":")))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m phalanx_control.simulator", description=__doc__)
    parser.add_argument("trace")
    parser.add_argument("--fleet", required=True)
    parser.add_argument("--add", action="append", default=[])
    parser.add_argument("--policy", choices=POLICIES, default=LIVE)
    parser.add_argument("--load", type=float, default=0)
    parser.add_argument("--limit", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--accounts", default="")
    for name in ("start", "warm", "every"):
        parser.add_argument(f"--{name}", type=float, default=0)
    parser.add_argument("--timeouts", type=float, default=0)
    return parser


def _asked(options: argparse.Namespace) -> Asked:
    return Asked(
        policy=options.policy,
        load=options.load,
        limit=options.limit,
        accounts=_accounts_of(options.accounts) if options.accounts else "",
        options=Options(
            start_ms=round(options.start * 1000),
            warm_ms=round(options.warm * 1000),
            every_ms=round(options.every * 1000),
            timeouts=options.timeouts,
        ),
    )


def fleet_of(said: str, *, prefix: str = "") -> Fleet:
    """Reads a file where there is one of that name, else words such as ``64 x aws_p5``."""
    if Path(said).is_file():
        return from_file(_text_of(said), name=said)
    if said.endswith((".csv", ".json")):
        raise InvalidSpecError(f"{said} cannot be read: there is no such file")
    return from_words(said, prefix=prefix)


def _accounts_of(file: str) -> str:
    """Reads who gets how much, as `gpuctl policy` takes it; returns it as JSON."""
    text = _text_of(file)
    try:
        said = json.loads(text) if text.lstrip().startswith("{") else tomllib.loads(text)
    except ValueError as e:
        raise InvalidSpecError(f"{file} is no policy: {e}") from e
    policy_of(said)
    return json.dumps(said)


def _text_of(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except OSError as e:
        raise InvalidSpecError(f"{file} cannot be read: {e.strerror}", hint="name a file that you may read") from e
    except UnicodeDecodeError as e:
        raise InvalidSpecError(f"{file} is no text: byte {e.start} is not UTF-8") from e


def _write(stream: TextIO, line: str) -> None:
    stream.write(f"{line}\n")
    stream.flush()


if __name__ == "__main__":
    sys.exit(main())
