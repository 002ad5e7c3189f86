// SPDX-License-Identifier: Apache-2.0
#include "client/cli/pull/disk.h"

#include <errno.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/options/config.h"

enum sl_status sl_disk_check_room(int fd, uint64_t bytes, struct sl_error *err) {
    struct statvfs disk;
    if (fstatvfs(fd, &disk) == 0 && (uint64_t)disk.f_bavail * disk.f_frsize < bytes) {
        char needed[32], there[32];
        return sl_fail(err, SL_ERR_IO, "the disk is full: %s are needed, %s are free",
                       sl_format_bytes((double)bytes, needed, sizeof needed),
                       sl_format_bytes((double)disk.f_bavail * (double)disk.f_frsize, there, sizeof there));
    }
    return SL_OK;
}

enum sl_status sl_disk_write(int fd, const char *data, size_t bytes, struct sl_error *err) {
    for (size_t done = 0; done < bytes;) {
        ssize_t written = write(fd, data + done, bytes - done);
        SL_FAIL_IF(written < 0 && errno != EINTR, err, SL_ERR_IO, "cannot be written: %s", strerror(errno));
        done += written > 0 ? (size_t)written : 0;
    }
    return SL_OK;
}
