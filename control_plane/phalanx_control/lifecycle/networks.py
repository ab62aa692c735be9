"""What the members of a gang must agree on although each node knows itself only: the network between them. Pure."""

from __future__ import annotations

from functools import lru_cache

from phalanx.core.topology.codec import from_json
from phalanx.core.topology.errors import UnreadableTopologyError
from phalanx.core.topology.networks import disagreement, network_in_words
from phalanx_control.state.model import Gang, State


def networks_differ(state: State, gang: Gang) -> str:
    """Returns why the gang's nodes have only sockets in common; "" where that is not so."""
    if len(gang.members) < 2:
        return ""
    ids = [m.member.node_id for m in gang.members]
    return disagreement({each: _words(state.nodes[each].info.topology) for each in ids if each in state.nodes})


@lru_cache(maxsize=1024)
def _words(topology: str) -> str:
    try:
        return network_in_words(from_json(topology)) if topology else ""
    except UnreadableTopologyError:
        return ""
