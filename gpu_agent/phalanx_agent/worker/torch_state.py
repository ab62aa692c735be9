"""What user code may set in torch and a later call must not meet: put back after each call. Imports no torch itself.

Default dtype and device, gradients, autocast, determinism, matmul precision, threads, seeds, and groups made beside the
gang's own. Random numbers go on from call to call, as in one program, unless a call seeded them: then torch's
generators are as in a new process. Cached GPU memory is torch's, and stays for the next call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

INFERENCE = "a call left torch.inference_mode on: the gang is not used again"
_SEED = 67280421310721
"""What torch's generators begin with in every process (c10/core/GeneratorImpl.h, default_rng_seed_val)."""
GROUPS = "process groups that a call made could not be destroyed: the gang is not used again"


@dataclass(slots=True)
class _Setting:
    read: Callable[[], Any]
    write: Callable[[Any], None]
    was: Any


class TorchState:
    """A snapshot, and the way back to it. torch is never imported for this: where a call did so first, what a new
    process has is what is gone back to.
    """

    def __init__(self, *, late: bool) -> None:
        torch: Any = sys.modules["torch"]
        self._torch = torch
        self._settings = [
            _Setting(read, write, usual if late else read())
            for read, write, usual in (
                (torch.get_default_dtype, torch.set_default_dtype, torch.float32),
                (torch.is_grad_enabled, torch._C._set_grad_enabled, True),
                (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly, False),
                (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, False),
                (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "highest"),
                (torch.get_num_threads, torch.set_num_threads, torch.get_num_threads()),
                (*_autocast(torch, "cpu"), False),
                (*_autocast(torch, "cuda"), False),
                (_Device(torch).read, torch.set_default_device, None),
                (torch.initial_seed, self._seed, _SEED),
            )
        ]
        self._groups = frozenset[Any]() if late else frozenset(self._known_groups())

    @staticmethod
    def take(*, late: bool = False) -> TorchState | None:
        """Returns None where torch has not been imported."""
        return TorchState(late=late) if hasattr(sys.modules.get("torch"), "get_default_dtype") else None

    def restore(self) -> str:
        """Puts back whatever differs. Returns why the process cannot be used again; "" where it can."""
        if self._torch.is_inference_mode_enabled():
            return INFERENCE
        for each in self._settings:
            if each.read() != each.was:
                each.write(each.was)
        return self._end_groups()

    def _seed(self, seed: int) -> None:
        self._torch.default_generator.manual_seed(seed)
        if self._torch.cuda.is_initialized():
            self._torch.cuda.seed_all()

    def _end_groups(self) -> str:
        """All ranks of a gang made the same groups, and end them here in the same order."""
        made = [group for group in self._known_groups() if group not in self._groups]
        dist: Any = sys.modules.get("torch.distributed")
        for group in made:
            try:
                dist.destroy_process_group(group)
            except (RuntimeError, ValueError, AssertionError):
                return GROUPS
        return ""

    def _known_groups(self) -> list[Any]:
        c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
        return list(c10d._world.pg_map) if c10d is not None else []


def _autocast(torch: Any, device: str) -> tuple[Callable[[], Any], Callable[[Any], None]]:
    return partial(torch.is_autocast_enabled, device), partial(torch.set_autocast_enabled, device)


class _Device:
    """The default device, as `set_default_device` was told it: torch's own question makes a tensor each time."""

    def __init__(self, torch: Any) -> None:
        self._context = torch._GLOBAL_DEVICE_CONTEXT

    def read(self) -> Any:
        mode = getattr(self._context, "device_context", None)
        return None if mode is None else mode.device
