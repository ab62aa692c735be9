"""Values to bytes and back: a versioned envelope around pickle protocol 5 with its buffers kept apart.

    "PXE1" | u8 python minor | u8 flags | u16 0 | u32 buffers | u64 pickle bytes | u64 each buffer's bytes | pickle |
    buffers, each at a multiple of 64 bytes from the start

Array memory is never copied here: `pack` hands out views of it, `unpack` makes views of the buffer it is given.
A view is writable exactly when that buffer is; whoever maps shared memory maps it privately (copy on write), so that
writing in place is safe and stays local. Torch tensors over read-only memory are copied instead, because torch would
write through them. This file never imports torch: it uses it only where the user already has.
"""

from __future__ import annotations

import io
import pickle
import struct
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from phalanx.core.errors import PhalanxError, SerializationError, VersionError
from phalanx.core.exceptions import pack_exception, unpack_exception
from phalanx.core.picklers import HOLDS_TORCH, Pickler
from phalanx.core.unpicklable import describe_type, locate

__all__ = ["Packed", "pack", "pack_arguments", "pack_exception", "unpack", "unpack_exception", "unpack_first"]

Buffer = bytes | bytearray | memoryview

MAGIC = b"PXE1"
ALIGNMENT = 64
INBAND_BYTES = 4096
"""Arrays smaller than this are copied into the pickle: cheaper than a buffer of their own."""

_HEAD = struct.Struct("!4sBBHIQ")
_NO_HEAD = (b"", 0, 0, 0, 0, 0)
_ATOMS = frozenset({int, float, str, bytes, bool, complex, type(None)})
_PLAIN_ITEMS = 32
_PLAIN_DEPTH = 3


@dataclass(slots=True)
class Packed:
    """An envelope in pieces, ready for scatter writes; array memory is still the caller's."""

    parts: list[bytes | memoryview]
    nbytes: int

    def write_into(self, target: memoryview) -> None:
        """Copies the envelope to the start of ``target``, which must hold ``nbytes``."""
        at = 0
        for part in self.parts:
            end = at + len(part)
            target[at:end] = part
            at = end

    def tobytes(self) -> bytes:
        return self.parts[0] if len(self.parts) == 1 and isinstance(self.parts[0], bytes) else b"".join(self.parts)


def pack(value: object, *, what: str = "argument") -> Packed:
    """Puts ``value`` into an envelope. Raises SerializationError naming the type and the path, as ``what["a"][2]``."""
    if _is_plain(value, _PLAIN_DEPTH):
        return _envelope(pickle.dumps(value, protocol=5), [], 0)
    try:
        return _pack(value)
    except PhalanxError:
        raise
    except Exception as e:
        if isinstance(e, RecursionError) or isinstance(e.__cause__, RecursionError):
            raise SerializationError(
                f"{what} is nested too deeply to travel ({describe_type(value)}): flatten it, or send an array"
            ) from e
        raise _explained(value, what, e) from e


def pack_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Packed:
    """Packs the arguments of one call; errors name the argument, as ``argument 2["key"]``."""
    if _are_atoms(args) and (not kwargs or _are_atoms(kwargs.values())):
        return _envelope(pickle.dumps((args, kwargs), protocol=5), [], 0)
    try:
        return pack((args, kwargs))
    except SerializationError:
        for i, value in enumerate(args):
            pack(value, what=f"argument {i + 1}")
        for name, value in kwargs.items():
            pack(value, what=f"argument {name}")
        raise


def unpack(buffer: Buffer) -> Any:
    """Returns the value. Its arrays are views into ``buffer``, which lives as long as they do.

    Raises VersionError when another Python minor version made it, SerializationError when it does not load.
    """
    return unpack_first(buffer)[0]


def unpack_first(buffer: Buffer) -> tuple[Any, int]:
    """Returns the value of the envelope at the start of ``buffer``, and the envelope's length. Raises as `unpack`."""
    minor, flags, pickled, buffers, length = _split(memoryview(buffer))
    if minor != sys.version_info.minor:
        raise VersionError(
            f"this value was made by Python 3.{minor} and is read by Python 3.{sys.version_info.minor}: "
            f"use one minor version on both sides"
        )
    try:
        return pickle.loads(pickled, buffers=buffers), length  # noqa: S301  sent by an authenticated user of the workspace
    except PhalanxError:
        raise
    except Exception as e:
        raise SerializationError(_why_not_loaded(e, flags)) from e


def _pack(value: object) -> Packed:
    buffers: list[memoryview] = []

    def keep_apart(buffer: pickle.PickleBuffer) -> bool:
        raw = buffer.raw()
        if raw.nbytes < INBAND_BYTES:
            return True
        buffers.append(raw)
        return False

    file = io.BytesIO()
    pickler = Pickler(file, buffer_callback=keep_apart)
    pickler.dump(value)
    return _envelope(file.getvalue(), buffers, pickler.flags)


def _envelope(pickled: bytes, buffers: list[memoryview], flags: int) -> Packed:
    head = _HEAD.pack(MAGIC, sys.version_info.minor, flags, 0, len(buffers), len(pickled))
    if not buffers:
        whole = head + pickled
        return Packed([whole], len(whole))
    head += struct.pack(f"!{len(buffers)}Q", *(b.nbytes for b in buffers))
    parts: list[bytes | memoryview] = [head, pickled]
    at = len(head) + len(pickled)
    for buffer in buffers:
        padding = -at % ALIGNMENT
        parts += [bytes(padding), buffer]
        at += padding + buffer.nbytes
    return Packed(parts, at)


def _split(view: memoryview) -> tuple[int, int, memoryview, list[memoryview], int]:
    """Returns python minor, flags, pickle, buffers and length of an envelope."""
    magic, minor, flags, _, count, pickle_bytes = _HEAD.unpack_from(view) if view.nbytes >= _HEAD.size else _NO_HEAD
    if magic != MAGIC:
        raise SerializationError(f"{view.nbytes} bytes that are not a Phalanx envelope: client and server do not fit")
    at = _HEAD.size
    if not count and at + pickle_bytes <= view.nbytes:
        return minor, flags, view[at : at + pickle_bytes], [], at + pickle_bytes
    if at + 8 * count > view.nbytes:
        raise SerializationError(f"the envelope is cut short: {view.nbytes} bytes")
    lengths = struct.unpack_from(f"!{count}Q", view, at)
    at += 8 * count
    pickled = view[at : at + pickle_bytes]
    at += pickle_bytes
    buffers: list[memoryview] = []
    for length in lengths:
        at += -at % ALIGNMENT
        buffers.append(view[at : at + length])
        at += length
    if at > view.nbytes:
        raise SerializationError(f"the envelope is cut short: {view.nbytes} bytes of {at}")
    return minor, flags, pickled, buffers, at


def _are_atoms(values: Iterable[object]) -> bool:
    return all(type(value) in _ATOMS for value in values)


def _is_plain(value: object, depth: int) -> bool:
    """True for small values of built-in types alone, which plain pickle writes faster and just as well."""
    kind = type(value)
    if kind in _ATOMS:
        return True
    if depth == 0 or not isinstance(value, (tuple, list, dict)) or len(value) > _PLAIN_ITEMS:
        return False
    if kind is dict:
        return all(type(k) in _ATOMS and _is_plain(v, depth - 1) for k, v in value.items())  # pyright: ignore[reportAttributeAccessIssue]
    return (kind is tuple or kind is list) and all(_is_plain(item, depth - 1) for item in value)


def _explained(value: object, what: str, error: Exception) -> SerializationError:
    def fails(child: object) -> bool:
        try:
            _pack(child)
        except Exception:  # noqa: BLE001  user code runs here; any failure marks the element
            return True
        return False

    found = locate(value, what, fails)
    return SerializationError(
        f"{found.path} cannot travel: {describe_type(found.value)} ({_first_line(error)})",
        hint="send plain data, arrays or tensors, and open files, locks and connections inside the function",
    )


def _why_not_loaded(error: Exception, flags: int) -> str:
    if isinstance(error, ModuleNotFoundError):
        name = error.name or str(error)
        extra = " (it holds torch tensors)" if flags & HOLDS_TORCH and name.startswith("torch") else ""
        return (
            f"module {name!r} is needed to load this value{extra} and is not installed here: install it on this side, "
            f"or add it to env(pip=[...]) of the function"
        )
    return f"the value does not load: {type(error).__name__}: {_first_line(error)}"


def _first_line(error: Exception) -> str:
    try:
        return (str(error) or type(error).__name__).splitlines()[0][:300]
    except Exception:  # noqa: BLE001  a user's __str__ may raise anything
        return f"<{type(error).__name__} whose str() failed>"
