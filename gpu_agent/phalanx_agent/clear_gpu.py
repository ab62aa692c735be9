"""``phalanx-agent clear-gpu``: a person says that a GPU which the agent put out of use was mended, or never was ill.

It edits the agent's files of such GPUs and of links that were verified, and a running agent sees that within seconds. A
fault that the GPU's counters still show comes back at once; links are tried again by the next gang that does so.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from phalanx_agent import preflight_book
from phalanx_agent.discovery.boot_file import boot_of
from phalanx_agent.discovery.cordons import FILE, Cordons

EXIT_FAILED = 1
EXIT_UNKNOWN = 2


def main(argv: Sequence[str]) -> int:
    """Returns the exit status: 0 when the GPUs were cleared, 1 where the agent's files cannot be read or written, 2
    where one is not out of use.
    """
    parser = argparse.ArgumentParser(
        prog="phalanx-agent clear-gpu",
        description="Give back GPUs that the agent of this node put out of use for a fault of their hardware, or that "
        "it keeps apart because copies between them came out wrong.",
    )
    parser.add_argument("uuids", nargs="*", metavar="UUID", help="the GPUs; without, those that are out are listed")
    parser.add_argument("--state-dir", default="/var/lib/phalanx-agent", help="the agent's state directory")
    args = parser.parse_args(list(argv))
    folder = Path(args.state_dir)
    try:
        _become_owner(folder)
        cordons, book = _read(folder)
    except OSError as e:
        return _refuse(f"{e.filename} cannot be read: {e.strerror}; ask as the agent's user", EXIT_FAILED)
    out = _out_of_use(cordons, book)
    unknown = [uuid for uuid in args.uuids if uuid not in out]
    if unknown:
        return _refuse(f"{unknown[0]} is not out of use here: {', '.join(out) or 'none'}", EXIT_UNKNOWN)
    for uuid in args.uuids:
        cordons.lift(uuid)
        book.forget(uuid)
    left = _out_of_use(*_read(folder))
    for uuid, reason in out.items():
        if not args.uuids:
            print(f"{uuid}: {reason}")  # noqa: T201
        elif uuid in args.uuids and uuid in left:
            return _refuse(f"{uuid} is still out of use: {folder} cannot be written", EXIT_FAILED)
        elif uuid in args.uuids:
            print(f"{uuid} may be used again; it was out for {reason}")  # noqa: T201
    return 0


def _become_owner(folder: Path) -> None:
    """Root changes the files as the agent's user: an agent could not read what belongs to root alone."""
    owner = folder.stat()
    if os.geteuid() == 0 and owner.st_uid != 0:
        os.setgroups([])
        os.setegid(owner.st_gid)
        os.seteuid(owner.st_uid)


def _read(folder: Path) -> tuple[Cordons, preflight_book.PairBook]:
    """Raises OSError for a file that is there and cannot be read."""
    health, pairs = folder / FILE, folder / preflight_book.FILE
    for path in (health, pairs):
        with contextlib.suppress(FileNotFoundError):
            path.read_bytes()
    return Cordons(health, boot_id=boot_of(health)), preflight_book.PairBook(pairs, boot_id=boot_of(pairs))


def _out_of_use(cordons: Cordons, book: preflight_book.PairBook) -> dict[str, str]:
    """Returns why GPUs are out of use, by UUID."""
    out = {uuid: cordon.reason for uuid, cordon in cordons.all().items()}
    for check in book.wrong():
        for uuid, other in (check.gpus, check.gpus[::-1]):
            out[uuid] = "; ".join([*([out[uuid]] if uuid in out else []), f"copies to and from {other} come out wrong"])
    return out


def _refuse(why: str, status: int) -> int:
    print(f"phalanx-agent clear-gpu: {why}", file=sys.stderr)  # noqa: T201
    return status
