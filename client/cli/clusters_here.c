// SPDX-License-Identifier: Apache-2.0
#include "client/cli/clusters_here.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/close.h"
#include "base/whole_file.h"

#define OWNED_WAIT_MS 100 // a `sluice up` that ends holds the lock for a moment longer
#define LOOKED_WAIT_MS                                                                                                 \
    5000 // a command that lists the clusters holds the lock shared for a moment, which is long on busy processors
#define MAX_LOG_BYTES (INT64_C(16) << 20)

static enum sl_status root_of(char root[PATH_MAX], struct sl_error *err) {
    const char *runtime = getenv("XDG_RUNTIME_DIR"), *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    int n = runtime && runtime[0] ? snprintf(root, PATH_MAX, "%s/sluice", runtime)
            : cache && cache[0]   ? snprintf(root, PATH_MAX, "%s/sluice/run", cache)
            : home && home[0]     ? snprintf(root, PATH_MAX, "%s/.cache/sluice/run", home)
                                  : snprintf(root, PATH_MAX, "/tmp/sluice-%d", (int)getuid());
    return n < PATH_MAX ? SL_OK : sl_fail(err, SL_ERR_INVALID, "XDG_RUNTIME_DIR: the path is too long");
}

static enum sl_status make_folder(const char *path, struct sl_error *err) {
    struct sl_error why = {0};
    enum sl_status status = sl_folder_make(path, 0700, &why);
    return status == SL_OK ? SL_OK : sl_fail_from(err, status, &why, "%s (XDG_RUNTIME_DIR says where)", why.text);
}

// Rejects a folder that other users could change: they could redirect our files. Below /tmp any user may create it
// before us.
static enum sl_status check_ours(const char *path, struct sl_error *err) {
    struct stat st;
    SL_FAIL_IF(lstat(path, &st) != 0, err, SL_ERR_IO, "%s: %s", path, strerror(errno));
    return !S_ISDIR(st.st_mode)
               ? sl_fail(err, SL_ERR_DENIED, "%s is not a folder (XDG_RUNTIME_DIR says where it is)", path)
           : st.st_uid != getuid()
               ? sl_fail(err, SL_ERR_DENIED,
                         "%s belongs to somebody else; set XDG_RUNTIME_DIR to a folder that is yours", path)
           : (st.st_mode & (S_IWGRP | S_IWOTH)) != 0
               ? sl_fail(err, SL_ERR_DENIED,
                         "%s may be written to by others: `chmod go-w` it, if what is there is yours", path)
               : SL_OK;
}

static bool is_name(const char *name) {
    size_t n = strlen(name);
    bool fine = n > 0 && n < 64 && name[0] != '.';
    for (size_t i = 0; i < n; i++) {
        fine = fine && (isalnum((unsigned char)name[i]) || strchr("-_.", name[i]));
    }
    return fine;
}

static bool is_at(int fd, const char *path) {
    struct stat open_one, named;
    return fstat(fd, &open_one) == 0 && lstat(path, &named) == 0 && open_one.st_dev == named.st_dev &&
           open_one.st_ino == named.st_ino;
}

// Takes the lock of a folder, and makes the folder. -1: errno has the reason; EWOULDBLOCK: another process has the
// lock.
static int take_lock(const char *dir) {
    char path[PATH_MAX + 8];
    snprintf(path, sizeof path, "%s/lock", dir);
    int64_t owned_ns = sl_deadline_in_ms(OWNED_WAIT_MS), looked_ns = sl_deadline_in_ms(LOOKED_WAIT_MS);
    for (;; sl_sleep_ms(5)) {
        mkdir(dir, 0700); // repeat it: a process that ends may remove the folder; open() reports other errors
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        int why = fd < 0 || flock(fd, LOCK_EX | LOCK_NB) != 0 ? errno : is_at(fd, path) ? 0 : ESTALE;
        if (why == 0) {
            return fd;
        }
        // A command that only lists shares the lock
        bool owned = why == EWOULDBLOCK && flock(fd, LOCK_SH | LOCK_NB) != 0;
        sl_close(fd);
        bool may_pass = why == EWOULDBLOCK || why == ESTALE || why == ENOENT;
        if (!may_pass || sl_deadline_left_ms(owned ? owned_ns : looked_ns) == 0) {
            errno = why;
            return -1;
        }
    }
}

static int open_log(const char *path) {
    return open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
}

// Writes our process id into the lock, for `sluice down`, and opens the log.
static enum sl_status begin(struct sl_cluster_here *here, struct sl_error *err) {
    SL_FAIL_IF(ftruncate(here->lock_fd, 0) != 0 || dprintf(here->lock_fd, "%d\n", (int)getpid()) < 0, err, SL_ERR_IO,
               "%s/lock: %s", here->dir, strerror(errno));
    int fd = open_log(here->log_path);
    here->log = fd >= 0 ? fdopen(fd, "a") : NULL;
    if (!here->log) {
        sl_fail(err, SL_ERR_IO, "%s: %s", here->log_path, strerror(errno));
        sl_close(fd);
        return SL_ERR_IO;
    }
    return SL_OK;
}

enum sl_status sl_cluster_here_open(const char *name, struct sl_cluster_here *here, struct sl_error *err) {
    char root[PATH_MAX];
    *here = (struct sl_cluster_here){.lock_fd = -1};
    SL_FAIL_IF(!is_name(name), err, SL_ERR_INVALID, "--name %s: expected up to 63 letters, digits and -_.", name);
    enum sl_status status = root_of(root, err);
    SL_THEN_FAIL_IF(status, snprintf(here->dir, sizeof here->dir, "%s/%s", root, name) >= PATH_MAX, err, SL_ERR_INVALID,
                    "XDG_RUNTIME_DIR: the path is too long");
    SL_THEN(status, make_folder(root, err));
    SL_THEN(status, check_ours(root, err));
    SL_THEN(status, make_folder(here->dir, err));
    SL_THEN(status, check_ours(here->dir, err));
    SL_TRY(status);
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
    status = begin(here, err);
    if (status != SL_OK) {
        sl_cluster_here_close(here, false);
    }
    return status;
}

enum sl_status sl_cluster_here_bound_log(struct sl_cluster_here *here, bool *anew_out, struct sl_error *err) {
    char before[PATH_MAX + 24];
    struct stat st;
    *anew_out = false;
    if (!here->log || fstat(fileno(here->log), &st) != 0 || st.st_size < MAX_LOG_BYTES) {
        return SL_OK;
    }
    fflush(here->log);
    snprintf(before, sizeof before, "%s.1", here->log_path);
    int fd = rename(here->log_path, before) == 0 ? open_log(here->log_path) : -1;
    if (fd < 0 || dup2(fd, fileno(here->log)) < 0) {
        // Truncates the log rather than fill all memory: the folder's file system is usually in memory.
        sl_fail(err, SL_ERR_IO, "%s: no new log, the old one begins anew: %s", here->log_path, strerror(errno));
        *anew_out = ftruncate(fileno(here->log), 0) == 0;
        return SL_ERR_IO;
    }
    close(fd);
    *anew_out = true;
    return SL_OK;
}

// Removes the folder's files. The caller holds the lock, which is removed last; from then on another process may own
// the folder.
static void remove_files(const char *dir) {
    static const char *const names[] = {"cluster.json", "cluster.log", "cluster.log.1", "lock"};
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
    sl_close_file(here->log);
    if (keep) {
        unlink(here->state_path);
    } else {
        remove_files(here->dir);
    }
    close(here->lock_fd);
    here->lock_fd = -1;
}

// --- listing ---------------------------------------------------------------------------------------------------------

pid_t sl_cluster_entry_pid(const struct sl_cluster_entry *entry) {
    char path[PATH_MAX + 8], text[16] = "";
    snprintf(path, sizeof path, "%s/lock", entry->dir);
    int fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) {
        return 0;
    }
    bool taken = flock(fd, LOCK_SH | LOCK_NB) != 0;
    pid_t pid = taken && read(fd, text, sizeof text - 1) > 0 ? (pid_t)strtol(text, NULL, 10) : 0;
    close(fd);
    return pid > 0 ? pid : taken ? -1 : 0;
}

void sl_cluster_entry_forget(const struct sl_cluster_entry *entry) {
    int fd = take_lock(entry->dir);
    if (fd >= 0) { // otherwise another process has taken the name
        remove_files(entry->dir);
        close(fd);
    }
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct sl_cluster_entry *)a)->name, ((const struct sl_cluster_entry *)b)->name);
}

static enum sl_status add_entry(const char *root, const char *name, struct sl_cluster_entry **entries_inout,
                                size_t *n_inout, struct sl_error *err) {
    struct sl_cluster_entry *grown = realloc(*entries_inout, (*n_inout + 1) * sizeof *grown);
    SL_FAIL_IF(!grown, err, SL_ERR_EXHAUSTED, "out of memory");
    *entries_inout = grown;
    struct sl_cluster_entry *entry = &grown[*n_inout];
    char path[PATH_MAX + 16];
    *entry = (struct sl_cluster_entry){0};
    snprintf(entry->name, sizeof entry->name, "%s", name);
    snprintf(entry->dir, sizeof entry->dir, "%.2000s/%s", root, name);
    snprintf(path, sizeof path, "%s/cluster.json", entry->dir);
    enum sl_status status = check_ours(entry->dir, err);
    if (status != SL_OK) {
        return access(entry->dir, F_OK) == 0 ? status : SL_OK; // it has just ended
    }
    entry->pid = sl_cluster_entry_pid(entry);
    entry->running = entry->pid != 0;
    entry->state = entry->running ? json_load_file(path, 0, NULL) : NULL;
    (*n_inout)++;
    return SL_OK;
}

enum sl_status sl_clusters_here(struct sl_cluster_entry **entries_out, size_t *n_out, struct sl_error *err) {
    char root[PATH_MAX];
    struct sl_cluster_entry *entries = NULL;
    size_t n = 0;
    struct stat st;
    enum sl_status status = root_of(root, err);
    bool is_there = status == SL_OK && lstat(root, &st) == 0; // otherwise no cluster was ever started
    status = is_there ? check_ours(root, err) : status;
    DIR *folder = is_there && status == SL_OK ? opendir(root) : NULL;
    for (struct dirent *file; folder && status == SL_OK && (file = readdir(folder));) {
        if (is_name(file->d_name)) {
            status = add_entry(root, file->d_name, &entries, &n, err);
        }
    }
    sl_close_folder(folder);
    SL_TRY_OR(status, sl_clusters_here_free(&entries, n));
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
