"""The network between the cell's nodes, as an admin describes it: kept or forgotten as a whole."""

from __future__ import annotations

from phalanx.core.errors import VersionError
from phalanx.core.topology.fabric_codec import fabric_from_json, within_limits
from phalanx_control.lifecycle.draft import Draft
from phalanx_control.state import events, schemas
from phalanx_control.state.commands import SetFabric

FABRIC_SCHEMA = schemas.SINCE[events.FabricSet]


def set_fabric(draft: Draft, command: SetFabric) -> None:
    """Replaces the fabric; the same one again changes nothing.

    Raises InvalidSpecError for what is too large or no fabric, VersionError while a replica could not read it.
    """
    if command.fabric:
        fabric_from_json(within_limits(command.fabric))
    if command.fabric == draft.state.fabric:
        return
    if draft.now.schema < FABRIC_SCHEMA:
        raise VersionError(
            "a replica of this cell is older than this and cannot read a fabric", hint="upgrade all replicas first"
        )
    draft.add(events.FabricSet(fabric=command.fabric))
