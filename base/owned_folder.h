// SPDX-License-Identifier: Apache-2.0
// Purpose: a folder that one process uses at a time, which has locked the file "owner" in it.
#pragma once

#include <limits.h>
#include <sys/types.h>

#include "base/status.h"

struct sl_owned_folder {
    const char *option; // "--disk", which names the folder in errors
    char path[PATH_MAX - 64];
    int dir_fd, owner_fd;
    bool may_be_made; // where it, or "owner", is missing
};

// Opens the folder, or makes it for this user alone, but not its parents. disk: the file system on which this process
// used it before; 0: it did not. If another one is there now, nothing is made, neither the folder nor "owner", so that
// no other disk is filled. SL_ERR_INVALID, SL_ERR_IO name it and the remedy; then nothing is left to close.
enum sl_status sl_owned_folder_open(const char *option, const char *path, dev_t disk,
                                    struct sl_owned_folder *folder_out, struct sl_error *err);
// Locks it; on failure it stays open. user: who uses such a folder, for the error: "store". SL_ERR_IO,
// SL_ERR_PRECONDITION.
enum sl_status sl_owned_folder_lock(struct sl_owned_folder *folder, const char *user, struct sl_error *err);
// Fails with errno's text.
enum sl_status sl_owned_folder_fail(const struct sl_owned_folder *folder, struct sl_error *err);
void sl_owned_folder_close(struct sl_owned_folder *folder);
