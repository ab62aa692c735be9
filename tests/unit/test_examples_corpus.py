"""The corpus and the split of the embedding example."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

from corpus import Document, shares, standard_library

SOURCE = '''"""What this module is for, in a sentence."""

class Box:
    """Holds things that belong together."""

    def put(self):
        """Puts one more thing into the box."""

def short():
    """Too short."""
'''


@pytest.fixture
def library(tmp_path: Path) -> Path:
    (tmp_path / "box.py").write_text(SOURCE)
    (tmp_path / "copy.py").write_text(SOURCE)
    (tmp_path / "broken.py").write_text("def (:\n")
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "test_box.py").write_text('"""A docstring of a test that nobody looks for."""\n')
    return tmp_path


def test_docstrings_are_found_with_the_names_they_belong_to(library: Path) -> None:
    found = standard_library(root=library)
    assert found[1] == Document("box.Box", "Holds things that belong together.")
    assert [doc.name for doc in found] == ["box", "box.Box", "box.Box.put"]


def test_another_corpus_gives_other_documents(library: Path) -> None:
    (library / "more.py").write_text('"""Something else that is worth finding."""\n')
    assert "more" in [doc.name for doc in standard_library(root=library)]


def test_a_limit_takes_documents_evenly(library: Path) -> None:
    assert [doc.name for doc in standard_library(2, root=library)] == ["box", "box.Box"]


@given(st.lists(st.integers(1, 128), min_size=1, max_size=200), st.integers(1, 8))
def test_shares_hold_every_document_once_and_cost_about_the_same(costs: list[int], parts: int) -> None:
    split = shares(costs, parts)
    loads = [sum(costs[i] for i in share) for share in split]
    assert sorted(i for share in split for i in share) == list(range(len(costs)))
    assert max(loads) - min(loads) <= max(costs)
