"""The README's first program is the example, word for word, and its links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_every_python_snippet_is_an_example_that_runs() -> None:
    examples = {path.read_text() for path in (ROOT / "examples").glob("*.py")}
    snippets = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert snippets
    assert all(snippet in examples for snippet in snippets)


def test_the_sentence_the_program_and_the_command_stand_on_the_first_screen() -> None:
    first_screen = README.splitlines()[:45]
    assert any(line.startswith("```python") for line in first_screen)
    assert any("make demo" in line for line in first_screen)


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "ARCHITECTURE.md", "CHANGELOG.md"])
def test_links_lead_to_files_that_exist(document: str) -> None:
    text = (ROOT / document).read_text()
    for target in re.findall(r"\]\((?!https?://)([^)#]+)\)", text):
        assert (ROOT / target).exists(), target
