// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: finds the tenant of a request, by its API key, or by a web token that names the tenant. The gateway then
 *          uses that tenant's own certificate, so that the cluster itself distinguishes tenants and need not trust the
 *          gateway.
 *
 * Design: a folder has client-TENANT.pem and client-TENANT.key for each tenant, as tools/test-ca.sh writes them. A
 *         connection is made when a tenant first asks, and stays. Without files of keys, all requests use the gateway's
 *         own client; in a cluster without certificates too. A credential that is not an API key and has two dots is
 *         treated as a token.
 * Threads: any.
 */
#pragma once

#include "gateway/openai/refusal.h"
#include "gateway/access/web_token.h"
#include "client/libsluice/sluice.h"
#include "net/trust/api_keys.h"

struct sl_tenants_config {
    const char *keys;       // a file (net/trust/api_keys.h); ""
    const char *token_keys; // a file (web_token.h); "". Both "": authentication is disabled
    struct sl_web_token_policy token_policy;
    const char *folder; // folder of certificates; ""
};

struct sl_tenant_clients;

enum sl_tenants_kind {
    SL_TENANTS_NONE,  // authentication is disabled: all requests use the gateway's own client
    SL_TENANTS_ALIKE, // callers need a key; the cluster has no certificates and does not distinguish tenants
    SL_TENANTS_APART, // each key has its tenant, for the cluster too
};

// own: the gateway's own client of this coordinator, with these files. All texts must outlive the tenants.
enum sl_status sl_tenants_open(const struct sl_tenants_config *config, const char *coordinator,
                               const struct sl_tls_files *tls, struct sl_client *own,
                               struct sl_tenant_clients **tenants_out, struct sl_error *err);
void sl_tenants_close(struct sl_tenant_clients **tenants); // accepts NULL, nulls *tenants

/*
 * Finds the client for a request. authorization: the header, or NULL. *client_out belongs to *tenants and lives as
 * long. SL_ERR_DENIED and others: *refusal has the reason: 401 for a missing or invalid credential, 403 for a valid
 * token of a tenant without a certificate here, 503 for an API key of such a tenant.
 */
enum sl_status sl_tenants_find(struct sl_tenant_clients *tenants, const char *authorization, struct sl_api_key *key_out,
                               struct sl_client **client_out, struct sl_refusal *refusal);

enum sl_tenants_kind sl_tenants_kind(struct sl_tenant_clients *tenants);
