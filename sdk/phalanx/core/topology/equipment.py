"""What the ranks of one node get of its topology, as data: variables, processors, memory, ports, each with its reason.

The agent decides it once, before the ranks are forked. The same text goes to the ranks, which set what it says, and to
the control plane, which shows it: what is shown is what was set.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, cast

from phalanx.core.topology.errors import UnreadableTopologyError

MAX_CHARS = 1 << 20
MAX_SHOWN_CHARS = 64 * 1024
"""Of what goes to the control plane."""
_SHOWN_CHARS = 500


@dataclass(frozen=True, slots=True)
class Variable:
    """An environment variable. ``value`` "": it is not set, and ``why`` says who decides instead."""

    name: str
    value: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankEquipment:
    """One rank. ``gpus``: what people call its GPUs on the node, in the order of its devices."""

    gpus: tuple[str, ...] = ()
    numa: tuple[int, ...] = ()
    """NUMA nodes near its GPUs; empty: unknown."""
    cpus: str = ""
    """What it is bound to, as the kernel writes lists; empty: not bound."""
    cpus_why: str = ""
    sharers: int = 1
    """Ranks of the gang that may run on these processors, this one included."""
    memory_numa: int | None = None
    """The NUMA node whose memory it prefers; None: the kernel's choice."""
    memory_why: str = ""
    ports: tuple[str, ...] = ()
    """The network ports that are nearest to it, of those that the gang may use; empty in a gang of one node."""
    ports_why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Equipment:
    """The ranks of one node, by local rank. ``variables`` are the same for all of them: NCCL wants that of a node."""

    ranks: tuple[RankEquipment, ...] = ()
    variables: tuple[Variable, ...] = ()
    topology: str = ""
    """Path of the file that holds the node's topology; empty: unknown."""

    @property
    def environment(self) -> dict[str, str]:
        """The variables that are set."""
        return {each.name: each.value for each in self.variables if each.value}

    def shown(self) -> Equipment:
        """Returns it as people are shown it: long values cut, without what only the ranks need."""
        cut = (replace(each, value=each.value[:_SHOWN_CHARS], why=each.why[:_SHOWN_CHARS]) for each in self.variables)
        return replace(self, variables=tuple(cut), topology="")


def to_text(equipment: Equipment) -> str:
    """Returns one line of JSON, defaults left out."""
    return json.dumps(_plain(equipment), separators=(",", ":"))


def from_text(text: str) -> Equipment:
    """Reads what `to_text` wrote. Raises UnreadableTopologyError on anything else."""
    if len(text) > MAX_CHARS:
        raise UnreadableTopologyError(f"{len(text)} characters: expected {MAX_CHARS} at most")
    try:
        data: dict[str, Any] = json.loads(text)
        ranks = tuple(_rank(each) for each in data.pop("ranks", ()))
        variables = tuple(Variable(*map(_text, each)) for each in data.pop("variables", ()))
        return Equipment(ranks=ranks, variables=variables, topology=_text(data.pop("topology", "")), **data)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise UnreadableTopologyError(f"this is not what ranks get: {str(error)[:100]}") from None


def shown_text(text: str) -> str:
    """Returns what people are shown of a text of `to_text`; "" for none, a broken one, and one that is too long."""
    try:
        shown = to_text(from_text(text).shown()) if text else ""
    except UnreadableTopologyError:
        return ""
    return shown if len(shown) <= MAX_SHOWN_CHARS else ""


def with_own(variables: tuple[Variable, ...], own: dict[str, str], whose: str) -> tuple[Variable, ...]:
    """Returns the variables where ``own`` wins: what ``whose`` ("the function's env") sets itself is kept as it is."""
    ours = {each.name: each for each in variables}
    kept = [each for each in variables if each.name not in own]
    return (*kept, *(_of_theirs(name, own[name], ours.get(name), whose) for name in sorted(own)))


def _of_theirs(name: str, value: str, ours: Variable | None, whose: str) -> Variable:
    instead = f"; the node would have set {ours.value}: {ours.why}" if ours is not None and ours.value else ""
    return Variable(name, value, f"{whose} sets it{instead}")


def _plain(record: Equipment) -> dict[str, Any]:
    made: dict[str, Any] = {}
    if record.ranks:
        made["ranks"] = [_kept(each) for each in record.ranks]
    if record.variables:
        made["variables"] = [[each.name, each.value, each.why] for each in record.variables]
    if record.topology:
        made["topology"] = record.topology
    return made


def _kept(rank: RankEquipment) -> dict[str, Any]:
    values = asdict(rank)
    return {each.name: values[each.name] for each in fields(rank) if values[each.name] != each.default}


def _rank(value: dict[str, Any]) -> RankEquipment:
    made = dict(value)
    for name, of in (("gpus", str), ("numa", int), ("ports", str)):
        made[name] = tuple(_typed(each, of) for each in made.get(name, ()))
    for name in ("cpus", "cpus_why", "memory_why", "ports_why"):
        made[name] = _text(made.get(name, ""))
    _typed(made.get("sharers", 1), int)
    if made.get("memory_numa") is not None:
        _typed(made["memory_numa"], int)
    return RankEquipment(**made)


def _text(value: object) -> str:
    return cast("str", _typed(value, str))


def _typed(value: object, of: type) -> object:
    if not isinstance(value, of) or isinstance(value, bool):
        raise TypeError(f"expected {of.__name__}, not {value!r:.40}")
    return value
