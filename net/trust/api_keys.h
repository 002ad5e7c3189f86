// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: identifies a caller without a certificate by the API key that it presents; a file holds the hashes of the
 *          keys.
 *
 * Design: one key a line: its SHA-256 in hexadecimal, its tenant, and limits; '#' begins a comment. A line with "jwt"
 *         instead of a hash gives the limits of a tenant that is not identified by a key. The tenant "*"
 *         stands for all tenants without a line.
 *
 *             9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08  acme  answers=8 requests=600 tokens=1000000
 *             jwt  acme  answers=20
 *             jwt  *     answers=4 requests=60
 *
 *         Keys are random, so one hash without a salt is enough. We compare hashes, so that the time of a comparison
 *         reveals nothing of a key. The file is read again when it has changed, checked at most once a second. If it
 *         cannot be read, the keys stay as they were, and the log says so.
 * Threads: any.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define SL_TENANT_NAME_BYTES 64 // with the terminating zero

// Returns true for letters, digits, '.', '_', '-' that begin with a letter or a digit: file names are made of it.
bool sl_tenant_name_is_valid(const char *name);

struct sl_api_key {
    uint8_t hash[32];
    char tenant[SL_TENANT_NAME_BYTES];
    int64_t max_answers; // at once; INT64_MAX, as below: the server's own limit applies
    int64_t requests_per_minute;
    int64_t tokens_per_minute; // of prompts
};

struct sl_api_keys;

// Reads the file. SL_ERR_IO, SL_ERR_PRECONDITION (others may write it), SL_ERR_INVALID with the line.
enum sl_status sl_api_keys_open(const char *path, struct sl_api_keys **keys_out, struct sl_error *err);
void sl_api_keys_close(struct sl_api_keys **keys); // accepts NULL, nulls *keys

// The caller when authentication is disabled: no tenant, no limits.
extern const struct sl_api_key sl_api_key_anybody;

/*
 * Returns the key of a tenant that was identified otherwise: a hash that no key has, the tenant's name, and the limits
 * of its line. keys may be NULL. SL_ERR_INTERNAL: the library fails.
 */
enum sl_status sl_api_keys_of_tenant(struct sl_api_keys *keys, const char *tenant, struct sl_api_key *key_out);

// Finds the key that a caller presents. SL_ERR_DENIED: the file has no such key.
enum sl_status sl_api_keys_find(struct sl_api_keys *keys, const char *presented, struct sl_api_key *key_out);

// Parses the lines of such a file; *list_out [*n_out] is malloc'd.
enum sl_status sl_api_keys_parse(const char *text, size_t n_bytes, struct sl_api_key **list_out, size_t *n_out,
                                 struct sl_error *err);
