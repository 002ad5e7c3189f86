// SPDX-License-Identifier: Apache-2.0
// Purpose: the files that a process proves itself with, for gRPC and for the data plane alike. PEM; docs/SECURITY.md.
#pragma once

struct sl_tls_files {
    const char *ca;          // certificates of the cluster's authority
    const char *certificate; // ours, with those between it and the authority's; its SPIFFE URI says who we are
    const char *key;         // ours
};
