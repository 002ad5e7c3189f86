// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: who a caller without a certificate is: by a key that it presents, of which a file has the hash.
 *
 * Design: one key a line: its SHA-256 in hexadecimal, its tenant, and limits; '#' begins a comment. Instead of a hash, "jwt": the limits of a
 *         tenant that is known by something else than a key, and of "*", all of those that have no line.
 *
 *             9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08  acme  answers=8 requests=600 tokens=1000000
 *             jwt  acme  answers=20
 *             jwt  *     answers=4 requests=60
 *
 *         Keys are random, so one hash is enough; it is what is compared, so that the time it takes tells nothing of a key. The file is
 *         looked at again when it has changed, at most once a second; one that cannot be read leaves the keys as they were, and is logged.
 * Threads: any.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define SL_TENANT_NAME_BYTES 64 // with the terminating zero

// Letters, digits, '.', '_', '-', and a letter or a digit first: names of files are made of it.
bool sl_tenant_name_is_valid(const char *name);

struct sl_api_key {
    uint8_t hash[32];
    char tenant[SL_TENANT_NAME_BYTES];
    int64_t max_answers; // at once; INT64_MAX, as below: as many as anybody's
    int64_t requests_per_minute;
    int64_t tokens_per_minute; // of prompts
};

struct sl_api_keys;

// SL_ERR_IO, SL_ERR_PRECONDITION (others may write it), SL_ERR_INVALID with the line.
enum sl_status sl_api_keys_open(const char *path, struct sl_api_keys **keys_out, struct sl_error *err);
void sl_api_keys_close(struct sl_api_keys **keys); // accepts NULL, nulls *keys

// Who is not asked who it is: no tenant, no limits.
extern const struct sl_api_key sl_api_key_anybody;

/*
 * Whoever is known to be of a tenant by something else: with a hash that no key has, the tenant's own, and the limits of its line. keys may
 * be NULL. SL_ERR_INTERNAL: the library fails.
 */
enum sl_status sl_api_keys_of_tenant(struct sl_api_keys *keys, const char *tenant, struct sl_api_key *key_out);

// SL_ERR_DENIED: nobody has that key.
enum sl_status sl_api_keys_find(struct sl_api_keys *keys, const char *presented, struct sl_api_key *key_out);

// Lines of such a file; *list_out [*n_out] is malloc'd.
enum sl_status sl_api_keys_parse(const char *text, size_t n_bytes, struct sl_api_key **list_out, size_t *n_out,
                                 struct sl_error *err);
