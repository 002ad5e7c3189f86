// SPDX-License-Identifier: Apache-2.0
// Purpose: see tenants.h.
#include "gateway/tenants.h"

#include <limits.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/log.h"

struct one {
    char name[SL_TENANT_NAME_BYTES];
    struct sl_client *client;
    struct one *next;
};

struct sl_tenant_clients {
    char *folder, *coordinator, *ca;
    struct sl_client *own;
    struct sl_api_keys *keys; // NULL: nobody is asked
    pthread_mutex_t mutex;    // guards what follows
    struct one *list;
};

enum sl_status sl_tenants_open(const struct sl_tenants_config *config, struct sl_tenant_clients **tenants_out,
                               struct sl_error *err) {
    bool has_keys = config->keys[0] != '\0', has_folder = config->folder[0] != '\0', has_ca = config->ca[0] != '\0';
    if (has_folder && !has_keys) {
        return sl_fail(err, SL_ERR_INVALID, "--tenants is for those that --keys names");
    }
    if (has_keys && has_ca != has_folder) {
        return sl_fail(err, SL_ERR_INVALID,
                       "--keys: a cluster with certificates (--tls-ca) knows tenants by theirs, in "
                       "--tenants DIR; one without has no tenants");
    }
    struct sl_tenant_clients *tenants = calloc(1, sizeof *tenants);
    if (!tenants) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for tenants");
    }
    pthread_mutex_init(&tenants->mutex, NULL);
    tenants->own = config->own;
    tenants->folder = strdup(config->folder);
    tenants->coordinator = strdup(config->coordinator);
    tenants->ca = strdup(config->ca);
    enum sl_status status = tenants->folder && tenants->coordinator && tenants->ca
                                ? SL_OK
                                : sl_fail(err, SL_ERR_EXHAUSTED, "no memory for tenants");
    if (status == SL_OK && has_keys) {
        status = sl_api_keys_open(config->keys, &tenants->keys, err);
    }
    if (status != SL_OK) {
        sl_tenants_close(&tenants);
        return status;
    }
    *tenants_out = tenants;
    return SL_OK;
}

void sl_tenants_close(struct sl_tenant_clients **tenants_ptr) {
    struct sl_tenant_clients *tenants = *tenants_ptr;
    if (!tenants) {
        return;
    }
    while (tenants->list) {
        struct one *one = tenants->list;
        tenants->list = one->next;
        sl_client_close(&one->client);
        free(one);
    }
    sl_api_keys_close(&tenants->keys);
    pthread_mutex_destroy(&tenants->mutex);
    free(tenants->folder);
    free(tenants->coordinator);
    free(tenants->ca);
    free(tenants);
    *tenants_ptr = NULL;
}

// With the tenant's certificate.
static enum sl_status connect_as(const struct sl_tenant_clients *tenants, const char *name,
                                 struct sl_client **client_out, struct sl_error *err) {
    char certificate[PATH_MAX], key[PATH_MAX];
    if (snprintf(certificate, sizeof certificate, "%s/client-%s.pem", tenants->folder, name) >= PATH_MAX ||
        snprintf(key, sizeof key, "%s/client-%s.key", tenants->folder, name) >= PATH_MAX) {
        return sl_fail(err, SL_ERR_INVALID, "--tenants: the path is too long");
    }
    struct sl_tls_files files = {.ca = tenants->ca, .certificate = certificate, .key = key};
    return sl_client_connect(tenants->coordinator, &files, client_out, err);
}

// Under the mutex.
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
    if (status != SL_OK) {
        free(one);
        return status;
    }
    snprintf(one->name, sizeof one->name, "%s", name);
    one->next = tenants->list;
    tenants->list = one;
    *client_out = one->client;
    return SL_OK;
}

enum sl_status sl_tenants_find(struct sl_tenant_clients *tenants, const char *authorization, struct sl_api_key *key_out,
                               struct sl_client **client_out, struct sl_refusal *refusal) {
    static const char bearer[] = "Bearer ";
    *key_out = (struct sl_api_key){.max_answers = INT64_MAX};
    *client_out = tenants->own;
    if (!tenants->keys) {
        return SL_OK;
    }
    if (!authorization || strncasecmp(authorization, bearer, sizeof bearer - 1) != 0) {
        sl_refuse(refusal, 401, "an API key is needed: Authorization: Bearer KEY");
        return SL_ERR_DENIED;
    }
    if (sl_api_keys_find(tenants->keys, authorization + sizeof bearer - 1, key_out) != SL_OK) {
        sl_refuse(refusal, 401, "nobody has this API key");
        return SL_ERR_DENIED;
    }
    if (tenants->folder[0] == '\0') {
        return SL_OK;
    }
    struct sl_error err;
    pthread_mutex_lock(&tenants->mutex);
    enum sl_status status = client_of(tenants, key_out->tenant, client_out, &err);
    pthread_mutex_unlock(&tenants->mutex);
    if (status != SL_OK) {
        sl_log_error("gateway", "tenant=%s: %s", key_out->tenant, err.text);
        sl_refuse(refusal, 503, "the gateway has no certificate for this key's tenant");
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
