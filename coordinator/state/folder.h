// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the folder of a coordinator's jobs.
 *
 *          DIR/owner                  locked by the one process that uses the folder
 *          DIR/jobs.db, -wal, -shm    coordinator/state/database.h
 *          DIR/damaged-jobs.db        a damaged database, for the operator
 *
 * The folder is its user's alone (0700), and so are the files (0600). Files of other names stay as they are.
 */
#pragma once

#include <limits.h>

#include "base/status.h"

struct sl_state_folder {
    char path[PATH_MAX - 64];
    int dir_fd, owner_fd;
};

// Opens the folder, or makes it, but not its parents. SL_ERR_INVALID, SL_ERR_IO, SL_ERR_PRECONDITION name it and the remedy.
enum sl_status sl_state_folder_open(const char *path, struct sl_state_folder *folder_out, struct sl_error *err);
void sl_state_folder_close(struct sl_state_folder *folder);
