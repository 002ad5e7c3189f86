// SPDX-License-Identifier: Apache-2.0
// Purpose: see clusters_here.h.
#include "cli/clusters_here.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static enum sl_status root_of(char root[PATH_MAX], struct sl_error *err) {
    const char *runtime = getenv("XDG_RUNTIME_DIR"), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n = runtime && runtime[0] ? snprintf(root, PATH_MAX, "%s/sluice", runtime)
            : cache && cache[0]   ? snprintf(root, PATH_MAX, "%s/sluice/run", cache)
            : home && home[0]     ? snprintf(root, PATH_MAX, "%s/.cache/sluice/run", home)
                                  : snprintf(root, PATH_MAX, "/tmp/sluice-%d", (int)getuid());
    return n < PATH_MAX ? SL_OK : sl_fail(err, SL_ERR_INVALID, "XDG_RUNTIME_DIR: the path is too long");
}

// With all folders above it.
static enum sl_status make_folder(const char *path, struct sl_error *err) {
    char part[PATH_MAX];
    for (const char *end = strchr(path + 1, '/');; end = strchr(end + 1, '/')) {
        snprintf(part, sizeof part, "%.*s", end ? (int)(end - path) : (int)strlen(path), path);
        if (mkdir(part, 0700) != 0 && errno != EEXIST) {
            return sl_fail(err, SL_ERR_IO, "%s: cannot be made: %s (XDG_RUNTIME_DIR says where)", part,
                           strerror(errno));
        }
        if (!end) {
            return SL_OK;
        }
    }
}

static bool is_name(const char *name) {
    size_t n = strlen(name);
    bool fine = n > 0 && n < 64 && name[0] != '.';
    for (size_t i = 0; i < n; i++) {
        fine = fine && (isalnum((unsigned char)name[i]) || strchr("-_.", name[i]));
    }
    return fine;
}

// The lock of a folder; -1: errno says why not, EWOULDBLOCK that somebody has it.
static int take_lock(const char *dir) {
    char path[PATH_MAX + 8];
    snprintf(path, sizeof path, "%s/lock", dir);
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) != 0) {
        int why = errno;
        close(fd);
        errno = why;
        return -1;
    }
    return fd;
}

enum sl_status sl_cluster_here_open(const char *name, struct sl_cluster_here *here, struct sl_error *err) {
    char root[PATH_MAX];
    *here = (struct sl_cluster_here){.lock_fd = -1};
    if (!is_name(name)) {
        return sl_fail(err, SL_ERR_INVALID, "--name %s: expected up to 63 letters, digits and -_.", name);
    }
    enum sl_status status = root_of(root, err);
    if (status == SL_OK && snprintf(here->dir, sizeof here->dir, "%s/%s", root, name) >= PATH_MAX) {
        status = sl_fail(err, SL_ERR_INVALID, "XDG_RUNTIME_DIR: the path is too long");
    }
    status = status == SL_OK ? make_folder(here->dir, err) : status;
    if (status != SL_OK) {
        return status;
    }
    snprintf(here->name, sizeof here->name, "%s", name);
    snprintf(here->log_path, sizeof here->log_path, "%s/cluster.log", here->dir);
    snprintf(here->state_path, sizeof here->state_path, "%s/cluster.json", here->dir);
    here->lock_fd = take_lock(here->dir);
    if (here->lock_fd < 0) {
        return errno == EWOULDBLOCK
                   ? sl_fail(err, SL_ERR_EXISTS,
                             "a cluster of the name %s runs already: `sluice down %s` stops it, --name NAME starts "
                             "another one beside it",
                             name, name)
                   : sl_fail(err, SL_ERR_IO, "%s: %s", here->dir, strerror(errno));
    }
    unlink(here->state_path);
    here->log = fopen(here->log_path, "we");
    if (!here->log) {
        status = sl_fail(err, SL_ERR_IO, "%s: %s", here->log_path, strerror(errno));
        sl_cluster_here_close(here, false);
    }
    return status;
}

static void remove_files(const char *dir) {
    static const char *const names[] = {"cluster.json", "cluster.log", "lock"};
    char path[PATH_MAX + 16];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, names[i]);
        unlink(path);
    }
    rmdir(dir);
}

void sl_cluster_here_close(struct sl_cluster_here *here, bool keep) {
    if (here->lock_fd < 0) {
        return;
    }
    if (here->log) {
        fclose(here->log);
    }
    if (keep) {
        unlink(here->state_path);
    } else {
        remove_files(here->dir);
    }
    close(here->lock_fd);
    here->lock_fd = -1;
}

// --- who is there ----------------------------------------------------------------------------------------------------

bool sl_cluster_entry_runs(const struct sl_cluster_entry *entry) {
    char path[PATH_MAX + 8];
    snprintf(path, sizeof path, "%s/lock", entry->dir);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    bool taken = flock(fd, LOCK_SH | LOCK_NB) != 0;
    close(fd);
    return taken;
}

void sl_cluster_entry_forget(const struct sl_cluster_entry *entry) {
    remove_files(entry->dir);
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct sl_cluster_entry *)a)->name, ((const struct sl_cluster_entry *)b)->name);
}

enum sl_status sl_clusters_here(struct sl_cluster_entry **entries_out, size_t *n_out, struct sl_error *err) {
    char root[PATH_MAX];
    struct sl_cluster_entry *entries = NULL;
    size_t n = 0;
    enum sl_status status = root_of(root, err);
    DIR *folder = status == SL_OK ? opendir(root) : NULL; // none: nothing was ever started
    for (struct dirent *file; folder && status == SL_OK && (file = readdir(folder));) {
        if (!is_name(file->d_name)) {
            continue;
        }
        struct sl_cluster_entry *grown = realloc(entries, (n + 1) * sizeof *entries);
        if (!grown) {
            status = sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
            break;
        }
        entries = grown;
        struct sl_cluster_entry *entry = &entries[n++];
        char path[PATH_MAX + 16];
        *entry = (struct sl_cluster_entry){0};
        snprintf(entry->name, sizeof entry->name, "%s", file->d_name);
        snprintf(entry->dir, sizeof entry->dir, "%.2000s/%s", root, entry->name);
        snprintf(path, sizeof path, "%s/cluster.json", entry->dir);
        entry->running = sl_cluster_entry_runs(entry);
        entry->state = entry->running ? json_load_file(path, 0, NULL) : NULL;
    }
    if (folder) {
        closedir(folder);
    }
    if (status != SL_OK) {
        sl_clusters_here_free(&entries, n);
        return status;
    }
    if (n > 0) {
        qsort(entries, n, sizeof *entries, by_name);
    }
    *entries_out = entries;
    *n_out = n;
    return SL_OK;
}

void sl_clusters_here_free(struct sl_cluster_entry **entries, size_t n) {
    for (size_t i = 0; i < n; i++) {
        json_decref((*entries)[i].state);
    }
    free(*entries);
    *entries = NULL;
}
