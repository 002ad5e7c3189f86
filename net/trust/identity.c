// SPDX-License-Identifier: Apache-2.0
#include "net/trust/identity.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static const struct {
    enum sl_role role;
    const char *path;
} roles_known[] = {{SL_ROLE_CLIENT, "client"},           {SL_ROLE_OPERATOR, "operator"},
                   {SL_ROLE_COORDINATOR, "coordinator"}, {SL_ROLE_PREFILL, "worker/prefill"},
                   {SL_ROLE_DECODE, "worker/decode"},    {SL_ROLE_KVSTORE, "worker/kvstore"},
                   {SL_ROLE_UNSTATED_WORKER, "worker"}}; // last: the paths of other workers begin with it
enum { N_ROLES = sizeof roles_known / sizeof *roles_known };

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

// Parses "ROLE/".
static bool take_role(const char **at, unsigned *role_out) {
    for (unsigned i = 0; i < N_ROLES; i++) {
        const size_t n = strlen(roles_known[i].path);
        if (strncmp(*at, roles_known[i].path, n) == 0 && (*at)[n] == '/') {
            *role_out = roles_known[i].role;
            *at += n + 1;
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
    // A slash in an unstated worker's name would let a misspelt role pass for it.
    while (identity->role != SL_ROLE_UNSTATED_WORKER && take_slash(&at)) {
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
        !take_slash(&at) || !take_role(&at, &identity.role) || !take_name(at, &identity)) {
        return sl_fail(
            err, SL_ERR_INVALID,
            "\"%.100s\" is not an identity; expected spiffe://CLUSTER/ROLE/NAME, ROLE one of client, operator, "
            "coordinator, worker/prefill, worker/decode, worker/kvstore",
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
    const bool any_worker = (roles & SL_ROLE_WORKER) == SL_ROLE_WORKER;
    char expected[128] = "";
    const char *role = "";
    for (unsigned i = 0; i < N_ROLES; i++) {
        const bool is_worker = (roles_known[i].role & SL_ROLE_WORKER) != 0,
                   is_last = roles_known[i].role == SL_ROLE_UNSTATED_WORKER; // "worker" then means any of them
        const bool is_said = is_last ? any_worker : (roles & roles_known[i].role) && !(is_worker && any_worker);
        size_t n = strlen(expected);
        if (is_said) {
            snprintf(expected + n, sizeof expected - n, "%s%s", n ? " or " : "", roles_known[i].path);
        }
        role = identity->role == roles_known[i].role ? roles_known[i].path : role;
    }
    const bool is_unstated = identity->role == SL_ROLE_UNSTATED_WORKER && roles & SL_ROLE_WORKER;
    return sl_fail(err, SL_ERR_DENIED, "spiffe://%s/%s/%s: expected %s of %s%s", identity->cluster, role,
                   identity->name, expected, cluster,
                   is_unstated ? "; issue a certificate that states the role (docs/SECURITY.md, Upgrading)" : "");
}

unsigned sl_roles_accepted(unsigned roles, bool accepts_unstated) {
    return accepts_unstated && roles & SL_ROLE_WORKER ? roles | SL_ROLE_UNSTATED_WORKER : roles;
}

bool sl_identity_is_worker(const struct sl_identity *identity) {
    return (identity->role & ~(unsigned)(SL_ROLE_WORKER | SL_ROLE_UNSTATED_WORKER)) == 0;
}

enum sl_status sl_identity_check_name(const struct sl_identity *identity, const char *name, struct sl_error *err) {
    return !name || name[0] == '\0' || strcmp(identity->name, name) == 0
               ? SL_OK
               : sl_fail(err, SL_ERR_DENIED, "the server's certificate is of \"%s\", not of \"%s\"", identity->name,
                         name);
}

const char *sl_identity_split_address(const char *address, char name_out[SL_IDENTITY_BYTES]) {
    const char *at = strchr(address, '@');
    const size_t n = at ? (size_t)(at - address) : 0;
    if (n >= SL_IDENTITY_BYTES) {
        return NULL;
    }
    memcpy(name_out, address, n);
    name_out[n] = '\0';
    return at ? at + 1 : address;
}
