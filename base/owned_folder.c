// SPDX-License-Identifier: Apache-2.0
#include "base/owned_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "base/close.h"

enum sl_status sl_owned_folder_fail(const struct sl_owned_folder *folder, struct sl_error *err) {
    return sl_fail(err, SL_ERR_IO, "%s %.300s: %s; %s", folder->option, folder->path, strerror(errno),
                   folder->was_used ? "mount its disk, or restart to begin with an empty folder"
                                    : "give a folder that this user can write to");
}

enum sl_status sl_owned_folder_open(const char *option, const char *path, bool was_used,
                                    struct sl_owned_folder *folder_out, struct sl_error *err) {
    struct sl_owned_folder *folder = folder_out;
    *folder = (struct sl_owned_folder){.option = option, .dir_fd = -1, .owner_fd = -1, .was_used = was_used};
    SL_FAIL_IF((size_t)snprintf(folder->path, sizeof folder->path, "%s", path) >= sizeof folder->path, err,
               SL_ERR_INVALID, "%s: the folder's name is too long", option);
    if (was_used || mkdir(folder->path, 0700) == 0 || errno == EEXIST) {
        folder->dir_fd = open(folder->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    }
    return folder->dir_fd >= 0 ? SL_OK : sl_owned_folder_fail(folder, err);
}

enum sl_status sl_owned_folder_lock(struct sl_owned_folder *folder, const char *user, struct sl_error *err) {
    int make = folder->was_used ? 0 : O_CREAT;
    folder->owner_fd = openat(folder->dir_fd, "owner", O_RDWR | make | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (folder->owner_fd < 0) {
        return sl_owned_folder_fail(folder, err);
    }
    SL_FAIL_IF(flock(folder->owner_fd, LOCK_EX | LOCK_NB) != 0, err, SL_ERR_PRECONDITION,
               "%s %.300s: another process is using it (%s); give every %s a folder of its own", folder->option,
               folder->path, strerror(errno), user);
    return SL_OK;
}

void sl_owned_folder_close(struct sl_owned_folder *folder) {
    sl_close(folder->owner_fd);
    sl_close(folder->dir_fd);
    folder->dir_fd = folder->owner_fd = -1;
}
