"""A call and the calls that were made from inside it, as a tree. Pure: it asks through a function that it is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from phalanx.core.views import CallView

MAX_CALLS = 1000
"""More than this nobody reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Branch:
    """One call as it is shown: ``lead`` is what is drawn before it."""

    lead: str
    view: CallView


def branches(
    root: CallView, children_of: Callable[[str], tuple[CallView, ...]], *, limit: int = MAX_CALLS
) -> Iterator[Branch]:
    """Yields the tree from the top, children in the order of their submission; ends after ``limit`` calls."""
    left = limit
    waiting = [(root, "", "")]
    while waiting and left:
        view, lead, below = waiting.pop()
        yield Branch(lead=lead, view=view)
        left -= 1
        children = children_of(view.call_id) if left else ()
        waiting += [_drawn(child, below, last=at == len(children) - 1) for at, child in enumerate(children)][::-1]


def _drawn(child: CallView, below: str, *, last: bool) -> tuple[CallView, str, str]:
    return (child, f"{below}└─ ", f"{below}   ") if last else (child, f"{below}├─ ", f"{below}│  ")
