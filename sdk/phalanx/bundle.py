"""The user's own source files as one deterministic zip, named by its content.

It holds what the program imports by name from outside the standard library and site-packages: the whole top-level
package of every such module, the ``.py`` files beside the script, and what these import from the same folders.
Only ``.py`` files travel.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import sys
import sysconfig
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from phalanx.core.errors import SerializationError

MAX_BUNDLE_BYTES = 64 * 1024 * 1024
_PLATFORM = frozenset({"phalanx", "phalanx_agent", "phalanx_control", "phalanx_proto"})
_EPOCH = (1980, 1, 1, 0, 0, 0)
_IMPORTS = re.compile(rb"^[ \t]*(?:from|import)[ \t]+([A-Za-z_]\w*)(?:[ \t]*,[ \t]*([\w, \t]+))?", re.MULTILINE)
_PACKAGES = ("site-packages", "dist-packages")
_SKIPPED_DIRS = frozenset({"__pycache__", "node_modules", "site-packages", ".venv", "venv", ".git"})


@dataclass(frozen=True, slots=True)
class Bundle:
    """``data`` is a zip whose top belongs on ``sys.path``; empty: nothing to ship."""

    data: bytes

    @property
    def blob(self) -> str:
        """The content name, "" for an empty bundle."""
        return f"sha256:{hashlib.sha256(self.data).hexdigest()}" if self.data else ""


def bundle_for(func: Callable[..., Any]) -> Bundle:
    """Returns the source that ``func`` may import. Raises SerializationError above 64 MiB, naming the largest files."""
    files = _Files()
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] not in _PLATFORM:
            files.add_module(name, module)
    module = sys.modules.get(getattr(func, "__module__", "") or "")
    files.add_siblings(_script_dir(module))
    files.close_over_imports()
    return _zip(files.found)


class _Files:
    """Collects files by the name that they get in the bundle; the first one to claim a name keeps it."""

    def __init__(self) -> None:
        self.found: dict[str, Path] = {}
        self._roots: dict[Path, None] = {}
        self._seen: set[str] = set()
        self._bytes = 0

    def add_module(self, name: str, module: ModuleType) -> None:
        top = name.partition(".")[0]
        path = _source_of(module)
        if path is None or name == "__main__" or top == "__mp_main__":
            return
        root = path.parents[len(name.split(".")) - (0 if path.name == "__init__.py" else 1)]
        self.add_top_level(root, top)

    def add_top_level(self, root: Path, name: str) -> None:
        """Adds ``root/name.py`` or the whole of ``root/name/``."""
        key = f"{root}/{name}"
        if key in self._seen or name in _PLATFORM:
            return
        self._seen.add(key)
        self._roots[root] = None
        if (root / f"{name}.py").is_file():
            self._add(f"{name}.py", root / f"{name}.py")
        for path in _python_files(root / name):
            self._add(path.relative_to(root).as_posix(), path)

    def add_siblings(self, folder: Path | None) -> None:
        if folder is None or _is_installed(str(folder / "x.py")):
            return
        self._roots[folder] = None
        for path in sorted(folder.glob("*.py")):
            if path.is_file() and path.stem not in sys.stdlib_module_names:
                self._add(path.name, path)

    def close_over_imports(self) -> None:
        """Adds packages that the files import, perhaps only inside functions, and that lie in the same folders."""
        done: set[str] = set()
        while todo := [name for name in self.found if name not in done]:
            for name in todo:
                done.add(name)
                for imported in _imported_names(self.found[name]):
                    self._add_imported(imported)

    def _add_imported(self, name: str) -> None:
        if name in sys.stdlib_module_names:
            return
        for root in list(self._roots):
            if (root / name).is_dir() or (root / f"{name}.py").is_file():
                self.add_top_level(root, name)
                return

    def _add(self, name: str, path: Path) -> None:
        if name in self.found:
            return
        self.found[name] = path
        self._bytes += path.stat().st_size
        if self._bytes > MAX_BUNDLE_BYTES:
            raise _too_large(self.found)


def _source_of(module: ModuleType) -> Path | None:
    """Returns the module's own source file when it is the user's."""
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or not file.endswith(".py") or _is_installed(file):
        return None
    path = Path(file)
    return path.resolve() if path.is_file() else None


@lru_cache(maxsize=1 << 14)
def _is_installed(file: str) -> bool:
    """True for what lies in the library or in site-packages: most modules of a program, and they do not move."""
    return _is_in_library(file) or _is_in_library(os.path.realpath(file))


def _is_in_library(file: str) -> bool:
    return file.startswith(_library_dirs()) or any(f"/{packages}/" in file for packages in _PACKAGES)


@lru_cache(maxsize=1)
def _library_dirs() -> tuple[str, ...]:
    paths = sysconfig.get_paths()
    named = {paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib", "scripts")}
    return tuple(f"{folder}/" for folder in sorted(named | {os.path.realpath(folder) for folder in named}))


def _script_dir(module: ModuleType | None) -> Path | None:
    """Returns the folder from which the program imports: that of the function's file, or the current one."""
    main = sys.modules.get("__main__")
    if module is None or module is main or "." not in module.__name__:
        file = getattr(module, "__file__", None) or getattr(main, "__file__", None)
        return Path(file).resolve().parent if isinstance(file, str) else Path.cwd()
    return None


def _python_files(folder: Path) -> Iterator[Path]:
    if not folder.is_dir():
        return
    for path in sorted(folder.iterdir()):
        if path.is_dir() and path.name not in _SKIPPED_DIRS and not path.is_symlink():
            yield from _python_files(path)
        elif path.suffix == ".py" and path.is_file():
            yield path


def _imported_names(path: Path) -> Iterator[str]:
    for match in _IMPORTS.finditer(path.read_bytes()):
        yield match[1].decode()
        for more in (match[2] or b"").split(b","):
            if name := more.strip().partition(b" ")[0]:
                yield name.decode()


def _zip(files: dict[str, Path]) -> Bundle:
    if not files:
        return Bundle(b"")
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for name in sorted(files):
            entry = zipfile.ZipInfo(name, _EPOCH)
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, files[name].read_bytes())
    return Bundle(out.getvalue())


def _too_large(files: dict[str, Path]) -> SerializationError:
    largest = sorted(files.values(), key=lambda p: p.stat().st_size, reverse=True)[:5]
    listed = ", ".join(f"{p} ({p.stat().st_size / 1e6:.1f} MB)" for p in largest)
    return SerializationError(
        f"your source files come to more than {MAX_BUNDLE_BYTES // 2**20} MiB; the largest: {listed}",
        hint="run the script from a folder of its own, or install large packages instead of importing them from there",
    )
