"""Every error that Phalanx raises, as one tree. What happened, with which value, what to do next.

PhalanxError
├── InvalidSpecError            wrong use of the decorator or of a name   (also ValueError)
├── NotBuiltError               an option that does not exist yet          (also NotImplementedError)
├── SerializationError          a value that cannot travel                 (also TypeError)
├── ConnectionFailedError       the control plane or an agent is not reachable  (also ConnectionError)
├── AuthError                   no token, a wrong one, or not allowed      (also PermissionError)
├── NotFoundError               no such call, function or app              (also LookupError)
├── UnschedulableError          no node could ever run it
├── NoBlobStoreError            a value too large for this installation
├── VersionError                client and server, or two Pythons, do not fit
├── GetTimeoutError             `Call.get(timeout)` gave up; the call goes on  (also TimeoutError)
├── CostLimitError              a map reached its ``max_cost``; has .remainder, the inputs that were not run
└── CallError                   the call ended without a result; has .call_id .attempt .rank .remote_traceback
    ├── RemoteError             user code raised; the user's own type is raised where it can be
    ├── RankDiedError           a rank ended by signal, exit or out-of-memory
    ├── CallTimeoutError        the function's own time limit               (also TimeoutError)
    ├── GangStartError          its gang could not be made ready: no rank ran the function
    ├── GangHangError           nothing went on for its ``hang_timeout``   (also TimeoutError)
    ├── CallCancelledError
    ├── OutOfMemoryError        a limit or the machine's memory was reached (also MemoryError)
    ├── PoisonError             it ended three gangs
    └── OutcomeUnknownError     the agent was lost and retries are off: it may have run
"""

from __future__ import annotations


class PhalanxError(Exception):
    """The root. ``code`` is stable and printed by the CLI; ``hint`` is the next step."""

    code = "PHALANX"
    hint = ""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        if hint:
            self.hint = hint
        if self.hint:
            self.add_note(f"hint: {self.hint}")


class InvalidSpecError(PhalanxError, ValueError):
    code = "INVALID-SPEC"


class NotBuiltError(PhalanxError, NotImplementedError):
    code = "NOT-BUILT"


class SerializationError(PhalanxError, TypeError):
    code = "SERIALIZATION"


class ConnectionFailedError(PhalanxError, ConnectionError):
    code = "UNREACHABLE"
    hint = "gpuctl status"


class AuthError(PhalanxError, PermissionError):
    code = "AUTH"
    hint = "set PHALANX_TOKEN, or run `gpuctl up` on this machine"


class NotFoundError(PhalanxError, LookupError):
    code = "NOT-FOUND"


class NotNowError(NotFoundError):
    """It is there, and in a state in which this cannot be asked of it."""

    code = "NOT-NOW"


class UnschedulableError(PhalanxError):
    code = "GANG-UNSCHEDULABLE"
    hint = "gpuctl nodes"


class NoBlobStoreError(PhalanxError):
    code = "NO-BLOB-STORE"


class VersionError(PhalanxError):
    code = "VERSION"


class GetTimeoutError(PhalanxError, TimeoutError):
    code = "GET-TIMEOUT"


class CostLimitError(PhalanxError):
    """A map stopped before its ``max_cost``; every call that it made has ended, and its value was yielded.

    ``remainder``: an iterator of the inputs that were not run, asynchronous where the inputs were; another map over it
    runs exactly these. ``spent``: a Decimal.
    """

    code = "COST-LIMIT"

    def __init__(self, message: str, *, remainder: object = (), spent: object = 0, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.remainder = remainder
        self.spent = spent


class CallError(PhalanxError):
    """A call that ended without a result."""

    code = "CALL-FAILED"

    def __init__(
        self,
        message: str,
        *,
        call_id: str = "",
        attempt: int = 0,
        rank: int = -1,
        remote_traceback: str = "",
        hint: str = "",
    ) -> None:
        super().__init__(message, hint=hint)
        self.call_id = call_id
        self.attempt = attempt
        self.rank = rank
        self.remote_traceback = remote_traceback


class RemoteError(CallError):
    """User code raised a type that could not travel; ``type_name`` says which."""

    code = "REMOTE-EXCEPTION"
    type_name = ""


class RankDiedError(CallError):
    code = "RANK-DIED"


TIME_PASSED = "the call's time limit passed"
"""How a timeout is told by who does not know the limit; whoever does says it instead."""


class CallTimeoutError(CallError, TimeoutError):
    code = "CALL-TIMEOUT"


class GangStartError(CallError):
    code = "GANG-START"


class GangHangError(CallError, TimeoutError):
    code = "GANG-HANG"


class CallCancelledError(CallError):
    code = "CALL-CANCELLED"


class OutOfMemoryError(CallError, MemoryError):
    code = "OUT-OF-MEMORY"


class PoisonError(CallError):
    code = "POISON"


class OutcomeUnknownError(CallError):
    code = "OUTCOME-UNKNOWN"
