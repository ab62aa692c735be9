"""GPUs that the hardware itself put out of use, kept over restarts of the agent: a restart heals nothing.

One file, `health.json` in the state directory, holds for this boot which GPUs are out and why, and their last XIDs. It
ends with the boot, with a reset that shows (the GPU's error counters begin anew), or when a person clears it:

    phalanx-agent clear-gpu --state-dir DIR UUID

which a running agent sees at its next look.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from phalanx.core.states import GpuState
from phalanx_agent.discovery.boot_file import BootFile, Form
from phalanx_agent.discovery.health import DAY_MS, PastXid

FILE = "health.json"
_XIDS_KEPT = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Cordon:
    """``xid``: 0 where counters said so. ``ecc_errors``: what the GPU had counted then; fewer later: it was reset."""

    state: GpuState
    reason: str
    xid: int
    ecc_errors: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """By UUID: which GPUs are out of use, and what each reported."""

    cordons: Mapping[str, Cordon] = field(default_factory=dict[str, Cordon])
    past: Mapping[str, tuple[PastXid, ...]] = field(default_factory=dict[str, tuple[PastXid, ...]])


class Cordons:
    """Times are monotonic milliseconds of this boot. ``later``: see `BootFile`."""

    def __init__(self, path: Path, *, boot_id: str, later: Callable[[], None] | None = None) -> None:
        form = Form(what="gpu health", empty=_Facts(), read=_read, write=_write)
        self._file = BootFile(path, form, boot_id=boot_id, later=later)

    def get(self, uuid: str) -> Cordon | None:
        return self._file.facts.cordons.get(uuid)

    def past(self, uuid: str) -> tuple[PastXid, ...]:
        return self._file.facts.past.get(uuid, ())

    def refresh(self) -> None:
        """Sees what a person cleared."""
        self._file.refresh()

    def save(self) -> None:
        """Writes what is not saved yet. Blocking."""
        self._file.save()

    def note(self, uuid: str, xid: PastXid) -> None:
        """Remembers an XID for a day."""
        self._file.change(lambda facts: _noted(facts, uuid, xid))

    def put(self, uuid: str, cordon: Cordon) -> None:
        """Puts a GPU out of use. The first fault is the reason, whatever follows from it; only a loss says more."""
        if _says_more(cordon, self.get(uuid)):
            self._file.change(lambda facts: _cordoned(facts, uuid, cordon))

    def lift(self, uuid: str) -> None:
        """Gives a GPU back to use, and forgets what it reported."""
        self._file.change(lambda facts: _lifted(facts, uuid))

    def all(self) -> dict[str, Cordon]:
        return dict(self._file.facts.cordons)


def _noted(facts: _Facts, uuid: str, xid: PastXid) -> _Facts:
    kept = [past for past in facts.past.get(uuid, ()) if xid.at_ms - past.at_ms <= DAY_MS]
    return replace(facts, past={**facts.past, uuid: (*kept, xid)[-_XIDS_KEPT:]})


def _says_more(cordon: Cordon, known: Cordon | None) -> bool:
    return known is None or (cordon.state is GpuState.DOWN and known.state is not GpuState.DOWN)


def _cordoned(facts: _Facts, uuid: str, cordon: Cordon) -> _Facts:
    if not _says_more(cordon, facts.cordons.get(uuid)):
        return facts
    return replace(facts, cordons={**facts.cordons, uuid: cordon})


def _lifted(facts: _Facts, uuid: str) -> _Facts:
    return _Facts(
        cordons={name: cordon for name, cordon in facts.cordons.items() if name != uuid},
        past={name: past for name, past in facts.past.items() if name != uuid},
    )


def _write(facts: _Facts) -> dict[str, Any]:
    return {
        "cordons": {uuid: asdict(cordon) for uuid, cordon in facts.cordons.items()},
        "xids": {uuid: [asdict(past) for past in xids] for uuid, xids in facts.past.items()},
    }


def _read(data: dict[str, Any]) -> _Facts:
    cordons = {
        uuid: Cordon(
            state=GpuState(each["state"]),
            reason=str(each["reason"]),
            xid=int(each["xid"]),
            ecc_errors=int(each["ecc_errors"]),
        )
        for uuid, each in data["cordons"].items()
    }
    past = {
        uuid: tuple(
            PastXid(xid=int(p["xid"]), at_ms=int(p["at_ms"]), workspaces=tuple(map(str, p["workspaces"]))) for p in xids
        )
        for uuid, xids in data["xids"].items()
    }
    return _Facts(cordons=cordons, past=past)
