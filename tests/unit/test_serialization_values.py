"""Values survive the envelope, arrays are not copied, and what cannot travel is named."""

from __future__ import annotations

import functools
import mmap
import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from phalanx.core.errors import SerializationError, VersionError
from phalanx.core.serialization import Packed, pack, pack_arguments, unpack, unpack_first


@dataclass
class Held:
    value: object


class Slim:
    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value


def back(value: object) -> Any:
    return unpack(bytearray(pack(value).tobytes()))


class Holder:
    def __init__(self, value: object) -> None:
        self.value = value


@pytest.mark.parametrize("value", [None, {}, {"error": 1}, [], (), 0, "ü", b"\0", {"a": [1, (2.5, {3})]}, float("inf")])
def test_plain_values_come_back_equal(value: object) -> None:
    assert back(value) == value


def test_an_array_is_a_view_of_the_buffer() -> None:
    array = np.arange(100_000, dtype=np.int32)
    buffer = bytearray(pack({"x": array}).tobytes())
    loaded = unpack(buffer)["x"]
    assert np.array_equal(loaded, array)
    assert np.shares_memory(loaded, np.frombuffer(buffer, dtype=np.uint8))
    loaded[0] = 7
    assert loaded.ctypes.data % 4 == 0


def test_buffers_lie_at_multiples_of_64_bytes() -> None:
    packed = pack([np.ones(n) for n in (1000, 1001, 3333)])
    at = 0
    for part in packed.parts:
        if len(part) > 4096:
            assert at % 64 == 0
        at += len(part)
    assert at == packed.nbytes == len(packed.tobytes())


def test_writing_into_memory_gives_the_same_bytes() -> None:
    packed = pack([np.arange(5000.0), "x"])
    memory = mmap.mmap(-1, packed.nbytes)
    with memoryview(memory) as view:
        packed.write_into(view)
    assert memory[: packed.nbytes] == packed.tobytes()


def test_envelopes_one_behind_the_other_are_read_one_by_one() -> None:
    both = pack([np.ones(3000)]).tobytes() + pack("second").tobytes()
    first, length = unpack_first(both)
    assert first[0].sum() == 3000
    assert unpack_first(both[length:])[0] == "second"


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(5000, dtype=torch.bfloat16),
        torch.ones(70, 70, dtype=torch.float16).t()[3:],
        torch.randn(64, 64, dtype=torch.complex64),
        torch.tensor([True, False]),
        torch.tensor(3, dtype=torch.int8),
        torch.empty(0, 4),
        torch.randn(40, 40).to(torch.float8_e4m3fn),
        torch.randn(3, dtype=torch.float64, requires_grad=True),
        torch.randn(3, dtype=torch.cfloat).conj(),
    ],
    ids=lambda t: f"{t.dtype} {tuple(t.shape)}",
)
def test_torch_tensors_come_back_equal(tensor: torch.Tensor) -> None:
    loaded = back({"t": tensor})["t"]
    assert loaded.dtype == tensor.dtype
    assert loaded.shape == tensor.shape
    assert loaded.requires_grad == tensor.requires_grad
    assert torch.equal(loaded.detach().to(torch.complex128), tensor.detach().to(torch.complex128))


def test_parameters_and_modules_keep_their_types() -> None:
    linear = torch.nn.Linear(40, 40)
    linear.weight.requires_grad_(False)
    loaded = back(torch.nn.Sequential(linear, torch.nn.BatchNorm1d(40)))
    assert isinstance(loaded[0].weight, torch.nn.Parameter)
    assert not loaded[0].weight.requires_grad
    assert torch.equal(loaded[0].weight, linear.weight)
    assert loaded[1].num_batches_tracked.dtype == torch.int64


def test_a_tensor_that_is_not_a_leaf_travels_as_one() -> None:
    leaf = torch.ones(3, requires_grad=True)
    loaded = back(leaf * 2)
    assert loaded.is_leaf
    assert loaded.requires_grad


def test_sparse_and_meta_tensors_travel_too() -> None:
    assert torch.equal(back(torch.eye(3).to_sparse()).to_dense(), torch.eye(3))
    assert back(torch.empty(3, 3, device="meta")).device.type == "meta"


def test_a_tensor_over_read_only_memory_is_a_copy_and_may_be_written() -> None:
    data = pack(torch.ones(5000)).tobytes()
    loaded = unpack(data)
    loaded.zero_()
    assert unpack(data).sum() == 5000


def test_a_tensor_over_a_read_only_mapping_may_be_written() -> None:
    packed = pack(torch.ones(5000))
    fd = os.memfd_create("test")
    os.write(fd, packed.tobytes())
    loaded = unpack(memoryview(mmap.mmap(fd, packed.nbytes, prot=mmap.PROT_READ)))
    os.close(fd)
    loaded.add_(1)
    assert loaded.sum() == 10_000


def test_a_tensor_over_writable_memory_is_a_view() -> None:
    buffer = bytearray(pack(torch.ones(5000)).tobytes())
    unpack(buffer).zero_()
    assert unpack(buffer).sum() == 0


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": [0, 1, (i for i in ())]}, 'result["a"][2] cannot travel: a value of type generator'),
        (threading.Lock(), "result cannot travel: a value of type _thread.lock"),
        (Holder({"k": threading.current_thread()}), 'result.value["k"]'),
        ([1, {2: (i for i in ())}], "result[1][2]"),
        (Held((1, threading.Lock())), "result.value[1]"),
        (Slim(threading.Lock()), "result.value cannot travel"),
        (deque([1, threading.Lock()]), "result[1]"),
    ],
)
def test_the_element_that_cannot_travel_is_named(value: object, path: str) -> None:
    with pytest.raises(SerializationError, match="cannot travel") as caught:
        pack(value, what="result")
    assert path in str(caught.value)


def test_a_bad_argument_is_named_by_its_place_or_keyword() -> None:
    with pytest.raises(SerializationError, match=r'argument 2\["k"\] cannot travel'):
        pack_arguments((1, {"k": threading.Lock()}), {})
    with pytest.raises(SerializationError, match="argument lock cannot travel"):
        pack_arguments((1,), {"lock": threading.Lock()})


def test_a_nesting_of_100_000_lists_is_refused_cleanly() -> None:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(SerializationError, match="nested too deeply"):
        pack(value, what="result")
    assert back([1]) == [1]


def test_a_reduce_that_raises_is_a_serialization_error() -> None:
    class Bad:
        def __reduce__(self) -> Any:
            raise RuntimeError("not me")

    with pytest.raises(SerializationError, match="not me"):
        pack([Bad()])


@pytest.mark.parametrize("data", [b"", b"PXE1", b"junk" * 20, pack([np.ones(1000)]).tobytes()[:-8]])
def test_bytes_that_are_no_envelope_are_refused(data: bytes) -> None:
    with pytest.raises(SerializationError):
        unpack(data)


def test_another_python_minor_version_is_told_before_anything_is_loaded() -> None:
    data = bytearray(pack(1).tobytes())
    data[4] += 1
    with pytest.raises(VersionError, match=r"made by Python 3\.\d+ and is read by"):
        unpack(data)


def test_a_module_that_is_missing_here_is_named_with_the_fix(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "far_away.py").write_text("class Thing: pass")
    monkeypatch.syspath_prepend(str(tmp_path))
    thing = __import__("far_away").Thing()
    data = pack([thing, Holder(1)]).tobytes()
    monkeypatch.delitem(sys.modules, "far_away")
    (tmp_path / "far_away.py").unlink()
    with pytest.raises(SerializationError, match=r"module 'far_away' is needed .* env\(pip="):
        unpack(data)


def test_a_reader_without_torch_is_told_so() -> None:
    data = pack(torch.ones(3)).tobytes()
    code = f"import sys; sys.modules['torch'] = None\nfrom phalanx.core.serialization import unpack\nunpack({data!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "holds torch tensors" in done.stderr


def _cached_in_here() -> Callable[..., Any]:
    @functools.lru_cache(maxsize=7)
    def triple(x: int) -> int:
        return 3 * x

    return triple


def test_a_cached_function_that_has_no_importable_name_travels_by_value() -> None:
    loaded = back(_cached_in_here())
    assert loaded(2) == 6
    assert loaded.cache_parameters()["maxsize"] == 7


def test_a_singledispatch_function_that_has_no_importable_name_travels_by_value() -> None:
    @functools.singledispatch
    def kind(_value: object) -> str:
        return "other"

    @kind.register
    def _(_value: int) -> str:
        return "int"

    loaded = back(kind)
    assert (loaded(1), loaded("x")) == ("int", "other")


def test_the_callers_argument_is_not_changed_by_the_callee() -> None:
    original = {"list": [1]}
    (args, _) = unpack(pack_arguments((original,), {}).tobytes())
    args[0]["list"].append(2)
    assert original == {"list": [1]}


def test_packing_holds_views_of_the_callers_memory() -> None:
    array = np.zeros(10_000)
    packed: Packed = pack(array)
    array[0] = 5
    assert unpack(packed.tobytes())[0] == 5
