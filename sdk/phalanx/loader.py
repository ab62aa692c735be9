"""Functions to bytes and back, and source bundles onto a worker's disk.

A function that its module offers by name travels as that name, and its source comes in the bundle; everything else
(``__main__``, notebooks, the REPL, closures, lambdas) travels by value. The Python version is written in front and
compared before anything is loaded.
"""

from __future__ import annotations

import importlib
import io
import json
import pickle
import struct
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, cast

from phalanx.bundle import MAX_BUNDLE_BYTES, Bundle, bundle_for
from phalanx.core.errors import PhalanxError, SerializationError, VersionError
from phalanx.core.picklers import Pickler
from phalanx.core.unpicklable import describe_type, locate

__all__ = ["Bundle", "bundle_for", "dump_callable", "load_callable", "python_version", "unpack_bundle"]

_MAGIC = b"PXC1"
_HEAD = struct.Struct("!4sI")
_FIX = (
    "if it is yours, import it at the top of the script so that it is shipped; "
    "if it is a package, add it to env(pip=[...]) of the function"
)


@dataclass(frozen=True, slots=True)
class _Meta:
    """What stands before a callable's pickle. ``module`` is empty for one that travels by value."""

    python: str
    name: str
    module: str = ""


def python_version() -> str:
    """Returns this interpreter's major.minor."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def dump_callable(func: Callable[..., Any], *, owner: object = None) -> bytes:
    """Returns ``func`` as a name or a value. ``owner`` is the handle that wraps it, where its module holds that one.

    Raises SerializationError naming the variable that cannot travel.
    """
    name = getattr(func, "__qualname__", type(func).__qualname__)
    if is_offered_by_name(func, owner):
        return _with_head(_Meta(python_version(), name, func.__module__), b"")
    try:
        payload = _by_value(func)
    except PhalanxError:
        raise
    except Exception as e:
        raise _explained(func, name, e) from e
    return _with_head(_Meta(python_version(), name), payload)


def load_callable(data: bytes, *, bundle_dir: Path | None) -> Callable[..., Any]:
    """Returns the function, ready to call. Puts the bundle in front of ``sys.path``.

    Raises VersionError when another Python minor version wrote it, SerializationError naming a missing module.
    """
    meta, payload = _split(data)
    if meta.python != python_version():
        raise VersionError(
            f"function {meta.name!r} was sent by Python {meta.python} and this worker runs {python_version()}: "
            f"call it from Python {python_version()}, or install {meta.python} on the node"
        )
    if bundle_dir is not None and str(bundle_dir) not in sys.path:
        sys.path.insert(0, str(bundle_dir))
        importlib.invalidate_caches()
    try:
        if meta.module:
            return function_of(meta.module, meta.name)
        return pickle.loads(payload)  # noqa: S301  sent by an authenticated user of the workspace
    except PhalanxError:
        raise
    except ModuleNotFoundError as e:
        raise SerializationError(
            f"function {meta.name!r} needs module {e.name!r}, which this worker does not have", hint=_FIX
        ) from e
    except Exception as e:
        raise SerializationError(f"function {meta.name!r} does not load: {type(e).__name__}: {e}") from e


def unpack_bundle(data: bytes, into: Path) -> None:
    """Writes a bundle's files under ``into``. Raises SerializationError on any name that could leave it."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            entries = archive.infolist()
            if sum(e.file_size for e in entries) > MAX_BUNDLE_BYTES:
                raise SerializationError(f"the bundle unpacks to more than {MAX_BUNDLE_BYTES:,} bytes")
            for entry in entries:
                _write(archive, entry, into)
    except zipfile.BadZipFile as e:
        raise SerializationError(f"the bundle of {len(data):,} bytes is not a zip file: {e}") from e


def _write(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, into: Path) -> None:
    name = PurePosixPath(entry.filename)
    is_link = entry.external_attr >> 28 == 0o12
    if name.is_absolute() or ".." in name.parts or "\\" in entry.filename or is_link or entry.is_dir():
        raise SerializationError(f"the bundle holds a name that is not allowed: {entry.filename!r}")
    target = into.joinpath(*name.parts)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(archive.read(entry))


def is_offered_by_name(func: Callable[..., Any], owner: object) -> bool:
    """Says whether ``func``'s module holds it, or ``owner``, its handle, under its own name."""
    module_name, qualname = getattr(func, "__module__", None), getattr(func, "__qualname__", "")
    if not module_name or module_name in ("__main__", "__mp_main__") or not qualname or "<" in qualname:
        return False
    module = sys.modules.get(module_name)
    if not getattr(module, "__file__", None):
        return False
    found = _attribute(module, qualname)
    return found is func or (owner is not None and found is owner)


def _attribute(module: object, qualname: str) -> object:
    found = module
    for part in qualname.split("."):
        found = getattr(found, part, None)
    return found


def function_of(module: str, name: str) -> Callable[..., Any]:
    """Returns the function itself, where the module holds its handle. Raises SerializationError where it has neither,
    and what importing the module raises."""
    found = _attribute(importlib.import_module(module), name)
    if found is None:
        raise SerializationError(f"module {module!r} has no {name!r} on this worker: its source differs")
    return cast("Callable[..., Any]", getattr(found, "wrapped", found))


def _by_value(func: Callable[..., Any]) -> bytes:
    file = io.BytesIO()
    Pickler(file, buffer_callback=None).dump(func)
    return file.getvalue()


def _with_head(meta: _Meta, payload: bytes) -> bytes:
    text = json.dumps({"python": meta.python, "name": meta.name, "module": meta.module}).encode()
    return _HEAD.pack(_MAGIC, len(text)) + text + payload


def _split(data: bytes) -> tuple[_Meta, memoryview]:
    if len(data) < _HEAD.size or data[:4] != _MAGIC:
        raise SerializationError(f"{len(data)} bytes that are not a Phalanx function: client and server do not fit")
    end = _HEAD.size + _HEAD.unpack_from(data)[1]
    try:
        meta = _Meta(**json.loads(data[_HEAD.size : end]))
    except (TypeError, ValueError) as e:
        raise SerializationError(f"the function's head does not parse: {e}") from e
    return meta, memoryview(data)[end:]


def _explained(func: object, name: str, error: Exception) -> SerializationError:
    def fails(child: object) -> bool:
        try:
            _by_value(cast("Callable[..., Any]", child))
        except Exception:  # noqa: BLE001  user code runs here; any failure marks the element
            return True
        return False

    found = locate(func, f"function {name!r}", fails)
    return SerializationError(
        f"{found.path} cannot travel: {describe_type(found.value)} ({type(error).__name__}: {error})",
        hint="make it inside the function, or pass it as an argument",
    )
