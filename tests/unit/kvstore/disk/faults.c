// SPDX-License-Identifier: Apache-2.0
// A disk that fails. See faults.h.
#include "tests/unit/kvstore/disk/faults.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define N_FDS 1024

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ended = PTHREAD_COND_INITIALIZER;
static bool active;
static struct fault current;
static int n_calls, n_hits;
static const char *first_hit;
static atomic_bool dropped[N_FDS]; // from the page cache since they were opened

void fault_begin(const struct fault *fault) {
    pthread_mutex_lock(&mutex);
    current = *fault;
    n_calls = n_hits = 0;
    first_hit = NULL;
    active = true;
    pthread_mutex_unlock(&mutex);
}

const char *fault_end(void) {
    pthread_mutex_lock(&mutex);
    active = false;
    const char *hit = first_hit;
    pthread_cond_broadcast(&ended);
    pthread_mutex_unlock(&mutex);
    return hit;
}

int fault_hits(void) {
    pthread_mutex_lock(&mutex);
    int n = n_hits;
    pthread_mutex_unlock(&mutex);
    return n;
}

// Lock held.
static bool is_due(int call) {
    return current.every > 0 && (call - current.at) % current.every == 0;
}

static bool is_hit(const char *name, enum fault_scope call, struct fault *fault_out) {
    pthread_mutex_lock(&mutex);
    bool counts = active && call >= current.scope && (!current.only || strcmp(name, current.only) == 0);
    bool hit = counts && (current.most == 0 || n_hits < current.most) &&
               (n_calls == current.at || (n_calls > current.at && (current.lasting || is_due(n_calls))));
    n_calls += counts;
    n_hits += hit;
    first_hit = hit && !first_hit ? name : first_hit;
    *fault_out = current;
    bool ends = hit && current.kind == FAULT_KILLED;
    while (hit && active && current.kind == FAULT_SILENT) {
        pthread_cond_wait(&ended, &mutex);
    }
    pthread_mutex_unlock(&mutex);
    if (ends) {
        _exit(0);
    }
    return hit;
}

static bool fails(const char *name, enum fault_scope call) {
    struct fault fault;
    if (!is_hit(name, call, &fault) || fault.kind != FAULT_ERROR) {
        return false;
    }
    errno = fault.error;
    return true;
}

// Returns how many bytes are to be read or written; 0: the call fails.
static size_t part(const char *name, enum fault_scope call, size_t bytes) {
    struct fault fault;
    if (!is_hit(name, call, &fault)) {
        return bytes;
    }
    errno = fault.error;
    return fault.kind == FAULT_HALF ? (bytes + 1) / 2 : fault.kind == FAULT_SILENT ? bytes : 0;
}

// To add one: its two declarations, its function, and its name in CMakeLists.txt.
int __real_openat(int dir_fd, const char *path, int flags, ...);
int __wrap_openat(int dir_fd, const char *path, int flags, ...);
ssize_t __real_pwrite(int fd, const void *data, size_t bytes, off_t at);
ssize_t __wrap_pwrite(int fd, const void *data, size_t bytes, off_t at);
ssize_t __real_pread(int fd, void *data, size_t bytes, off_t at);
ssize_t __wrap_pread(int fd, void *data, size_t bytes, off_t at);
int __real_fallocate(int fd, int mode, off_t at, off_t bytes);
int __wrap_fallocate(int fd, int mode, off_t at, off_t bytes);
int __real_futimens(int fd, const struct timespec times[2]);
int __wrap_futimens(int fd, const struct timespec times[2]);
int __real_utimensat(int dir_fd, const char *path, const struct timespec times[2], int flags);
int __wrap_utimensat(int dir_fd, const char *path, const struct timespec times[2], int flags);
int __real_unlinkat(int dir_fd, const char *path, int flags);
int __wrap_unlinkat(int dir_fd, const char *path, int flags);
int __real_fstat(int fd, struct stat *file);
int __wrap_fstat(int fd, struct stat *file);
int __real_fstatat(int dir_fd, const char *path, struct stat *file, int flags);
int __wrap_fstatat(int dir_fd, const char *path, struct stat *file, int flags);
int __real_fdatasync(int fd);
int __wrap_fdatasync(int fd);
int __real_posix_fadvise(int fd, off_t at, off_t bytes, int advice);
int __wrap_posix_fadvise(int fd, off_t at, off_t bytes, int advice);
int __real_close(int fd);
int __wrap_close(int fd);

int __wrap_openat(int dir_fd, const char *path, int flags, ...) {
    va_list args;
    va_start(args, flags);
    mode_t mode = flags & O_CREAT ? va_arg(args, mode_t) : 0;
    va_end(args);
    return fails("openat", flags & O_CREAT ? FAULT_GROWING : FAULT_ALL) ? -1 : __real_openat(dir_fd, path, flags, mode);
}

ssize_t __wrap_pwrite(int fd, const void *data, size_t bytes, off_t at) {
    size_t n = part("pwrite", FAULT_GROWING, bytes);
    return n == 0 && bytes > 0 ? -1 : __real_pwrite(fd, data, n, at);
}

static bool is_in_cache(int fd) {
    pthread_mutex_lock(&mutex);
    bool cached = active && current.uncached && !(fd < N_FDS && dropped[fd]);
    pthread_mutex_unlock(&mutex);
    return cached;
}

ssize_t __wrap_pread(int fd, void *data, size_t bytes, off_t at) {
    size_t n = is_in_cache(fd) ? bytes : part("pread", FAULT_ALL, bytes);
    return n == 0 && bytes > 0 ? -1 : __real_pread(fd, data, n, at);
}

int __wrap_fallocate(int fd, int mode, off_t at, off_t bytes) {
    return fails("fallocate", FAULT_GROWING) ? -1 : __real_fallocate(fd, mode, at, bytes);
}

int __wrap_futimens(int fd, const struct timespec times[2]) {
    return fails("futimens", FAULT_CHANGING) ? -1 : __real_futimens(fd, times);
}

int __wrap_utimensat(int dir_fd, const char *path, const struct timespec times[2], int flags) {
    return fails("utimensat", FAULT_CHANGING) ? -1 : __real_utimensat(dir_fd, path, times, flags);
}

int __wrap_unlinkat(int dir_fd, const char *path, int flags) {
    return fails("unlinkat", FAULT_CHANGING) ? -1 : __real_unlinkat(dir_fd, path, flags);
}

static int moved(int rc, struct stat *file) {
    pthread_mutex_lock(&mutex);
    file->st_dev += active && current.is_elsewhere;
    pthread_mutex_unlock(&mutex);
    return rc;
}

int __wrap_fstat(int fd, struct stat *file) {
    return fails("fstat", FAULT_ALL) ? -1 : moved(__real_fstat(fd, file), file);
}

int __wrap_fstatat(int dir_fd, const char *path, struct stat *file, int flags) {
    return fails("fstatat", FAULT_ALL) ? -1 : moved(__real_fstatat(dir_fd, path, file, flags), file);
}

int __wrap_fdatasync(int fd) {
    return fails("fdatasync", FAULT_CHANGING) ? -1 : __real_fdatasync(fd);
}

int __wrap_posix_fadvise(int fd, off_t at, off_t bytes, int advice) {
    if (advice == POSIX_FADV_DONTNEED && fd < N_FDS) {
        dropped[fd] = true;
    }
    return __real_posix_fadvise(fd, at, bytes, advice);
}

int __wrap_close(int fd) {
    if (fd >= 0 && fd < N_FDS) {
        dropped[fd] = false;
    }
    bool failed = fails("close", FAULT_CHANGING);
    int error = errno, rc = __real_close(fd);
    if (failed) {
        errno = error;
    }
    return failed ? -1 : rc;
}
