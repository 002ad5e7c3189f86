// SPDX-License-Identifier: Apache-2.0
// Purpose: public keys of a PEM file, by which signatures of others are checked, and of which kind each is.
#pragma once

#include <stddef.h>

#include "base/status.h"

enum { SL_MAX_PUBLIC_KEYS = 8 }; // an issuer's of today, of tomorrow and of yesterday; each is tried

enum sl_public_key_kind { SL_KEY_RSA, SL_KEY_P256, SL_KEY_P384 };

struct sl_public_key {
    enum sl_public_key_kind kind;
    char *pem; // of it alone
};

struct sl_public_keys {
    struct sl_public_key list[SL_MAX_PUBLIC_KEYS];
    int n;
};

/*
 * Every "BEGIN PUBLIC KEY" of a text; what stands between them is skipped. SL_ERR_INVALID says what is wrong: there is none, or
 * too many; something else in PEM, such as a private key; a kind that is not above; RSA of fewer than 2048 bits or more than 8192.
 */
enum sl_status sl_public_keys_parse(const char *text, size_t n_bytes, struct sl_public_keys *keys_out,
                                    struct sl_error *err);
void sl_public_keys_cleanup(struct sl_public_keys *keys);
