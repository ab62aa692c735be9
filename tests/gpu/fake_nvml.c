/* A small NVML: answers from a description file, read again on every question, so that a test can change the machine.
 *
 * PHALANX_FAKE_NVML names the file. One line per GPU, separated by blanks, in index order:
 *     uuid model total_mib used_mib pids state
 * pids: comma-separated, or "-". state: "ok", "lost" (every question fails) or "nomem" (memory is not supported).
 *
 * PHALANX_FAKE_NVML_LINKS names a second file, of what connects them; what it does not tell is not supported:
 *     gpu INDEX BUS_ID PCIE_GEN COMPUTE_MAJOR COMPUTE_MINOR MODULE
 *     path INDEX INDEX LEVEL            level as NVML numbers it: 10 one switch ... 50 between sockets
 *     link INDEX LINK ACTIVE TYPE PEER  type 0: GPU, 2: switch; PEER: its bus id
 *     mig INDEX PART UUID INSTANCE PROFILE MIB SLICES
 *     fabric INDEX STATE STATUS CLIQUE CLUSTER    CLUSTER: 32 hexadecimal digits
 *     ecc INDEX CORRECTED UNCORRECTED   volatile
 *     remap INDEX PENDING FAILED
 *     clocks INDEX REASONS              bits, as NVML has them
 *     pcie INDEX GEN WIDTH MAX_WIDTH
 *     pstate INDEX STATE
 *     field INDEX FIELD VALUE           any of NVML's numbered fields
 *     broken INDEX QUESTION             that question fails with an unknown error: uuid, pci, mig, ecc ...
 *     broken 0 eventset                 no event set can be made
 *
 * PHALANX_FAKE_NVML_EVENTS names a third file; a line "INDEX XID" appended to it is an event.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, TIMEOUT = 10, GPU_IS_LOST = 15, UNKNOWN = 999 };
enum { MAX_GPUS = 64, MAX_PIDS = 64, MAX_PARTS = 8 };

typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } process_t;
typedef struct { char uuid[96], model[96], state[16]; unsigned long long total, used; unsigned pids[MAX_PIDS], count; } gpu_t;

static gpu_t gpus[MAX_GPUS];
static int slots[MAX_GPUS];
static int parts[MAX_GPUS][MAX_PARTS];
static long events_read;

/* What the second file tells of one GPU, and whether it says that a question fails; both below. */
static int told(const char *kind, int a, int b, char *rest, size_t size);
static int broken(void *handle, const char *question);

static int load(void) {
    const char *path = getenv("PHALANX_FAKE_NVML");
    FILE *file = path ? fopen(path, "r") : NULL;
    int count = 0;
    char pids[1024];
    if (!file) return -1;
    while (count < MAX_GPUS) {
        gpu_t *g = &gpus[count];
        if (fscanf(file, "%95s %95s %llu %llu %1023s %15s", g->uuid, g->model, &g->total, &g->used, pids, g->state) != 6) break;
        g->count = 0;
        if (strcmp(pids, "-") != 0)
            for (char *p = strtok(pids, ","); p && g->count < MAX_PIDS; p = strtok(NULL, ",")) g->pids[g->count++] = (unsigned)atoi(p);
        count++;
    }
    fclose(file);
    return count;
}

static int find(void *handle, gpu_t **out) {
    int index = (int)((int *)handle - slots);
    if (load() <= index) return GPU_IS_LOST;
    *out = &gpus[index];
    return strcmp((*out)->state, "lost") == 0 ? GPU_IS_LOST : SUCCESS;
}

/* Only what happens from now on is an event. */
int nvmlInitWithFlags(unsigned flags) {
    const char *path = getenv("PHALANX_FAKE_NVML_EVENTS");
    struct stat seen;
    (void)flags;
    events_read = path && stat(path, &seen) == 0 ? (long)seen.st_size : 0;
    return load() < 0 ? UNKNOWN : SUCCESS;
}
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int code) {
    switch (code) {
        case SUCCESS: return "Success";
        case NOT_SUPPORTED: return "Not Supported";
        case NOT_FOUND: return "Not Found";
        case TIMEOUT: return "Timeout";
        case GPU_IS_LOST: return "GPU is lost";
        default: return "Unknown Error";
    }
}

int nvmlDeviceGetCount_v2(unsigned *count) { int n = load(); if (n < 0) return UNKNOWN; *count = (unsigned)n; return SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    gpu_t *gpu;
    if (index >= MAX_GPUS || load() <= (int)index) return NOT_FOUND;
    *handle = &slots[index];
    return find(*handle, &gpu);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **handle) {
    gpu_t *gpu;
    int n = load();
    for (int i = 0; i < n; i++)
        if (strcmp(gpus[i].uuid, uuid) == 0) { *handle = &slots[i]; return find(*handle, &gpu); }
    return NOT_FOUND;
}

static int is_part(void *handle) { return (int *)handle >= &parts[0][0] && (int *)handle < &parts[0][0] + MAX_GPUS * MAX_PARTS; }

static int part(void *handle, char *uuid, unsigned *instance, char *profile, unsigned *mib, unsigned *slices) {
    int at = (int)((int *)handle - &parts[0][0]);
    char rest[256];
    int code = told("mig", at / MAX_PARTS, at % MAX_PARTS, rest, sizeof rest);
    if (code == SUCCESS && sscanf(rest, "%95s %u %31s %u %u", uuid, instance, profile, mib, slices) != 5) code = UNKNOWN;
    return code;
}

static int text(void *handle, char *buffer, unsigned length, int model) {
    gpu_t *gpu;
    char uuid[96], profile[32];
    unsigned instance, mib, slices;
    int code;
    if (is_part(handle)) {
        code = part(handle, uuid, &instance, profile, &mib, &slices);
        if (code != SUCCESS) return code;
        if (model && strcmp(profile, "-") == 0) return NOT_SUPPORTED;
        if (model) snprintf(buffer, length, "NVIDIA Fake MIG %s", profile);
        else snprintf(buffer, length, "%s", uuid);
        return SUCCESS;
    }
    code = broken(handle, model ? "model" : "uuid");
    if (code != SUCCESS) return code;
    code = find(handle, &gpu);
    if (code == SUCCESS) snprintf(buffer, length, "%s", model ? gpu->model : gpu->uuid);
    return code;
}

int nvmlDeviceGetUUID(void *handle, char *buffer, unsigned length) { return text(handle, buffer, length, 0); }
int nvmlDeviceGetName(void *handle, char *buffer, unsigned length) { return text(handle, buffer, length, 1); }

int nvmlDeviceGetMemoryInfo(void *handle, memory_t *memory) {
    gpu_t *gpu;
    int code = find(handle, &gpu);
    if (code != SUCCESS) return code;
    if (strcmp(gpu->state, "nomem") == 0) return NOT_SUPPORTED;
    memory->total = gpu->total << 20;
    memory->used = gpu->used << 20;
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, process_t *processes) {
    gpu_t *gpu;
    int code = find(handle, &gpu);
    if (code != SUCCESS) return code;
    if (gpu->count > *count || (gpu->count && !processes)) { *count = gpu->count; return INSUFFICIENT_SIZE; }
    for (unsigned i = 0; i < gpu->count; i++) {
        memset(&processes[i], 0, sizeof processes[i]);
        processes[i].pid = gpu->pids[i];
    }
    *count = gpu->count;
    return SUCCESS;
}

/* ---- what connects them ---- */

typedef struct { char legacy[16]; unsigned domain, bus, device, device_id, subsystem_id; char bus_id[32]; } pci_t;
typedef struct { char bus_id[32]; unsigned gen, major, minor, module; } place_t;
typedef struct { unsigned active, type; char peer[32]; } link_t;

/* Looks for the line that begins with kind and these numbers; the rest of it goes to rest. */
static int told(const char *kind, int a, int b, char *rest, size_t size) {
    const char *path = getenv("PHALANX_FAKE_NVML_LINKS");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[256], want[64];
    int found = NOT_SUPPORTED;
    if (!file) return NOT_SUPPORTED;
    if (b < 0) snprintf(want, sizeof want, "%s %d ", kind, a);
    else snprintf(want, sizeof want, "%s %d %d ", kind, a, b);
    while (found != SUCCESS && fgets(line, sizeof line, file))
        if (strncmp(line, want, strlen(want)) == 0) { snprintf(rest, size, "%s", line + strlen(want)); found = SUCCESS; }
    fclose(file);
    return found;
}

static int index_of(void *handle) { return (int)((int *)handle - slots); }

static int broken(void *handle, const char *question) {
    char rest[256];
    const char *path = getenv("PHALANX_FAKE_NVML_LINKS");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[256];
    int code = SUCCESS;
    if (!file) return SUCCESS;
    snprintf(rest, sizeof rest, "broken %d %s\n", index_of(handle), question);
    while (code == SUCCESS && fgets(line, sizeof line, file))
        if (strcmp(line, rest) == 0) code = UNKNOWN;
    fclose(file);
    return code;
}

/* Two to four numbers of one line about one GPU. */
static int numbers(void *handle, const char *kind, int b, unsigned long long out[4]) {
    gpu_t *gpu;
    char rest[256];
    int code = find(handle, &gpu);
    if (code == SUCCESS) code = broken(handle, kind);
    if (code == SUCCESS) code = told(kind, index_of(handle), b, rest, sizeof rest);
    if (code == SUCCESS && sscanf(rest, "%llu %llu %llu %llu", &out[0], &out[1], &out[2], &out[3]) < 1) code = UNKNOWN;
    return code;
}

static int place(void *handle, place_t *out) {
    gpu_t *gpu;
    char rest[256];
    int code = find(handle, &gpu);
    if (code == SUCCESS) code = told("gpu", index_of(handle), -1, rest, sizeof rest);
    if (code == SUCCESS && sscanf(rest, "%31s %u %u %u %u", out->bus_id, &out->gen, &out->major, &out->minor, &out->module) != 5) code = UNKNOWN;
    return code;
}

static int link_of(void *handle, unsigned number, link_t *out) {
    gpu_t *gpu;
    char rest[256];
    int code = find(handle, &gpu);
    if (code == SUCCESS) code = told("link", index_of(handle), (int)number, rest, sizeof rest);
    if (code == SUCCESS && sscanf(rest, "%u %u %31s", &out->active, &out->type, out->peer) != 3) code = UNKNOWN;
    return code;
}

int nvmlDeviceGetPciInfo_v3(void *handle, pci_t *pci) {
    place_t at;
    int code = broken(handle, "pci");
    if (code == SUCCESS) code = place(handle, &at);
    memset(pci, 0, sizeof *pci);
    if (code == SUCCESS) snprintf(pci->bus_id, sizeof pci->bus_id, "%s", at.bus_id);
    return code;
}

int nvmlDeviceGetMaxPcieLinkGeneration(void *handle, unsigned *gen) { place_t at; int code = place(handle, &at); if (code == SUCCESS) *gen = at.gen; return code; }
int nvmlDeviceGetModuleId(void *handle, unsigned *module) { place_t at; int code = place(handle, &at); if (code == SUCCESS) *module = at.module; return code; }

int nvmlDeviceGetCudaComputeCapability(void *handle, int *major, int *minor) {
    place_t at;
    int code = place(handle, &at);
    if (code == SUCCESS) { *major = (int)at.major; *minor = (int)at.minor; }
    return code;
}

int nvmlDeviceGetTopologyCommonAncestor(void *one, void *other, unsigned *level) {
    char rest[256];
    int a = index_of(one), b = index_of(other), code = told("path", a < b ? a : b, a < b ? b : a, rest, sizeof rest);
    if (code == SUCCESS) *level = (unsigned)atoi(rest);
    return code;
}

int nvmlDeviceGetNvLinkState(void *handle, unsigned number, unsigned *active) { link_t l; int code = link_of(handle, number, &l); if (code == SUCCESS) *active = l.active; return code; }
int nvmlDeviceGetNvLinkRemoteDeviceType(void *handle, unsigned number, unsigned *type) { link_t l; int code = link_of(handle, number, &l); if (code == SUCCESS) *type = l.type; return code; }

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *handle, unsigned number, pci_t *pci) {
    link_t l;
    int code = link_of(handle, number, &l);
    memset(pci, 0, sizeof *pci);
    if (code == SUCCESS) snprintf(pci->bus_id, sizeof pci->bus_id, "%s", l.peer);
    return code;
}

/* ---- parts, and the fabric ---- */

int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
    char rest[256];
    gpu_t *gpu;
    int code = find(handle, &gpu);
    if (code == SUCCESS) code = broken(handle, "mig");
    if (code == SUCCESS) code = told("gpu", index_of(handle), -1, rest, sizeof rest);
    if (code == SUCCESS) *current = *pending = told("mig", index_of(handle), 0, rest, sizeof rest) == SUCCESS;
    return code;
}

int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *count) { (void)handle; *count = MAX_PARTS; return SUCCESS; }

int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned at, void **out) {
    char rest[256];
    if (at >= MAX_PARTS || told("mig", index_of(handle), (int)at, rest, sizeof rest) != SUCCESS) return NOT_FOUND;
    *out = &parts[index_of(handle)][at];
    return SUCCESS;
}

int nvmlDeviceGetGpuInstanceId(void *handle, unsigned *instance) {
    char uuid[96], profile[32];
    unsigned mib, slices;
    return is_part(handle) ? part(handle, uuid, instance, profile, &mib, &slices) : NOT_SUPPORTED;
}

typedef struct { unsigned sms, engines[5], gpu_slices, compute_slices; unsigned long long mib; } attributes_t;

int nvmlDeviceGetAttributes_v2(void *handle, attributes_t *out) {
    char uuid[96], profile[32];
    unsigned instance, mib, slices;
    int code = is_part(handle) ? part(handle, uuid, &instance, profile, &mib, &slices) : NOT_SUPPORTED;
    memset(out, 0, sizeof *out);
    if (code == SUCCESS) { out->gpu_slices = slices; out->mib = mib; }
    return code;
}

typedef struct { unsigned version; unsigned char cluster[16]; unsigned status, clique; unsigned char state; unsigned health; } fabric_t;

int nvmlDeviceGetGpuFabricInfoV(void *handle, fabric_t *out) {
    gpu_t *gpu;
    char rest[256], cluster[64];
    unsigned state;
    int code = find(handle, &gpu);
    if (code == SUCCESS) code = told("fabric", index_of(handle), -1, rest, sizeof rest);
    if (code != SUCCESS) return code;
    if (sscanf(rest, "%u %u %u %63s", &state, &out->status, &out->clique, cluster) != 4) return UNKNOWN;
    out->state = (unsigned char)state;
    for (int i = 0; i < 16; i++) { unsigned byte = 0; sscanf(cluster + 2 * i, "%2x", &byte); out->cluster[i] = (unsigned char)byte; }
    return SUCCESS;
}

/* ---- health ---- */

int nvmlDeviceGetTotalEccErrors(void *handle, unsigned kind, unsigned counter, unsigned long long *count) {
    unsigned long long n[4] = {0};
    int code = numbers(handle, "ecc", -1, n);
    if (code == SUCCESS && counter != 0) code = NOT_SUPPORTED;
    if (code == SUCCESS) *count = n[kind];
    return code;
}

int nvmlDeviceGetRemappedRows(void *handle, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    unsigned long long n[4] = {0};
    int code = numbers(handle, "remap", -1, n);
    *corrected = *uncorrected = 0;
    if (code == SUCCESS) { *pending = (unsigned)n[0]; *failed = (unsigned)n[1]; }
    return code;
}

int nvmlDeviceGetCurrentClocksEventReasons(void *handle, unsigned long long *bits) {
    unsigned long long n[4] = {0};
    int code = numbers(handle, "clocks", -1, n);
    if (code == SUCCESS) *bits = n[0];
    return code;
}

int nvmlDeviceGetPerformanceState(void *handle, unsigned *state) { unsigned long long n[4] = {0}; int code = numbers(handle, "pstate", -1, n); if (code == SUCCESS) *state = (unsigned)n[0]; return code; }
int nvmlDeviceGetCurrPcieLinkGeneration(void *handle, unsigned *gen) { unsigned long long n[4] = {0}; int code = numbers(handle, "pcie", -1, n); if (code == SUCCESS) *gen = (unsigned)n[0]; return code; }
int nvmlDeviceGetCurrPcieLinkWidth(void *handle, unsigned *width) { unsigned long long n[4] = {0}; int code = numbers(handle, "pcie", -1, n); if (code == SUCCESS) *width = (unsigned)n[1]; return code; }
int nvmlDeviceGetMaxPcieLinkWidth(void *handle, unsigned *width) { unsigned long long n[4] = {0}; int code = numbers(handle, "pcie", -1, n); if (code == SUCCESS) *width = (unsigned)n[2]; return code; }

typedef struct { unsigned field, scope; long long timestamp, latency; unsigned type; int code; unsigned long long value; } field_t;

int nvmlDeviceGetFieldValues(void *handle, int count, field_t *fields) {
    gpu_t *gpu;
    int code = find(handle, &gpu);
    for (int i = 0; code == SUCCESS && i < count; i++) {
        unsigned long long n[4] = {0};
        fields[i].code = numbers(handle, "field", (int)fields[i].field, n);
        fields[i].type = 3; /* unsigned long long */
        fields[i].value = n[0];
    }
    return code;
}

/* ---- events ---- */

typedef struct { unsigned registered[MAX_GPUS]; long read; } set_t;
typedef struct { void *device; unsigned long long type, data; unsigned gpu_instance, compute_instance; } event_t;

int nvmlEventSetCreate(set_t **set) {
    if (broken(&slots[0], "eventset") != SUCCESS) return UNKNOWN;
    *set = calloc(1, sizeof **set);
    if (!*set) return UNKNOWN;
    (*set)->read = events_read;
    return SUCCESS;
}

int nvmlEventSetFree(set_t *set) { events_read = set->read; free(set); return SUCCESS; }

int nvmlDeviceRegisterEvents(void *handle, unsigned long long types, set_t *set) {
    gpu_t *gpu;
    int code = find(handle, &gpu);
    if (code == SUCCESS) code = broken(handle, "events");
    if (code == SUCCESS && types) set->registered[index_of(handle)] = 1;
    return code;
}

/* Returns the next whole line of the file that is about a registered GPU. */
static int next_event(set_t *set, event_t *out) {
    const char *path = getenv("PHALANX_FAKE_NVML_EVENTS");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[64];
    int found = 0, index;
    if (!file) return 0;
    fseek(file, set->read, SEEK_SET);
    while (!found && fgets(line, sizeof line, file) && strchr(line, '\n')) {
        unsigned long long xid;
        set->read = ftell(file);
        if (sscanf(line, "%d %llu", &index, &xid) != 2 || index < 0 || index >= MAX_GPUS || !set->registered[index]) continue;
        memset(out, 0, sizeof *out);
        out->device = &slots[index];
        out->type = 8; /* a critical XID */
        out->data = xid;
        found = 1;
    }
    fclose(file);
    return found;
}

int nvmlEventSetWait_v2(set_t *set, event_t *out, unsigned timeout_ms) {
    for (unsigned waited = 0; waited <= timeout_ms; waited += 10) {
        if (next_event(set, out)) return SUCCESS;
        usleep(10000);
    }
    return TIMEOUT;
}
