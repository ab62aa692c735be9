"""Failures that read like a broken GPU's: kept back until the driver has had time to say whether it was.

A fault reaches the rank as an exception of CUDA's, often before its XID reaches the agent. Told at once, it would be
the user's own: neither run again nor credited.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from phalanx.core.frames import Frame, Kind
from phalanx.core.states import Cause, Outcome
from phalanx_agent.dataplane.failures import error_from_meta, failure, infrastructure
from phalanx_agent.dataplane.loop import now_ns

if TYPE_CHECKING:
    from phalanx_agent.dataplane.calls import CallRecord
    from phalanx_agent.dataplane.lead import LeadGang

HOLD_MS = 1500
"""XIDs come within a second."""
_LIKE_A_GPUS = re.compile(
    r"CUDA (driver )?error|CU(BLAS|DNN|FFT|SOLVER|SPARSE)_STATUS|cuDNN error|NCCL error|ncclUnhandledCudaError"
    r"|uncorrectable|device-side assert|AcceleratorError",
    re.IGNORECASE,
)


class Suspects:
    """Of one gang."""

    def __init__(self, gang: LeadGang) -> None:
        self._gang = gang
        self._held: list[tuple[int, CallRecord, Frame]] = []
        self._blame = ""

    @property
    def waiting(self) -> bool:
        """An outcome is kept back."""
        return bool(self._held)

    def judged(self, record: CallRecord, outcome: Frame) -> Frame | None:
        """Returns the outcome as it is to be told; None where it is kept back for now."""
        if any(held is record for _, held, _ in self._held):
            return None  # told again
        if not self._gang.spec.gpus_may_fail or not _reads_like_a_gpus(outcome, self._gang.node_id):
            return outcome
        if self._blame:
            return self._gpus_fault(record, outcome)
        self._held.append((now_ns() + HOLD_MS * 1_000_000, record, outcome))
        return None

    def blame(self, reason: str) -> None:
        """A GPU of the gang has failed: what is kept back was its fault, and so is what still comes."""
        self._blame = reason
        self._release(len(self._held))

    def check(self, now: int) -> None:
        """Tells what has been kept back long enough, as it came."""
        self._release(sum(until < now for until, _, _ in self._held))

    def _release(self, count: int) -> None:
        due, self._held = self._held[:count], self._held[count:]
        for _, record, outcome in due:
            self._gang.end_call(record, self._gpus_fault(record, outcome) if self._blame else outcome)

    def _gpus_fault(self, record: CallRecord, outcome: Frame) -> Frame:
        said = error_from_meta(outcome.meta.get("error"), node_id=self._gang.node_id)
        error = infrastructure(f"{self._blame}; rank {said.rank} saw {said.type_name}: {said.message}")
        error = replace(error, node_id=said.node_id, rank=said.rank, traceback=said.traceback, ranks=said.ranks)
        fault = failure(record.id, Outcome.FAILED, error)
        fault.meta["busy_ms"] = outcome.meta.get("busy_ms") or 0
        return fault


def _reads_like_a_gpus(outcome: Frame, node_id: str) -> bool:
    if outcome.kind is not Kind.FAILURE or outcome.meta.get("outcome") != Outcome.FAILED:
        return False
    error = error_from_meta(outcome.meta.get("error"), node_id=node_id)
    if error.cause is not Cause.USER_EXCEPTION or "out of memory" in error.message.lower():
        return False
    return _LIKE_A_GPUS.search(f"{error.type_name} {error.message}") is not None
