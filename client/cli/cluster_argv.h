// SPDX-License-Identifier: Apache-2.0
// Purpose: the command lines of a cluster's processes, kept so that a process can be started again; and whether they are right.
#pragma once

#include <limits.h>

#include "client/cli/cluster.h"
#include "client/cli/cluster_etcd.h"

#define SL_MAX_WORDS 64

// folder/name. SL_ERR_INVALID: longer than a path may be; `option` named the folder.
enum sl_status sl_join_path(char path_out[PATH_MAX], const char *option, const char *folder, const char *name,
                            struct sl_error *err);

// argv of a process, its words owned; zeroed is empty.
struct sl_argv {
    char *list[SL_MAX_WORDS + 1];
    size_t n;
    bool too_many, out_of_memory; // sticky: sl_argv_check() says so
};

void sl_argv_add(struct sl_argv *words, const char *word);
void sl_argv_add_option(struct sl_argv *words, const char *name, const char *value); // value NULL: not at all
enum sl_status sl_argv_set_option(struct sl_argv *words, const char *name, const char *value, struct sl_error *err);
enum sl_status sl_argv_check(const struct sl_argv *words, struct sl_error *err);
void sl_argv_cleanup(struct sl_argv *words);

// What the command lines are made of: who runs them, and what is known once the coordinators listen.
struct sl_cluster_origin {
    const struct sl_cluster_config *config;
    const char *bin;          // folder of the executables
    const char *address;      // of the coordinators
    const char *etcd_servers; // of several coordinators
};

// Each into *words_out, which is to be cleaned up in any case. `name`: "coordinator-1", "decode-0".
enum sl_status sl_argv_of_coordinator(const struct sl_cluster_origin *of, int64_t i, const char *name,
                                      struct sl_argv *words_out, struct sl_error *err);
enum sl_status sl_argv_of_gateway(const struct sl_cluster_origin *of, struct sl_argv *words_out, struct sl_error *err);
enum sl_status sl_argv_of_worker(const struct sl_cluster_origin *of, const char *role, const char *name,
                                 struct sl_argv *words_out, struct sl_error *err);

// Have every kind of process read its command line, and nothing more. SL_ERR_INVALID: in its words, why one does not like it.
enum sl_status sl_argv_try(const struct sl_cluster_origin *of, struct sl_error *err);
