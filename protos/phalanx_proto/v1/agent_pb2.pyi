from phalanx_proto.v1 import common_pb2 as _common_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class CertificateRequest(_message.Message):
    __slots__ = ("node_id", "join_token", "csr_pem", "certificate_pem")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    JOIN_TOKEN_FIELD_NUMBER: _ClassVar[int]
    CSR_PEM_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_PEM_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    join_token: str
    csr_pem: bytes
    certificate_pem: bytes
    def __init__(self, node_id: _Optional[str] = ..., join_token: _Optional[str] = ..., csr_pem: _Optional[bytes] = ..., certificate_pem: _Optional[bytes] = ...) -> None: ...

class Certificate(_message.Message):
    __slots__ = ("certificate_pem", "ca_pem", "agents_address")
    CERTIFICATE_PEM_FIELD_NUMBER: _ClassVar[int]
    CA_PEM_FIELD_NUMBER: _ClassVar[int]
    AGENTS_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    certificate_pem: bytes
    ca_pem: bytes
    agents_address: str
    def __init__(self, certificate_pem: _Optional[bytes] = ..., ca_pem: _Optional[bytes] = ..., agents_address: _Optional[str] = ...) -> None: ...

class NodeInfo(_message.Message):
    __slots__ = ("node_id", "hostname", "boot_id", "agent_epoch", "agent_version", "python", "torch", "data_address", "unix_path", "fingerprint", "cpus", "memory_bytes", "pool", "gpus", "topology")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    HOSTNAME_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    AGENT_EPOCH_FIELD_NUMBER: _ClassVar[int]
    AGENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    PYTHON_FIELD_NUMBER: _ClassVar[int]
    TORCH_FIELD_NUMBER: _ClassVar[int]
    DATA_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    UNIX_PATH_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    CPUS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_BYTES_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    TOPOLOGY_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    hostname: str
    boot_id: str
    agent_epoch: int
    agent_version: str
    python: str
    torch: str
    data_address: str
    unix_path: str
    fingerprint: str
    cpus: int
    memory_bytes: int
    pool: str
    gpus: _containers.RepeatedCompositeFieldContainer[_common_pb2.GpuInfo]
    topology: str
    def __init__(self, node_id: _Optional[str] = ..., hostname: _Optional[str] = ..., boot_id: _Optional[str] = ..., agent_epoch: _Optional[int] = ..., agent_version: _Optional[str] = ..., python: _Optional[str] = ..., torch: _Optional[str] = ..., data_address: _Optional[str] = ..., unix_path: _Optional[str] = ..., fingerprint: _Optional[str] = ..., cpus: _Optional[int] = ..., memory_bytes: _Optional[int] = ..., pool: _Optional[str] = ..., gpus: _Optional[_Iterable[_Union[_common_pb2.GpuInfo, _Mapping]]] = ..., topology: _Optional[str] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("node_id", "first_rank", "ranks", "gpus", "share", "data_address", "fingerprint")
    NODE_ID_FIELD_NUMBER: _ClassVar[int]
    FIRST_RANK_FIELD_NUMBER: _ClassVar[int]
    RANKS_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    DATA_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    node_id: str
    first_rank: int
    ranks: int
    gpus: _containers.RepeatedScalarFieldContainer[str]
    share: float
    data_address: str
    fingerprint: str
    def __init__(self, node_id: _Optional[str] = ..., first_rank: _Optional[int] = ..., ranks: _Optional[int] = ..., gpus: _Optional[_Iterable[str]] = ..., share: _Optional[float] = ..., data_address: _Optional[str] = ..., fingerprint: _Optional[str] = ...) -> None: ...

class ToAgent(_message.Message):
    __slots__ = ("welcome", "prepare", "start", "stop", "offer", "cancel_call", "ack", "revoke_token")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    PREPARE_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    OFFER_FIELD_NUMBER: _ClassVar[int]
    CANCEL_CALL_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    REVOKE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    prepare: Prepare
    start: Start
    stop: Stop
    offer: Offer
    cancel_call: CancelCall
    ack: Ack
    revoke_token: RevokeToken
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., prepare: _Optional[_Union[Prepare, _Mapping]] = ..., start: _Optional[_Union[Start, _Mapping]] = ..., stop: _Optional[_Union[Stop, _Mapping]] = ..., offer: _Optional[_Union[Offer, _Mapping]] = ..., cancel_call: _Optional[_Union[CancelCall, _Mapping]] = ..., ack: _Optional[_Union[Ack, _Mapping]] = ..., revoke_token: _Optional[_Union[RevokeToken, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("ticket_key", "report_every_ms")
    TICKET_KEY_FIELD_NUMBER: _ClassVar[int]
    REPORT_EVERY_MS_FIELD_NUMBER: _ClassVar[int]
    ticket_key: bytes
    report_every_ms: int
    def __init__(self, ticket_key: _Optional[bytes] = ..., report_every_ms: _Optional[int] = ...) -> None: ...

class Prepare(_message.Message):
    __slots__ = ("gang_id", "fence", "function_id", "function", "workspace", "user", "members", "node_rank", "rendezvous", "placement", "networks_differ")
    GANG_ID_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_ID_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_FIELD_NUMBER: _ClassVar[int]
    WORKSPACE_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    NODE_RANK_FIELD_NUMBER: _ClassVar[int]
    RENDEZVOUS_FIELD_NUMBER: _ClassVar[int]
    PLACEMENT_FIELD_NUMBER: _ClassVar[int]
    NETWORKS_DIFFER_FIELD_NUMBER: _ClassVar[int]
    gang_id: str
    fence: int
    function_id: str
    function: _common_pb2.FunctionSpec
    workspace: str
    user: str
    members: _containers.RepeatedCompositeFieldContainer[Member]
    node_rank: int
    rendezvous: str
    placement: str
    networks_differ: str
    def __init__(self, gang_id: _Optional[str] = ..., fence: _Optional[int] = ..., function_id: _Optional[str] = ..., function: _Optional[_Union[_common_pb2.FunctionSpec, _Mapping]] = ..., workspace: _Optional[str] = ..., user: _Optional[str] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., node_rank: _Optional[int] = ..., rendezvous: _Optional[str] = ..., placement: _Optional[str] = ..., networks_differ: _Optional[str] = ...) -> None: ...

class Start(_message.Message):
    __slots__ = ("gang_id", "fence", "rendezvous", "peer_tickets")
    GANG_ID_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    RENDEZVOUS_FIELD_NUMBER: _ClassVar[int]
    PEER_TICKETS_FIELD_NUMBER: _ClassVar[int]
    gang_id: str
    fence: int
    rendezvous: str
    peer_tickets: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, gang_id: _Optional[str] = ..., fence: _Optional[int] = ..., rendezvous: _Optional[str] = ..., peer_tickets: _Optional[_Iterable[str]] = ...) -> None: ...

class Stop(_message.Message):
    __slots__ = ("gang_id", "fence", "reason", "drain", "grace_ms")
    GANG_ID_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DRAIN_FIELD_NUMBER: _ClassVar[int]
    GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    gang_id: str
    fence: int
    reason: str
    drain: bool
    grace_ms: int
    def __init__(self, gang_id: _Optional[str] = ..., fence: _Optional[int] = ..., reason: _Optional[str] = ..., drain: bool = ..., grace_ms: _Optional[int] = ...) -> None: ...

class Offer(_message.Message):
    __slots__ = ("call_id", "attempt", "fence", "gang_id", "args", "timeout_ms", "user")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    GANG_ID_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    call_id: str
    attempt: int
    fence: int
    gang_id: str
    args: _common_pb2.Body
    timeout_ms: int
    user: str
    def __init__(self, call_id: _Optional[str] = ..., attempt: _Optional[int] = ..., fence: _Optional[int] = ..., gang_id: _Optional[str] = ..., args: _Optional[_Union[_common_pb2.Body, _Mapping]] = ..., timeout_ms: _Optional[int] = ..., user: _Optional[str] = ...) -> None: ...

class CancelCall(_message.Message):
    __slots__ = ("call_id", "gang_id", "attempt", "grace_ms", "fence")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    GANG_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    call_id: str
    gang_id: str
    attempt: int
    grace_ms: int
    fence: int
    def __init__(self, call_id: _Optional[str] = ..., gang_id: _Optional[str] = ..., attempt: _Optional[int] = ..., grace_ms: _Optional[int] = ..., fence: _Optional[int] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("seq",)
    SEQ_FIELD_NUMBER: _ClassVar[int]
    seq: int
    def __init__(self, seq: _Optional[int] = ...) -> None: ...

class RevokeToken(_message.Message):
    __slots__ = ("token_id",)
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    token_id: str
    def __init__(self, token_id: _Optional[str] = ...) -> None: ...

class FromAgent(_message.Message):
    __slots__ = ("seq", "hello", "report", "direct_report", "member_prepared", "member_ready", "member_ended", "call_started", "call_finished", "call_refused", "leave")
    SEQ_FIELD_NUMBER: _ClassVar[int]
    HELLO_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    DIRECT_REPORT_FIELD_NUMBER: _ClassVar[int]
    MEMBER_PREPARED_FIELD_NUMBER: _ClassVar[int]
    MEMBER_READY_FIELD_NUMBER: _ClassVar[int]
    MEMBER_ENDED_FIELD_NUMBER: _ClassVar[int]
    CALL_STARTED_FIELD_NUMBER: _ClassVar[int]
    CALL_FINISHED_FIELD_NUMBER: _ClassVar[int]
    CALL_REFUSED_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    seq: int
    hello: Hello
    report: Report
    direct_report: DirectReport
    member_prepared: MemberPrepared
    member_ready: MemberReady
    member_ended: MemberEnded
    call_started: CallStarted
    call_finished: CallFinished
    call_refused: CallRefused
    leave: Leave
    def __init__(self, seq: _Optional[int] = ..., hello: _Optional[_Union[Hello, _Mapping]] = ..., report: _Optional[_Union[Report, _Mapping]] = ..., direct_report: _Optional[_Union[DirectReport, _Mapping]] = ..., member_prepared: _Optional[_Union[MemberPrepared, _Mapping]] = ..., member_ready: _Optional[_Union[MemberReady, _Mapping]] = ..., member_ended: _Optional[_Union[MemberEnded, _Mapping]] = ..., call_started: _Optional[_Union[CallStarted, _Mapping]] = ..., call_finished: _Optional[_Union[CallFinished, _Mapping]] = ..., call_refused: _Optional[_Union[CallRefused, _Mapping]] = ..., leave: _Optional[_Union[Leave, _Mapping]] = ...) -> None: ...

class Counter(_message.Message):
    __slots__ = ("gpu", "phase", "ms")
    GPU_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    MS_FIELD_NUMBER: _ClassVar[int]
    gpu: str
    phase: str
    ms: int
    def __init__(self, gpu: _Optional[str] = ..., phase: _Optional[str] = ..., ms: _Optional[int] = ...) -> None: ...

class GangFacts(_message.Message):
    __slots__ = ("gang_id", "fence", "state", "depth", "in_flight", "idle_ms", "p95_wait_ms", "step", "counters", "call_ids", "stall", "debug", "paused_ms")
    GANG_ID_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    IN_FLIGHT_FIELD_NUMBER: _ClassVar[int]
    IDLE_MS_FIELD_NUMBER: _ClassVar[int]
    P95_WAIT_MS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    CALL_IDS_FIELD_NUMBER: _ClassVar[int]
    STALL_FIELD_NUMBER: _ClassVar[int]
    DEBUG_FIELD_NUMBER: _ClassVar[int]
    PAUSED_MS_FIELD_NUMBER: _ClassVar[int]
    gang_id: str
    fence: int
    state: str
    depth: int
    in_flight: int
    idle_ms: int
    p95_wait_ms: int
    step: int
    counters: _containers.RepeatedCompositeFieldContainer[Counter]
    call_ids: _containers.RepeatedScalarFieldContainer[str]
    stall: str
    debug: bool
    paused_ms: int
    def __init__(self, gang_id: _Optional[str] = ..., fence: _Optional[int] = ..., state: _Optional[str] = ..., depth: _Optional[int] = ..., in_flight: _Optional[int] = ..., idle_ms: _Optional[int] = ..., p95_wait_ms: _Optional[int] = ..., step: _Optional[int] = ..., counters: _Optional[_Iterable[_Union[Counter, _Mapping]]] = ..., call_ids: _Optional[_Iterable[str]] = ..., stall: _Optional[str] = ..., debug: bool = ..., paused_ms: _Optional[int] = ...) -> None: ...

class DirectCalls(_message.Message):
    __slots__ = ("gang_id", "fence", "function_id", "user", "succeeded", "failed", "busy_ms", "call_ids")
    GANG_ID_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    FUNCTION_ID_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    SUCCEEDED_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    BUSY_MS_FIELD_NUMBER: _ClassVar[int]
    CALL_IDS_FIELD_NUMBER: _ClassVar[int]
    gang_id: str
    fence: int
    function_id: str
    user: str
    succeeded: int
    failed: int
    busy_ms: int
    call_ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, gang_id: _Optional[str] = ..., fence: _Optional[int] = ..., function_id: _Optional[str] = ..., user: _Optional[str] = ..., succeeded: _Optional[int] = ..., failed: _Optional[int] = ..., busy_ms: _Optional[int] = ..., call_ids: _Optional[_Iterable[str]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("node", "gangs", "protocol")
    NODE_FIELD_NUMBER: _ClassVar[int]
    GANGS_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    node: NodeInfo
    gangs: _containers.RepeatedCompositeFieldContainer[GangFacts]
    protocol: int
    def __init__(self, node: _Optional[_Union[NodeInfo, _Mapping]] = ..., gangs: _Optional[_Iterable[_Union[GangFacts, _Mapping]]] = ..., protocol: _Optional[int] = ...) -> None: ...

class Report(_message.Message):
    __slots__ = ("gangs", "gpus", "topology")
    GANGS_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    TOPOLOGY_FIELD_NUMBER: _ClassVar[int]
    gangs: _containers.RepeatedCompositeFieldContainer[GangFacts]
    gpus: _containers.RepeatedCompositeFieldContainer[_common_pb2.GpuInfo]
    topology: str
    def __init__(self, gangs: _Optional[_Iterable[_Union[GangFacts, _Mapping]]] = ..., gpus: _Optional[_Iterable[_Union[_common_pb2.GpuInfo, _Mapping]]] = ..., topology: _Optional[str] = ...) -> None: ...

class Leave(_message.Message):
    __slots__ = ("reason",)
    REASON_FIELD_NUMBER: _ClassVar[int]
    reason: str
    def __init__(self, reason: _Optional[str] = ...) -> None: ...

class DirectReport(_message.Message):
    __slots__ = ("calls",)
    CALLS_FIELD_NUMBER: _ClassVar[int]
    calls: _containers.RepeatedCompositeFieldContainer[DirectCalls]
    def __init__(self, calls: _Optional[_Iterable[_Union[DirectCalls, _Mapping]]] = ...) -> None: ...

class MemberPrepared(_message.Message):
    __slots__ = ("gang_id", "fence", "rendezvous", "error")
    GANG_ID_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    RENDEZVOUS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    gang_id: str
    fence: int
    rendezvous: str
    error: str
    def __init__(self, gang_id: _Optional[str] = ..., fence: _Optional[int] = ..., rendezvous: _Optional[str] = ..., error: _Optional[str] = ...) -> None: ...

class MemberReady(_message.Message):
    __slots__ = ("gang_id", "fence", "pids", "backend", "equipment")
    GANG_ID_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    PIDS_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    EQUIPMENT_FIELD_NUMBER: _ClassVar[int]
    gang_id: str
    fence: int
    pids: _containers.RepeatedScalarFieldContainer[int]
    backend: str
    equipment: str
    def __init__(self, gang_id: _Optional[str] = ..., fence: _Optional[int] = ..., pids: _Optional[_Iterable[int]] = ..., backend: _Optional[str] = ..., equipment: _Optional[str] = ...) -> None: ...

class MemberEnded(_message.Message):
    __slots__ = ("gang_id", "fence", "clean", "error", "counters", "quarantined")
    GANG_ID_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    CLEAN_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    COUNTERS_FIELD_NUMBER: _ClassVar[int]
    QUARANTINED_FIELD_NUMBER: _ClassVar[int]
    gang_id: str
    fence: int
    clean: bool
    error: _common_pb2.ErrorInfo
    counters: _containers.RepeatedCompositeFieldContainer[Counter]
    quarantined: _containers.RepeatedCompositeFieldContainer[_common_pb2.GpuInfo]
    def __init__(self, gang_id: _Optional[str] = ..., fence: _Optional[int] = ..., clean: bool = ..., error: _Optional[_Union[_common_pb2.ErrorInfo, _Mapping]] = ..., counters: _Optional[_Iterable[_Union[Counter, _Mapping]]] = ..., quarantined: _Optional[_Iterable[_Union[_common_pb2.GpuInfo, _Mapping]]] = ...) -> None: ...

class CallStarted(_message.Message):
    __slots__ = ("call_id", "attempt", "fence", "gang_id", "direct", "user", "args_bytes", "timeout_ms")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    GANG_ID_FIELD_NUMBER: _ClassVar[int]
    DIRECT_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    ARGS_BYTES_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    call_id: str
    attempt: int
    fence: int
    gang_id: str
    direct: bool
    user: str
    args_bytes: int
    timeout_ms: int
    def __init__(self, call_id: _Optional[str] = ..., attempt: _Optional[int] = ..., fence: _Optional[int] = ..., gang_id: _Optional[str] = ..., direct: bool = ..., user: _Optional[str] = ..., args_bytes: _Optional[int] = ..., timeout_ms: _Optional[int] = ...) -> None: ...

class CallFinished(_message.Message):
    __slots__ = ("call_id", "attempt", "fence", "gang_id", "outcome", "result", "error", "busy_ms", "delivered", "debug_ms")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    GANG_ID_FIELD_NUMBER: _ClassVar[int]
    OUTCOME_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    BUSY_MS_FIELD_NUMBER: _ClassVar[int]
    DELIVERED_FIELD_NUMBER: _ClassVar[int]
    DEBUG_MS_FIELD_NUMBER: _ClassVar[int]
    call_id: str
    attempt: int
    fence: int
    gang_id: str
    outcome: str
    result: _common_pb2.Body
    error: _common_pb2.ErrorInfo
    busy_ms: int
    delivered: bool
    debug_ms: int
    def __init__(self, call_id: _Optional[str] = ..., attempt: _Optional[int] = ..., fence: _Optional[int] = ..., gang_id: _Optional[str] = ..., outcome: _Optional[str] = ..., result: _Optional[_Union[_common_pb2.Body, _Mapping]] = ..., error: _Optional[_Union[_common_pb2.ErrorInfo, _Mapping]] = ..., busy_ms: _Optional[int] = ..., delivered: bool = ..., debug_ms: _Optional[int] = ...) -> None: ...

class CallRefused(_message.Message):
    __slots__ = ("call_id", "attempt", "fence", "gang_id", "reason")
    CALL_ID_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    FENCE_FIELD_NUMBER: _ClassVar[int]
    GANG_ID_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    call_id: str
    attempt: int
    fence: int
    gang_id: str
    reason: str
    def __init__(self, call_id: _Optional[str] = ..., attempt: _Optional[int] = ..., fence: _Optional[int] = ..., gang_id: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...
