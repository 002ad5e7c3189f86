// SPDX-License-Identifier: Apache-2.0
#include "net/trust/identity.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static const char *const role_names[] = {"client", "operator", "worker", "coordinator"};
enum { N_ROLES = sizeof role_names / sizeof *role_names };

const struct sl_identity sl_identity_anybody = {.role = SL_ROLE_ANY};

static bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '_' ||
           c == '-';
}

// Copies the word at *at and moves *at past it. False: there is none, or it is too long.
static bool take_word(const char **at, char *word_out, size_t bytes) {
    size_t n = 0;
    while (is_word((*at)[n])) {
        n++;
    }
    if (n == 0 || n >= bytes) {
        return false;
    }
    memcpy(word_out, *at, n);
    word_out[n] = '\0';
    *at += n;
    return true;
}

static bool take_slash(const char **at) {
    bool is_there = **at == '/';
    *at += is_there;
    return is_there;
}

static bool take_role(const char **at, unsigned *role_out) {
    char word[16];
    if (!take_word(at, word, sizeof word)) {
        return false;
    }
    for (unsigned i = 0; i < N_ROLES; i++) {
        if (strcmp(word, role_names[i]) == 0) {
            *role_out = 1U << i;
            return true;
        }
    }
    return false;
}

// Parses words separated by slashes, up to the end.
static bool take_name(const char *at, struct sl_identity *identity) {
    size_t n = strlen(at);
    if (n >= sizeof identity->name) {
        return false;
    }
    memcpy(identity->name, at, n + 1);
    char word[SL_IDENTITY_BYTES];
    bool is_client = identity->role == SL_ROLE_CLIENT;
    if (is_client ? !take_word(&at, identity->tenant, sizeof identity->tenant) : !take_word(&at, word, sizeof word)) {
        return false;
    }
    while (take_slash(&at)) {
        if (!take_word(&at, word, sizeof word)) {
            return false;
        }
    }
    return *at == '\0';
}

enum sl_status sl_identity_parse(const char *uri, struct sl_identity *identity_out, struct sl_error *err) {
    static const char scheme[] = "spiffe://";
    struct sl_identity identity = {0};
    const char *at = uri + (sizeof scheme - 1);
    if (strncmp(uri, scheme, sizeof scheme - 1) != 0 || !take_word(&at, identity.cluster, sizeof identity.cluster) ||
        !take_slash(&at) || !take_role(&at, &identity.role) || !take_slash(&at) || !take_name(at, &identity)) {
        return sl_fail(err, SL_ERR_INVALID,
                       "\"%.100s\" is no identity; expected spiffe://CLUSTER/ROLE/NAME, ROLE one of client, operator, "
                       "worker, coordinator",
                       uri);
    }
    *identity_out = identity;
    return SL_OK;
}

enum sl_status sl_identity_check(const struct sl_identity *identity, const char *cluster, unsigned roles,
                                 struct sl_error *err) {
    if ((identity->role & roles) != 0 && strcmp(identity->cluster, cluster) == 0) {
        return SL_OK;
    }
    char expected[64] = "";
    for (unsigned i = 0; i < N_ROLES; i++) {
        size_t n = strlen(expected);
        if (roles & 1U << i) {
            snprintf(expected + n, sizeof expected - n, "%s%s", n ? " or " : "", role_names[i]);
        }
    }
    const char *role = "";
    for (unsigned i = 0; i < N_ROLES; i++) {
        role = identity->role == 1U << i ? role_names[i] : role;
    }
    return sl_fail(err, SL_ERR_DENIED, "spiffe://%s/%s/%s: expected %s of %s", identity->cluster, role, identity->name,
                   expected, cluster);
}
