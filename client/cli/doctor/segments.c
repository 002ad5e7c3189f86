// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: see checks.h: segments of shared memory that killed processes have left.
 *
 * Design: UCX names them ucx_shm_posix_ID, and the ID tells no process. So a segment is stale if no process maps it or has it
 *         open. What we cannot see counts as used: segments, if a process hides what it maps and has shared memory (an init does not use UCX); and a segment
 *         that is younger than a minute, whose process may not have mapped it yet. Processes of other containers are invisible;
 *         so --clean is for machines whose /dev/shm no other container shares.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/close.h"
#include "client/cli/doctor/checks.h"

#define PREFIX "ucx_shm_posix_"

enum { YOUNG_S = 60, MAX_SEGMENTS = 4096 };

struct segment {
    struct stat st;
    char name[NAME_MAX + 1];
    bool is_used;
};

struct segments {
    struct segment *list; // [n]
    size_t n;
    bool is_blind; // a process that hides its mappings has shared memory
};

static void use(struct segments *segments, dev_t device, ino_t inode) {
    for (size_t i = 0; i < segments->n; i++) {
        segments->list[i].is_used |= segments->list[i].st.st_ino == inode && segments->list[i].st.st_dev == device;
    }
}

// Returns true if a process that hides its mappings may have a segment: its status, which all may read, shows shared memory.
static bool has_shared_memory(int process) {
    const int fd = openat(process, "status", O_RDONLY | O_CLOEXEC);
    FILE *status = fd >= 0 ? fdopen(fd, "r") : NULL;
    char line[256];
    bool has_some = status != NULL; // without the line, too
    while (status && fgets(line, sizeof line, status)) {
        if (strncmp(line, "RssShmem:", strlen("RssShmem:")) == 0) {
            has_some = strtoll(line + strlen("RssShmem:"), NULL, 10) > 0;
            break;
        }
    }
    sl_close_file(status);
    return has_some;
}

static bool is_sluice(int process) {
    char name[16] = "";
    const int fd = openat(process, "comm", O_RDONLY | O_CLOEXEC);
    const bool is_read = fd >= 0 && read(fd, name, sizeof name - 1) > 0;
    sl_close(fd);
    return !is_read || strncmp(name, "sluice", strlen("sluice")) == 0;
}

static void see_files(struct segments *segments, int process) {
    const int fd = openat(process, "fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    if (!dir) {
        return; // see_maps() judges a process that hides them
    }
    for (const struct dirent *entry; (entry = readdir(dir)) != NULL;) {
        struct stat st;
        if (entry->d_name[0] != '.' && fstatat(fd, entry->d_name, &st, 0) == 0) {
            use(segments, st.st_dev, st.st_ino);
        }
    }
    closedir(dir);
}

// Marks the segments that a process maps. Lines name the inode, and the device of a tmpfs as stat() does.
static void see_maps(struct segments *segments, int process, bool is_init) {
    const int fd = openat(process, "maps", O_RDONLY | O_CLOEXEC);
    FILE *maps = fd >= 0 ? fdopen(fd, "r") : NULL;
    if (!maps) {
        segments->is_blind |= errno == EACCES && !is_init && has_shared_memory(process);
        return;
    }
    char *line = NULL;
    size_t n_bytes = 0;
    while (getline(&line, &n_bytes, maps) > 0) {
        unsigned major, minor;
        unsigned long long inode;
        if (strstr(line, PREFIX) && sscanf(line, "%*s %*s %*s %x:%x %llu", &major, &minor, &inode) == 3) {
            for (size_t i = 0; i < segments->n; i++) { // a container may see another device: the inode suffices
                segments->list[i].is_used |= segments->list[i].st.st_ino == inode;
            }
        }
    }
    free(line);
    fclose(maps);
}

static void see_processes(struct segments *segments) {
    DIR *dir = opendir("/proc");
    segments->is_blind |= dir == NULL;
    for (const struct dirent *entry; dir && (entry = readdir(dir)) != NULL;) {
        struct stat st;
        const bool is_process = entry->d_name[0] >= '1' && entry->d_name[0] <= '9';
        const int process = is_process ? openat(dirfd(dir), entry->d_name, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
        if (process < 0) {
            continue;
        }
        // Other users' processes cannot use our segments, which only we may open. Root sees all of them.
        if (fstat(process, &st) == 0 && (st.st_uid == geteuid() || geteuid() == 0)) {
            see_maps(segments, process, strcmp(entry->d_name, "1") == 0 && !is_sluice(process));
            see_files(segments, process);
        }
        close(process);
    }
    sl_close_folder(dir);
}

static void list_segments(DIR *dir, struct segments *segments) {
    for (const struct dirent *entry; segments->n < MAX_SEGMENTS && (entry = readdir(dir)) != NULL;) {
        struct segment *segment = &segments->list[segments->n];
        if (strncmp(entry->d_name, PREFIX, strlen(PREFIX)) != 0 ||
            fstatat(dirfd(dir), entry->d_name, &segment->st, AT_SYMLINK_NOFOLLOW) != 0 ||
            !S_ISREG(segment->st.st_mode)) {
            continue;
        }
        const bool is_ours = segment->st.st_uid == geteuid() || geteuid() == 0;
        strcpy(segment->name, entry->d_name);
        segment->is_used = !is_ours || time(NULL) - segment->st.st_mtime < YOUNG_S;
        segments->n++;
    }
}

static void tell(struct sl_findings *findings, size_t n, int64_t bytes, bool clean, size_t n_removed) {
    if (n == 0) {
        sl_findings_add(findings, "segments", SL_HEALTH_OK, "no shared memory of killed processes");
    } else if (clean && n_removed == n) {
        sl_findings_add(findings, "segments", SL_HEALTH_OK,
                        "removed %zu segments of killed processes, %" PRId64 " bytes of shared memory", n, bytes);
    } else {
        sl_findings_add(findings, "segments", SL_HEALTH_WARNING,
                        "%zu segments of killed processes hold %" PRId64 " bytes of memory and of /dev/shm%s",
                        n - n_removed, bytes, clean ? ", and could not be removed" : "");
        sl_findings_remedy(findings, "sluice doctor --clean");
    }
}

void sl_doctor_segments(struct sl_findings *findings, const char *folder, bool clean) {
    struct segments segments = {.list = calloc(MAX_SEGMENTS, sizeof *segments.list)};
    DIR *dir = opendir(folder);
    size_t n = 0, n_removed = 0;
    int64_t bytes = 0;
    if (dir && segments.list) {
        list_segments(dir, &segments);
        see_processes(&segments);
    }
    for (size_t i = 0; i < segments.n && !segments.is_blind; i++) {
        if (!segments.list[i].is_used) {
            const bool is_removed = clean && unlinkat(dirfd(dir), segments.list[i].name, 0) == 0;
            n++;
            n_removed += is_removed;
            bytes += (int64_t)segments.list[i].st.st_blocks * 512;
        }
    }
    if (segments.is_blind && segments.n > 0) {
        sl_findings_add(findings, "segments", SL_HEALTH_WARNING,
                        "%zu segments; whether their processes live cannot be seen in /proc, so none is removed",
                        segments.n);
        sl_findings_remedy(findings, "sudo sluice doctor");
    } else {
        tell(findings, n, bytes, clean, n_removed);
    }
    sl_close_folder(dir);
    free(segments.list);
}
