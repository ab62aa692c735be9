"""What a gang's ranks got, as text for a terminal. What is the same for several nodes or ranks is said once."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from phalanx.cli.tables import plain_table
from phalanx.core.states import GangState
from phalanx.core.topology.equipment import Equipment, RankEquipment, Variable, from_text
from phalanx.core.topology.errors import UnreadableTopologyError
from phalanx.core.views import GangExplanation, MemberExplanation

COLUMNS = ("RANK", "GPU", "NUMA", "PROCESSORS", "MEMORY", "PORTS")
_NOT_YET = frozenset(
    state.value for state in (GangState.PENDING, GangState.RESERVED, GangState.PREPARING, GangState.STARTING)
)


@dataclass(frozen=True, slots=True)
class Alike:
    """Nodes whose ranks got the same."""

    members: tuple[MemberExplanation, ...]
    equipment: Equipment


def equipment_of(member: MemberExplanation) -> Equipment | None:
    """Returns what a node's ranks got; None where it is not known."""
    try:
        return from_text(member.equipment) if member.equipment else None
    except UnreadableTopologyError:
        return None


def explanation(found: GangExplanation, played: Container[str] = ()) -> Iterator[str]:
    """Yields the nodes of a gang with what their ranks got, and then what is the same on all of them.

    ``played``: nodes on which nothing runs. Those about which there is the same to say share a line.
    """
    known: list[tuple[MemberExplanation, Equipment]] = []
    unknown: dict[str, list[MemberExplanation]] = {}
    for member in found.members:
        equipment = equipment_of(member)
        if equipment is None:
            why = "played: no ranks run there" if member.node_id in played else _why_unknown(found, member)
            unknown.setdefault(why, []).append(member)
        else:
            known.append((member, equipment))
    for why, members in unknown.items():
        yield ""
        yield f"{'; '.join(_headline(member) for member in members)}: {why}"
    common = _common([equipment for _, equipment in known])
    for alike in _grouped(known, common):
        yield from _node(alike)
    if common:
        yield ""
        yield "variables of every rank" + (f" on all {len(known)} nodes" if len(known) > 1 else "")
        yield from _variables(common, "  ")


def _common(equipments: Sequence[Equipment]) -> tuple[Variable, ...]:
    if not equipments:
        return ()
    return tuple(each for each in equipments[0].variables if all(each in other.variables for other in equipments))


def _grouped(known: Sequence[tuple[MemberExplanation, Equipment]], common: Sequence[Variable]) -> Iterable[Alike]:
    """Returns the nodes, those with the same beside what is common together."""
    groups: dict[Equipment, Alike] = {}
    for member, equipment in known:
        own = replace(equipment, variables=tuple(each for each in equipment.variables if each not in common))
        group = groups.get(own)
        groups[own] = Alike((*(group.members if group else ()), member), own)
    return groups.values()


def _why_unknown(found: GangExplanation, member: MemberExplanation) -> str:
    if not member.ranks:
        return f"{_count(len(member.gpus), 'GPU')}; what its ranks got is forgotten with the gang"
    if found.gang.state in _NOT_YET:
        return "its ranks have not started yet"
    if found.gang.state == GangState.DRAINING.value:
        return "what its ranks got is not known: the gang may be ending before they were ready"
    return "its agent has not said what its ranks got: upgrade it"


def _node(alike: Alike) -> Iterator[str]:
    first, equipment = alike.members[0], alike.equipment
    yield ""
    yield _headline(first)
    if len(alike.members) > 1:
        yield f"  the same on {', '.join(_headline(member) for member in alike.members[1:])}"
    rows = [_row(first.first_rank + at, rank) for at, rank in enumerate(equipment.ranks)]
    yield from (f"  {line}" for line in plain_table(COLUMNS, rows))
    yield from _reasons("processors", first.first_rank, [rank.cpus_why for rank in equipment.ranks])
    yield from _reasons("memory", first.first_rank, [rank.memory_why for rank in equipment.ranks])
    yield from _reasons("ports", first.first_rank, [rank.ports_why for rank in equipment.ranks])
    if equipment.variables:
        yield "  variables of its ranks"
        yield from _variables(equipment.variables, "    ")


def _headline(member: MemberExplanation) -> str:
    if not member.ranks:
        return member.node_id
    return f"{member.node_id}, {_ranks(range(member.first_rank, member.first_rank + member.ranks))}"


def _row(rank: int, got: RankEquipment) -> tuple[str, ...]:
    return (
        str(rank),
        ",".join(got.gpus) or "-",
        ",".join(map(str, got.numa)) or "?",
        got.cpus or "any",
        "any" if got.memory_numa is None else f"NUMA {got.memory_numa} first",
        ",".join(got.ports) or "-",
    )


def _reasons(name: str, first: int, reasons: Sequence[str]) -> Iterator[str]:
    by_reason: dict[str, list[int]] = {}
    for at, reason in enumerate(reasons):
        by_reason.setdefault(reason, []).append(first + at)
    for reason, numbers in by_reason.items():
        if reason:
            whose = "" if len(numbers) == len(reasons) else f" of {_ranks(numbers)}"
            yield f"  {name}{whose}: {reason}"


def _variables(variables: Sequence[Variable], indent: str) -> Iterator[str]:
    for each in variables:
        yield f"{indent}{each.name}={each.value}" if each.value else f"{indent}{each.name} (not set)"
        yield f"{indent}    {each.why}"


def _ranks(numbers: Sequence[int]) -> str:
    """``rank 3``, ``ranks 0-7``, ``ranks 0-2,5``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    shown = ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)
    return f"rank{'' if len(numbers) == 1 else 's'} {shown}"


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
