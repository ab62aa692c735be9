// Written by make_types.py from phalanx.core.views and .messages: run `make ui-types` after changes.

export interface GpuInfo {
  readonly uuid: string;
  readonly index: number;
  readonly model: string;
  readonly memory_bytes: number;
  readonly simulated: boolean;
  readonly state: string;
  readonly reason: string;
  readonly cordon: boolean;
}
export const noGpuInfo: GpuInfo = {
  uuid: "",
  index: 0,
  model: "",
  memory_bytes: 0,
  simulated: false,
  state: "free",
  reason: "",
  cordon: false,
};

export interface GpuView {
  readonly info: GpuInfo;
  readonly gang_id: string;
  readonly function: string;
  readonly user: string;
}
export const noGpuView: GpuView = {
  info: noGpuInfo,
  gang_id: "",
  function: "",
  user: "",
};

export interface NodeView {
  readonly node_id: string;
  readonly hostname: string;
  readonly state: string;
  readonly pool: string;
  readonly agent_version: string;
  readonly data_address: string;
  readonly cpus: number;
  readonly memory_bytes: number;
  readonly last_seen_ms: number;
  readonly gpus: readonly GpuView[];
  readonly reason: string;
  readonly drain_until_ms: number;
  readonly gangs: number;
}
export const noNodeView: NodeView = {
  node_id: "",
  hostname: "",
  state: "",
  pool: "",
  agent_version: "",
  data_address: "",
  cpus: 0,
  memory_bytes: 0,
  last_seen_ms: 0,
  gpus: [],
  reason: "",
  drain_until_ms: 0,
  gangs: 0,
};

export interface Body {
  readonly data: string;
  readonly blob: string;
  readonly size: number;
}
export const noBody: Body = {
  data: "",
  blob: "",
  size: 0,
};

export interface RankFailure {
  readonly rank: number;
  readonly node_id: string;
  readonly culprit: boolean;
  readonly exit_code: number;
  readonly signal: number;
  readonly type_name: string;
  readonly message: string;
  readonly traceback: string;
  readonly last_lines: string;
}
export const noRankFailure: RankFailure = {
  rank: -1,
  node_id: "",
  culprit: false,
  exit_code: 0,
  signal: 0,
  type_name: "",
  message: "",
  traceback: "",
  last_lines: "",
};

export interface ErrorInfo {
  readonly cause: string;
  readonly type_name: string;
  readonly message: string;
  readonly traceback: string;
  readonly rank: number;
  readonly node_id: string;
  readonly exit_code: number;
  readonly signal: number;
  readonly pickled: string;
  readonly ranks: readonly RankFailure[];
  readonly kinds: readonly string[];
}
export const noErrorInfo: ErrorInfo = {
  cause: "user_exception",
  type_name: "",
  message: "",
  traceback: "",
  rank: -1,
  node_id: "",
  exit_code: 0,
  signal: 0,
  pickled: "",
  ranks: [],
  kinds: [],
};

export interface RankView {
  readonly rank: number;
  readonly node_id: string;
  readonly gpu: string;
  readonly gpu_index: number;
  readonly pid: number;
  readonly state: string;
}
export const noRankView: RankView = {
  rank: 0,
  node_id: "",
  gpu: "",
  gpu_index: 0,
  pid: 0,
  state: "",
};

export interface PhaseCost {
  readonly phase: string;
  readonly gpu_ms: number;
  readonly charged: boolean;
  readonly money: string;
}
export const noPhaseCost: PhaseCost = {
  phase: "",
  gpu_ms: 0,
  charged: false,
  money: "0",
};

export interface CostView {
  readonly phases: readonly PhaseCost[];
  readonly gpu_ms: number;
  readonly money: string;
  readonly credit: string;
  readonly currency: string;
  readonly price_per_gpu_hour: string;
  readonly subject: string;
}
export const noCostView: CostView = {
  phases: [],
  gpu_ms: 0,
  money: "0",
  credit: "0",
  currency: "USD",
  price_per_gpu_hour: "0",
  subject: "",
};

export interface AttemptView {
  readonly attempt: number;
  readonly gang_id: string;
  readonly busy_ms: number;
  readonly credited: boolean;
  readonly error: string;
}
export const noAttemptView: AttemptView = {
  attempt: 0,
  gang_id: "",
  busy_ms: 0,
  credited: false,
  error: "",
};

export interface CallView {
  readonly call_id: string;
  readonly function_id: string;
  readonly function: string;
  readonly workspace: string;
  readonly user: string;
  readonly state: string;
  readonly reason: string;
  readonly phase: string;
  readonly attempt: number;
  readonly fence: number;
  readonly gang_id: string;
  readonly gpus: number;
  readonly world_size: number;
  readonly direct: boolean;
  readonly placement: string;
  readonly submitted_ms: number;
  readonly started_ms: number;
  readonly ended_ms: number;
  readonly busy_ms: number;
  readonly ready_ranks: number;
  readonly step: number;
  readonly queue_position: number;
  readonly result: Body;
  readonly error: ErrorInfo;
  readonly ranks: readonly RankView[];
  readonly cost: CostView;
  readonly parent: string;
  readonly retries: number;
  readonly retries_used: number;
  readonly deadline_ms: number;
  readonly idempotency_key: string;
  readonly webhook: string;
  readonly earlier: readonly AttemptView[];
}
export const noCallView: CallView = {
  call_id: "",
  function_id: "",
  function: "",
  workspace: "",
  user: "",
  state: "",
  reason: "",
  phase: "",
  attempt: 0,
  fence: 0,
  gang_id: "",
  gpus: 0,
  world_size: 0,
  direct: false,
  placement: "",
  submitted_ms: 0,
  started_ms: 0,
  ended_ms: 0,
  busy_ms: 0,
  ready_ranks: 0,
  step: 0,
  queue_position: 0,
  result: noBody,
  error: noErrorInfo,
  ranks: [],
  cost: noCostView,
  parent: "",
  retries: 0,
  retries_used: 0,
  deadline_ms: 0,
  idempotency_key: "",
  webhook: "",
  earlier: [],
};

export interface GangView {
  readonly gang_id: string;
  readonly function_id: string;
  readonly function: string;
  readonly state: string;
  readonly workspace: string;
  readonly user: string;
  readonly world_size: number;
  readonly nodes: readonly string[];
  readonly gpus: readonly string[];
  readonly calls: readonly string[];
  readonly depth: number;
  readonly in_flight: number;
  readonly idle_ms: number;
  readonly placement: string;
  readonly created_ms: number;
}
export const noGangView: GangView = {
  gang_id: "",
  function_id: "",
  function: "",
  state: "",
  workspace: "",
  user: "",
  world_size: 0,
  nodes: [],
  gpus: [],
  calls: [],
  depth: 0,
  in_flight: 0,
  idle_ms: 0,
  placement: "",
  created_ms: 0,
};

export interface ServerInfo {
  readonly version: string;
  readonly cell: string;
  readonly role: string;
  readonly leader_id: string;
  readonly epoch: number;
  readonly log_seq: number;
  readonly page: string;
  readonly simulated_gpus: boolean;
  readonly has_shared_blobs: boolean;
  readonly started_ms: number;
}
export const noServerInfo: ServerInfo = {
  version: "",
  cell: "",
  role: "",
  leader_id: "",
  epoch: 0,
  log_seq: 0,
  page: "",
  simulated_gpus: false,
  has_shared_blobs: false,
  started_ms: 0,
};
