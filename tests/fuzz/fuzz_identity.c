// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: libFuzzer target for the identities in certificates, spiffe://CLUSTER/ROLE/NAME. An accepted identity can be written as the same
 *          text again. A name of another cluster, or a role that is not allowed, is refused.
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net/trust/identity.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds) {
    if (!holds) {
        abort();
    }
}

static const char *role_name(unsigned role) {
    switch (role) {
    case SL_ROLE_CLIENT:
        return "client";
    case SL_ROLE_OPERATOR:
        return "operator";
    case SL_ROLE_UNSTATED_WORKER:
        return "worker";
    case SL_ROLE_PREFILL:
        return "worker/prefill";
    case SL_ROLE_DECODE:
        return "worker/decode";
    case SL_ROLE_KVSTORE:
        return "worker/kvstore";
    case SL_ROLE_COORDINATOR:
        return "coordinator";
    default:
        abort(); // one role, and never several
    }
}

static void check_identity(const char *uri, const struct sl_identity *identity) {
    char again[sizeof "spiffe:///worker/prefill/" + SL_CLUSTER_NAME_BYTES + SL_IDENTITY_BYTES];
    snprintf(again, sizeof again, "spiffe://%s/%s/%s", identity->cluster, role_name(identity->role), identity->name);
    require(strcmp(again, uri) == 0);
    size_t tenant = strlen(identity->tenant);
    bool is_client = identity->role == SL_ROLE_CLIENT;
    require((tenant > 0) == is_client && strncmp(identity->name, identity->tenant, tenant) == 0);
    require(!is_client || identity->name[tenant] == '/' || identity->name[tenant] == '\0');
    require(!strstr(identity->name, "//") && identity->name[0] != '/' && !strchr(identity->cluster, '/'));
    struct sl_error err = {0};
    require(sl_identity_check(identity, identity->cluster, identity->role, &err) == SL_OK);
    require(sl_identity_check(identity, identity->cluster, SL_ROLE_ANY & ~identity->role, &err) == SL_ERR_DENIED);
    require(sl_identity_check(identity, "another", SL_ROLE_ANY, &err) ==
            (strcmp(identity->cluster, "another") == 0 ? SL_OK : SL_ERR_DENIED));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *uri = malloc(size + 1);
    struct sl_identity identity;
    struct sl_error err = {0};
    require(uri != NULL);
    memcpy(uri, data, size);
    uri[size] = '\0';
    if (sl_identity_parse(uri, &identity, &err) == SL_OK) {
        check_identity(uri, &identity);
    } else {
        require(err.text[0] != '\0');
    }
    free(uri);
    return 0;
}
