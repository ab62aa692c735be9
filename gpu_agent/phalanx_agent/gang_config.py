"""What one node's part of a gang is made from, as data: written beside the keeper before it starts, read to adopt it.

No I/O here. The JSON holds no secret: no ticket, no token.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from phalanx.core.messages import Member
from phalanx.core.spec import CodeRef, EnvSpec, FunctionSpec, Limits, Resources, Retrying


@dataclass(frozen=True, slots=True, kw_only=True)
class GangConfig:
    """One gang on one node. ``rendezvous`` is host:port of the store that its ranks meet in.

    ``rank_user`` names the unprivileged user that ranks run as; empty means the agent's own.
    """

    gang_id: str
    fence: int
    function_id: str
    function: FunctionSpec
    workspace: str
    user: str
    node_id: str
    members: tuple[Member, ...]
    node_rank: int
    world_size: int
    rendezvous: str
    simulated: bool
    placement: str
    callable_path: str
    bundle_dir: str
    checkpoint_dir: str
    rank_user: str = ""
    networks_differ: str = ""
    """Why its nodes have only plain sockets in common, if so."""
    equipment: str = ""
    """What the ranks get, as `phalanx.core.topology.equipment` writes it."""
    preflight: str = ""
    """Whether the ranks verify copies before user code: a `phalanx_agent.preflight.Mode`, or empty for no."""
    pairs: tuple[tuple[int, int, str], ...] = ()
    """The pairs to try, by local ranks, and what connects each."""

    @property
    def member(self) -> Member:
        """This node's part."""
        return self.members[self.node_rank]

    @property
    def on_gpu(self) -> bool:
        """True where the ranks hold real GPUs."""
        return not self.simulated and bool(self.member.gpus)

    @property
    def all_gpus(self) -> tuple[str, ...]:
        """UUIDs of the whole gang's GPUs in rank order."""
        return tuple(gpu for member in self.members for gpu in member.gpus)


def config_to_json(config: GangConfig) -> str:
    """Writes ``config`` as one JSON object."""
    return json.dumps(asdict(config), sort_keys=True)


def config_from_json(text: str) -> GangConfig:
    """Reads what `config_to_json` wrote. Raises ValueError, KeyError or TypeError on anything else."""
    value: dict[str, Any] = json.loads(text)
    value["function"] = _function(value["function"])
    value["members"] = tuple(_member(m) for m in value["members"])
    value["pairs"] = tuple((int(a), int(b), str(kind)) for a, b, kind in value.get("pairs", ()))
    return GangConfig(**value)


def _member(value: dict[str, Any]) -> Member:
    value["gpus"] = tuple(value["gpus"])
    return Member(**value)


def _function(value: dict[str, Any]) -> FunctionSpec:
    env = value["env"]
    variables = tuple((str(k), str(v)) for k, v in env["variables"])
    value["resources"] = Resources(**value["resources"])
    retrying = Retrying(**value["limits"].pop("retrying", {}))
    value["limits"] = Limits(**value["limits"], retrying=retrying)
    value["env"] = EnvSpec(pip=tuple(env["pip"]), preload=tuple(env["preload"]), variables=variables)
    value["code"] = CodeRef(**value["code"])
    return FunctionSpec(**value)
