// SPDX-License-Identifier: Apache-2.0
#include "base/owned_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum sl_status sl_owned_folder_fail(const struct sl_owned_folder *folder, struct sl_error *err) {
    return sl_fail(err, SL_ERR_IO, "%s %.300s: %s; give a folder that this user can write to", folder->option,
                   folder->path, strerror(errno));
}

static enum sl_status lock(struct sl_owned_folder *folder, const char *user, struct sl_error *err) {
    if (mkdir(folder->path, 0700) != 0 && errno != EEXIST) {
        return sl_owned_folder_fail(folder, err);
    }
    folder->dir_fd = open(folder->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder->dir_fd >= 0) {
        folder->owner_fd = openat(folder->dir_fd, "owner", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    }
    if (folder->owner_fd < 0) {
        return sl_owned_folder_fail(folder, err);
    }
    SL_FAIL_IF(flock(folder->owner_fd, LOCK_EX | LOCK_NB) != 0, err, SL_ERR_PRECONDITION,
               "%s %.300s: another process is using it (%s); give every %s a folder of its own", folder->option,
               folder->path, strerror(errno), user);
    return SL_OK;
}

enum sl_status sl_owned_folder_open(const char *option, const char *path, const char *user,
                                    struct sl_owned_folder *folder_out, struct sl_error *err) {
    *folder_out = (struct sl_owned_folder){.option = option, .dir_fd = -1, .owner_fd = -1};
    const size_t size = sizeof folder_out->path;
    SL_FAIL_IF((size_t)snprintf(folder_out->path, size, "%s", path) >= size, err, SL_ERR_INVALID,
               "%s: the folder's name is too long", option);
    SL_TRY_OR(lock(folder_out, user, err), sl_owned_folder_close(folder_out));
    return SL_OK;
}

void sl_owned_folder_close(struct sl_owned_folder *folder) {
    if (folder->owner_fd >= 0) {
        close(folder->owner_fd);
    }
    if (folder->dir_fd >= 0) {
        close(folder->dir_fd);
    }
    folder->dir_fd = folder->owner_fd = -1;
}
