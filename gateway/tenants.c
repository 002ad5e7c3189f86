// SPDX-License-Identifier: Apache-2.0
#include "gateway/tenants.h"

#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <unistd.h>

#include "base/locked.h"
#include "base/log.h"
#include "net/trust/certificate.h"

struct one {
    char name[SL_TENANT_NAME_BYTES];
    struct sl_client *client;
    struct one *next;
};

struct sl_tenant_clients {
    const char *folder, *coordinator;
    struct sl_tls_files tls; // those of the whole cluster
    struct sl_client *own;
    struct sl_api_keys *keys;             // NULL: there is no file of API keys
    struct sl_web_token_keys *token_keys; // the same for tokens; both NULL: authentication is disabled
    pthread_mutex_t mutex;                // guards the fields below
    struct one *list;
};

static enum sl_status check_config(const struct sl_tenants_config *config, const struct sl_tls_files *tls,
                                   struct sl_error *err) {
    const struct sl_web_token_policy *policy = &config->token_policy;
    bool has_tokens = config->token_keys[0] != '\0', asks = config->keys[0] != '\0' || has_tokens;
    bool has_folder = config->folder[0] != '\0', has_ca = tls->ca[0] != '\0';
    SL_FAIL_IF(has_folder && !asks, err, SL_ERR_INVALID, "--tenants is for those that --keys or --jwt-keys are about");
    SL_FAIL_IF(asks && has_ca != has_folder, err, SL_ERR_INVALID,
               "--keys, --jwt-keys: a cluster with certificates (--tls-ca) knows tenants by theirs, in "
               "--tenants DIR; one without has no tenants");
    SL_FAIL_IF(!has_tokens && (policy->issuer[0] != '\0' || policy->audience[0] != '\0'), err, SL_ERR_INVALID,
               "--jwt-issuer and --jwt-audience are for --jwt-keys");
    if (has_tokens && (policy->issuer[0] == '\0' || policy->audience[0] == '\0')) {
        sl_log_warn("gateway",
                    "without --jwt-issuer and --jwt-audience every token that these keys have signed is taken, "
                    "also those that were made for other services");
    }
    return SL_OK;
}

enum sl_status sl_tenants_open(const struct sl_tenants_config *config, const char *coordinator,
                               const struct sl_tls_files *tls, struct sl_client *own,
                               struct sl_tenant_clients **tenants_out, struct sl_error *err) {
    SL_TRY(check_config(config, tls, err));
    SL_NEW_OR_FAIL(struct sl_tenant_clients, tenants, err, "no memory for tenants");
    pthread_mutex_init(&tenants->mutex, NULL);
    tenants->own = own;
    tenants->folder = config->folder;
    tenants->coordinator = coordinator;
    tenants->tls = *tls;
    enum sl_status status = SL_OK;
    if (config->keys[0] != '\0') {
        status = sl_api_keys_open(config->keys, &tenants->keys, err);
    }
    SL_THEN_IF(status, config->token_keys[0] != '\0',
               sl_web_token_keys_open(config->token_keys, &config->token_policy, &tenants->token_keys, err));
    SL_TRY_OR(status, sl_tenants_close(&tenants));
    *tenants_out = tenants;
    return SL_OK;
}

void sl_tenants_close(struct sl_tenant_clients **tenants_ptr) {
    SL_TAKE_OR_RETURN(tenants, tenants_ptr);
    while (tenants->list) {
        struct one *one = tenants->list;
        tenants->list = one->next;
        sl_client_close(&one->client);
        free(one);
    }
    sl_api_keys_close(&tenants->keys);
    sl_web_token_keys_close(&tenants->token_keys);
    pthread_mutex_destroy(&tenants->mutex);
    free(tenants);
}

// Checks that a certificate is the tenant's: client-acme-alice.pem may be of the tenant acme-alice, and of acme's alice. An
// operator's has no tenant, and serves the tenant of its file's name.
static enum sl_status check_tenant(const struct sl_tls_files *files, const char *name, struct sl_error *err) {
    struct sl_identity identity;
    enum sl_status status = sl_certificate_check(files, &identity, err);
    if (status != SL_OK || identity.role != SL_ROLE_CLIENT || strcmp(identity.tenant, name) == 0) {
        return status;
    }
    return sl_fail(err, SL_ERR_DENIED, "%s is of the tenant %s", files->certificate, identity.tenant);
}

static enum sl_status connect_as(const struct sl_tenant_clients *tenants, const char *name,
                                 struct sl_client **client_out, struct sl_error *err) {
    char *certificate = NULL, *key = NULL;
    enum sl_status status = SL_OK;
    SL_FAIL_IF(asprintf(&certificate, "%s/client-%s.pem", tenants->folder, name) < 0, err, SL_ERR_EXHAUSTED,
               "no memory for a tenant");
    if (asprintf(&key, "%s/client-%s.key", tenants->folder, name) < 0) {
        free(certificate);
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a tenant");
    }
    if (strlen(certificate) >= PATH_MAX) {
        status = sl_fail(err, SL_ERR_INVALID, "--tenants: the path is too long");
    } else if (access(certificate, F_OK) != 0) {
        status = sl_fail(err, SL_ERR_NOT_FOUND, "%s is not there", certificate);
    } else {
        struct sl_tls_files files = tenants->tls;
        files.certificate = certificate;
        files.key = key;
        status = check_tenant(&files, name, err);
        SL_THEN(status, sl_client_connect(tenants->coordinator, &files, client_out, err));
    }
    free(certificate);
    free(key);
    return status;
}

static enum sl_status client_of(struct sl_tenant_clients *tenants, const char *name, struct sl_client **client_out,
                                struct sl_error *err) {
    for (struct one *one = tenants->list; one; one = one->next) {
        if (strcmp(one->name, name) == 0) {
            *client_out = one->client;
            return SL_OK;
        }
    }
    struct one *one = calloc(1, sizeof *one);
    enum sl_status status =
        one ? connect_as(tenants, name, &one->client, err) : sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a tenant");
    SL_TRY_OR(status, free(one));
    snprintf(one->name, sizeof one->name, "%s", name);
    one->next = tenants->list;
    tenants->list = one;
    *client_out = one->client;
    return SL_OK;
}

static bool has_two_dots(const char *text) {
    const char *dot = strchr(text, '.');
    return dot && strchr(dot + 1, '.');
}

static enum sl_status find_by_token(struct sl_tenant_clients *tenants, const char *token, struct sl_api_key *who_out,
                                    struct sl_refusal *refusal) {
    char tenant[SL_TENANT_NAME_BYTES];
    struct sl_error err;
    enum sl_status status = sl_web_token_keys_check(tenants->token_keys, token, tenant, &err);
    SL_THEN_IF(status, sl_api_keys_of_tenant(tenants->keys, tenant, who_out) != SL_OK,
               sl_fail(&err, SL_ERR_INTERNAL, "the hash of a tenant's name failed"));
    if (status != SL_OK) {
        sl_refuse(refusal, status == SL_ERR_DENIED ? 401 : status == SL_ERR_NOT_FOUND ? 403 : 500, "%s", err.text);
    }
    return status;
}

static enum sl_status find_caller(struct sl_tenant_clients *tenants, const char *authorization,
                                  struct sl_api_key *who_out, bool *by_token_out, struct sl_refusal *refusal) {
    static const char bearer[] = "Bearer ";
    *by_token_out = false;
    if (!authorization || strncasecmp(authorization, bearer, sizeof bearer - 1) != 0) {
        sl_refuse(refusal, 401, "%s is needed: Authorization: Bearer %s",
                  tenants->keys ? "an API key" : "a JSON web token", tenants->keys ? "KEY" : "TOKEN");
        return SL_ERR_DENIED;
    }
    const char *presented = authorization + sizeof bearer - 1;
    if (tenants->keys && sl_api_keys_find(tenants->keys, presented, who_out) == SL_OK) {
        return SL_OK;
    }
    if (tenants->token_keys && (!tenants->keys || has_two_dots(presented))) {
        *by_token_out = true;
        return find_by_token(tenants, presented, who_out, refusal);
    }
    sl_refuse(refusal, 401, "this API key is unknown");
    return SL_ERR_DENIED;
}

enum sl_status sl_tenants_find(struct sl_tenant_clients *tenants, const char *authorization, struct sl_api_key *key_out,
                               struct sl_client **client_out, struct sl_refusal *refusal) {
    *key_out = sl_api_key_anybody;
    *client_out = tenants->own;
    if (!tenants->keys && !tenants->token_keys) {
        return SL_OK;
    }
    bool by_token;
    enum sl_status status = find_caller(tenants, authorization, key_out, &by_token, refusal);
    if (status != SL_OK || tenants->folder[0] == '\0') {
        return status;
    }
    struct sl_error err;
    SL_WITH_LOCK(&tenants->mutex, status = client_of(tenants, key_out->tenant, client_out, &err));
    if (status == SL_ERR_NOT_FOUND && by_token) { // an issuer may have tenants that this cluster lacks
        sl_refuse(refusal, 403, "there is no tenant \"%s\" here", key_out->tenant);
    } else if (status != SL_OK) {
        sl_log_error("gateway", "tenant=%s: %s", key_out->tenant, err.text);
        sl_refuse(refusal, 503, "the gateway has no certificate for this %s's tenant", by_token ? "token" : "key");
    }
    return status;
}

enum sl_tenants_kind sl_tenants_kind(struct sl_tenant_clients *tenants) {
    struct sl_api_key nobody;
    struct sl_client *client;
    struct sl_refusal refusal;
    bool is_anybody = sl_tenants_find(tenants, NULL, &nobody, &client, &refusal) == SL_OK;
    return is_anybody ? SL_TENANTS_NONE : tenants->folder[0] == '\0' ? SL_TENANTS_ALIKE : SL_TENANTS_APART;
}
