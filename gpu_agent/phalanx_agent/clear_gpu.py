"""``phalanx-agent clear-gpu``: a person says that a GPU which the agent put out of use was mended, or never was ill.

It edits the agent's files of such GPUs and of links that were verified, and a running agent sees that within seconds. A
fault that the GPU's counters still show comes back at once; links are tried again by the next gang that does so.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from phalanx_agent import preflight_book
from phalanx_agent.discovery.cordons import FILE, Cordons, boot_of

EXIT_UNKNOWN = 2


def main(argv: Sequence[str]) -> int:
    """Returns the exit status: 0 when the GPUs were cleared, 2 where one is not out of use."""
    parser = argparse.ArgumentParser(
        prog="phalanx-agent clear-gpu",
        description="Give back GPUs that the agent of this node put out of use for a fault of their hardware, or that "
        "it keeps apart because copies between them came out wrong.",
    )
    parser.add_argument("uuids", nargs="*", metavar="UUID", help="the GPUs; without, those that are out are listed")
    parser.add_argument("--state-dir", default="/var/lib/phalanx-agent", help="the agent's state directory")
    args = parser.parse_args(list(argv))
    path = Path(args.state_dir) / FILE
    cordons = Cordons(path, boot_id=boot_of(path))
    book_path = Path(args.state_dir) / preflight_book.FILE
    book = preflight_book.PairBook(book_path, boot_id=boot_of(book_path))
    out = {uuid: cordon.reason for uuid, cordon in cordons.all().items()}
    for check in book.wrong():
        for uuid, other in (check.gpus, check.gpus[::-1]):
            out[uuid] = "; ".join([*([out[uuid]] if uuid in out else []), f"copies to and from {other} come out wrong"])
    unknown = [uuid for uuid in args.uuids if uuid not in out]
    if unknown:
        names = ", ".join(out) or "none"
        print(f"phalanx-agent clear-gpu: {unknown[0]} is not out of use here: {names}", file=sys.stderr)  # noqa: T201
        return EXIT_UNKNOWN
    for uuid, reason in out.items():
        if not args.uuids:
            print(f"{uuid}: {reason}")  # noqa: T201
        elif uuid in args.uuids:
            cordons.lift(uuid)
            book.forget(uuid)
            print(f"{uuid} may be used again; it was out for {reason}")  # noqa: T201
    return 0
