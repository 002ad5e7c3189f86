// SPDX-License-Identifier: Apache-2.0
// Purpose: files that appear whole; see whole_file.h.
#include "train/whole_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum sl_status sl_whole_file_open(struct sl_whole_file *whole, const char *path, struct sl_error *err) {
    *whole = (struct sl_whole_file){.path = path};
    if ((size_t)snprintf(whole->temporary, sizeof whole->temporary, "%s.XXXXXX", path) >= sizeof whole->temporary) {
        return sl_fail(err, SL_ERR_INVALID, "%.200s...: the path is too long", path);
    }
    int fd = mkostemp(whole->temporary, O_CLOEXEC);
    if (fd < 0) {
        return sl_fail(err, SL_ERR_IO, "%s: cannot be written: %s", path, strerror(errno));
    }
    whole->file = fdopen(fd, "wb");
    if (whole->file == NULL) {
        close(fd);
        unlink(whole->temporary);
        return sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
    }
    return SL_OK;
}

enum sl_status sl_whole_file_finish(struct sl_whole_file *whole, struct sl_error *err) {
    int fd = fileno(whole->file);
    bool good = !ferror(whole->file) && fflush(whole->file) == 0 && fchmod(fd, 0644) == 0 && fsync(fd) == 0;
    int cause = errno;
    if (fclose(whole->file) != 0 && good) {
        cause = errno;
        good = false;
    }
    if (good && rename(whole->temporary, whole->path) != 0) {
        cause = errno;
        good = false;
    }
    whole->file = NULL;
    if (!good) {
        unlink(whole->temporary);
        return sl_fail(err, SL_ERR_IO, "%s: cannot be written: %s", whole->path, strerror(cause));
    }
    return SL_OK;
}
