// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the clusters that `sluice up` runs on this machine for this user, by name: for `sluice down` and `status`.
 *
 *     $XDG_RUNTIME_DIR/sluice/NAME/    or $XDG_CACHE_HOME/sluice/run/NAME/, ~/.cache/sluice/run/NAME/
 *         lock             held by `sluice up` as long as it lives: the process id in it alone may be another's by now
 *         cluster.json     addresses and process ids, once all are ready
 *         cluster.log      what the processes say, and cluster.log.1 what they said before that
 *
 * Invariants: these folders are the user's own, and nobody else may write to them; others are refused with SL_ERR_DENIED.
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
 * Take the name, and open its log anew. SL_ERR_EXISTS: a cluster of this name runs. SL_ERR_INVALID: no name that a folder may have.
 * The folder goes with sl_cluster_here_close(), unless the log is to be read (keep).
 */
enum sl_status sl_cluster_here_open(const char *name, struct sl_cluster_here *here, struct sl_error *err);
void sl_cluster_here_close(struct sl_cluster_here *here, bool keep);

// Once its log has 16 MiB, begin another behind the same descriptor, which then is to be duplicated anew (*anew_out); the one
// before is kept until the next. SL_ERR_IO: it could not, and the log has lost what it had.
enum sl_status sl_cluster_here_bound_log(struct sl_cluster_here *here, bool *anew_out, struct sl_error *err);

// One that `sluice status` lists.
struct sl_cluster_entry {
    char name[64], dir[PATH_MAX];
    pid_t pid;     // as sl_cluster_entry_pid() has it
    bool running;  // else it ended without a word, and its log is there
    json_t *state; // NULL: not ready yet
};

// All there are, by name. Each is to be cleaned up. SL_ERR_EXHAUSTED, SL_ERR_DENIED.
enum sl_status sl_clusters_here(struct sl_cluster_entry **entries_out, size_t *n_out, struct sl_error *err);
void sl_clusters_here_free(struct sl_cluster_entry **entries, size_t n);

void sl_cluster_entry_forget(const struct sl_cluster_entry *entry); // that has ended: its log goes
// Process of its `sluice up`, as it is now. 0: it has ended; -1: it lives, and has not said it yet.
pid_t sl_cluster_entry_pid(const struct sl_cluster_entry *entry);
