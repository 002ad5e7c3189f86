// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the folder of a coordinator's jobs: a file a job.
 *
 *          DIR/owner            locked by the one process that uses the folder
 *          DIR/job-...          named by the job's id; coordinator/state/record.h
 *          DIR/damaged-job-...  set aside for whoever wants to look; eight at most
 *
 * Files of other names are let be. The folder is its user's alone (0700), the files are (0600).
 */
#pragma once

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "coordinator/jobs/job.h"

struct sl_state_folder {
    char path[PATH_MAX - 64];
    int dir_fd, owner_fd;
};

// Made if it is not there, but not its parents. SL_ERR_INVALID, SL_ERR_IO, SL_ERR_PRECONDITION name it and the remedy.
enum sl_status sl_state_folder_open(const char *path, struct sl_state_folder *folder_out, struct sl_error *err);
void sl_state_folder_close(struct sl_state_folder *folder);

typedef char sl_job_id[SL_JOB_ID_BYTES];
// Ids of the jobs that have files, oldest first; malloc'd.
enum sl_status sl_state_folder_list(struct sl_state_folder *folder, sl_job_id **ids_out, size_t *n_out,
                                    struct sl_error *err);
// All of a file, malloc'd. SL_ERR_INVALID: it cannot be read.
enum sl_status sl_state_folder_read(struct sl_state_folder *folder, const char *id, uint8_t **bytes_out, size_t *n_out,
                                    struct sl_error *err);
void sl_state_folder_set_aside(struct sl_state_folder *folder, const char *id, const char *why);

// A new file, or one that is there, cut to so many bytes. -1: errno.
int sl_state_folder_make(struct sl_state_folder *folder, const char *id);
int sl_state_folder_reopen(struct sl_state_folder *folder, const char *id, size_t bytes);
// SL_ERR_EXHAUSTED: the disk is full. SL_ERR_IO.
enum sl_status sl_state_write(int fd, size_t at, const uint8_t *bytes, size_t n, struct sl_error *err);
void sl_state_folder_remove(struct sl_state_folder *folder, const char *id);

// What a file of so many bytes takes.
int64_t sl_state_blocks(size_t bytes);
