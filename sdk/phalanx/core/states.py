"""The states of a call, a gang, a GPU and a node, and why an attempt ended.

    call   ACCEPTED -> QUEUED -> ASSIGNED -> RUNNING -> SUCCEEDED | FAILED | TIMED_OUT
           any live state -> CANCELLING -> CANCELLED
    gang   PENDING -> RESERVED -> PREPARING -> STARTING -> READY <-> BUSY -> DRAINING -> RELEASED | LOST
    gpu    FREE -> RESERVED -> HELD -> CLEANING -> FREE | QUARANTINED | EXTERNAL
    node   READY -> CORDONED -> DRAINING -> READY | SUSPECT -> LOST

Terminal states are final. The values are what users see in the CLI, in JSON and on the page.
"""

from __future__ import annotations

from enum import StrEnum


class CallState(StrEnum):
    ACCEPTED = "accepted"
    QUEUED = "queued"
    ASSIGNED = "assigned"
    RUNNING = "running"
    CANCELLING = "cancelling"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"

    @property
    def terminal(self) -> bool:
        return self in _TERMINAL_CALLS


_TERMINAL_CALLS = frozenset({CallState.SUCCEEDED, CallState.FAILED, CallState.TIMED_OUT, CallState.CANCELLED})


class GangState(StrEnum):
    PENDING = "pending"
    RESERVED = "reserved"
    PREPARING = "preparing"
    STARTING = "starting"
    READY = "ready"
    BUSY = "busy"
    DRAINING = "draining"
    RELEASED = "released"
    LOST = "lost"

    @property
    def terminal(self) -> bool:
        return self in (GangState.RELEASED, GangState.LOST)


class GpuState(StrEnum):
    FREE = "free"
    RESERVED = "reserved"
    HELD = "held"
    CLEANING = "cleaning"
    QUARANTINED = "quarantined"
    EXTERNAL = "external"
    DOWN = "down"


class NodeState(StrEnum):
    READY = "ready"
    CORDONED = "cordoned"
    DRAINING = "draining"
    SUSPECT = "suspect"
    LOST = "lost"


class Phase(StrEnum):
    """What a leased GPU is doing; the price book says which phases are charged."""

    PREPARE = "prepare"
    START = "start"
    CONTEXT = "context"
    BUSY = "busy"
    IDLE_WARM = "idle_warm"
    DEBUG = "debug"
    TEARDOWN = "teardown"


class Cause(StrEnum):
    """Why an attempt did not succeed. Retries are counted by cause; only the first four eat the user's."""

    USER_EXCEPTION = "user_exception"
    OUT_OF_MEMORY = "out_of_memory"
    TIMEOUT = "timeout"
    HANG = "hang"
    INFRASTRUCTURE = "infrastructure"
    PREEMPTED = "preempted"
    POISON = "poison"
    CANCELLED = "cancelled"

    @property
    def eats_user_retries(self) -> bool:
        return self in (Cause.USER_EXCEPTION, Cause.OUT_OF_MEMORY, Cause.TIMEOUT, Cause.HANG)


class Outcome(StrEnum):
    """How one attempt ended, as the lead agent reports it."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    CANCELLED = "cancelled"
