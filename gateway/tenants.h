// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: on whose behalf a request is made. By its API key, or by a web token that names the tenant; and then by that tenant's own
 *          certificate, so that the cluster itself tells tenants apart and need not believe the gateway.
 *
 * Design: a folder has client-TENANT.pem and client-TENANT.key for each, as tools/test-ca.sh writes them. A connection is made when a tenant
 *         first asks, and stays. Without files of keys everybody is the gateway's own client; in a cluster without certificates too.
 *         What is no API key and has two dots is taken for a token.
 * Threads: any.
 */
#pragma once

#include "gateway/openai/refusal.h"
#include "gateway/web_token.h"
#include "client/libsluice/sluice.h"
#include "net/trust/api_keys.h"

struct sl_tenants_config {
    const char *keys;       // a file (net/trust/api_keys.h); ""
    const char *token_keys; // a file (web_token.h); "". Neither: nobody is asked
    struct sl_web_token_policy token_policy;
    const char *folder;      // of certificates; ""
    const char *coordinator; // "HOST:PORT"
    const char *ca;          // of the cluster; ""
    const char *revoked;     // as of struct sl_tls_files
    struct sl_client *own;   // of the gateway itself
};

struct sl_tenant_clients;

enum sl_tenants_kind {
    SL_TENANTS_NONE,  // nobody is asked: everybody is the gateway's own client
    SL_TENANTS_ALIKE, // who has no key is not let in; to the cluster, which has no certificates, all are alike
    SL_TENANTS_APART, // each is its own tenant, to the cluster, too
};

enum sl_status sl_tenants_open(const struct sl_tenants_config *config, struct sl_tenant_clients **tenants_out,
                               struct sl_error *err);
void sl_tenants_close(struct sl_tenant_clients **tenants); // accepts NULL, nulls *tenants

/*
 * authorization: the header, or NULL. *client_out is ours, and lives as long as we do. SL_ERR_DENIED and others: *refusal says why: 401
 * whoever proves nothing, 403 a token of nobody whom we have a certificate of, 503 a key of such a one.
 */
enum sl_status sl_tenants_find(struct sl_tenant_clients *tenants, const char *authorization, struct sl_api_key *key_out,
                               struct sl_client **client_out, struct sl_refusal *refusal);

enum sl_tenants_kind sl_tenants_kind(struct sl_tenant_clients *tenants);
