"""The preflight of one rank: from the gang's description to findings with names, and to a refusal that people read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from phalanx.core.clock import SystemClock
from phalanx.core.topology.equipment import from_text
from phalanx.core.topology.verified import PairCheck, Verified, pair_of
from phalanx_agent.gang_config import GangConfig
from phalanx_agent.worker.preflight import Findings, GroupCopies, PreflightError, Seat
from phalanx_agent.worker.preflight import verify as try_copies


@dataclass(frozen=True, slots=True)
class Seen:
    """What one rank knows after the trial: of all nodes of the gang."""

    config: GangConfig
    findings: Findings
    size_bytes: int

    @property
    def verified(self) -> Verified:
        """What was found on this node."""
        config, now_ms = self.config, SystemClock().wall_ms()
        gpus = config.member.gpus
        return Verified(
            node_id=config.node_id,
            gpus=gpus,
            pairs=tuple(
                PairCheck(
                    gpus=pair_of(gpus[a], gpus[b]), gbyte_s=found.gbyte_s, copies=not found.wrong_bytes, at_ms=now_ms
                )
                for (a, b), found in self.findings.pairs[config.node_rank].items()
            ),
            all_reduce_gbyte_s=self.findings.all_reduce_gbyte_s,
            size_bytes=self.size_bytes,
        )

    def as_meta(self) -> dict[str, Any]:
        """Returns what the agent is told."""
        own = self.findings.pairs[self.config.node_rank]
        return {
            "pairs": [[a, b, not found.wrong_bytes, found.gbyte_s] for (a, b), found in own.items()],
            "all_reduce_gbyte_s": self.findings.all_reduce_gbyte_s,
        }

    def refuse_wrong(self) -> None:
        """Raises PreflightError on all ranks where any copy came out wrong, unless to find that is all they are for."""
        if self.config.preflight == "verify":
            return
        wrong = [self._named(node, a, b) for node, (a, b) in self.findings.wrong()]
        if wrong:
            more = f" and {len(wrong) - 1} more" if len(wrong) > 1 else ""
            raise PreflightError(
                f"copies between {wrong[0]}{more} come out wrong: the function did not begin, and no gang gets both "
                f"again"
            )

    def _named(self, node: int, a: int, b: int) -> str:
        member = self.config.members[node]
        names = [member.gpus[a], member.gpus[b]]
        if node == self.config.node_rank and self.config.equipment:
            ranks = from_text(self.config.equipment).ranks
            names = [ranks[at].gpus[0] if ranks[at].gpus else names[n] for n, at in enumerate((a, b))]
        return f"GPU {names[0]} and GPU {names[1]} of {member.node_id}"


def verify(config: GangConfig, rank: int, device: str) -> Seen:
    """Tries the pairs that the agent asked for, together with all other ranks of the gang. Raises PreflightError."""
    seat = Seat(
        rank=rank,
        node_rank=config.node_rank,
        first_ranks=tuple(member.first_rank for member in config.members),
        ranks=config.member.ranks,
        device=device,
        simulated=config.simulated,
    )
    try:
        copies = GroupCopies(device)
        findings = try_copies(copies, seat, {(a, b): kind for a, b, kind in config.pairs})
        copies.close()
    except RuntimeError as e:
        raise PreflightError(f"copies between the gang's GPUs could not be tried: {e}") from e
    return Seen(config, findings, seat.size_bytes)
