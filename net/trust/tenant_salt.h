// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: separates the caches of tenants: each tenant has a salt, derived from a secret that only the coordinator
 *          has. Stores name the KV of a prompt by hashes under its tenant's salt (engine/kvcache/capsule.h), so a prompt of
 *          another tenant never has the same name.
 *
 * Design: a tenant's salt is the first half of HMAC-SHA-256 of its name under the secret. The secret is 32 random bytes
 *         in a file, so that a restarted coordinator still finds what is on the stores' disks. Without a file, the
 *         coordinator draws the secret at its start if it has certificates. Without certificates, tenants are not told
 *         apart and every salt is zeros. After the secret changes, stored entries are not found any more, and the
 *         stores evict them as least recently used.
 */
#pragma once

#include <stdbool.h>

#include "base/salted_hash.h"
#include "base/status.h"

struct sl_salt_secret {
    bool tells_apart; // false: every salt is zeros
    uint8_t bytes[32];
};

/*
 * Reads the secret from a file, which is made if it does not exist; path NULL or "": no file. SL_ERR_IO: it cannot be
 * read or made. SL_ERR_PRECONDITION: others may read it, or it is not a secret; nothing is changed then.
 */
enum sl_status sl_salt_secret_open(const char *path, bool has_certificates, struct sl_salt_secret *secret_out,
                                   struct sl_error *err);

// Derives the salt. tenant "": an operator's. SL_ERR_INTERNAL: the library fails.
enum sl_status sl_tenant_salt(const struct sl_salt_secret *secret, const char *tenant, struct sl_hash128 *salt_out,
                              struct sl_error *err);
