"""The persistent ordered set under the queue."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from phalanx_control.state import ordered

KEYS = st.lists(st.tuples(st.integers(0, 9), st.text("abc", max_size=3)), unique_by=lambda k: k[1])


def inserted(keys: list[ordered.Key]) -> ordered.Tree | None:
    tree: ordered.Tree | None = None
    for key in keys:
        tree = ordered.insert(tree, key)
    return tree


@given(KEYS)
def test_its_shape_depends_only_on_what_it_holds(keys: list[ordered.Key]) -> None:
    tree = inserted(keys)
    assert tree == inserted(sorted(keys)) == inserted(sorted(keys, reverse=True)) == ordered.build(keys)
    assert list(ordered.in_order(tree)) == sorted(keys)
    assert ordered.size(tree) == len(keys)
    for place, key in enumerate(sorted(keys)):
        assert ordered.rank(tree, key) == place


@given(KEYS, st.data())
def test_what_is_removed_leaves_no_trace(keys: list[ordered.Key], data: st.DataObject) -> None:
    gone = data.draw(st.lists(st.sampled_from(keys), unique=True)) if keys else []
    tree = inserted(keys)
    for key in gone:
        tree = ordered.remove(tree, key)
    assert tree == inserted([k for k in keys if k not in gone])
    assert ordered.remove(tree, (99, "zz")) == tree


def test_a_former_set_is_not_touched() -> None:
    before = inserted([(1, "a"), (2, "b")])
    ordered.insert(before, (0, "c"))
    ordered.remove(before, (1, "a"))
    assert list(ordered.in_order(before)) == [(1, "a"), (2, "b")]
