// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what keeps the caches of tenants apart: a salt for each, made of a secret that the coordinator alone has. What a prompt leaves
 *          behind in stores is named by hashes under its tenant's salt (kvcache/capsule.h), so nobody else's prompt ever has its name.
 *
 * Design: a tenant's salt is the first half of HMAC-SHA-256 of its name under the secret: 32 random bytes, in a file, so that what is
 *         on disks is found by the coordinator of tomorrow as well. Without a file they are drawn when the coordinator starts where
 *         there are certificates; and where there are none, nobody is told apart and every salt is zeros.
 *         Another secret makes every cache a stranger's: what is stored is not found any more, and goes as the least recently used.
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
 * From a file, which is made if it is not there; path NULL or "": none. SL_ERR_IO: it cannot be read or made. SL_ERR_PRECONDITION: others may
 * read it, or it is not one; nothing is changed then.
 */
enum sl_status sl_salt_secret_open(const char *path, bool has_certificates, struct sl_salt_secret *secret_out,
                                   struct sl_error *err);

// tenant: "" is an operator's. SL_ERR_INTERNAL: the library fails.
enum sl_status sl_tenant_salt(const struct sl_salt_secret *secret, const char *tenant, struct sl_hash128 *salt_out,
                              struct sl_error *err);
