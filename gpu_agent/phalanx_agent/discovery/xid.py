"""Listens to XIDs in a thread of its own: waiting for events blocks, and a GPU that falls off the bus may hang NVML.

Each GPU is registered by itself. One that refuses is asked again now and then; the others are listened to meanwhile.
The thread is a daemon: the process ends without it where NVML does not return.
"""

from __future__ import annotations

import ctypes
import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import pynvml

from phalanx_agent.discovery.answers import ask

log = logging.getLogger(__name__)

WAIT_MS = 500
_AGAIN_S = 10.0
_SAME_S = 1.0
"""A broken program reports one error thousands of times."""
_EVENTS = int(pynvml.nvmlEventTypeXidCriticalError)


class XidThread(threading.Thread):
    """``uuids``: the GPUs to listen to, asked again and again; ``tell`` is called in this thread."""

    def __init__(self, uuids: Callable[[], Sequence[str]], tell: Callable[[str, int], None]) -> None:
        super().__init__(name="xids", daemon=True)
        self._uuids = uuids
        self._tell = tell
        self._over = threading.Event()
        self._by_handle: dict[int | None, str] = {}
        self._refused: set[str] = set()
        self._deaf = ""
        self._told: dict[tuple[str, int], float] = {}

    def end(self) -> None:
        """Ends the thread within a wait."""
        self._over.set()

    def run(self) -> None:
        while not self._over.is_set():
            try:
                events = pynvml.nvmlEventSetCreate()
            except pynvml.NVMLError_NotSupported:  # pyright: ignore[reportAttributeAccessIssue]  made when imported
                log.warning("XIDs cannot be listened to: this driver makes no event sets")
                return
            except pynvml.NVMLError as e:
                self._complain(str(e))
            else:
                try:
                    self._listen(events)
                finally:
                    ask(lambda events=events: pynvml.nvmlEventSetFree(events), None)
            self._over.wait(_SAME_S)

    def _complain(self, reason: str) -> None:
        """Says once that XIDs are not heard for a reason: it is tried again every second."""
        if reason != self._deaf:
            log.warning("XIDs are not heard for now", extra={"reason": reason})
        self._deaf = reason

    def _listen(self, events: Any) -> None:
        """Returns where waiting fails, as it does when a GPU is lost: a new set listens to those that are left."""
        self._by_handle.clear()
        asked = float("-inf")
        while not self._over.is_set():
            if time.monotonic() - asked > _AGAIN_S:
                self._register(events)
                asked = time.monotonic()
            if not self._by_handle:
                self._over.wait(WAIT_MS / 1000)
                continue
            try:
                event = pynvml.nvmlEventSetWait_v2(events, WAIT_MS)
            except pynvml.NVMLError_Timeout:  # pyright: ignore[reportAttributeAccessIssue]  made when imported
                self._deaf = ""
                continue
            except pynvml.NVMLError as e:
                self._complain(str(e))
                return
            self._deaf = ""
            self._heard(event)

    def _register(self, events: Any) -> None:
        known = set(self._by_handle.values())
        for uuid in self._uuids():
            if uuid in known:
                continue
            try:
                handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
                pynvml.nvmlDeviceRegisterEvents(handle, _EVENTS, events)
            except pynvml.NVMLError as e:
                if uuid not in self._refused:
                    log.warning("no XIDs of this GPU", extra={"gpu": uuid, "reason": str(e)})
                self._refused.add(uuid)
                continue
            self._refused.discard(uuid)
            self._by_handle[_address(handle)] = uuid

    def _heard(self, event: Any) -> None:
        uuid = self._by_handle.get(_address(event.device))
        if uuid is None or event.eventType != _EVENTS:
            return
        key = (uuid, int(event.eventData))
        now = time.monotonic()
        if now - self._told.get(key, float("-inf")) > _SAME_S:
            self._told[key] = now
            self._tell(*key)


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
