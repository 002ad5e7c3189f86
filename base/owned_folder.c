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

// Returns the disk of a folder; 0: it cannot be told.
static dev_t disk_of(const char *path) {
    struct stat about;
    return fstatat(AT_FDCWD, path, &about, 0) == 0 ? about.st_dev : 0;
}

enum sl_status sl_owned_folder_open(const char *option, const char *path, dev_t disk,
                                    struct sl_owned_folder *folder_out, struct sl_error *err) {
    char path_copy[sizeof folder_out->path];
    *folder_out = (struct sl_owned_folder){.option = option, .dir_fd = -1, .owner_fd = -1};
    SL_FAIL_IF((size_t)snprintf(folder_out->path, sizeof folder_out->path, "%s", path) >= sizeof folder_out->path, err,
               SL_ERR_INVALID, "%s: the folder's name is too long", option);
    folder_out->may_be_made = disk == 0 || disk_of(dirname(strcpy(path_copy, path))) == disk;
    const bool can_be_there = !folder_out->may_be_made || mkdir(path, 0700) == 0 || errno == EEXIST;
    folder_out->dir_fd = can_be_there ? open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    SL_TRY(folder_out->dir_fd >= 0 ? SL_OK : sl_owned_folder_fail(folder_out, err));
    folder_out->may_be_made = disk == 0 || disk_of(path) == disk;
    return SL_OK;
}

enum sl_status sl_owned_folder_lock(struct sl_owned_folder *folder, const char *user, struct sl_error *err) {
    int make = folder->may_be_made ? O_CREAT : 0;
    folder->owner_fd = openat(folder->dir_fd, "owner", O_RDWR | make | O_NOFOLLOW | O_CLOEXEC, 0600);
    SL_TRY(folder->owner_fd >= 0 ? SL_OK : sl_owned_folder_fail(folder, err));
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
