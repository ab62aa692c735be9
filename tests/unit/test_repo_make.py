"""The Makefile: every command that the documents name exists, and none is mistaken for a folder."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = [
    "demo",
    "test",
    "test-all",
    "test-gpu",
    "chaos",
    "chaos-short",
    "check",
    "protos",
    "ui",
    "dev",
    "dev-cluster",
    "bench",
    "clean",
]
PHONY = set(re.findall(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)[0].split())


@pytest.mark.parametrize("target", TARGETS)
def test_each_command_exists_and_is_phony(target: str) -> None:
    assert target in PHONY
    answer = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=False, timeout=30)
    assert answer.returncode == 0, answer.stderr


@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", "benchmarks/README.md"])
def test_documents_name_only_commands_that_exist(document: str) -> None:
    named = set(re.findall(r"`?make ([a-z][a-z-]*)", (ROOT / document).read_text()))
    assert named <= PHONY | {"sure"}


def test_modules_that_make_runs_exist() -> None:
    for module in re.findall(r"python -m ((?:infra|benchmarks|tests)\.[\w.]+)", MAKEFILE):
        path = ROOT / module.replace(".", "/")
        assert path.with_suffix(".py").exists() or (path / "__main__.py").exists(), module


def test_the_gate_runs_tests_and_checks_and_tells_the_truth() -> None:
    gate = (ROOT / ".ci/run").read_text()
    assert "set -euo pipefail" in gate
    assert "make test" in gate
    assert "make chaos-short" in gate
    assert "make check" in gate
    assert (ROOT / ".ci/run").stat().st_mode & 0o111
