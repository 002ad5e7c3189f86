// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: certificates for a cluster on this machine, in one folder: an authority's, one for each process, and those of an operator
 *          and a client called "local". The folder's are those of tools/test-ca.sh, which makes them: its authority's key is
 *          not protected.
 */
#pragma once

#include <limits.h>
#include <stdint.h>

#include "net/trust/tls_files.h"

struct sl_cluster_names { // how many processes of each role
    int64_t n_prefill, n_decode, n_kvstore;
};

// Paths in one piece of memory.
struct sl_cluster_tls {
    char ca[PATH_MAX], certificate[PATH_MAX], key[PATH_MAX];
    struct sl_tls_files files; // of them
};

// Where the folder has what `who` proves itself with: "worker", "prefill-0". SL_ERR_INVALID: the path is too long.
enum sl_status sl_cluster_tls_find(const char *folder, const char *role, const char *name,
                                   struct sl_cluster_tls *tls_out, struct sl_error *err);

// Make the folder's certificates anew; an authority that is there stays. bin: the folder of the executables.
enum sl_status sl_cluster_tls_make(const char *bin, const char *folder, const struct sl_cluster_names *names,
                                   struct sl_error *err);
