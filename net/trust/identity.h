// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the identity of a peer: the one SPIFFE URI of its certificate, spiffe://CLUSTER/ROLE/NAME, ROLE "client",
 *          "operator", "coordinator", "worker/prefill", "worker/decode" or "worker/kvstore". docs/SECURITY.md says what
 *          each role may do. A client's NAME is its tenant, or TENANT/USER.
 */
#pragma once

#include <stdbool.h>

#include "base/status.h"

enum sl_role { // bits, so that a check can allow several
    SL_ROLE_CLIENT = 1,
    SL_ROLE_OPERATOR = 2,
    SL_ROLE_UNSTATED_WORKER = 4, // spiffe://CLUSTER/worker/NAME, refused unless --tls-unstated-roles is set
    SL_ROLE_COORDINATOR = 8,
    SL_ROLE_PREFILL = 16,
    SL_ROLE_DECODE = 32,
    SL_ROLE_KVSTORE = 64,
    SL_ROLE_COMPUTE = SL_ROLE_PREFILL | SL_ROLE_DECODE,
    SL_ROLE_WORKER = SL_ROLE_COMPUTE | SL_ROLE_KVSTORE,
    SL_ROLE_ANY = 127,
};

#define SL_CLUSTER_NAME_BYTES 64 // with the terminator
#define SL_IDENTITY_BYTES     128
#define SL_TENANT_BYTES       64

struct sl_identity {
    unsigned role; // one of the roles; without authentication all of them, and the names are empty
    char cluster[SL_CLUSTER_NAME_BYTES];
    char name[SL_IDENTITY_BYTES];
    char tenant[SL_TENANT_BYTES]; // of a client; otherwise empty
};

// The identity of every peer in a cluster without certificates.
extern const struct sl_identity sl_identity_anybody;

/*
 * Parses a URI. Names are letters, digits, '.', '_', '-', and in NAME '/' between them. SL_ERR_INVALID quotes the URI,
 * which an unauthenticated peer may have sent.
 */
enum sl_status sl_identity_parse(const char *uri, struct sl_identity *identity_out, struct sl_error *err);

/*
 * Checks that the identity has one of `roles` in a cluster. SL_ERR_DENIED names the expected roles.
 */
enum sl_status sl_identity_check(const struct sl_identity *identity, const char *cluster, unsigned roles,
                                 struct sl_error *err);
// Returns the roles with that of unstated workers, if one of them is a worker's and `accepts_unstated` is set.
unsigned sl_roles_accepted(unsigned roles, bool accepts_unstated);
// Returns true for an identity with one role, which is a worker's.
bool sl_identity_is_worker(const struct sl_identity *identity);
// Checks that the peer at "NAME@HOST:PORT" is NAME; a name of NULL or "" expects none. SL_ERR_DENIED has both.
enum sl_status sl_identity_check_name(const struct sl_identity *identity, const char *name, struct sl_error *err);

/*
 * Splits "NAME@HOST:PORT", an address whose server must have this name in its certificate, if there are certificates.
 * Returns the part after the name; name_out: "" if the address has none. NULL: the name is too long.
 */
const char *sl_identity_split_address(const char *address, char name_out[SL_IDENTITY_BYTES]);
