// SPDX-License-Identifier: Apache-2.0
// Purpose: see folder.h.
#include "coordinator/state/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"

#define BLOCK_BYTES 4096
#define MAX_DAMAGED 8
#define DAMAGED     "damaged-"

int64_t sl_state_blocks(size_t bytes) {
    return (int64_t)((bytes + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES);
}

// ---- the folder ---------------------------------------------------------------------------------------------------------

static enum sl_status unusable(const struct sl_state_folder *folder, struct sl_error *err) {
    return sl_fail(err, SL_ERR_IO, "--state %.300s: %s; give a folder that this user can write to", folder->path,
                   strerror(errno));
}

// Prompts lie in it: nobody else may look. A folder that was handed to us by root, as volumes are, may be our group's.
static enum sl_status close_to_others(struct sl_state_folder *folder, struct sl_error *err) {
    struct stat about;
    if (fstat(folder->dir_fd, &about) != 0) {
        return unusable(folder, err);
    }
    if (about.st_uid == geteuid() && (about.st_mode & 077) != 0 && fchmod(folder->dir_fd, 0700) != 0) {
        return unusable(folder, err);
    }
    if (about.st_uid != geteuid() && (about.st_mode & 07) != 0) {
        return sl_fail(err, SL_ERR_PRECONDITION,
                       "--state %.300s: it is another user's and open to everybody; give a folder of our own",
                       folder->path);
    }
    return SL_OK;
}

enum sl_status sl_state_folder_open(const char *path, struct sl_state_folder *folder_out, struct sl_error *err) {
    struct sl_state_folder *folder = folder_out;
    folder->dir_fd = folder->owner_fd = -1;
    if ((size_t)snprintf(folder->path, sizeof folder->path, "%s", path) >= sizeof folder->path) {
        return sl_fail(err, SL_ERR_INVALID, "--state: the folder's name is too long");
    }
    enum sl_status status = SL_OK;
    if (mkdir(folder->path, 0700) != 0 && errno != EEXIST) {
        return unusable(folder, err);
    }
    folder->dir_fd = open(folder->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder->dir_fd < 0) {
        return unusable(folder, err);
    }
    status = close_to_others(folder, err);
    if (status == SL_OK) {
        folder->owner_fd = openat(folder->dir_fd, "owner", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
        status = folder->owner_fd < 0 ? unusable(folder, err) : SL_OK;
    }
    if (status == SL_OK && flock(folder->owner_fd, LOCK_EX | LOCK_NB) != 0) {
        status = sl_fail(err, SL_ERR_PRECONDITION,
                         "--state %.300s: another process is using it (%s); give every coordinator a folder of its own",
                         folder->path, strerror(errno));
    }
    if (status != SL_OK) {
        sl_state_folder_close(folder);
    }
    return status;
}

void sl_state_folder_close(struct sl_state_folder *folder) {
    if (folder->owner_fd >= 0) {
        close(folder->owner_fd);
    }
    if (folder->dir_fd >= 0) {
        close(folder->dir_fd);
    }
    folder->dir_fd = folder->owner_fd = -1;
}

// ---- files --------------------------------------------------------------------------------------------------------------

static bool is_job(const char *name) {
    return strncmp(name, "job-", 4) == 0 && strlen(name) < SL_JOB_ID_BYTES &&
           name[4 + strspn(name + 4, "0123456789abcdef-")] == '\0';
}

// "job-BORN-NUMBER" of a younger coordinator, or with a greater number of the same, is younger.
static int compare_ids(const void *a, const void *b) {
    unsigned long long born[2], number[2];
    const char *ids[2] = {a, b};
    for (int i = 0; i < 2; i++) {
        char *end;
        born[i] = strtoull(ids[i] + 4, &end, 16);
        number[i] = *end == '-' ? strtoull(end + 1, NULL, 10) : 0;
    }
    if (born[0] != born[1]) {
        return born[0] < born[1] ? -1 : 1;
    }
    return number[0] == number[1] ? strcmp(a, b) : number[0] < number[1] ? -1 : 1;
}

enum sl_status sl_state_folder_list(struct sl_state_folder *folder, sl_job_id **ids_out, size_t *n_out,
                                    struct sl_error *err) {
    int fd = openat(folder->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    if (!dir) {
        if (fd >= 0) {
            close(fd);
        }
        return unusable(folder, err);
    }
    sl_job_id *ids = NULL;
    size_t n = 0, cap = 0;
    enum sl_status status = SL_OK;
    errno = 0;
    for (struct dirent *entry; status == SL_OK && (entry = readdir(dir)); errno = 0) {
        if (!is_job(entry->d_name)) {
            continue;
        }
        if (n == cap) {
            cap = cap > 0 ? 2 * cap : 256;
            sl_job_id *grown = realloc(ids, cap * sizeof *ids);
            status = grown ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "no memory for the names of jobs");
            ids = grown ? grown : ids;
        }
        if (status == SL_OK) {
            snprintf(ids[n++], sizeof *ids, "%s", entry->d_name);
        }
    }
    if (status == SL_OK && errno != 0) {
        status = unusable(folder, err);
    }
    closedir(dir);
    if (status != SL_OK) {
        free(ids);
        return status;
    }
    if (n > 0) {
        qsort(ids, n, sizeof *ids, compare_ids);
    }
    *ids_out = ids;
    *n_out = n;
    return SL_OK;
}

static bool read_all(int fd, uint8_t *bytes, size_t n) {
    for (size_t done = 0; done < n;) {
        ssize_t got = pread(fd, bytes + done, n - done, (off_t)done);
        if (got == 0 || (got < 0 && errno != EINTR)) {
            return false;
        }
        done += got > 0 ? (size_t)got : 0;
    }
    return true;
}

enum sl_status sl_state_folder_read(struct sl_state_folder *folder, const char *id, uint8_t **bytes_out, size_t *n_out,
                                    struct sl_error *err) {
    struct stat about;
    int fd = openat(folder->dir_fd, id, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &about) != 0 || !S_ISREG(about.st_mode)) {
        if (fd >= 0) {
            close(fd);
        }
        return sl_fail(err, SL_ERR_INVALID, "it is no file that can be read");
    }
    size_t n = (size_t)about.st_size;
    uint8_t *bytes = malloc(n + 1);
    enum sl_status status = !bytes ? sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a file of %zu bytes", n)
                            : !read_all(fd, bytes, n)
                                ? sl_fail(err, SL_ERR_INVALID, "it cannot be read: %s", strerror(errno))
                                : SL_OK;
    close(fd);
    if (status != SL_OK) {
        free(bytes);
        return status;
    }
    *bytes_out = bytes;
    *n_out = n;
    return SL_OK;
}

static int count_damaged(struct sl_state_folder *folder) {
    int n = 0, fd = openat(folder->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        n += strncmp(entry->d_name, DAMAGED, sizeof DAMAGED - 1) == 0;
    }
    if (dir) {
        closedir(dir);
    }
    return n;
}

void sl_state_folder_set_aside(struct sl_state_folder *folder, const char *id, const char *why) {
    char name[sizeof DAMAGED + SL_JOB_ID_BYTES];
    snprintf(name, sizeof name, DAMAGED "%s", id);
    bool stays = count_damaged(folder) < MAX_DAMAGED && renameat(folder->dir_fd, id, folder->dir_fd, name) == 0;
    sl_log_warn("state", "%s/%s: %s: %s", folder->path, id, why, stays ? "set aside" : "removed");
    if (!stays) {
        sl_state_folder_remove(folder, id);
    }
}

int sl_state_folder_make(struct sl_state_folder *folder, const char *id) {
    return openat(folder->dir_fd, id, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
}

int sl_state_folder_reopen(struct sl_state_folder *folder, const char *id, size_t bytes) {
    int fd = openat(folder->dir_fd, id, O_WRONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd >= 0 && ftruncate(fd, (off_t)bytes) != 0) {
        int error = errno;
        close(fd);
        errno = error;
        fd = -1;
    }
    return fd;
}

enum sl_status sl_state_write(int fd, size_t at, const uint8_t *bytes, size_t n, struct sl_error *err) {
    for (size_t done = 0; done < n;) {
        ssize_t wrote = pwrite(fd, bytes + done, n - done, (off_t)(at + done));
        if (wrote < 0 && errno != EINTR) {
            bool is_full = errno == ENOSPC || errno == EDQUOT;
            return sl_fail(err, is_full ? SL_ERR_EXHAUSTED : SL_ERR_IO, "cannot be written: %s", strerror(errno));
        }
        done += wrote > 0 ? (size_t)wrote : 0;
    }
    return SL_OK;
}

void sl_state_folder_remove(struct sl_state_folder *folder, const char *id) {
    if (unlinkat(folder->dir_fd, id, 0) != 0 && errno != ENOENT) {
        sl_log_warn("state", "%s/%s: cannot be removed: %s", folder->path, id, strerror(errno));
    }
}
