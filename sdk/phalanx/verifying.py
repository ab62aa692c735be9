"""The platform's own function that verifies the links of a node: a gang on its GPUs, made for what its ranks do first.

What they find before the function begins is what it returns; the agent keeps it as well.
"""

from __future__ import annotations

from dataclasses import replace

from phalanx import context
from phalanx.core.spec import EnvSpec
from phalanx.core.topology.verified import Verified
from phalanx.definition import Decorated
from phalanx.function import Function
from phalanx.options import Options, spec_for

_KEPT_WARM_S = 0.1
_ENV = EnvSpec(variables=(("PHALANX_PREFLIGHT", "verify"),))


def found() -> Verified | None:
    """Returns what the ranks of this gang found; None where they looked at nothing."""
    return context.current().verified


def verification(node_id: str, gpus: int) -> Function[[], Verified | None]:
    """Returns the function that verifies the links between this many of a node's GPUs."""
    options = Options(gpus=gpus, env=_ENV, name="verify", scaledown_window=_KEPT_WARM_S)
    spec = spec_for(found, options)
    spec = replace(spec, module="phalanx", resources=replace(spec.resources, node=node_id))
    definition = Decorated(found, spec, owner=None)
    function: Function[[], Verified | None] = Function(definition, found)
    definition.owner = function
    return function
