// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: who a caller is by a JSON web token (JWT) that somebody else has signed, whose public keys a file has: its tenant.
 *
 * Design: signatures are libjwt's to check. What a token says of itself is not believed: a key is good for one algorithm, RSA for RS256,
 *         P-256 for ES256, P-384 for ES384, so that "none", and HMAC under a public key, are never asked about. libjwt 1.10 has no
 *         EdDSA, and takes no "typ" but JWT. A token must end (exp); clocks may differ by 30 s. The file of keys is read again when it
 *         has changed, as API keys are (net/trust/changing_file.h).
 * Threads: any.
 */
#pragma once

#include <stdint.h>

#include "base/status.h"
#include "net/trust/api_keys.h"
#include "net/trust/public_keys.h"

enum { SL_WEB_TOKEN_BYTES = 8192, SL_WEB_TOKEN_LEEWAY_S = 30 };

struct sl_web_token_policy {
    const char *issuer, *audience; // that iss must be, and aud must be or have among others; "": whatever they are
    const char *claim;             // whose text is the tenant
};

/*
 * A token of three parts, at a Unix time. SL_ERR_DENIED: it proves nothing, and err says why: no token, nobody's signature, another's, of
 * another time. SL_ERR_NOT_FOUND: it is good, and names no tenant.
 */
enum sl_status sl_web_token_check(const struct sl_public_keys *keys, const struct sl_web_token_policy *policy,
                                  const char *token, int64_t now_s, char tenant_out[SL_TENANT_NAME_BYTES],
                                  struct sl_error *err);

struct sl_web_token_keys;

// Texts are copied. SL_ERR_IO, SL_ERR_PRECONDITION (others may write the file), SL_ERR_INVALID with what is wrong with it.
enum sl_status sl_web_token_keys_open(const char *path, const struct sl_web_token_policy *policy,
                                      struct sl_web_token_keys **keys_out, struct sl_error *err);
void sl_web_token_keys_close(struct sl_web_token_keys **keys); // accepts NULL, nulls *keys

// As sl_web_token_check(), by the keys of the file and the clock.
enum sl_status sl_web_token_keys_check(struct sl_web_token_keys *keys, const char *token,
                                       char tenant_out[SL_TENANT_NAME_BYTES], struct sl_error *err);
