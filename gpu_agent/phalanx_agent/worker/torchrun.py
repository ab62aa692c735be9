"""What programs written for torchrun say to a process group that exists already. For ranks; touches only torch.

Such a program makes the default group in its first line and destroys it in its last. In a rank the group stands before
the program begins, and serves the gang's next call after it. Making it is accepted where that asks for what is there,
and refused with the difference otherwise. Destroying it ends the groups that were made beside it, and nothing else.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any


class StandingGroup:
    """Stands in for ``init_process_group`` and ``destroy_process_group`` of this process, from `install` on."""

    def __init__(self) -> None:
        self._c10d: Any = importlib.import_module("torch.distributed.distributed_c10d")
        self._make: Callable[..., Any] = self._c10d.init_process_group
        self._destroy: Callable[..., Any] = self._c10d.destroy_process_group
        self._signature = inspect.signature(self._make)
        self._group: Any = None
        self._backend = ""
        self._device = ""
        self._timeout = timedelta()
        self._pid = 0

    def install(self) -> None:
        """Before user code is loaded: it may take the functions out of their module."""

        @functools.wraps(self._make)
        def make(*args: Any, **kwargs: Any) -> None:
            self._init(*args, **kwargs)

        @functools.wraps(self._destroy)
        def destroy(group: Any = None) -> None:
            self._end(group)

        package: Any = importlib.import_module("torch.distributed")
        for module in (self._c10d, package):
            module.init_process_group = make
            module.destroy_process_group = destroy

    def stands(self, *, backend: str, device: str, timeout: timedelta) -> None:
        """The default group has been made; ``device`` is a torch device's name."""
        self._group = self._c10d.GroupMember.WORLD
        self._backend, self._device = backend, device.partition(":")[0]
        self._timeout = timeout
        self._pid = os.getpid()

    @property
    def _is_here(self) -> bool:
        """Ours is the default group, and this process is the rank, not a child of it."""
        return self._group is not None and self._c10d.GroupMember.WORLD is self._group and os.getpid() == self._pid

    def _init(self, *args: Any, **kwargs: Any) -> None:
        if not self._is_here:
            self._make(*args, **kwargs)
            return
        asked = self._signature.bind(*args, **kwargs).arguments
        difference = self._difference(asked)
        if difference:
            raise ValueError(
                f"the gang's process group is there already, with backend {self._backend!r}, as rank "
                f"{self._group.rank()} of {self._group.size()}, and init_process_group asked for {difference}: leave "
                f"that out, or say it where the function is decorated (gpus=, nodes=, backend=)"
            )
        self._c10d._set_pg_timeout(asked.get("timeout") or self._timeout, self._group)

    def _difference(self, asked: dict[str, Any]) -> str:
        """Returns what was asked for and is not there; "" where there is nothing."""
        backend, method = asked.get("backend"), asked.get("init_method")
        size, rank = asked.get("world_size", -1), asked.get("rank", -1)
        if not offers(self._backend, str(backend or "").lower(), self._device):
            return f"backend {backend!r}"
        if size not in (-1, self._group.size()):
            return f"world_size={size}"
        if rank not in (-1, self._group.rank()):
            return f"rank={rank}"
        if asked.get("store") is not None:
            return "a store of its own"
        return f"init_method={method!r}" if method and not str(method).startswith("env://") else ""

    def _end(self, group: Any) -> None:
        if not self._is_here or (group is not None and group is not self._group):
            self._destroy(group)
            return
        for other in [g for g in self._c10d._world.pg_map if g is not self._group]:
            self._destroy(other)
        self._c10d._set_pg_timeout(self._timeout, self._group)


def offers(backend: str, asked: str, device: str) -> bool:
    """Says whether a group with ``backend`` on ``device`` ("cpu" or "cuda") does what ``asked`` names.

    "" is anything; "cpu:gloo,cuda:nccl" asks by kind of device, of which only those that the rank has count.
    """
    if asked in ("", "undefined", backend):
        return True
    by_device = dict(part.split(":", 1) for part in asked.split(",") if ":" in part)
    has = {"cpu"} if device == "cpu" else {"cpu", device}
    return bool(by_device) and all(by_device.get(kind, backend) == backend for kind in has)
