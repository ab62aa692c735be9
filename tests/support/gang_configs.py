"""Gangs as agents and keepers have them, for tests to which only a few of their fields matter."""

from __future__ import annotations

from phalanx.core.messages import Member
from phalanx.core.spec import FunctionSpec
from phalanx_agent.gang_config import GangConfig


def gang_config(
    function: FunctionSpec,
    *members: Member,
    gang_id: str = "g-1",
    node_rank: int = 0,
    rendezvous: str = "",
    simulated: bool = True,
) -> GangConfig:
    """A gang of ``members``, as the one on node ``node_rank`` has it."""
    return GangConfig(
        gang_id=gang_id,
        fence=1,
        function_id="f-1",
        function=function,
        workspace="w",
        user="u",
        node_id=members[node_rank].node_id,
        members=members,
        node_rank=node_rank,
        world_size=sum(member.ranks for member in members),
        rendezvous=rendezvous,
        simulated=simulated,
        placement="",
        callable_path="",
        bundle_dir="",
        checkpoint_dir="",
    )
