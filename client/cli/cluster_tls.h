// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: certificates for a cluster on this machine, in one folder: an authority's, one for each process, and those
 *          of an operator and of a client called "local". tools/test-ca.sh makes them; the authority's key is not
 *          protected.
 */
#pragma once

#include <limits.h>
#include <stdint.h>

#include "net/trust/tls_files.h"

struct sl_cluster_names { // number of processes of each role
    int64_t n_prefill, n_decode, n_kvstore;
};

struct sl_cluster_tls {
    char ca[PATH_MAX], certificate[PATH_MAX], key[PATH_MAX];
    struct sl_tls_files files; // points to the paths
};

// Finds the certificate of a role and name in the folder: "worker-prefill", "prefill-0". SL_ERR_INVALID: the path is too long.
enum sl_status sl_cluster_tls_find(const char *folder, const char *role, const char *name,
                                   struct sl_cluster_tls *tls_out, struct sl_error *err);

// Makes all certificates of the folder again, but keeps an existing authority. bin: the folder of the executables.
enum sl_status sl_cluster_tls_make(const char *bin, const char *folder, const struct sl_cluster_names *names,
                                   struct sl_error *err);
