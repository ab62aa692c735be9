from phalanx_proto.v1 import common_pb2 as _common_pb2
from phalanx_proto.v1 import agent_pb2 as _agent_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Empty(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ServerInfo(_message.Message):
    __slots__ = ("version", "cell", "role", "leader_id", "epoch", "log_seq", "page", "simulated_gpus", "has_shared_blobs", "started_ms")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CELL_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    LEADER_ID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    LOG_SEQ_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    SIMULATED_GPUS_FIELD_NUMBER: _ClassVar[int]
    HAS_SHARED_BLOBS_FIELD_NUMBER: _ClassVar[int]
    STARTED_MS_FIELD_NUMBER: _ClassVar[int]
    version: str
    cell: str
    role: str
    leader_id: str
    epoch: int
    log_seq: int
    page: str
    simulated_gpus: bool
    has_shared_blobs: bool
    started_ms: int
    def __init__(self, version: _Optional[str] = ..., cell: _Optional[str] = ..., role: _Optional[str] = ..., leader_id: _Optional[str] = ..., epoch: _Optional[int] = ..., log_seq: _Optional[int] = ..., page: _Optional[str] = ..., simulated_gpus: bool = ..., has_shared_blobs: bool = ..., started_ms: _Optional[int] = ...) -> None: ...

class BlobNames(_message.Message):
    __slots__ = ("names",)
    NAMES_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, names: _Optional[_Iterable[str]] = ...) -> None: ...

class RegisterFunctionRequest(_message.Message):
    __slots__ = ("function",)
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    function: _common_pb2.FunctionSpec
    def __init__(self, function: _Optional[_Union[_common_pb2.FunctionSpec, _Mapping]] = ...) -> None: ...

class RegisterFunctionResponse(_message.Message):
    __slots__ = ("function_id",)
    FUNCTION_ID_FIELD_NUMBER: _ClassVar[int]
    function_id: str
    def __init__(self, function_id: _Optional[str] = ...) -> None: ...

class DeployAppRequest(_message.Message):
    __slots__ = ("app", "functions")
    APP_FIELD_NUMBER: _ClassVar[int]
    FUNCTIONS_FIELD_NUMBER: _ClassVar[int]
    app: str
    functions: _containers.RepeatedCompositeFieldContainer[_common_pb2.FunctionSpec]
    def __init__(self, app: _Optional[str] = ..., functions: _Optional[_Iterable[_Union[_common_pb2.FunctionSpec, _Mapping]]] = ...) -> None: ...

class DeployAppResponse(_message.Message):
    __slots__ = ("version", "functions")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FUNCTIONS_FIELD_NUMBER: _ClassVar[int]
    version: int
    functions: _containers.RepeatedCompositeFieldContainer[FunctionView]
    def __init__(self, version: _Optional[int] = ..., functions: _Optional[_Iterable[_Union[FunctionView, _Mapping]]] = ...) -> None: ...

class ResolveFunctionRequest(_message.Message):
    __slots__ = ("app", "name")
    APP_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    app: str
    name: str
    def __init__(self, app: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class ResolvedFunction(_message.Message):
    __slots__ = ("view", "function")
    VIEW_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    view: FunctionView
    function: _common_pb2.FunctionSpec
    def __init__(self, view: _Optional[_Union[FunctionView, _Mapping]] = ..., function: _Optional[_Union[_common_pb2.FunctionSpec, _Mapping]] = ...) -> None: ...

class FunctionView(_message.Message):
    __slots__ = ("app", "name", "version", "function_id", "deployed_ms", "calls")
    APP_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_ID_FIELD_NUMBER: _ClassVar[int]
    DEPLOYED_MS_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    app: str
    name: str
    version: int
    function_id: str
    deployed_ms: int
    calls: int
    def __init__(self, app: _Optional[str] = ..., name: _Optional[str] = ..., version: _Optional[int] = ..., function_id: _Optional[str] = ..., deployed_ms: _Optional[int] = ..., calls: _Optional[int] = ...) -> None: ...

class SubmitCallRequest(_message.Message):
    __slots__ = ("call_id", "function_id", "args", "timeout_ms", "terms", "parent")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_ID_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    TERMS_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    call_id: str
    function_id: str
    args: _common_pb2.Body
    timeout_ms: int
    terms: _common_pb2.CallTerms
    parent: str
    def __init__(self, call_id: _Optional[str] = ..., function_id: _Optional[str] = ..., args: _Optional[_Union[_common_pb2.Body, _Mapping]] = ..., timeout_ms: _Optional[int] = ..., terms: _Optional[_Union[_common_pb2.CallTerms, _Mapping]] = ..., parent: _Optional[str] = ...) -> None: ...

class SubmitCallResponse(_message.Message):
    __slots__ = ("log_seq", "state", "call_id")
    LOG_SEQ_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    log_seq: int
    state: str
    call_id: str
    def __init__(self, log_seq: _Optional[int] = ..., state: _Optional[str] = ..., call_id: _Optional[str] = ...) -> None: ...

class CallId(_message.Message):
    __slots__ = ("call_id",)
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    call_id: str
    def __init__(self, call_id: _Optional[str] = ...) -> None: ...

class CallIds(_message.Message):
    __slots__ = ("call_ids",)
    CALL_IDS_FIELD_NUMBER: _ClassVar[int]
    call_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, call_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class CallStates(_message.Message):
    __slots__ = ("states",)
    STATES_FIELD_NUMBER: _ClassVar[int]
    states: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, states: _Optional[_Iterable[str]] = ...) -> None: ...

class ListCallsRequest(_message.Message):
    __slots__ = ("state", "function", "limit", "all", "parent")
    STATE_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    state: str
    function: str
    limit: int
    all: bool
    parent: str
    def __init__(self, state: _Optional[str] = ..., function: _Optional[str] = ..., limit: _Optional[int] = ..., all: bool = ..., parent: _Optional[str] = ...) -> None: ...

class CallList(_message.Message):
    __slots__ = ("calls",)
    CALLS_FIELD_NUMBER: _ClassVar[int]
    calls: _containers.RepeatedCompositeFieldContainer[CallView]
    def __init__(self, calls: _Optional[_Iterable[_Union[CallView, _Mapping]]] = ...) -> None: ...

class PhaseCost(_message.Message):
    __slots__ = ("phase", "gpu_ms", "charged", "money")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    GPU_MS_FIELD_NUMBER: _ClassVar[int]
    CHARGED_FIELD_NUMBER: _ClassVar[int]
    MONEY_FIELD_NUMBER: _ClassVar[int]
    phase: str
    gpu_ms: int
    charged: bool
    money: str
    def __init__(self, phase: _Optional[str] = ..., gpu_ms: _Optional[int] = ..., charged: bool = ..., money: _Optional[str] = ...) -> None: ...

class CostView(_message.Message):
    __slots__ = ("phases", "gpu_ms", "money", "credit", "currency", "price_per_gpu_hour", "subject")
    PHASES_FIELD_NUMBER: _ClassVar[int]
    GPU_MS_FIELD_NUMBER: _ClassVar[int]
    MONEY_FIELD_NUMBER: _ClassVar[int]
    CREDIT_FIELD_NUMBER: _ClassVar[int]
    CURRENCY_FIELD_NUMBER: _ClassVar[int]
    PRICE_PER_GPU_HOUR_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    phases: _containers.RepeatedCompositeFieldContainer[PhaseCost]
    gpu_ms: int
    money: str
    credit: str
    currency: str
    price_per_gpu_hour: str
    subject: str
    def __init__(self, phases: _Optional[_Iterable[_Union[PhaseCost, _Mapping]]] = ..., gpu_ms: _Optional[int] = ..., money: _Optional[str] = ..., credit: _Optional[str] = ..., currency: _Optional[str] = ..., price_per_gpu_hour: _Optional[str] = ..., subject: _Optional[str] = ...) -> None: ...

class RankView(_message.Message):
    __slots__ = ("rank", "node_id", "gpu", "gpu_index", "pid", "state")
    RANK_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    GPU_FIELD_NUMBER: _ClassVar[int]
    GPU_INDEX_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    rank: int
    node_id: str
    gpu: str
    gpu_index: int
    pid: int
    state: str
    def __init__(self, rank: _Optional[int] = ..., node_id: _Optional[str] = ..., gpu: _Optional[str] = ..., gpu_index: _Optional[int] = ..., pid: _Optional[int] = ..., state: _Optional[str] = ...) -> None: ...

class AttemptView(_message.Message):
    __slots__ = ("attempt", "gang_id", "busy_ms", "credited", "error")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    GANG_ID_FIELD_NUMBER: _ClassVar[int]
    BUSY_MS_FIELD_NUMBER: _ClassVar[int]
    CREDITED_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    gang_id: str
    busy_ms: int
    credited: bool
    error: str
    def __init__(self, attempt: _Optional[int] = ..., gang_id: _Optional[str] = ..., busy_ms: _Optional[int] = ..., credited: bool = ..., error: _Optional[str] = ...) -> None: ...

class CallView(_message.Message):
    __slots__ = ("call_id", "function_id", "function", "workspace", "user", "state", "reason", "phase", "attempt", "fence", "gang_id", "gpus", "world_size", "direct", "placement", "submitted_ms", "started_ms", "ended_ms", "busy_ms", "ready_ranks", "step", "queue_position", "result", "error", "ranks", "cost", "parent", "retries", "retries_used", "deadline_ms", "idempotency_key", "webhook", "earlier")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_ID_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    WORKSPACE_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    GANG_ID_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    DIRECT_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_MS_FIELD_NUMBER: _ClassVar[int]
    STARTED_MS_FIELD_NUMBER: _ClassVar[int]
    ENDED_MS_FIELD_NUMBER: _ClassVar[int]
    BUSY_MS_FIELD_NUMBER: _ClassVar[int]
    READY_RANKS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    QUEUE_POSITION_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    COST_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    RETRIES_FIELD_NUMBER: _ClassVar[int]
    RETRIES_USED_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_MS_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    WEBHOOK_FIELD_NUMBER: _ClassVar[int]
    EARLIER_FIELD_NUMBER: _ClassVar[int]
    call_id: str
    function_id: str
    function: str
    workspace: str
    user: str
    state: str
    reason: str
    phase: str
    attempt: int
    fence: int
    gang_id: str
    gpus: float
    world_size: int
    direct: bool
    placement: str
    submitted_ms: int
    started_ms: int
    ended_ms: int
    busy_ms: int
    ready_ranks: int
    step: int
    queue_position: int
    result: _common_pb2.Body
    error: _common_pb2.ErrorInfo
    ranks: _containers.RepeatedCompositeFieldContainer[RankView]
    cost: CostView
    parent: str
    retries: int
    retries_used: int
    deadline_ms: int
    idempotency_key: str
    webhook: str
    earlier: _containers.RepeatedCompositeFieldContainer[AttemptView]
    def __init__(self, call_id: _Optional[str] = ..., function_id: _Optional[str] = ..., function: _Optional[str] = ..., workspace: _Optional[str] = ..., user: _Optional[str] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., phase: _Optional[str] = ..., attempt: _Optional[int] = ..., fence: _Optional[int] = ..., gang_id: _Optional[str] = ..., gpus: _Optional[float] = ..., world_size: _Optional[int] = ..., direct: bool = ..., placement: _Optional[str] = ..., submitted_ms: _Optional[int] = ..., started_ms: _Optional[int] = ..., ended_ms: _Optional[int] = ..., busy_ms: _Optional[int] = ..., ready_ranks: _Optional[int] = ..., step: _Optional[int] = ..., queue_position: _Optional[int] = ..., result: _Optional[_Union[_common_pb2.Body, _Mapping]] = ..., error: _Optional[_Union[_common_pb2.ErrorInfo, _Mapping]] = ..., ranks: _Optional[_Iterable[_Union[RankView, _Mapping]]] = ..., cost: _Optional[_Union[CostView, _Mapping]] = ..., parent: _Optional[str] = ..., retries: _Optional[int] = ..., retries_used: _Optional[int] = ..., deadline_ms: _Optional[int] = ..., idempotency_key: _Optional[str] = ..., webhook: _Optional[str] = ..., earlier: _Optional[_Iterable[_Union[AttemptView, _Mapping]]] = ...) -> None: ...

class CallInputRequest(_message.Message):
    __slots__ = ("call_id", "function_id")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_ID_FIELD_NUMBER: _ClassVar[int]
    call_id: str
    function_id: str
    def __init__(self, call_id: _Optional[str] = ..., function_id: _Optional[str] = ...) -> None: ...

class CallInput(_message.Message):
    __slots__ = ("function", "args", "gang_id")
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    GANG_ID_FIELD_NUMBER: _ClassVar[int]
    function: _common_pb2.FunctionSpec
    args: _common_pb2.Body
    gang_id: str
    def __init__(self, function: _Optional[_Union[_common_pb2.FunctionSpec, _Mapping]] = ..., args: _Optional[_Union[_common_pb2.Body, _Mapping]] = ..., gang_id: _Optional[str] = ...) -> None: ...

class GangAddressRequest(_message.Message):
    __slots__ = ("function_id", "call_id", "gang_id")
    FUNCTION_ID_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    GANG_ID_FIELD_NUMBER: _ClassVar[int]
    function_id: str
    call_id: str
    gang_id: str
    def __init__(self, function_id: _Optional[str] = ..., call_id: _Optional[str] = ..., gang_id: _Optional[str] = ...) -> None: ...

class GangAddress(_message.Message):
    __slots__ = ("gang_id", "node_id", "unix_path", "data_address", "fingerprint", "ticket")
    GANG_ID_FIELD_NUMBER: _ClassVar[int]
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    UNIX_PATH_FIELD_NUMBER: _ClassVar[int]
    DATA_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    gang_id: str
    node_id: str
    unix_path: str
    data_address: str
    fingerprint: str
    ticket: str
    def __init__(self, gang_id: _Optional[str] = ..., node_id: _Optional[str] = ..., unix_path: _Optional[str] = ..., data_address: _Optional[str] = ..., fingerprint: _Optional[str] = ..., ticket: _Optional[str] = ...) -> None: ...

class LogSource(_message.Message):
    __slots__ = ("node_id", "unix_path", "data_address", "fingerprint", "ticket", "blob")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    UNIX_PATH_FIELD_NUMBER: _ClassVar[int]
    DATA_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    TICKET_FIELD_NUMBER: _ClassVar[int]
    BLOB_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    unix_path: str
    data_address: str
    fingerprint: str
    ticket: str
    blob: str
    def __init__(self, node_id: _Optional[str] = ..., unix_path: _Optional[str] = ..., data_address: _Optional[str] = ..., fingerprint: _Optional[str] = ..., ticket: _Optional[str] = ..., blob: _Optional[str] = ...) -> None: ...

class LogSources(_message.Message):
    __slots__ = ("sources",)
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    sources: _containers.RepeatedCompositeFieldContainer[LogSource]
    def __init__(self, sources: _Optional[_Iterable[_Union[LogSource, _Mapping]]] = ...) -> None: ...

class GpuView(_message.Message):
    __slots__ = ("info", "gang_id", "function", "user")
    INFO_FIELD_NUMBER: _ClassVar[int]
    GANG_ID_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    info: _common_pb2.GpuInfo
    gang_id: str
    function: str
    user: str
    def __init__(self, info: _Optional[_Union[_common_pb2.GpuInfo, _Mapping]] = ..., gang_id: _Optional[str] = ..., function: _Optional[str] = ..., user: _Optional[str] = ...) -> None: ...

class NodeView(_message.Message):
    __slots__ = ("node_id", "hostname", "state", "pool", "agent_version", "data_address", "cpus", "memory_bytes", "last_seen_ms", "gpus", "reason", "drain_until_ms", "gangs")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    HOSTNAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    AGENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    DATA_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAST_SEEN_MS_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DRAIN_UNTIL_MS_FIELD_NUMBER: _ClassVar[int]
    GANGS_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    hostname: str
    state: str
    pool: str
    agent_version: str
    data_address: str
    cpus: int
    memory_bytes: int
    last_seen_ms: int
    gpus: _containers.RepeatedCompositeFieldContainer[GpuView]
    reason: str
    drain_until_ms: int
    gangs: int
    def __init__(self, node_id: _Optional[str] = ..., hostname: _Optional[str] = ..., state: _Optional[str] = ..., pool: _Optional[str] = ..., agent_version: _Optional[str] = ..., data_address: _Optional[str] = ..., cpus: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., last_seen_ms: _Optional[int] = ..., gpus: _Optional[_Iterable[_Union[GpuView, _Mapping]]] = ..., reason: _Optional[str] = ..., drain_until_ms: _Optional[int] = ..., gangs: _Optional[int] = ...) -> None: ...

class NodeList(_message.Message):
    __slots__ = ("nodes",)
    NODES_FIELD_NUMBER: _ClassVar[int]
    nodes: _containers.RepeatedCompositeFieldContainer[NodeView]
    def __init__(self, nodes: _Optional[_Iterable[_Union[NodeView, _Mapping]]] = ...) -> None: ...

class NodeStateRequest(_message.Message):
    __slots__ = ("node_id", "state", "reason", "deadline_in_ms")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_IN_MS_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    state: str
    reason: str
    deadline_in_ms: int
    def __init__(self, node_id: _Optional[str] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., deadline_in_ms: _Optional[int] = ...) -> None: ...

class NodeId(_message.Message):
    __slots__ = ("node_id",)
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    def __init__(self, node_id: _Optional[str] = ...) -> None: ...

class TopologyText(_message.Message):
    __slots__ = ("node_id", "topology")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    TOPOLOGY_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    topology: str
    def __init__(self, node_id: _Optional[str] = ..., topology: _Optional[str] = ...) -> None: ...

class FabricText(_message.Message):
    __slots__ = ("fabric", "is_set", "absent")
    FABRIC_FIELD_NUMBER: _ClassVar[int]
    IS_SET_FIELD_NUMBER: _ClassVar[int]
    ABSENT_FIELD_NUMBER: _ClassVar[int]
    fabric: str
    is_set: bool
    absent: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, fabric: _Optional[str] = ..., is_set: bool = ..., absent: _Optional[_Iterable[str]] = ...) -> None: ...

class GangView(_message.Message):
    __slots__ = ("gang_id", "function_id", "function", "state", "workspace", "user", "world_size", "nodes", "gpus", "calls", "depth", "in_flight", "idle_ms", "placement", "created_ms")
    GANG_ID_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_ID_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    WORKSPACE_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    IDLE_MS_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    gang_id: str
    function_id: str
    function: str
    state: str
    workspace: str
    user: str
    world_size: int
    nodes: _containers.RepeatedScalarFieldContainer[str]
    gpus: _containers.RepeatedScalarFieldContainer[str]
    calls: _containers.RepeatedScalarFieldContainer[str]
    depth: int
    in_flight: int
    idle_ms: int
    placement: str
    created_ms: int
    def __init__(self, gang_id: _Optional[str] = ..., function_id: _Optional[str] = ..., function: _Optional[str] = ..., state: _Optional[str] = ..., workspace: _Optional[str] = ..., user: _Optional[str] = ..., world_size: _Optional[int] = ..., nodes: _Optional[_Iterable[str]] = ..., gpus: _Optional[_Iterable[str]] = ..., calls: _Optional[_Iterable[str]] = ..., depth: _Optional[int] = ..., in_flight: _Optional[int] = ..., idle_ms: _Optional[int] = ..., placement: _Optional[str] = ..., created_ms: _Optional[int] = ...) -> None: ...

class GangId(_message.Message):
    __slots__ = ("gang_id",)
    GANG_ID_FIELD_NUMBER: _ClassVar[int]
    gang_id: str
    def __init__(self, gang_id: _Optional[str] = ...) -> None: ...

class MemberExplanation(_message.Message):
    __slots__ = ("node_id", "first_rank", "ranks", "gpus", "equipment")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_RANK_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    EQUIPMENT_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    first_rank: int
    ranks: int
    gpus: _containers.RepeatedScalarFieldContainer[str]
    equipment: str
    def __init__(self, node_id: _Optional[str] = ..., first_rank: _Optional[int] = ..., ranks: _Optional[int] = ..., gpus: _Optional[_Iterable[str]] = ..., equipment: _Optional[str] = ...) -> None: ...

class GangExplanation(_message.Message):
    __slots__ = ("gang", "members")
    GANG_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    gang: GangView
    members: _containers.RepeatedCompositeFieldContainer[MemberExplanation]
    def __init__(self, gang: _Optional[_Union[GangView, _Mapping]] = ..., members: _Optional[_Iterable[_Union[MemberExplanation, _Mapping]]] = ...) -> None: ...

class GangList(_message.Message):
    __slots__ = ("gangs",)
    GANGS_FIELD_NUMBER: _ClassVar[int]
    gangs: _containers.RepeatedCompositeFieldContainer[GangView]
    def __init__(self, gangs: _Optional[_Iterable[_Union[GangView, _Mapping]]] = ...) -> None: ...

class CostRequest(_message.Message):
    __slots__ = ("call_id", "group_by")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    GROUP_BY_FIELD_NUMBER: _ClassVar[int]
    call_id: str
    group_by: str
    def __init__(self, call_id: _Optional[str] = ..., group_by: _Optional[str] = ...) -> None: ...

class CostList(_message.Message):
    __slots__ = ("costs",)
    COSTS_FIELD_NUMBER: _ClassVar[int]
    costs: _containers.RepeatedCompositeFieldContainer[CostView]
    def __init__(self, costs: _Optional[_Iterable[_Union[CostView, _Mapping]]] = ...) -> None: ...

class CreateTokenRequest(_message.Message):
    __slots__ = ("workspace", "user", "role", "lifetime_ms")
    WORKSPACE_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    LIFETIME_MS_FIELD_NUMBER: _ClassVar[int]
    workspace: str
    user: str
    role: str
    lifetime_ms: int
    def __init__(self, workspace: _Optional[str] = ..., user: _Optional[str] = ..., role: _Optional[str] = ..., lifetime_ms: _Optional[int] = ...) -> None: ...

class CreateTokenResponse(_message.Message):
    __slots__ = ("token", "token_id")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    token: str
    token_id: str
    def __init__(self, token: _Optional[str] = ..., token_id: _Optional[str] = ...) -> None: ...

class RevokeTokenRequest(_message.Message):
    __slots__ = ("token_id",)
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    token_id: str
    def __init__(self, token_id: _Optional[str] = ...) -> None: ...

class TokenInfo(_message.Message):
    __slots__ = ("token_id", "workspace", "user", "role", "created_ms", "expires_ms")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    WORKSPACE_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CREATED_MS_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    token_id: str
    workspace: str
    user: str
    role: str
    created_ms: int
    expires_ms: int
    def __init__(self, token_id: _Optional[str] = ..., workspace: _Optional[str] = ..., user: _Optional[str] = ..., role: _Optional[str] = ..., created_ms: _Optional[int] = ..., expires_ms: _Optional[int] = ...) -> None: ...

class TokenList(_message.Message):
    __slots__ = ("tokens",)
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedCompositeFieldContainer[TokenInfo]
    def __init__(self, tokens: _Optional[_Iterable[_Union[TokenInfo, _Mapping]]] = ...) -> None: ...

class WebhookSecretRequest(_message.Message):
    __slots__ = ("rotate", "from_version")
    ROTATE_FIELD_NUMBER: _ClassVar[int]
    FROM_VERSION_FIELD_NUMBER: _ClassVar[int]
    rotate: bool
    from_version: int
    def __init__(self, rotate: bool = ..., from_version: _Optional[int] = ...) -> None: ...

class WebhookSecret(_message.Message):
    __slots__ = ("secret", "version", "rotated_ms")
    SECRET_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ROTATED_MS_FIELD_NUMBER: _ClassVar[int]
    secret: str
    version: int
    rotated_ms: int
    def __init__(self, secret: _Optional[str] = ..., version: _Optional[int] = ..., rotated_ms: _Optional[int] = ...) -> None: ...

class PolicyText(_message.Message):
    __slots__ = ("policy", "warning")
    POLICY_FIELD_NUMBER: _ClassVar[int]
    WARNING_FIELD_NUMBER: _ClassVar[int]
    policy: str
    warning: str
    def __init__(self, policy: _Optional[str] = ..., warning: _Optional[str] = ...) -> None: ...

class QueueRequest(_message.Message):
    __slots__ = ("limit",)
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    limit: int
    def __init__(self, limit: _Optional[int] = ...) -> None: ...

class WaitingView(_message.Message):
    __slots__ = ("place", "call_id", "function", "workspace", "user", "account", "gpus", "priority", "preemptible", "submitted_ms", "reason", "starts_by_ms")
    PLACE_FIELD_NUMBER: _ClassVar[int]
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    WORKSPACE_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    ACCOUNT_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIBLE_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_MS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    STARTS_BY_MS_FIELD_NUMBER: _ClassVar[int]
    place: int
    call_id: str
    function: str
    workspace: str
    user: str
    account: str
    gpus: float
    priority: int
    preemptible: bool
    submitted_ms: int
    reason: str
    starts_by_ms: int
    def __init__(self, place: _Optional[int] = ..., call_id: _Optional[str] = ..., function: _Optional[str] = ..., workspace: _Optional[str] = ..., user: _Optional[str] = ..., account: _Optional[str] = ..., gpus: _Optional[float] = ..., priority: _Optional[int] = ..., preemptible: bool = ..., submitted_ms: _Optional[int] = ..., reason: _Optional[str] = ..., starts_by_ms: _Optional[int] = ...) -> None: ...

class AccountView(_message.Message):
    __slots__ = ("account", "weight", "gpus", "guaranteed", "limit", "share", "share_before")
    ACCOUNT_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    GUARANTEED_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    SHARE_BEFORE_FIELD_NUMBER: _ClassVar[int]
    account: str
    weight: float
    gpus: float
    guaranteed: float
    limit: float
    share: float
    share_before: float
    def __init__(self, account: _Optional[str] = ..., weight: _Optional[float] = ..., gpus: _Optional[float] = ..., guaranteed: _Optional[float] = ..., limit: _Optional[float] = ..., share: _Optional[float] = ..., share_before: _Optional[float] = ...) -> None: ...

class QueueView(_message.Message):
    __slots__ = ("waiting", "accounts", "others")
    WAITING_FIELD_NUMBER: _ClassVar[int]
    ACCOUNTS_FIELD_NUMBER: _ClassVar[int]
    OTHERS_FIELD_NUMBER: _ClassVar[int]
    waiting: _containers.RepeatedCompositeFieldContainer[WaitingView]
    accounts: _containers.RepeatedCompositeFieldContainer[AccountView]
    others: int
    def __init__(self, waiting: _Optional[_Iterable[_Union[WaitingView, _Mapping]]] = ..., accounts: _Optional[_Iterable[_Union[AccountView, _Mapping]]] = ..., others: _Optional[int] = ...) -> None: ...

class PastRequest(_message.Message):
    __slots__ = ("at_ms",)
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    at_ms: int
    def __init__(self, at_ms: _Optional[int] = ...) -> None: ...

class PastView(_message.Message):
    __slots__ = ("at_ms", "seq", "nodes", "gangs", "calls", "queue")
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    SEQ_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    GANGS_FIELD_NUMBER: _ClassVar[int]
    CALLS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_FIELD_NUMBER: _ClassVar[int]
    at_ms: int
    seq: int
    nodes: _containers.RepeatedCompositeFieldContainer[NodeView]
    gangs: _containers.RepeatedCompositeFieldContainer[GangView]
    calls: _containers.RepeatedCompositeFieldContainer[CallView]
    queue: QueueView
    def __init__(self, at_ms: _Optional[int] = ..., seq: _Optional[int] = ..., nodes: _Optional[_Iterable[_Union[NodeView, _Mapping]]] = ..., gangs: _Optional[_Iterable[_Union[GangView, _Mapping]]] = ..., calls: _Optional[_Iterable[_Union[CallView, _Mapping]]] = ..., queue: _Optional[_Union[QueueView, _Mapping]] = ...) -> None: ...

class StartRequest(_message.Message):
    __slots__ = ("function",)
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    function: _common_pb2.FunctionSpec
    def __init__(self, function: _Optional[_Union[_common_pb2.FunctionSpec, _Mapping]] = ...) -> None: ...

class StartView(_message.Message):
    __slots__ = ("now", "at_ms", "sentence", "ahead", "fits_now")
    NOW_FIELD_NUMBER: _ClassVar[int]
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    SENTENCE_FIELD_NUMBER: _ClassVar[int]
    AHEAD_FIELD_NUMBER: _ClassVar[int]
    FITS_NOW_FIELD_NUMBER: _ClassVar[int]
    now: bool
    at_ms: int
    sentence: str
    ahead: int
    fits_now: int
    def __init__(self, now: bool = ..., at_ms: _Optional[int] = ..., sentence: _Optional[str] = ..., ahead: _Optional[int] = ..., fits_now: _Optional[int] = ...) -> None: ...

class LoginLink(_message.Message):
    __slots__ = ("url",)
    URL_FIELD_NUMBER: _ClassVar[int]
    url: str
    def __init__(self, url: _Optional[str] = ...) -> None: ...

class JoinToken(_message.Message):
    __slots__ = ("join_token", "expires_ms")
    JOIN_TOKEN_FIELD_NUMBER: _ClassVar[int]
    EXPIRES_MS_FIELD_NUMBER: _ClassVar[int]
    join_token: str
    expires_ms: int
    def __init__(self, join_token: _Optional[str] = ..., expires_ms: _Optional[int] = ...) -> None: ...
