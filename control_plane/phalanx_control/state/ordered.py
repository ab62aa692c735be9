"""A persistent ordered set of (time, id) keys: who waits, and who ended first. It decides nothing.

A treap whose priorities are hashes of the ids: its shape depends only on what it holds, never on how it came to hold
it, so that two states with equal contents compare equal. Insertion, removal and rank cost O(log n) and share the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b

import msgspec

Key = tuple[int, str]


class Tree(msgspec.Struct, frozen=True, gc=False):
    """One node and everything below it; ``None`` is the empty set."""

    key: Key
    priority: int
    size: int
    left: Tree | None
    right: Tree | None


def size(tree: Tree | None) -> int:
    """Returns how many keys it holds."""
    return tree.size if tree is not None else 0


def insert(tree: Tree | None, key: Key) -> Tree:
    """Returns the set with ``key``, which must not be in it."""
    left, right = _split(tree, key)
    leaf = Tree(key, _priority(key), 1, None, None)
    merged = _merge(_merge(left, leaf), right)
    assert merged is not None
    return merged


def remove(tree: Tree | None, key: Key) -> Tree | None:
    """Returns the set without ``key``; the same set when it does not hold it."""
    if tree is None:
        return None
    if key == tree.key:
        return _merge(tree.left, tree.right)
    if key < tree.key:
        return _node(tree, remove(tree.left, key), tree.right)
    return _node(tree, tree.left, remove(tree.right, key))


def rank(tree: Tree | None, key: Key) -> int:
    """Returns how many keys come before ``key``."""
    before = 0
    while tree is not None:
        if key <= tree.key:
            tree = tree.left
        else:
            before += size(tree.left) + 1
            tree = tree.right
    return before


def in_order(tree: Tree | None) -> Iterator[Key]:
    """Yields the keys from the smallest, lazily: the first k cost O(k + log n)."""
    path: list[Tree] = []
    while tree is not None or path:
        while tree is not None:
            path.append(tree)
            tree = tree.left
        top = path.pop()
        yield top.key
        tree = top.right


def build(keys: Iterable[Key]) -> Tree | None:
    """Returns the set of ``keys``, in any order, without repetitions."""
    ordered = sorted(keys)
    return _build(ordered, [_priority(key) for key in ordered])


def _build(keys: list[Key], priorities: list[int]) -> Tree | None:
    """Cartesian tree in one pass: the stack is the right spine, with each node's left part already finished."""
    spine: list[tuple[Key, int, Tree | None]] = []
    for key, priority in zip(keys, priorities, strict=True):
        left: Tree | None = None
        while spine and spine[-1][1] < priority:
            left = _close(spine.pop(), left)
        spine.append((key, priority, left))
    tree: Tree | None = None
    while spine:
        tree = _close(spine.pop(), tree)
    return tree


def _close(open_node: tuple[Key, int, Tree | None], right: Tree | None) -> Tree:
    key, priority, left = open_node
    return Tree(key, priority, size(left) + size(right) + 1, left, right)


def _node(tree: Tree, left: Tree | None, right: Tree | None) -> Tree:
    return Tree(tree.key, tree.priority, size(left) + size(right) + 1, left, right)


def _merge(left: Tree | None, right: Tree | None) -> Tree | None:
    """Joins two sets, every key of ``left`` being smaller."""
    if left is None:
        return right
    if right is None:
        return left
    if left.priority > right.priority:
        return _node(left, left.left, _merge(left.right, right))
    return _node(right, _merge(left, right.left), right.right)


def _split(tree: Tree | None, key: Key) -> tuple[Tree | None, Tree | None]:
    if tree is None:
        return None, None
    if tree.key < key:
        low, high = _split(tree.right, key)
        return _node(tree, tree.left, low), high
    low, high = _split(tree.left, key)
    return low, _node(tree, high, tree.right)


def _priority(key: Key) -> int:
    return int.from_bytes(blake2b(key[1].encode(), digest_size=8).digest(), "big")
