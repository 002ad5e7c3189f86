// SPDX-License-Identifier: Apache-2.0
#include "base/processors.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PATH_BYTES 4096
#define LIST_BYTES 8192 // for a list such as "0-3,8-11": 1024 processors with every second one missing take 3 KiB

struct processor {
    int number, node;
    int core; // lowest allowed processor of its core
    int rank; // 0: it is that processor itself; 1: the core's second; ...
};

// Reads the first line of a file, without its newline; false if there is none.
static bool read_line(const char *path, char *line, int line_bytes) {
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        return false;
    }
    bool ok = fgets(line, line_bytes, file) != NULL;
    fclose(file);
    if (ok) {
        line[strcspn(line, "\n")] = '\0';
    }
    return ok;
}

// Reads a list in the kernel's format: "0-3,8,10-11"; empty for a node without processors. False if there is no such
// file.
static bool read_list(const char *path, cpu_set_t *set_out) {
    char line[LIST_BYTES];
    CPU_ZERO(set_out);
    if (!read_line(path, line, sizeof line)) {
        return false;
    }
    for (char *at = line; *at != '\0';) {
        char *end;
        long first = strtol(at, &end, 10), last = first;
        if (end == at) {
            break;
        }
        if (*end == '-') {
            last = strtol(end + 1, &end, 10);
        }
        for (long i = first; i >= 0 && i <= last && i < CPU_SETSIZE; i++) {
            CPU_SET((size_t)i, set_out);
        }
        at = *end == ',' ? end + 1 : end;
    }
    return true;
}

// Reads the NUMA nodes. nodes_out: [CPU_SETSIZE], 0 where the kernel knows no node.
static void read_nodes(const char *root, int *nodes_out) {
    char path[PATH_BYTES];
    cpu_set_t nodes, members;
    memset(nodes_out, 0, CPU_SETSIZE * sizeof *nodes_out);
    snprintf(path, sizeof path, "%s/sys/devices/system/node/online", root);
    if (!read_list(path, &nodes)) {
        return;
    }
    for (int node = 0; node < CPU_SETSIZE; node++) {
        snprintf(path, sizeof path, "%s/sys/devices/system/node/node%d/cpulist", root, node);
        if (!CPU_ISSET((size_t)node, &nodes) || !read_list(path, &members)) {
            continue;
        }
        for (int i = 0; i < CPU_SETSIZE; i++) {
            if (CPU_ISSET((size_t)i, &members)) {
                nodes_out[i] = node;
            }
        }
    }
}

int sl_processors_node_of(const char *root, const cpu_set_t *allowed) {
    int *nodes = malloc(CPU_SETSIZE * sizeof *nodes), node = -1;
    if (nodes == NULL) {
        return -1;
    }
    read_nodes(root, nodes);
    for (int i = 0; i < CPU_SETSIZE; i++) {
        if (CPU_ISSET((size_t)i, allowed) && node != nodes[i]) {
            if (node >= 0) {
                node = -1;
                break;
            }
            node = nodes[i];
        }
    }
    free(nodes);
    return node;
}

int sl_processors_node(const char *root) {
    cpu_set_t allowed;
    return sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? sl_processors_node_of(root, &allowed) : -1;
}

// Reads which processors share the core with p->number, and counts only the usable ones.
static void read_core(const char *root, const cpu_set_t *usable, struct processor *p) {
    char path[PATH_BYTES];
    cpu_set_t siblings;
    p->core = p->number;
    p->rank = 0;
    snprintf(path, sizeof path, "%s/sys/devices/system/cpu/cpu%d/topology/thread_siblings_list", root, p->number);
    if (!read_list(path, &siblings)) {
        return;
    }
    for (int i = p->number - 1; i >= 0; i--) {
        if (CPU_ISSET((size_t)i, &siblings) && CPU_ISSET((size_t)i, usable)) {
            p->core = i;
            p->rank++;
        }
    }
}

static int by_preference(const void *a, const void *b) {
    const struct processor *x = a, *y = b;
    return x->rank != y->rank ? x->rank - y->rank : x->node != y->node ? x->node - y->node : x->number - y->number;
}

static int by_place(const void *a, const void *b) {
    const struct processor *x = a, *y = b;
    return x->node != y->node ? x->node - y->node : x->core != y->core ? x->core - y->core : x->rank - y->rank;
}

enum sl_status sl_processors_place(const char *root, const cpu_set_t *allowed, int n, int *processors_out,
                                   struct sl_error *err) {
    char path[PATH_BYTES];
    cpu_set_t online, usable = *allowed;
    snprintf(path, sizeof path, "%s/sys/devices/system/cpu/online", root);
    if (read_list(path, &online)) {
        CPU_AND(&usable, allowed, &online);
    }
    struct {
        int nodes[CPU_SETSIZE];
        struct processor list[CPU_SETSIZE];
    } *all = malloc(sizeof *all);
    SL_FAIL_IF(all == NULL, err, SL_ERR_EXHAUSTED, "no memory for the list of processors");
    read_nodes(root, all->nodes);
    int n_usable = 0;
    for (int i = 0; i < CPU_SETSIZE; i++) {
        if (CPU_ISSET((size_t)i, &usable)) {
            struct processor *p = &all->list[n_usable++];
            *p = (struct processor){.number = i, .node = all->nodes[i]};
            read_core(root, &usable, p);
        }
    }
    SL_FAIL_OR(n > n_usable, free(all), err, SL_ERR_RANGE,
               "%d threads cannot be pinned to %d processors: use at most that many threads, or do not pin", n,
               n_usable);
    qsort(all->list, (size_t)n_usable, sizeof all->list[0], by_preference);
    qsort(all->list, (size_t)n, sizeof all->list[0], by_place);
    for (int i = 0; i < n; i++) {
        processors_out[i] = all->list[i].number;
    }
    free(all);
    return SL_OK;
}

// Reads the path of the process's group in the one hierarchy of version 2: the line "0::/path".
static bool read_group(const char *root, char *group, int group_bytes) {
    char path[PATH_BYTES], line[PATH_BYTES];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        return false;
    }
    bool found = false;
    while (!found && fgets(line, sizeof line, file) != NULL) {
        found = strncmp(line, "0::/", 4) == 0;
    }
    fclose(file);
    if (found) {
        line[strcspn(line, "\n")] = '\0';
        snprintf(group, (size_t)group_bytes, "%s", line + 3);
    }
    return found;
}

int sl_processors_quota(const char *root) {
    char group[PATH_BYTES], path[2 * PATH_BYTES], line[128];
    if (!read_group(root, group, sizeof group)) {
        return 0;
    }
    int64_t least = 0;
    for (;;) {
        // "max 100000" or "150000 100000": microseconds of processor time in each period.
        int64_t quota_us, period_us;
        snprintf(path, sizeof path, "%s/sys/fs/cgroup%s/cpu.max", root, group);
        if (read_line(path, line, sizeof line) && sscanf(line, "%" SCNd64 " %" SCNd64, &quota_us, &period_us) == 2 &&
            quota_us > 0 && period_us > 0) {
            int64_t n = (quota_us - 1) / period_us + 1;
            least = least == 0 || n < least ? n : least;
        }
        char *slash = strrchr(group, '/');
        if (slash == NULL) {
            break;
        }
        *slash = '\0'; // "/a/b" -> "/a" -> ""
    }
    return least < CPU_SETSIZE ? (int)least : CPU_SETSIZE;
}

int sl_processors_count(void) {
    cpu_set_t allowed; // the processors that this process may use, which in a container are fewer than the machine's
    int n =
        sched_getaffinity(0, sizeof allowed, &allowed) == 0 ? CPU_COUNT(&allowed) : (int)sysconf(_SC_NPROCESSORS_ONLN);
    int quota = sl_processors_quota("");
    n = quota > 0 && quota < n ? quota : n;
    return n < 1 ? 1 : n;
}
