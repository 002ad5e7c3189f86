// SPDX-License-Identifier: Apache-2.0
// Purpose: see checks.h: limits, memory, disk and processor of this machine, and the libraries.
#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <jansson.h>

#include "base/close.h"
#include "base/memory_limit.h"
#include "base/model_place.h"
#include "base/version.h"
#include "client/cli/doctor/checks.h"
#include "engine/tensor/cpu/tiers.h"
#include "net/fabric/core/library.h"
#include "net/rpc/rpc.h"
#include "net/trust/validity.h"

#define MIB(bytes) ((int64_t)(bytes) >> 20)

enum {
    LEAST_FILES = 256, // a coordinator with three workers and a gateway opens about 60 each
    FEW_FILES = 4096,
    LEAST_DISK_MIB = 1024,
};

// ---- limits ---------------------------------------------------------------------------------------------------------

static void check_files(struct sl_findings *findings) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) {
        return;
    }
    const bool is_unlimited = limit.rlim_max == RLIM_INFINITY;
    const long long most = is_unlimited ? LLONG_MAX : (long long)limit.rlim_max;
    const enum sl_health health = most < LEAST_FILES ? SL_HEALTH_FAILED
                                  : most < FEW_FILES ? SL_HEALTH_WARNING
                                                     : SL_HEALTH_OK;
    sl_findings_add(findings, "open files", health,
                    "hard limit %lld: servers raise the soft limit to it, and give clients' connections three quarters",
                    most);
    sl_findings_remedy(findings, "ulimit -Hn 65536, or LimitNOFILE=65536 in the systemd unit");
}

static void check_memlock(struct sl_findings *findings) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0) {
        return;
    }
    if (limit.rlim_cur == RLIM_INFINITY) {
        sl_findings_add(findings, "locked memory", SL_HEALTH_OK, "unlimited: RDMA can register whole arenas");
    } else {
        sl_findings_add(findings, "locked memory", SL_HEALTH_OK,
                        "%" PRId64
                        " MiB: enough for shared memory and TCP; --transport rdma locks each worker's arena, "
                        "for which LimitMEMLOCK=infinity is needed",
                        MIB(limit.rlim_cur));
    }
}

void sl_doctor_limits(struct sl_findings *findings) {
    check_files(findings);
    check_memlock(findings);
}

// ---- memory ---------------------------------------------------------------------------------------------------------

static int64_t model_bytes(const char *path) {
    struct stat st;
    int64_t bytes = 0;
    if (!path || stat(path, &st) != 0) {
        return 0;
    }
    DIR *dir = S_ISDIR(st.st_mode) ? opendir(path) : NULL;
    if (!dir) {
        return S_ISDIR(st.st_mode) ? 0 : (int64_t)st.st_size;
    }
    for (const struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        const char *end = strrchr(entry->d_name, '.');
        const bool is_tensors = end && (strcmp(end, ".safetensors") == 0 || strcmp(end, ".gguf") == 0);
        bytes += is_tensors && fstatat(dirfd(dir), entry->d_name, &st, 0) == 0 ? (int64_t)st.st_size : 0;
    }
    closedir(dir);
    return bytes;
}

static int64_t meminfo(const char *key) {
    FILE *file = fopen("/proc/meminfo", "re");
    char line[128];
    long long value = -1;
    while (file && fgets(line, sizeof line, file)) {
        if (strncmp(line, key, strlen(key)) == 0 && line[strlen(key)] == ':') {
            value = strtoll(line + strlen(key) + 1, NULL, 10);
            break;
        }
    }
    sl_close_file(file);
    return value;
}

void sl_doctor_memory(struct sl_findings *findings, const struct sl_doctor_need *need) {
    struct sl_memory_limit limit;
    int64_t free_bytes = sl_memory_available("");
    const bool is_limited = sl_memory_limit_read("", &limit, NULL) == SL_OK && limit.bytes < free_bytes;
    free_bytes = is_limited ? limit.bytes : free_bytes;
    const int64_t weights = model_bytes(need->model), arenas = need->arena_bytes * need->n_workers;
    const bool fits = free_bytes < 0 || weights + arenas <= free_bytes;
    sl_findings_add(findings, "memory", fits ? SL_HEALTH_OK : SL_HEALTH_FAILED,
                    "%" PRId64 " MiB free%s; a cluster takes %" PRId64 " MiB of arenas (%" PRId64
                    " workers), and %" PRId64 " MiB of weights%s",
                    MIB(free_bytes), is_limited ? " in this control group" : "", MIB(arenas), need->n_workers,
                    MIB(weights), need->model ? "" : " (--model tells)");
    sl_findings_remedy(findings, "a smaller --arena, --weights int8 or int4, or fewer workers");
    sl_findings_add(findings, "huge pages", SL_HEALTH_OK,
                    "%" PRId64 " of %" PRId64 " free, %" PRId64 " KiB each: --huge-pages takes arenas from them",
                    meminfo("HugePages_Free"), meminfo("HugePages_Total"), meminfo("Hugepagesize"));
}

void sl_doctor_shm(struct sl_findings *findings, const struct sl_doctor_need *need) {
    struct statvfs st;
    if (statvfs("/dev/shm", &st) != 0) {
        sl_findings_add(findings, "shared memory", SL_HEALTH_FAILED, "/dev/shm: %s: workers put their arenas there",
                        strerror(errno));
        sl_findings_remedy(findings, "mount it, or --transport tcp");
        return;
    }
    const int64_t free_bytes = (int64_t)st.f_bavail * (int64_t)st.f_frsize,
                  wanted = need->arena_bytes * need->n_workers;
    const bool fits = wanted <= free_bytes;
    sl_findings_add(findings, "shared memory", fits ? SL_HEALTH_OK : SL_HEALTH_FAILED,
                    "/dev/shm has %" PRId64 " of %" PRId64 " MiB free; the arenas of %" PRId64 " workers take %" PRId64
                    " MiB of it, and a worker without room ends with SIGBUS",
                    MIB(free_bytes), MIB((int64_t)st.f_blocks * (int64_t)st.f_frsize), need->n_workers, MIB(wanted));
    sl_findings_remedy(findings, "--arena %" PRId64 "M, docker run --shm-size, or an emptyDir with medium: Memory",
                       MIB(free_bytes / (need->n_workers > 0 ? need->n_workers : 1)));
}

// ---- disk -----------------------------------------------------------------------------------------------------------

// Checks the file system of the nearest folder above `path` that exists.
static void check_disk(struct sl_findings *findings, const char *path, const char *use) {
    char folder[PATH_MAX];
    struct statvfs st;
    snprintf(folder, sizeof folder, "%s", path);
    while (statvfs(folder, &st) != 0) {
        char *slash = strrchr(folder, '/');
        if (!slash) {
            snprintf(folder, sizeof folder, ".");
        } else if (slash == folder) {
            folder[1] = '\0';
        } else {
            *slash = '\0';
        }
    }
    const int64_t free_mib = MIB((int64_t)st.f_bavail * (int64_t)st.f_frsize);
    const enum sl_health health = free_mib < LEAST_DISK_MIB ? SL_HEALTH_WARNING : SL_HEALTH_OK;
    sl_findings_add(findings, "disk", health, "%s: %" PRId64 " MiB free, for %s", path, free_mib, use);
    sl_findings_remedy(findings, "free some, or name a folder on another file system");
}

void sl_doctor_disk(struct sl_findings *findings, const struct sl_doctor_need *need) {
    char models[PATH_MAX];
    if (sl_model_place(0, models)) {
        check_disk(findings, models, "models that `sluice pull` gets");
    }
    if (need->disk) {
        check_disk(findings, need->disk, "capsules of KV stores");
    }
}

// ---- processor and libraries ------------------------------------------------------------------------------------------

// Returns true if the processor has tile registers and the kernel refuses them to us.
static bool is_amx_refused(void) {
#if defined(__x86_64__)
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    const unsigned amx_tile = 1u << 24;
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & amx_tile) != 0 &&
           syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) != 0;
#else
    return false;
#endif
}

void sl_doctor_processor(struct sl_findings *findings) {
    const struct sl_ops *ops;
    struct sl_error err;
    char tiers[160] = "";
    for (const char *const *tier = sl_ops_tiers(); *tier; tier++) {
        snprintf(tiers + strlen(tiers), sizeof tiers - strlen(tiers), "%s%s", tiers[0] ? ", " : "", *tier);
    }
    if (sl_ops_select("auto", &ops, &err) != SL_OK) {
        sl_findings_add(findings, "processor", SL_HEALTH_FAILED, "%s", err.text);
        sl_findings_remedy(findings, "unset SLUICE_TIER");
        return;
    }
    const struct sl_ops *wide = ops;
    char other[64] = "";
    if (sl_ops_select_wide("auto", &wide, NULL) == SL_OK && wide != ops) {
        snprintf(other, sizeof other, " (%s for f16 and f32 weights)", wide->name);
    }
    const bool is_slow = strcmp(ops->name, "reference") == 0;
    sl_findings_add(findings, "processor", is_slow ? SL_HEALTH_WARNING : SL_HEALTH_OK,
                    "workers compute with tier %s%s, of %s%s", ops->name, other, tiers,
                    is_slow ? ": plain C, many times slower than the others" : "");
    sl_findings_remedy(findings, "a processor with AVX2 or NEON, or unset SLUICE_TIER");
    if (is_amx_refused()) {
        sl_findings_add(findings, "AMX", SL_HEALTH_WARNING,
                        "the kernel refuses the processor's tile registers (arch_prctl): prompts are read several "
                        "times slower");
        sl_findings_remedy(findings, "Linux 5.16 or later, and a container runtime whose seccomp profile allows it");
    }
}

void sl_doctor_versions(struct sl_findings *findings) {
    sl_findings_add(findings, "versions", SL_HEALTH_OK, "sluice %s, gRPC core %s, UCX %s, OpenSSL %s, jansson %s",
                    SL_VERSION, sl_rpc_library_version(), sl_fabric_library_version(), sl_trust_library_version(),
                    JANSSON_VERSION);
}
