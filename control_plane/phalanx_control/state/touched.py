"""Which records changed lately: who kept something of an earlier state has to look at no others. It decides nothing."""

from __future__ import annotations

from dataclasses import dataclass

from immutables import Map

KEPT = 4096
_NOTHING: Map[int, Touch] = Map()


@dataclass(frozen=True, slots=True, eq=False)
class Touch:
    """One change. States of which one came from the other share these very objects."""

    id: str


@dataclass(frozen=True, slots=True, eq=False)
class Touched:
    """``count`` changes there were; the newest of them by number. How a state came about makes it no other state."""

    count: int = 0
    newest: Map[int, Touch] = _NOTHING

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Touched)

    __hash__ = None  # pyright: ignore[reportAssignmentType]


def touch(touched: Touched, name: str) -> Touched:
    """Returns ``touched`` after one more change."""
    count = touched.count + 1
    newest = touched.newest.set(count, Touch(name))
    return Touched(count, newest.delete(count - KEPT) if count > KEPT else newest)


def names_since(touched: Touched, older: Touched) -> dict[str, None] | None:
    """Returns what changed since ``older``; None where that is not known: it is too old, or of another history."""
    mark = older.newest.get(older.count)
    if mark is None or touched.newest.get(older.count) is not mark:
        return None
    return dict.fromkeys(touched.newest[at].id for at in range(older.count + 1, touched.count + 1))
