// SPDX-License-Identifier: Apache-2.0
#include "kvstore/disk/scan.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/array.h"
#include "base/clock.h"
#include "base/thread.h"

#define N_THREADS   16
#define WORTH_WHILE 256 // files; for fewer, reading ahead does not pay

static int64_t to_ns(const struct timespec *time, int64_t now_s) {
    int64_t s = time->tv_sec < 0 ? 0 : time->tv_sec > now_s ? now_s : time->tv_sec;
    return s * SL_NS_PER_S + time->tv_nsec;
}

static int by_use(const void *a, const void *b) {
    const struct sl_disk_file *x = a, *y = b;
    if (x->used_ns != y->used_ns) {
        return x->used_ns < y->used_ns ? -1 : 1;
    }
    return (x->id > y->id) - (x->id < y->id);
}

static enum sl_status list(DIR *dir, struct sl_disk_file **files, size_t *n_files, struct sl_error *err) {
    size_t n_room = 0;
    int64_t now_s = sl_wall_ms() / 1000;
    struct dirent *name;
    while (errno = 0, (name = readdir(dir))) {
        struct sl_disk_file file = {.is_unread = false};
        struct stat about;
        if (!sl_disk_file_is_named(name->d_name, &file.id) ||
            fstatat(dirfd(dir), name->d_name, &about, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(about.st_mode)) {
            continue;
        }
        file.used_ns = to_ns(&about.st_mtim, now_s);
        SL_FAIL_IF(!sl_array_reserve(files, &n_room, *n_files + 1, sizeof file), err, SL_ERR_EXHAUSTED,
                   "disk: out of memory");
        (*files)[(*n_files)++] = file;
    }
    return errno == 0 ? SL_OK : sl_fail(err, SL_ERR_IO, "cannot be listed: %s", strerror(errno));
}

enum sl_status sl_disk_scan(int dir_fd, struct sl_disk_file **files_out, size_t *n_files_out, struct sl_error *err) {
    int fd = openat(dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC); // a file descriptor with its own read position
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    if (!dir) {
        sl_fail(err, SL_ERR_IO, "cannot be listed: %s", strerror(errno));
        if (fd >= 0) {
            close(fd);
        }
        return SL_ERR_IO;
    }
    struct sl_disk_file *files = NULL;
    size_t n_files = 0;
    enum sl_status status = list(dir, &files, &n_files, err);
    closedir(dir);
    SL_TRY_OR(status, free(files));
    if (n_files > 0) {
        qsort(files, n_files, sizeof *files, by_use);
    }
    *files_out = files;
    *n_files_out = n_files;
    return SL_OK;
}

// ---- reading ahead --------------------------------------------------------------------------------------------------

struct sl_disk_read_ahead {
    int dir_fd;
    const struct sl_disk_file *files;
    size_t n_files;
    _Atomic size_t next;
    pthread_t threads[N_THREADS];
    int n_threads;
};

static void *read_ahead_main(void *arg) {
    struct sl_disk_read_ahead *ahead = arg;
    struct sl_hash128 *hashes = malloc((SL_CAPSULE_CACHE_MAX_PREFIXES - 1) * sizeof *hashes);
    size_t i;
    while (hashes && (i = atomic_fetch_add(&ahead->next, 1)) < ahead->n_files) {
        struct sl_disk_head head;
        int fd = sl_disk_file_open(ahead->dir_fd, ahead->files[i].id);
        if (fd >= 0) {
            sl_disk_file_read_head(fd, &head, hashes, NULL); // the caller's own read reports errors later
            close(fd);
        }
    }
    free(hashes);
    return NULL;
}

struct sl_disk_read_ahead *sl_disk_read_ahead_start(int dir_fd, const struct sl_disk_file *files, size_t n_files) {
    struct sl_disk_read_ahead *ahead = n_files >= WORTH_WHILE ? calloc(1, sizeof *ahead) : NULL;
    if (!ahead) {
        return NULL;
    }
    ahead->dir_fd = dir_fd;
    ahead->files = files;
    ahead->n_files = n_files;
    while (ahead->n_threads < N_THREADS &&
           sl_thread_start("ahead", read_ahead_main, ahead, &ahead->threads[ahead->n_threads], NULL) == SL_OK) {
        ahead->n_threads++;
    }
    return ahead;
}

void sl_disk_read_ahead_stop(struct sl_disk_read_ahead **ahead_inout) {
    SL_TAKE_OR_RETURN(ahead, ahead_inout);
    atomic_store(&ahead->next, ahead->n_files);
    for (int i = 0; i < ahead->n_threads; i++) {
        pthread_join(ahead->threads[i], NULL);
    }
    free(ahead);
}
