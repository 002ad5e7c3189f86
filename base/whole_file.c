// SPDX-License-Identifier: Apache-2.0
#include "base/whole_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static enum sl_status fail(const char *path, const char *why, struct sl_error *err) {
    return sl_fail(err, SL_ERR_IO, "%s: cannot be written: %s", path, why);
}

// Returns why a file must not take this name; NULL: it may. The rename would replace a device, also /dev/null, by a file.
static const char *find_obstacle(const char *path) {
    static const char open_files[] = "/proc/"; // where /dev/stdout leads
    char to[sizeof open_files - 1];
    struct stat found;
    if (stat(path, &found) == 0 && !S_ISREG(found.st_mode)) {
        return S_ISDIR(found.st_mode) ? strerror(EISDIR)
                                      : "it is a device, a pipe or a socket; give the name of a file";
    }
    const bool leads = readlink(path, to, sizeof to) == (ssize_t)sizeof to && memcmp(to, open_files, sizeof to) == 0;
    return leads ? "it stands for an open file; give the name of a file" : NULL;
}

enum sl_status sl_whole_file_open(struct sl_whole_file *whole, const char *path, struct sl_error *err) {
    *whole = (struct sl_whole_file){.path = path, .mode = 0644};
    SL_FAIL_IF((size_t)snprintf(whole->temporary, sizeof whole->temporary, "%s.XXXXXX", path) >=
                   sizeof whole->temporary,
               err, SL_ERR_INVALID, "%.200s...: the path is too long", path);
    const char *obstacle = find_obstacle(path); // report it now, not after hours of work
    if (obstacle != NULL) {
        return fail(path, obstacle, err);
    }
    int fd = mkostemp(whole->temporary, O_CLOEXEC);
    if (fd < 0) {
        return fail(path, strerror(errno), err);
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
    // For an error in the middle, errno is lost: only the stream's error flag is left.
    const char *why = ferror(whole->file) ? "writing failed; is the disk full?" : NULL;
    if (why == NULL && (fflush(whole->file) != 0 || fchmod(fd, whole->mode) != 0 || fsync(fd) != 0)) {
        why = strerror(errno);
    }
    if (fclose(whole->file) != 0 && why == NULL) {
        why = strerror(errno);
    }
    whole->file = NULL;
    if (why == NULL && rename(whole->temporary, whole->path) != 0) {
        why = strerror(errno);
    }
    if (why != NULL) {
        enum sl_status status = fail(whole->path, why, err);
        unlink(whole->temporary);
        return status;
    }
    return SL_OK;
}

void sl_whole_file_abandon(struct sl_whole_file *whole) {
    if (whole->file != NULL) {
        fclose(whole->file);
        unlink(whole->temporary);
        whole->file = NULL;
    }
}

enum sl_status sl_whole_file_check(const char *path, struct sl_error *err) {
    struct sl_whole_file whole;
    SL_TRY(sl_whole_file_open(&whole, path, err));
    sl_whole_file_abandon(&whole);
    return SL_OK;
}

enum sl_status sl_folder_make(const char *path, mode_t mode, struct sl_error *err) {
    char part[PATH_MAX];
    struct stat there;
    size_t n = strlen(path);
    SL_FAIL_IF(n >= sizeof part, err, SL_ERR_IO, "%.200s...: the path is too long", path);
    for (size_t i = 1; i <= n; i++) {
        if (path[i] == '/' || path[i] == '\0') {
            snprintf(part, sizeof part, "%.*s", (int)i, path);
            SL_FAIL_IF(mkdir(part, mode) != 0 && errno != EEXIST, err, SL_ERR_IO, "%s: cannot be made: %s", part,
                       strerror(errno));
            SL_FAIL_IF(stat(part, &there) != 0 || !S_ISDIR(there.st_mode), err, SL_ERR_IO, "%s: is not a folder", part);
        }
    }
    return SL_OK;
}
