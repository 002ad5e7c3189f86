// SPDX-License-Identifier: Apache-2.0
#include "client/cli/pull/wheel.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#include <zip.h>

#include "base/close.h"
#include "base/whole_file.h"
#include "client/cli/pull/disk.h"

enum { PART_BYTES = 1 << 16 };

static enum sl_status copy(zip_file_t *from, int fd, uint64_t bytes, const char *name, struct sl_error *err) {
    char part[PART_BYTES];
    uint64_t done = 0;
    zip_int64_t n;
    while ((n = zip_fread(from, part, sizeof part)) > 0 && done + (uint64_t)n <= bytes) {
        SL_TRY(sl_disk_write(fd, part, (size_t)n, err));
        done += (uint64_t)n;
    }
    // The rest: a read that failed, or more data than its header says
    return n == 0 && done == bytes ? SL_OK : sl_fail(err, SL_ERR_PEER_CORRUPT, "the archive is damaged: %s", name);
}

static enum sl_status open_archive(int wheel, zip_t **archive_out, struct sl_error *err) {
    int code = 0;
    int own = fcntl(wheel, F_DUPFD_CLOEXEC, 0); // the archive closes this duplicate
    if (own < 0 || lseek(own, 0, SEEK_SET) != 0) {
        enum sl_status status = sl_fail(err, SL_ERR_IO, "the archive cannot be read: %s", strerror(errno));
        sl_close(own);
        return status;
    }
    *archive_out = zip_fdopen(own, 0, &code);
    if (!*archive_out) {
        close(own);
        zip_error_t why;
        zip_error_init_with_code(&why, code);
        enum sl_status status =
            sl_fail(err, SL_ERR_PEER_CORRUPT, "the download is not an archive: %s", zip_error_strerror(&why));
        zip_error_fini(&why);
        return status;
    }
    return SL_OK;
}

enum sl_status sl_wheel_copy(int wheel, const char *name, int fd, int64_t *bytes_out, struct sl_error *err) {
    zip_t *archive;
    zip_stat_t entry;
    SL_TRY(open_archive(wheel, &archive, err));
    zip_file_t *from = zip_stat(archive, name, 0, &entry) == 0 && entry.valid & ZIP_STAT_SIZE && entry.size < INT64_MAX
                           ? zip_fopen(archive, name, 0)
                           : NULL;
    enum sl_status status =
        from ? sl_disk_check_room(fd, entry.size, err)
             : sl_fail(err, SL_ERR_PEER_CORRUPT, "the archive has no %s: %s", name, zip_strerror(archive));
    SL_THEN(status, copy(from, fd, entry.size, name, err));
    if (from) {
        zip_fclose(from);
    }
    zip_discard(archive);
    if (status == SL_OK) {
        *bytes_out = (int64_t)entry.size;
    }
    return status;
}

enum sl_status sl_wheel_extract(int wheel, const char *name, const char *path, struct sl_error *err) {
    struct sl_whole_file whole;
    int64_t ignored;
    SL_TRY(sl_whole_file_open(&whole, path, err));
    enum sl_status status = sl_wheel_copy(wheel, name, fileno(whole.file), &ignored, err);
    if (status == SL_OK) {
        return sl_whole_file_finish(&whole, err);
    }
    if (status == SL_ERR_IO) {
        sl_error_prefix(err, path);
    }
    sl_whole_file_abandon(&whole);
    return status;
}
