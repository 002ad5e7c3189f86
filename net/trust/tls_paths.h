// SPDX-License-Identifier: Apache-2.0
// Purpose: the certificate files of a process. A separate header, because programs that embed libsluice include it too.
#pragma once

#include <stdbool.h>

struct sl_tls_files {        // PEM
    const char *ca;          // certificates of the cluster's authority
    const char *certificate; // ours, with the chain between it and the authority's; its SPIFFE URI is our identity
    const char *key;         // ours
    const char *revoked;     // lists of certificates that the authority has revoked (CRLs); NULL or "": none
    bool accepts_unstated;   // workers' certificates need not state their role: see docs/SECURITY.md
};
