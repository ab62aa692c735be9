"""Who gets how much of the cell, as an admin says: kept or forgotten as a whole."""

from __future__ import annotations

from phalanx.core.errors import VersionError
from phalanx.policy import policy_from_json
from phalanx_control.lifecycle.draft import Draft
from phalanx_control.state import events, schemas
from phalanx_control.state.commands import SetPolicy

_SCHEMA = schemas.SINCE[events.PolicySet]


def set_policy(draft: Draft, command: SetPolicy) -> None:
    """Replaces the policy; the same one again changes nothing.

    Raises InvalidSpecError for what is no policy, VersionError while a replica could not read it.
    """
    policy_from_json(command.policy)
    if command.policy == draft.state.policy:
        return
    if draft.now.schema < _SCHEMA:
        raise VersionError(
            "a replica of this cell is older than this and cannot read a policy", hint="upgrade all replicas first"
        )
    draft.add(events.PolicySet(policy=command.policy))
