"""What this replica says of itself."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from phalanx.core.views import ServerInfo
from phalanx_control.service.blob_reach import BlobReach
from phalanx_control.service.ports import ControllerPort


def program_version() -> str:
    """Returns the installed version of phalanx."""
    try:
        return version("phalanx")
    except PackageNotFoundError:
        return "0"


@dataclass(frozen=True, slots=True, kw_only=True)
class AboutServer:
    """Knows what does not change while the replica runs, and asks for the rest."""

    controller: ControllerPort
    reach: BlobReach
    cell: str
    page: str
    started_wall_ms: int

    def view(self) -> ServerInfo:
        state = self.controller.state
        simulated = any(gpu.simulated for node in state.nodes.values() for gpu in node.info.gpus)
        return ServerInfo(
            version=program_version(),
            cell=self.cell,
            role="leader" if self.controller.is_leader else "standby",
            leader_id=self.controller.leader_id if self.controller.is_leader else self.controller.leader_address,
            epoch=state.epoch,
            log_seq=state.seq,
            page=self.page,
            simulated_gpus=simulated,
            has_shared_blobs=self.reach.shared,
            started_ms=self.started_wall_ms,
        )
