// SPDX-License-Identifier: Apache-2.0
// Purpose: see wheel.h.
#include "client/cli/pull/wheel.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <zip.h>

#include "base/whole_file.h"
#include "base/options/config.h"

enum { PART_BYTES = 1 << 16 };

static enum sl_status check_room(const struct sl_whole_file *whole, uint64_t bytes, struct sl_error *err) {
    struct statvfs disk;
    if (fstatvfs(fileno(whole->file), &disk) == 0 && (uint64_t)disk.f_bavail * disk.f_frsize < bytes) {
        char needed[32], there[32];
        return sl_fail(err, SL_ERR_IO, "%s: the disk is full: %s are needed, %s are free", whole->path,
                       sl_format_bytes((double)bytes, needed, sizeof needed),
                       sl_format_bytes((double)disk.f_bavail * (double)disk.f_frsize, there, sizeof there));
    }
    return SL_OK;
}

static enum sl_status copy(zip_file_t *from, struct sl_whole_file *whole, uint64_t bytes, const char *name,
                           struct sl_error *err) {
    static const char damaged[] = "the archive is damaged: %s";
    char part[PART_BYTES];
    uint64_t done = 0;
    zip_int64_t n;
    while ((n = zip_fread(from, part, sizeof part)) > 0) {
        done += (uint64_t)n;
        if (done > bytes) { // more data than its header says: stop here
            return sl_fail(err, SL_ERR_PEER_CORRUPT, damaged, name);
        }
        if (fwrite(part, 1, (size_t)n, whole->file) != (size_t)n) {
            return sl_fail(err, SL_ERR_IO, "%s: cannot be written: %s", whole->path, strerror(errno));
        }
    }
    return n == 0 && done == bytes ? SL_OK : sl_fail(err, SL_ERR_PEER_CORRUPT, damaged, name);
}

enum sl_status sl_wheel_extract(int wheel, const char *name, const char *path, int64_t *bytes_out,
                                struct sl_error *err) {
    int code = 0;
    int own = fcntl(wheel, F_DUPFD_CLOEXEC, 0); // the archive closes this duplicate
    if (own < 0 || lseek(own, 0, SEEK_SET) != 0) {
        enum sl_status status = sl_fail(err, SL_ERR_IO, "the archive cannot be read: %s", strerror(errno));
        if (own >= 0) {
            close(own);
        }
        return status;
    }
    zip_t *archive = zip_fdopen(own, 0, &code);
    if (!archive) {
        close(own);
        zip_error_t why;
        zip_error_init_with_code(&why, code);
        enum sl_status status =
            sl_fail(err, SL_ERR_PEER_CORRUPT, "what has come is no archive: %s", zip_error_strerror(&why));
        zip_error_fini(&why);
        return status;
    }
    struct sl_whole_file whole = {0};
    zip_stat_t entry;
    zip_file_t *from = zip_stat(archive, name, 0, &entry) == 0 && entry.valid & ZIP_STAT_SIZE && entry.size < INT64_MAX
                           ? zip_fopen(archive, name, 0)
                           : NULL;
    enum sl_status status =
        from ? sl_whole_file_open(&whole, path, err)
             : sl_fail(err, SL_ERR_PEER_CORRUPT, "the archive has no %s: %s", name, zip_strerror(archive));
    if (status == SL_OK) {
        status = check_room(&whole, entry.size, err);
        status = status == SL_OK ? copy(from, &whole, entry.size, name, err) : status;
        if (status == SL_OK) {
            status = sl_whole_file_finish(&whole, err);
        } else {
            sl_whole_file_abandon(&whole);
        }
    }
    if (from) {
        zip_fclose(from);
    }
    zip_discard(archive);
    if (status == SL_OK) {
        *bytes_out = (int64_t)entry.size;
    }
    return status;
}
