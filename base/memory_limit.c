// SPDX-License-Identifier: Apache-2.0
/*
 * Reads limits of control groups. See memory_limit.h.
 *
 * Design: a limit of any group above ours applies to us as well. In a container /proc/self/cgroup may name our groups
 *         as the host does, while /sys/fs/cgroup begins at our own group. So folders that do not exist are skipped on
 *         the way up to the root. Version 1 writes "no limit" as a huge number, so the machine's own memory is the
 *         smaller limit.
 */
#include "base/memory_limit.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void take_least(int64_t bytes, const char *source, struct sl_memory_limit *limit) {
    if (bytes < limit->bytes) {
        limit->bytes = bytes;
        snprintf(limit->source, sizeof limit->source, "%s", source);
    }
}

// Reads a file with one number, or "max".
static void read_limit(const char *path, struct sl_memory_limit *limit) {
    FILE *file = fopen(path, "r");
    if (!file) {
        return;
    }
    char line[64], *end;
    if (fgets(line, sizeof line, file) && line[0] >= '0' && line[0] <= '9') {
        long long bytes = strtoll(line, &end, 10);
        if (*end == '\n' || *end == '\0') {
            take_least(bytes, path, limit);
        }
    }
    fclose(file);
}

// Reads the files of a group and of all groups above it. `group` is "/a/b", and is cut in place.
static void read_groups(const char *root, const char *hierarchy, char *group, const char *name,
                        struct sl_memory_limit *limit) {
    char path[PATH_MAX];
    group[strcmp(group, "/") == 0 ? 0 : strlen(group)] = '\0';
    for (;;) {
        if ((size_t)snprintf(path, sizeof path, "%s/sys/fs/cgroup%s%s/%s", root, hierarchy, group, name) <
            sizeof path) {
            read_limit(path, limit);
        }
        char *slash = strrchr(group, '/');
        if (!slash) {
            return;
        }
        *slash = '\0';
    }
}

// Reads a line such as "5:cpu,memory:/a/b" (version 1) or "0::/a/b" (version 2).
static void read_membership(const char *root, char *line, struct sl_memory_limit *limit) {
    line[strcspn(line, "\n")] = '\0';
    char *controllers = strchr(line, ':');
    char *group = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!group) {
        return;
    }
    *controllers++ = '\0';
    *group++ = '\0';
    if (strcmp(line, "0") == 0 && !controllers[0]) {
        read_groups(root, "", group, "memory.max", limit);
        return;
    }
    for (char *next = controllers; next;) {
        char *controller = strsep(&next, ",");
        if (strcmp(controller, "memory") == 0) {
            read_groups(root, "/memory", group, "memory.limit_in_bytes", limit);
        }
    }
}

// Returns the number after `field` in a file of lines such as "MemTotal:  16 kB", in bytes; -1: the field is missing.
static int64_t read_field(const char *path, const char *field) {
    FILE *file = fopen(path, "r");
    if (!file) {
        return -1;
    }
    int64_t bytes = -1;
    char line[256];
    size_t n = strlen(field);
    while (bytes < 0 && fgets(line, sizeof line, file)) {
        long long kib;
        if (strncmp(line, field, n) == 0 && sscanf(line + n, ": %lld kB", &kib) == 1) {
            bytes = (int64_t)kib * 1024;
        }
    }
    fclose(file);
    return bytes;
}

enum sl_status sl_memory_limit_read(const char *root, struct sl_memory_limit *limit_out, struct sl_error *err) {
    struct sl_memory_limit limit = {.bytes = INT64_MAX};
    char path[PATH_MAX], line[PATH_MAX];
    SL_FAIL_IF((size_t)snprintf(path, sizeof path, "%s/proc/meminfo", root) >= sizeof path, err, SL_ERR_INVALID,
               "%s: the path is too long", root);
    int64_t machine = read_field(path, "MemTotal");
    if (machine > 0) {
        take_least(machine, path, &limit);
    }
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *file = fopen(path, "r");
    if (file) {
        while (fgets(line, sizeof line, file)) {
            read_membership(root, line, &limit);
        }
        fclose(file);
    }
    SL_FAIL_IF(limit.bytes == INT64_MAX, err, SL_ERR_UNSUPPORTED,
               "neither /proc/meminfo nor a control group says how much memory there is");
    *limit_out = limit;
    return SL_OK;
}

int64_t sl_memory_available(const char *root) {
    char path[PATH_MAX];
    return (size_t)snprintf(path, sizeof path, "%s/proc/meminfo", root) < sizeof path ? read_field(path, "MemAvailable")
                                                                                      : -1;
}

int64_t sl_memory_resident(const char *root) {
    char path[PATH_MAX];
    return (size_t)snprintf(path, sizeof path, "%s/proc/self/status", root) < sizeof path ? read_field(path, "VmRSS")
                                                                                          : -1;
}
