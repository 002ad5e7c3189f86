// SPDX-License-Identifier: Apache-2.0
// Purpose: the files that a process proves itself with. A header of its own: programs that embed libsluice have it too.
#pragma once

struct sl_tls_files {        // PEM
    const char *ca;          // certificates of the cluster's authority
    const char *certificate; // ours, with those between it and the authority's; its SPIFFE URI says who we are
    const char *key;         // ours
    const char *revoked;     // lists of certificates that the authority has taken back (CRLs); NULL or "": none
};
