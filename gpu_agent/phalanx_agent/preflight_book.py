"""What ranks found when they verified the links of this node, kept over restarts of the agent.

One file, `preflight.json` in the state directory, holds it for this boot: after another one cables, firmware and
drivers may be others. `phalanx-agent clear-gpu` takes a GPU's pairs out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from phalanx.core.topology.verified import PairCheck, pair_of
from phalanx_agent.discovery.boot_file import BootFile, Form

FILE = "preflight.json"
Pair = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Facts:
    """``rate``: of the all-reduce over all GPUs of the node, in GB/s."""

    checks: Mapping[Pair, PairCheck] = field(default_factory=dict[Pair, PairCheck])
    rate: float | None = None


class PairBook:
    """The newest result of each pair. Without a file that can be written, memory remains."""

    def __init__(self, path: Path, *, boot_id: str) -> None:
        form = Form(what="verified links", empty=_Facts(), read=_read, write=_write)
        self._file = BootFile(path, form, boot_id=boot_id)

    @property
    def checks(self) -> Mapping[Pair, PairCheck]:
        return self._file.facts.checks

    @property
    def all_reduce_gbyte_s(self) -> float | None:
        """Over all GPUs of the node."""
        return self._file.facts.rate

    def refresh(self) -> bool:
        """Sees what a person cleared; says whether somebody changed anything."""
        return self._file.refresh()

    def note(self, checks: Iterable[PairCheck], all_reduce_gbyte_s: float | None) -> None:
        """Writes results down. None: the all-reduce was not over all GPUs."""
        new = {check.gpus: check for check in checks}
        self._file.change(lambda facts: _noted(facts, new, all_reduce_gbyte_s))

    def forget(self, uuid: str) -> None:
        """Makes the pairs of a GPU untried again."""
        self._file.change(lambda facts: _without(facts, uuid))

    def wrong(self) -> list[PairCheck]:
        """Returns the pairs whose copies came out wrong."""
        return [check for check in self.checks.values() if not check.copies]


def _noted(facts: _Facts, new: Mapping[Pair, PairCheck], rate: float | None) -> _Facts:
    return _Facts(checks={**facts.checks, **new}, rate=facts.rate if rate is None else rate)


def _without(facts: _Facts, uuid: str) -> _Facts:
    return replace(facts, checks={pair: check for pair, check in facts.checks.items() if uuid not in pair})


def _write(facts: _Facts) -> dict[str, Any]:
    return {"pairs": [asdict(check) for check in facts.checks.values()], "all_reduce_gbyte_s": facts.rate}


def _read(data: dict[str, Any]) -> _Facts:
    checks = [
        PairCheck(
            gpus=pair_of(*map(str, each["gpus"])),
            gbyte_s=float(each["gbyte_s"]),
            copies=bool(each["copies"]),
            at_ms=int(each["at_ms"]),
        )
        for each in data["pairs"]
    ]
    rate = data["all_reduce_gbyte_s"]
    return _Facts(checks={check.gpus: check for check in checks}, rate=None if rate is None else float(rate))
