// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the clusters that `sluice up` runs on this machine for this user, by name: for `sluice down` and `status`.
 *
 *     $XDG_RUNTIME_DIR/sluice/NAME/    or $XDG_CACHE_HOME/sluice/run/NAME/, ~/.cache/sluice/run/NAME/
 *         lock             held by `sluice up` as long as it lives. The process id in it is valid only while the lock
 *         is held
 *         cluster.json     addresses and process ids, once all are ready
 *         cluster.log      output of the processes; cluster.log.1 has the output before that
 *
 * Invariants: the user owns these folders, and no other user may write to them; other folders are refused with
 *             SL_ERR_DENIED.
 */
#pragma once

#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

#include "base/status.h"

struct sl_cluster_here {
    char name[64], dir[PATH_MAX], log_path[PATH_MAX + 16], state_path[PATH_MAX + 16];
    int lock_fd;
    FILE *log;
};

/*
 * Takes the name, and starts a new log. SL_ERR_EXISTS: a cluster of this name runs. SL_ERR_INVALID: not a valid folder
 * name. sl_cluster_here_close() removes the folder, unless the log is kept for the user (keep).
 */
enum sl_status sl_cluster_here_open(const char *name, struct sl_cluster_here *here, struct sl_error *err);
void sl_cluster_here_close(struct sl_cluster_here *here, bool keep);

// Starts a new log once the log has 16 MiB. The descriptor stays the same, so the caller must duplicate it again
// (*anew_out); the previous log is kept until the next one. SL_ERR_IO: it could not, and the log's content is lost.
enum sl_status sl_cluster_here_bound_log(struct sl_cluster_here *here, bool *anew_out, struct sl_error *err);

// One cluster in the list of `sluice status`.
struct sl_cluster_entry {
    char name[64], dir[PATH_MAX];
    pid_t pid;     // as from sl_cluster_entry_pid()
    bool running;  // false: it ended without cleaning up, and its log is still there
    json_t *state; // NULL: not ready yet
};

// Lists all clusters, by name. The caller cleans up each entry. SL_ERR_EXHAUSTED, SL_ERR_DENIED.
enum sl_status sl_clusters_here(struct sl_cluster_entry **entries_out, size_t *n_out, struct sl_error *err);
void sl_clusters_here_free(struct sl_cluster_entry **entries, size_t n);

void sl_cluster_entry_forget(const struct sl_cluster_entry *entry); // removes the log of a cluster that has ended
// Returns the process id of its `sluice up` now. 0: it has ended; -1: it runs, but has not written its id yet.
pid_t sl_cluster_entry_pid(const struct sl_cluster_entry *entry);
