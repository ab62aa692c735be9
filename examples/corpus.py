"""A real corpus that every machine has, the docstrings of the installed Python standard library, and its split."""

from __future__ import annotations

import ast
import heapq
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SKIPPED = frozenset({"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "turtledemo"})
MIN_CHARS = 20


@dataclass(frozen=True, slots=True)
class Document:
    """A docstring and what it belongs to, such as ``heapq.heappush``."""

    name: str
    text: str


def standard_library(limit: int = 0, root: Path | None = None) -> list[Document]:
    """Returns the docstrings below ``root``, without repetitions; at most ``limit``, taken evenly from all of them."""
    root = root or Path(sysconfig.get_paths()["stdlib"])
    seen: set[str] = set()
    found: list[Document] = []
    for path in sorted(root.rglob("*.py")):
        if SKIPPED.isdisjoint(path.relative_to(root).parts):
            found += [doc for doc in docstrings(path, root) if doc.text not in seen and not seen.add(doc.text)]
    if not limit or limit >= len(found):
        return found
    return [found[i * len(found) // limit] for i in range(limit)]


def docstrings(path: Path, root: Path) -> Iterator[Document]:
    """Yields the docstrings of one file; a file that does not parse has none."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return
    module = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
    yield from _below(tree, module)


def _below(node: ast.AST, name: str) -> Iterator[Document]:
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
        text = ast.get_docstring(node)
        if text and len(text) >= MIN_CHARS:
            yield Document(name, text)
        for child in node.body:
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield from _below(child, f"{name}.{child.name}")


def shares(costs: list[int], parts: int) -> list[list[int]]:
    """Splits documents so that the parts cost about the same: the longest first, each to the lightest part."""
    heap = [(0, part) for part in range(parts)]
    out: list[list[int]] = [[] for _ in range(parts)]
    for index in sorted(range(len(costs)), key=lambda i: -costs[i]):
        load, part = heapq.heappop(heap)
        out[part].append(index)
        heapq.heappush(heap, (load + costs[index], part))
    return out


def cost_of(tokens: list[int]) -> int:
    """Estimates a document's cost: its tokens, and something for being there."""
    return len(tokens) + 4
