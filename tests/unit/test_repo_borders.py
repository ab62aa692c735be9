"""Borders that a reader may rely on: who imports what. import-linter keeps the rest (`make check`)."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = ("sdk/phalanx", "control_plane/phalanx_control", "gpu_agent/phalanx_agent")


def files(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def imported(path: Path) -> Iterator[str]:
    """Yields every module that the file imports, wherever in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""


def test_the_kernel_imports_the_standard_library_and_cloudpickle_only() -> None:
    allowed = {*sys.stdlib_module_names, "cloudpickle"}
    for path in files("sdk/phalanx/core"):
        for name in imported(path):
            assert name.split(".")[0] in allowed or name.startswith("phalanx.core"), f"{path} imports {name}"


def test_the_control_plane_has_no_way_to_unpickle() -> None:
    banned = {"pickle", "cloudpickle", "_pickle", "shelve", "marshal", "dill", "joblib"}
    for path in files("control_plane/phalanx_control"):
        for name in imported(path):
            assert name.split(".")[0] not in banned, f"{path} imports {name}"
            assert name not in ("phalanx.core.serialization", "phalanx.loader"), f"{path} imports {name}"


def test_torch_is_imported_where_ranks_are_and_nowhere_else() -> None:
    for path in files(*SOURCES):
        if "gpu_agent/phalanx_agent/worker/" in str(path) or "sdk/phalanx/parallel/" in str(path):
            continue
        assert "torch" not in {name.split(".")[0] for name in imported(path)}, path


def test_each_program_and_the_sdk_import_only_downwards() -> None:
    for mine, others in (
        ("sdk/phalanx", {"phalanx_control", "phalanx_agent"}),
        ("control_plane/phalanx_control", {"phalanx_agent"}),
        ("gpu_agent/phalanx_agent", {"phalanx_control"}),
    ):
        for path in files(mine):
            assert not others & {name.split(".")[0] for name in imported(path)}, path


@pytest.mark.parametrize("folder", [*SOURCES, "tests", "examples", "benchmarks"])
def test_no_file_is_longer_than_500_lines(folder: str) -> None:
    for path in files(folder):
        assert len(path.read_text().splitlines()) <= 500, path


def test_every_source_file_says_what_it_is_for() -> None:
    for path in files(*SOURCES):
        text = path.read_text()
        assert not text.strip() or ast.get_docstring(ast.parse(text)), f"{path} has no module docstring"
