// SPDX-License-Identifier: Apache-2.0
// Purpose: reads public keys and their kinds from a PEM file; we check signatures of an issuer with them.
#pragma once

#include <stddef.h>

#include "base/status.h"

enum { SL_MAX_PUBLIC_KEYS = 8 }; // an issuer's keys during a rotation; each is tried

enum sl_public_key_kind { SL_KEY_RSA, SL_KEY_P256, SL_KEY_P384 };

struct sl_public_key {
    enum sl_public_key_kind kind;
    char *pem; // of this key alone
};

struct sl_public_keys {
    struct sl_public_key list[SL_MAX_PUBLIC_KEYS];
    int n;
};

/*
 * Parses every "BEGIN PUBLIC KEY" of a text and skips what stands between them. SL_ERR_INVALID says what is wrong: no
 * key, or too many; another PEM type, such as a private key; a kind that is not listed above; RSA of fewer than 2048
 * bits or more than 8192.
 */
enum sl_status sl_public_keys_parse(const char *text, size_t n_bytes, struct sl_public_keys *keys_out,
                                    struct sl_error *err);
void sl_public_keys_cleanup(struct sl_public_keys *keys);
