// SPDX-License-Identifier: Apache-2.0
// Purpose: makes the command lines of a cluster's processes, stores them for restarts, and checks them.
#pragma once

#include <limits.h>

#include "client/cli/cluster.h"
#include "client/cli/cluster_etcd.h"

#define SL_MAX_WORDS 64

// Writes folder/name. SL_ERR_INVALID: longer than a path may be; `option` is the option with the folder.
enum sl_status sl_join_path(char path_out[PATH_MAX], const char *option, const char *folder, const char *name,
                            struct sl_error *err);

// The argv of a process; owns its words; zero-initialized is empty.
struct sl_argv {
    char *list[SL_MAX_WORDS + 1];
    size_t n;
    bool too_many, out_of_memory; // sticky: the functions that write a command line return them
};

enum sl_status sl_argv_set_option(struct sl_argv *words, const char *name, const char *value, struct sl_error *err);
void sl_argv_cleanup(struct sl_argv *words);

// Inputs of the command lines: those of the starting command, and values that are known after the coordinators listen.
struct sl_cluster_origin {
    const struct sl_cluster_config *config;
    const char *bin;          // folder of the executables
    const char *address;      // addresses of the coordinators
    const char *etcd_servers; // set for several coordinators
};

// Writes a command line into *words_out; the caller cleans it up in any case. `name`: "coordinator-1", "decode-0".
enum sl_status sl_argv_of_coordinator(const struct sl_cluster_origin *of, int64_t i, const char *name,
                                      struct sl_argv *words_out, struct sl_error *err);
enum sl_status sl_argv_of_gateway(const struct sl_cluster_origin *of, struct sl_argv *words_out, struct sl_error *err);
enum sl_status sl_argv_of_worker(const struct sl_cluster_origin *of, const char *role, const char *name,
                                 struct sl_argv *words_out, struct sl_error *err);

// Lets every kind of process check its command line without starting to serve. SL_ERR_INVALID: the error of the process
// that refuses it.
enum sl_status sl_argv_try(const struct sl_cluster_origin *of, struct sl_error *err);
