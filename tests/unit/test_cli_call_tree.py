"""The tree that `gpuctl graph` draws."""

from __future__ import annotations

from phalanx.cli.call_tree import branches
from phalanx.core.views import CallView

CHILDREN = {"top": ("a", "b"), "a": ("a1", "a2"), "a1": ("deep",)}


def children_of(call_id: str) -> tuple[CallView, ...]:
    return tuple(CallView(call_id=child, parent=call_id) for child in CHILDREN.get(call_id, ()))


def test_children_stand_below_their_caller_in_order() -> None:
    drawn = [branch.lead + branch.view.call_id for branch in branches(CallView(call_id="top"), children_of)]
    assert drawn == ["top", "├─ a", "│  ├─ a1", "│  │  └─ deep", "│  └─ a2", "└─ b"]


def test_a_call_that_made_none_stands_alone() -> None:
    assert [branch.lead for branch in branches(CallView(call_id="b"), children_of)] == [""]


def test_a_tree_without_end_is_cut() -> None:
    endless = branches(CallView(call_id="x"), lambda call_id: (CallView(call_id=f"{call_id}x"),), limit=5)
    assert len(list(endless)) == 5
