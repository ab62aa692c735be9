"""I15: one log, one leader at a time. Batches are dense, epochs and the log's clock never fall."""

from __future__ import annotations

from tests.support.history_checker.records import Batch, Event, Findings


class Leadership:
    """Sees every batch in the order of the history."""

    def __init__(self, findings: Findings) -> None:
        self._findings = findings
        self._last: Batch | None = None
        self._leaders: dict[int, str] = {}

    def see_batch(self, batch: Batch) -> None:
        last = self._last
        self._last = batch
        if not batch.events:
            self._findings.add("I15", batch, "an empty batch")
        if last is None:
            return
        if batch.seq != last.seq + 1:
            self._findings.add("I15", batch, f"follows {last.seq}: a batch is missing, doubled or out of order")
        if batch.epoch < last.epoch:
            self._findings.add("I15", batch, f"epoch {batch.epoch} after epoch {last.epoch}")
        if batch.log_ms < last.log_ms:
            self._findings.add("I15", batch, f"log_ms fell from {last.log_ms} to {batch.log_ms}")
        if batch.epoch > last.epoch and batch.events and batch.events[0]["kind"] != "LeaderTookOver":
            self._findings.add("I15", batch, f"epoch {batch.epoch} begins without LeaderTookOver")

    def see(self, batch: Batch, event: Event) -> None:
        if event["kind"] == "LeaderTookOver":
            self._took_over(batch, event)
        leader = self._leaders.setdefault(batch.epoch, batch.leader)
        if leader != batch.leader:
            self._findings.add("I15", batch, f"{batch.leader} writes in epoch {batch.epoch}, which is {leader}'s")

    def _took_over(self, batch: Batch, event: Event) -> None:
        epoch = event.get("epoch", 0)
        if epoch != batch.epoch or event.get("leader_id") != batch.leader:
            self._findings.add("I15", batch, f"take-over of epoch {epoch} written in epoch {batch.epoch}")
        if epoch in self._leaders:
            self._findings.add("I15", batch, f"epoch {epoch} taken over twice")
