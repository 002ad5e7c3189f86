// SPDX-License-Identifier: Apache-2.0
#include "base/owned_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>

#include "base/close.h"

enum sl_status sl_owned_folder_fail(const struct sl_owned_folder *folder, struct sl_error *err) {
    return sl_fail(err, SL_ERR_IO, "%s %.300s: %s; %s", folder->option, folder->path, strerror(errno),
                   folder->may_be_made ? "give a folder that this user can write to"
                                       : "mount its disk, or restart to begin with an empty folder");
}

// Returns the disk of the folder in which this one is, or would be; 0: it cannot be told.
static dev_t disk_of_parent(const struct sl_owned_folder *folder) {
    char path[sizeof folder->path];
    struct stat parent;
    strcpy(path, folder->path);
    return fstatat(AT_FDCWD, dirname(path), &parent, 0) == 0 ? parent.st_dev : 0;
}

enum sl_status sl_owned_folder_open(const char *option, const char *path, dev_t disk,
                                    struct sl_owned_folder *folder_out, struct sl_error *err) {
    struct sl_owned_folder *folder = folder_out;
    struct stat opened;
    *folder = (struct sl_owned_folder){.option = option, .dir_fd = -1, .owner_fd = -1};
    SL_FAIL_IF((size_t)snprintf(folder->path, sizeof folder->path, "%s", path) >= sizeof folder->path, err,
               SL_ERR_INVALID, "%s: the folder's name is too long", option);
    folder->may_be_made = disk == 0 || disk_of_parent(folder) == disk;
    if (!folder->may_be_made || mkdir(folder->path, 0700) == 0 || errno == EEXIST) {
        folder->dir_fd = open(folder->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    }
    if (folder->dir_fd < 0 || fstat(folder->dir_fd, &opened) != 0) {
        const enum sl_status status = sl_owned_folder_fail(folder, err);
        sl_owned_folder_close(folder);
        return status;
    }
    folder->disk = opened.st_dev;
    folder->may_be_made = disk == 0 || folder->disk == disk;
    return SL_OK;
}

enum sl_status sl_owned_folder_lock(struct sl_owned_folder *folder, const char *user, struct sl_error *err) {
    int make = folder->may_be_made ? O_CREAT : 0;
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
