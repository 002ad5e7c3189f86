// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: finds a caller's tenant by a JSON web token (JWT) that an issuer has signed; a file has the issuer's public
 *          keys.
 *
 * Design: libjwt checks signatures. The algorithm that a token names is not trusted: each key is valid for one
 *         algorithm, RSA for RS256, P-256 for ES256, P-384 for ES384, so that "none", and HMAC with a public key, are
 *         never accepted. libjwt 1.10 has no EdDSA, and accepts no "typ" but JWT. A token must expire (exp); clocks may
 *         differ by 30 s. The file of keys is read again when it has changed, as API keys are
 *         (net/trust/changing_file.h).
 * Threads: any.
 */
#pragma once

#include <stdint.h>

#include "base/status.h"
#include "net/trust/api_keys.h"
#include "net/trust/public_keys.h"

enum { SL_WEB_TOKEN_BYTES = 8192, SL_WEB_TOKEN_LEEWAY_S = 30 };

struct sl_web_token_policy {
    const char *issuer, *audience; // required iss, and required aud or member of aud; "": any value
    const char *claim;             // claim whose text is the tenant
};

/*
 * Checks a token of three parts at a Unix time. SL_ERR_DENIED: it is invalid, and err has the reason: not a token,
 * signed by none of the keys, for another issuer or audience, expired or not yet valid. SL_ERR_NOT_FOUND: it is valid,
 * but names no tenant.
 */
enum sl_status sl_web_token_check(const struct sl_public_keys *keys, const struct sl_web_token_policy *policy,
                                  const char *token, int64_t now_s, char tenant_out[SL_TENANT_NAME_BYTES],
                                  struct sl_error *err);

struct sl_web_token_keys;

// Opens a file of keys. Texts must outlive the keys. SL_ERR_IO; SL_ERR_PRECONDITION: others may write the file; SL_ERR_INVALID:
// the text names the error in it.
enum sl_status sl_web_token_keys_open(const char *path, const struct sl_web_token_policy *policy,
                                      struct sl_web_token_keys **keys_out, struct sl_error *err);
void sl_web_token_keys_close(struct sl_web_token_keys **keys); // accepts NULL, nulls *keys

// Like sl_web_token_check(), with the keys of the file and the current time.
enum sl_status sl_web_token_keys_check(struct sl_web_token_keys *keys, const char *token,
                                       char tenant_out[SL_TENANT_NAME_BYTES], struct sl_error *err);
