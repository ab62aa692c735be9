"""The pickler: cloudpickle, plus the few types that it gets wrong or slow.

Torch CPU tensors travel as one buffer (cloudpickle's default costs 29 copies); functions wrapped by `functools.cache`
and `functools.singledispatch` travel by value where they cannot be imported by name.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import io
import math
import pickle
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, cast

import cloudpickle
from cloudpickle.cloudpickle import (
    _DYNAMIC_CLASS_TRACKER_BY_CLASS,  # pyright: ignore[reportPrivateUsage]
    _code_reduce,  # pyright: ignore[reportPrivateUsage, reportUnknownVariableType]
    _lookup_class_or_track,  # pyright: ignore[reportPrivateUsage]
    _lookup_module_and_qualname,  # pyright: ignore[reportPrivateUsage]
)

HOLDS_TORCH = 1

_ALWAYS_BY_NAME = ("numpy.", "torch.", "phalanx.core.")
"""Packages whose functions and classes are never looked at twice."""
_NAMELESS = "<dynamic-code>"
"""What cloudpickle calls every file."""
_LRU_CACHE_TYPE = type(functools.lru_cache(maxsize=1)(lambda: None))


class Pickler(cloudpickle.Pickler):
    """Writes one value at protocol 5. ``flags`` says afterwards what it holds."""

    def __init__(self, file: io.BytesIO, *, buffer_callback: Callable[[pickle.PickleBuffer], bool] | None) -> None:
        super().__init__(file, protocol=5, buffer_callback=buffer_callback)  # pyright: ignore[reportArgumentType]
        self.flags = 0

    def reducer_override(self, obj: Any) -> Any:
        kind = type(obj)
        if kind is types.CodeType:
            return _reduce_code(obj)
        if kind is types.FunctionType or kind is type:
            if (obj.__module__ or "").startswith(_ALWAYS_BY_NAME):
                return NotImplemented
        elif kind.__module__ == "numpy":
            return NotImplemented
        if isinstance(obj, type) and obj.__module__ == "__main__":
            _name_by_source(obj)
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(obj, getattr(torch, "Tensor", ())):
            self.flags |= HOLDS_TORCH
            return _reduce_tensor(torch, obj)
        if kind is _LRU_CACHE_TYPE and not _importable(obj):
            return _cached, (obj.__wrapped__, obj.cache_parameters())
        if kind is types.FunctionType and hasattr(obj, "registry") and not _importable(obj):
            return _reduce_singledispatch(obj) or super().reducer_override(obj)
        return super().reducer_override(obj)


def dumps_by_value(value: object) -> bytes:
    """Returns ``value`` pickled whole, buffers included: for code, which is small."""
    file = io.BytesIO()
    Pickler(file, buffer_callback=None).dump(value)
    return file.getvalue()


def _reduce_code(code: types.CodeType) -> tuple[Any, ...]:
    """Keeps the name of the file that code came from, so that tracebacks show it and its lines.

    Without its folder: the same program in another place is the same function. What is in no file, as a notebook's
    cell, stays nameless.
    """
    make, arguments = cast("tuple[Any, tuple[Any, ...]]", _code_reduce(code))
    name = _file_name(code.co_filename)
    if name:
        arguments = tuple(name if a == _NAMELESS else a for a in arguments)
    return make, arguments


@functools.lru_cache(maxsize=256)
def _file_name(file: str) -> str:
    return Path(file).name if file.endswith(".py") and Path(file).is_file() else ""


def _name_by_source(cls: type) -> None:
    """Gives a class of the script the same identity in every run of the same source, so that warm gangs are found.

    cloudpickle's own identity is random. Notebooks and classes made inside functions keep that one.
    """
    if cls in _DYNAMIC_CLASS_TRACKER_BY_CLASS or "<locals>" in cls.__qualname__:
        return
    source = _main_source(str(getattr(sys.modules.get("__main__"), "__file__", "")))
    if source:
        name = hashlib.sha256(source + b"\0" + cls.__qualname__.encode()).hexdigest()[:32]
        _lookup_class_or_track(name, cls)


@functools.cache
def _main_source(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:
        return b""


def _importable(obj: Any) -> bool:
    return _lookup_module_and_qualname(obj) is not None


def _cached(function: Callable[..., Any], parameters: dict[str, Any]) -> Any:
    return functools.lru_cache(**parameters)(function)


def _reduce_singledispatch(obj: Any) -> Any:
    registry = getattr(obj, "registry", None)
    if not isinstance(registry, types.MappingProxyType) or object not in registry:
        return None
    others = [(cls, f) for cls, f in registry.items() if cls is not object]  # pyright: ignore[reportUnknownVariableType]
    return _dispatched, (registry[object], others)


def _dispatched(default: Callable[..., Any], others: list[tuple[type, Callable[..., Any]]]) -> Any:
    generic = functools.singledispatch(default)
    for cls, function in others:
        generic.register(cls, function)
    return generic


def _reduce_tensor(torch: Any, tensor: Any) -> Any:
    """One contiguous CPU buffer for plain strided tensors and parameters; torch's own way for all others."""
    kind = type(tensor)
    plain = kind in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
    if not plain or tensor.is_quantized or tensor.device.type == "meta" or "numpy" not in sys.modules:
        return NotImplemented
    flat = tensor.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1)
    memory = pickle.PickleBuffer(flat.view(torch.uint8).numpy())
    state = {k: v for k, v in vars(tensor).items() if k != "phalanx_device"}
    if tensor.device.type != "cpu":
        state["phalanx_device"] = str(tensor.device)
    name = str(tensor.dtype).removeprefix("torch.")
    form = _Form(name, tuple(tensor.shape), tensor.requires_grad, kind is torch.nn.Parameter)
    return _tensor, (memory, form, state)


class _Form(NamedTuple):
    dtype: str
    shape: tuple[int, ...]
    requires_grad: bool
    parameter: bool


def _tensor(memory: Any, form: _Form, state: dict[str, Any]) -> Any:
    """Rebuilds a tensor over ``memory``, or over a copy where that is read-only.

    ``phalanx_device`` in its attributes notes the GPU that it came from.
    """
    torch = importlib.import_module("torch")
    dtype = getattr(torch, form.dtype)
    if math.prod(form.shape):
        source = bytearray(memory) if memoryview(memory).readonly else memory
        tensor = torch.frombuffer(source, dtype=torch.uint8).view(dtype).reshape(form.shape)
    else:
        tensor = torch.empty(form.shape, dtype=dtype)
    if form.parameter:
        tensor = torch.nn.Parameter(tensor, requires_grad=form.requires_grad)
    elif form.requires_grad:
        tensor.requires_grad_()
    vars(tensor).update(state)
    return tensor
