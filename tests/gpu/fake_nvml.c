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
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, GPU_IS_LOST = 15, UNKNOWN = 999 };
enum { MAX_GPUS = 64, MAX_PIDS = 64 };

typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } process_t;
typedef struct { char uuid[96], model[96], state[16]; unsigned long long total, used; unsigned pids[MAX_PIDS], count; } gpu_t;

static gpu_t gpus[MAX_GPUS];
static int slots[MAX_GPUS];

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

int nvmlInitWithFlags(unsigned flags) { (void)flags; return load() < 0 ? UNKNOWN : SUCCESS; }
int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int code) {
    switch (code) {
        case SUCCESS: return "Success";
        case NOT_SUPPORTED: return "Not Supported";
        case NOT_FOUND: return "Not Found";
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

static int text(void *handle, char *buffer, unsigned length, int model) {
    gpu_t *gpu;
    int code = find(handle, &gpu);
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
    int code = place(handle, &at);
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
