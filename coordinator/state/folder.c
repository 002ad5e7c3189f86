// SPDX-License-Identifier: Apache-2.0
#include "coordinator/state/folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static enum sl_status unusable(const struct sl_state_folder *folder, struct sl_error *err) {
    return sl_fail(err, SL_ERR_IO, "--state %.300s: %s; give a folder that this user can write to", folder->path,
                   strerror(errno));
}

// Closes the folder to other users: it holds prompts. A folder that root made for us, as volumes are, may be our group's.
static enum sl_status close_to_others(struct sl_state_folder *folder, struct sl_error *err) {
    struct stat about;
    if (fstat(folder->dir_fd, &about) != 0) {
        return unusable(folder, err);
    }
    if (about.st_uid == geteuid() && (about.st_mode & 077) != 0 && fchmod(folder->dir_fd, 0700) != 0) {
        return unusable(folder, err);
    }
    SL_FAIL_IF(about.st_uid != geteuid() && (about.st_mode & 07) != 0, err, SL_ERR_PRECONDITION,
               "--state %.300s: it is another user's and open to everybody; give a folder of our own", folder->path);
    return SL_OK;
}

// Versions before the database kept a file for each job.
static enum sl_status reject_old_files(struct sl_state_folder *folder, struct sl_error *err) {
    int fd = openat(folder->dir_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *dir = fd >= 0 ? fdopendir(fd) : NULL;
    if (dir == NULL) {
        return unusable(folder, err);
    }
    bool is_old = false;
    for (struct dirent *entry; !is_old && (entry = readdir(dir)) != NULL;) {
        is_old = strncmp(entry->d_name, "job-", 4) == 0;
    }
    closedir(dir);
    return is_old
               ? sl_fail(
                     err, SL_ERR_PRECONDITION,
                     "--state %.300s: it has jobs of an older version; give another folder, or remove its job-* files",
                     folder->path)
               : SL_OK;
}

enum sl_status sl_state_folder_open(const char *path, struct sl_state_folder *folder_out, struct sl_error *err) {
    struct sl_state_folder *folder = folder_out;
    folder->dir_fd = folder->owner_fd = -1;
    SL_FAIL_IF((size_t)snprintf(folder->path, sizeof folder->path, "%s", path) >= sizeof folder->path, err,
               SL_ERR_INVALID, "--state: the folder's name is too long");
    enum sl_status status = SL_OK;
    if (mkdir(folder->path, 0700) != 0 && errno != EEXIST) {
        return unusable(folder, err);
    }
    folder->dir_fd = open(folder->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder->dir_fd < 0) {
        return unusable(folder, err);
    }
    status = close_to_others(folder, err);
    if (status == SL_OK) {
        folder->owner_fd = openat(folder->dir_fd, "owner", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
        status = folder->owner_fd < 0 ? unusable(folder, err) : SL_OK;
    }
    if (status == SL_OK && flock(folder->owner_fd, LOCK_EX | LOCK_NB) != 0) {
        status = sl_fail(err, SL_ERR_PRECONDITION,
                         "--state %.300s: another process is using it (%s); give every coordinator a folder of its own",
                         folder->path, strerror(errno));
    }
    SL_THEN(status, reject_old_files(folder, err));
    if (status != SL_OK) {
        sl_state_folder_close(folder);
    }
    return status;
}

void sl_state_folder_close(struct sl_state_folder *folder) {
    if (folder->owner_fd >= 0) {
        close(folder->owner_fd);
    }
    if (folder->dir_fd >= 0) {
        close(folder->dir_fd);
    }
    folder->dir_fd = folder->owner_fd = -1;
}
