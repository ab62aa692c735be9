from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Resources(_message.Message):
    __slots__ = ("gpus", "gpu", "cpus", "memory_gb", "nodes", "node", "min_memory_gb", "isolation", "spread", "fabric", "prefer_fabric", "max_gpus")
    GPUS_FIELD_NUMBER: _ClassVar[int]
    GPU_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_GB_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    NODE_FIELD_NUMBER: _ClassVar[int]
    MIN_MEMORY_GB_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    SPREAD_FIELD_NUMBER: _ClassVar[int]
    FABRIC_FIELD_NUMBER: _ClassVar[int]
    PREFER_FABRIC_FIELD_NUMBER: _ClassVar[int]
    MAX_GPUS_FIELD_NUMBER: _ClassVar[int]
    gpus: float
    gpu: str
    cpus: float
    memory_gb: float
    nodes: int
    node: str
    min_memory_gb: float
    isolation: str
    spread: bool
    fabric: str
    prefer_fabric: str
    max_gpus: int
    def __init__(self, gpus: _Optional[float] = ..., gpu: _Optional[str] = ..., cpus: _Optional[float] = ..., memory_gb: _Optional[float] = ..., nodes: _Optional[int] = ..., node: _Optional[str] = ..., min_memory_gb: _Optional[float] = ..., isolation: _Optional[str] = ..., spread: bool = ..., fabric: _Optional[str] = ..., prefer_fabric: _Optional[str] = ..., max_gpus: _Optional[int] = ...) -> None: ...

class Limits(_message.Message):
    __slots__ = ("timeout_s", "startup_timeout_s", "grace_s", "disconnect_grace_s", "scaledown_window_s", "retries", "retrying", "hang_timeout_s", "hold_on_failure_s")
    TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    STARTUP_TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    DISCONNECT_GRACE_S_FIELD_NUMBER: _ClassVar[int]
    SCALEDOWN_WINDOW_S_FIELD_NUMBER: _ClassVar[int]
    RETRIES_FIELD_NUMBER: _ClassVar[int]
    RETRYING_FIELD_NUMBER: _ClassVar[int]
    HANG_TIMEOUT_S_FIELD_NUMBER: _ClassVar[int]
    HOLD_ON_FAILURE_S_FIELD_NUMBER: _ClassVar[int]
    timeout_s: float
    startup_timeout_s: float
    grace_s: float
    disconnect_grace_s: float
    scaledown_window_s: float
    retries: int
    retrying: Retrying
    hang_timeout_s: float
    hold_on_failure_s: float
    def __init__(self, timeout_s: _Optional[float] = ..., startup_timeout_s: _Optional[float] = ..., grace_s: _Optional[float] = ..., disconnect_grace_s: _Optional[float] = ..., scaledown_window_s: _Optional[float] = ..., retries: _Optional[int] = ..., retrying: _Optional[_Union[Retrying, _Mapping]] = ..., hang_timeout_s: _Optional[float] = ..., hold_on_failure_s: _Optional[float] = ...) -> None: ...

class Retrying(_message.Message):
    __slots__ = ("backoff", "initial_delay_s", "max_delay_s", "retry_on")
    BACKOFF_FIELD_NUMBER: _ClassVar[int]
    INITIAL_DELAY_S_FIELD_NUMBER: _ClassVar[int]
    MAX_DELAY_S_FIELD_NUMBER: _ClassVar[int]
    RETRY_ON_FIELD_NUMBER: _ClassVar[int]
    backoff: float
    initial_delay_s: float
    max_delay_s: float
    retry_on: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, backoff: _Optional[float] = ..., initial_delay_s: _Optional[float] = ..., max_delay_s: _Optional[float] = ..., retry_on: _Optional[_Iterable[str]] = ...) -> None: ...

class CallTerms(_message.Message):
    __slots__ = ("own_retries", "retries", "retrying", "deadline_in_ms", "deadline_wall_ms", "idempotency_key", "webhook", "map_id")
    OWN_RETRIES_FIELD_NUMBER: _ClassVar[int]
    RETRIES_FIELD_NUMBER: _ClassVar[int]
    RETRYING_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_IN_MS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_WALL_MS_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    WEBHOOK_FIELD_NUMBER: _ClassVar[int]
    MAP_ID_FIELD_NUMBER: _ClassVar[int]
    own_retries: bool
    retries: int
    retrying: Retrying
    deadline_in_ms: int
    deadline_wall_ms: int
    idempotency_key: str
    webhook: str
    map_id: str
    def __init__(self, own_retries: bool = ..., retries: _Optional[int] = ..., retrying: _Optional[_Union[Retrying, _Mapping]] = ..., deadline_in_ms: _Optional[int] = ..., deadline_wall_ms: _Optional[int] = ..., idempotency_key: _Optional[str] = ..., webhook: _Optional[str] = ..., map_id: _Optional[str] = ...) -> None: ...

class Variable(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: str
    def __init__(self, name: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...

class EnvSpec(_message.Message):
    __slots__ = ("pip", "preload", "variables")
    PIP_FIELD_NUMBER: _ClassVar[int]
    PRELOAD_FIELD_NUMBER: _ClassVar[int]
    VARIABLES_FIELD_NUMBER: _ClassVar[int]
    pip: _containers.RepeatedScalarFieldContainer[str]
    preload: _containers.RepeatedScalarFieldContainer[str]
    variables: _containers.RepeatedCompositeFieldContainer[Variable]
    def __init__(self, pip: _Optional[_Iterable[str]] = ..., preload: _Optional[_Iterable[str]] = ..., variables: _Optional[_Iterable[_Union[Variable, _Mapping]]] = ...) -> None: ...

class CodeRef(_message.Message):
    __slots__ = ("callable_blob", "bundle_blob", "python")
    CALLABLE_BLOB_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_BLOB_FIELD_NUMBER: _ClassVar[int]
    PYTHON_FIELD_NUMBER: _ClassVar[int]
    callable_blob: str
    bundle_blob: str
    python: str
    def __init__(self, callable_blob: _Optional[str] = ..., bundle_blob: _Optional[str] = ..., python: _Optional[str] = ...) -> None: ...

class FunctionSpec(_message.Message):
    __slots__ = ("name", "module", "app", "resources", "limits", "env", "code", "backend", "launch", "returns", "streams", "fresh", "webhook", "priority", "preemptible")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODULE_FIELD_NUMBER: _ClassVar[int]
    APP_FIELD_NUMBER: _ClassVar[int]
    RESOURCES_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    ENV_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    LAUNCH_FIELD_NUMBER: _ClassVar[int]
    RETURNS_FIELD_NUMBER: _ClassVar[int]
    STREAMS_FIELD_NUMBER: _ClassVar[int]
    FRESH_FIELD_NUMBER: _ClassVar[int]
    WEBHOOK_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIBLE_FIELD_NUMBER: _ClassVar[int]
    name: str
    module: str
    app: str
    resources: Resources
    limits: Limits
    env: EnvSpec
    code: CodeRef
    backend: str
    launch: str
    returns: str
    streams: bool
    fresh: bool
    webhook: str
    priority: int
    preemptible: bool
    def __init__(self, name: _Optional[str] = ..., module: _Optional[str] = ..., app: _Optional[str] = ..., resources: _Optional[_Union[Resources, _Mapping]] = ..., limits: _Optional[_Union[Limits, _Mapping]] = ..., env: _Optional[_Union[EnvSpec, _Mapping]] = ..., code: _Optional[_Union[CodeRef, _Mapping]] = ..., backend: _Optional[str] = ..., launch: _Optional[str] = ..., returns: _Optional[str] = ..., streams: bool = ..., fresh: bool = ..., webhook: _Optional[str] = ..., priority: _Optional[int] = ..., preemptible: bool = ...) -> None: ...

class Body(_message.Message):
    __slots__ = ("data", "blob", "size")
    DATA_FIELD_NUMBER: _ClassVar[int]
    BLOB_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    blob: str
    size: int
    def __init__(self, data: _Optional[bytes] = ..., blob: _Optional[str] = ..., size: _Optional[int] = ...) -> None: ...

class RankFailure(_message.Message):
    __slots__ = ("rank", "node_id", "culprit", "exit_code", "signal", "type_name", "message", "traceback", "last_lines")
    RANK_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    CULPRIT_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    TYPE_NAME_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    LAST_LINES_FIELD_NUMBER: _ClassVar[int]
    rank: int
    node_id: str
    culprit: bool
    exit_code: int
    signal: int
    type_name: str
    message: str
    traceback: str
    last_lines: str
    def __init__(self, rank: _Optional[int] = ..., node_id: _Optional[str] = ..., culprit: bool = ..., exit_code: _Optional[int] = ..., signal: _Optional[int] = ..., type_name: _Optional[str] = ..., message: _Optional[str] = ..., traceback: _Optional[str] = ..., last_lines: _Optional[str] = ...) -> None: ...

class ErrorInfo(_message.Message):
    __slots__ = ("cause", "type_name", "message", "traceback", "rank", "node_id", "exit_code", "signal", "pickled", "ranks", "kinds")
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    TYPE_NAME_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    PICKLED_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    cause: str
    type_name: str
    message: str
    traceback: str
    rank: int
    node_id: str
    exit_code: int
    signal: int
    pickled: bytes
    ranks: _containers.RepeatedCompositeFieldContainer[RankFailure]
    kinds: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, cause: _Optional[str] = ..., type_name: _Optional[str] = ..., message: _Optional[str] = ..., traceback: _Optional[str] = ..., rank: _Optional[int] = ..., node_id: _Optional[str] = ..., exit_code: _Optional[int] = ..., signal: _Optional[int] = ..., pickled: _Optional[bytes] = ..., ranks: _Optional[_Iterable[_Union[RankFailure, _Mapping]]] = ..., kinds: _Optional[_Iterable[str]] = ...) -> None: ...

class GpuInfo(_message.Message):
    __slots__ = ("uuid", "index", "model", "memory_bytes", "simulated", "state", "reason", "cordon")
    UUID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    SIMULATED_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CORDON_FIELD_NUMBER: _ClassVar[int]
    uuid: str
    index: int
    model: str
    memory_bytes: int
    simulated: bool
    state: str
    reason: str
    cordon: bool
    def __init__(self, uuid: _Optional[str] = ..., index: _Optional[int] = ..., model: _Optional[str] = ..., memory_bytes: _Optional[int] = ..., simulated: bool = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., cordon: bool = ...) -> None: ...

class BlobChunk(_message.Message):
    __slots__ = ("name", "data")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    name: str
    data: bytes
    def __init__(self, name: _Optional[str] = ..., data: _Optional[bytes] = ...) -> None: ...

class BlobName(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...
