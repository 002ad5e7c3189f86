// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the clusters that `sluice up` runs on this machine for this user, by name: for `sluice down` and `status`.
 *
 *     $XDG_RUNTIME_DIR/sluice/NAME/    or $XDG_CACHE_HOME/sluice/run/NAME/, ~/.cache/sluice/run/NAME/
 *         lock             held by `sluice up` as long as it lives: a process id alone may be another's by now
 *         cluster.json     addresses and process ids, once all are ready
 *         cluster.log      what the processes say
 */
#pragma once

#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>

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

// One that `sluice status` lists.
struct sl_cluster_entry {
    char name[64], dir[PATH_MAX];
    bool running;  // else it ended without a word, and its log is there
    json_t *state; // NULL: not ready yet
};

// All there are, by name. Each is to be cleaned up. SL_ERR_EXHAUSTED.
enum sl_status sl_clusters_here(struct sl_cluster_entry **entries_out, size_t *n_out, struct sl_error *err);
void sl_clusters_here_free(struct sl_cluster_entry **entries, size_t n);

void sl_cluster_entry_forget(const struct sl_cluster_entry *entry); // that has ended: its log goes
// Whether its `sluice up` still lives.
bool sl_cluster_entry_runs(const struct sl_cluster_entry *entry);
