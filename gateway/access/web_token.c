// SPDX-License-Identifier: Apache-2.0
#include "gateway/access/web_token.h"

#include <jansson.h>
#include <jwt.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/locked.h"
#include "base/log.h"
#include "net/trust/changing_file.h"

enum { MAX_FILE_BYTES = 256 << 10 };

// ---- a token --------------------------------------------------------------------------------------------------------

// Checks the token's parts, because libjwt decodes base64 leniently, and reads memory out of bounds if a part is empty.
static bool has_three_parts(const char *token) {
    static const char base64url[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    for (int i = 0; i < 3; i++) {
        size_t n = strspn(token, base64url);
        if (n == 0 || token[n] != (i < 2 ? '.' : '\0')) {
            return false;
        }
        token += n + 1;
    }
    return true;
}

// Returns the one algorithm that a key is valid for.
static jwt_alg_t algorithm_of(enum sl_public_key_kind kind) {
    static const jwt_alg_t algorithms[] = {
        [SL_KEY_RSA] = JWT_ALG_RS256, [SL_KEY_P256] = JWT_ALG_ES256, [SL_KEY_P384] = JWT_ALG_ES384};
    return algorithms[kind];
}

/*
 * Returns the token if one of the keys has signed it; otherwise NULL. Success of libjwt is not enough: it uses the
 * algorithm that the token names, which may be HMAC with the public key's text. When memory runs out, it has checked
 * nothing and reports no algorithm.
 */
static jwt_t *find_signed(const struct sl_public_keys *keys, const char *token) {
    for (int i = 0; i < keys->n; i++) {
        const struct sl_public_key *key = &keys->list[i];
        jwt_t *jwt = NULL;
        if (jwt_decode(&jwt, token, (const unsigned char *)key->pem, (int)strlen(key->pem)) == 0) {
            if (jwt_get_alg(jwt) == algorithm_of(key->kind)) {
                return jwt;
            }
            jwt_free(jwt);
        }
    }
    return NULL;
}

static bool is_among(const json_t *texts, const char *text) {
    const char *one = json_string_value(texts);
    bool found = one && strcmp(one, text) == 0;
    for (size_t i = 0; !found && i < json_array_size(texts); i++) {
        one = json_string_value(json_array_get(texts, i));
        found = one && strcmp(one, text) == 0;
    }
    return found;
}

static enum sl_status check_time(const json_t *claims, int64_t now_s, struct sl_error *err) {
    const json_t *exp = json_object_get(claims, "exp"), *nbf = json_object_get(claims, "nbf");
    SL_FAIL_IF(!json_is_number(exp), err, SL_ERR_DENIED, "the token has no exp: a time at which it ends");
    SL_FAIL_IF((double)now_s >= json_number_value(exp) + SL_WEB_TOKEN_LEEWAY_S, err, SL_ERR_DENIED,
               "the token has expired");
    SL_FAIL_IF(nbf && !json_is_number(nbf), err, SL_ERR_DENIED, "the token's nbf is not a time");
    SL_FAIL_IF(nbf && (double)now_s < json_number_value(nbf) - SL_WEB_TOKEN_LEEWAY_S, err, SL_ERR_DENIED,
               "the token is not good yet (nbf)");
    return SL_OK;
}

static enum sl_status check_claims(const json_t *claims, const struct sl_web_token_policy *policy, int64_t now_s,
                                   char tenant_out[SL_TENANT_NAME_BYTES], struct sl_error *err) {
    const char *issuer = json_string_value(json_object_get(claims, "iss"));
    const char *tenant = json_string_value(json_object_get(claims, policy->claim));
    SL_FAIL_IF(policy->issuer[0] != '\0' && (!issuer || strcmp(issuer, policy->issuer) != 0), err, SL_ERR_DENIED,
               "the token is of another issuer (iss)");
    SL_FAIL_IF(policy->audience[0] != '\0' && !is_among(json_object_get(claims, "aud"), policy->audience), err,
               SL_ERR_DENIED, "the token is for another audience (aud)");
    SL_TRY(check_time(claims, now_s, err));
    SL_FAIL_IF(!tenant || !sl_tenant_name_is_valid(tenant), err, SL_ERR_NOT_FOUND,
               "the token's claim \"%.100s\" names no tenant", policy->claim);
    snprintf(tenant_out, SL_TENANT_NAME_BYTES, "%s", tenant);
    return SL_OK;
}

static enum sl_status check_signed(jwt_t *jwt, const struct sl_web_token_policy *policy, int64_t now_s,
                                   char tenant_out[SL_TENANT_NAME_BYTES], struct sl_error *err) {
    char *critical = jwt_get_headers_json(jwt, "crit");
    char *text = jwt_get_grants_json(jwt, NULL);
    json_t *claims = text ? json_loads(text, 0, NULL) : NULL;
    enum sl_status status;
    if (critical) { // RFC 7515: a recipient that does not know a critical header must refuse the token
        status = sl_fail(err, SL_ERR_DENIED, "the token has critical extensions, of which none is known here");
    } else if (!json_is_object(claims)) {
        status = sl_fail(err, SL_ERR_DENIED, "the token's claims are not an object");
    } else {
        status = check_claims(claims, policy, now_s, tenant_out, err);
    }
    json_decref(claims);
    free(text);
    free(critical);
    return status;
}

enum sl_status sl_web_token_check(const struct sl_public_keys *keys, const struct sl_web_token_policy *policy,
                                  const char *token, int64_t now_s, char tenant_out[SL_TENANT_NAME_BYTES],
                                  struct sl_error *err) {
    SL_FAIL_IF(strnlen(token, SL_WEB_TOKEN_BYTES + 1) > SL_WEB_TOKEN_BYTES, err, SL_ERR_DENIED,
               "the token has more than %d bytes", SL_WEB_TOKEN_BYTES);
    SL_FAIL_IF(!has_three_parts(token), err, SL_ERR_DENIED,
               "this is not a JSON web token: three parts of base64url, with dots between");
    jwt_t *jwt = find_signed(keys, token);
    SL_FAIL_IF(!jwt, err, SL_ERR_DENIED,
               "the token is damaged, or not signed by a key that is known here, with that key's algorithm");
    enum sl_status status = check_signed(jwt, policy, now_s, tenant_out, err);
    jwt_free(jwt);
    return status;
}

// ---- the file of keys -----------------------------------------------------------------------------------------------

struct sl_web_token_keys {
    struct sl_web_token_policy policy; // policy for these keys
    pthread_mutex_t mutex;             // guards the fields below
    struct sl_public_keys keys;
    struct sl_changing_file file; // the file of these keys
};

static enum sl_status load(struct sl_web_token_keys *keys, struct sl_error *err) {
    struct stat about;
    char *text = NULL;
    size_t n = 0;
    struct sl_public_keys read;
    enum sl_status status = sl_changing_file_read(&keys->file, &text, &n, &about, err);
    SL_THEN(status, sl_public_keys_parse(text, n, &read, err));
    free(text);
    if (status == SL_OK) {
        sl_public_keys_cleanup(&keys->keys);
        keys->keys = read;
        sl_changing_file_accept(&keys->file, &about);
        sl_log_info("gateway", "%s: %d keys", keys->file.path, read.n);
    }
    return status;
}

enum sl_status sl_web_token_keys_open(const char *path, const struct sl_web_token_policy *policy,
                                      struct sl_web_token_keys **keys_out, struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_web_token_keys, keys, err, "no memory for keys");
    pthread_mutex_init(&keys->mutex, NULL);
    keys->policy = *policy;
    keys->file = (struct sl_changing_file){.path = path, .max_bytes = MAX_FILE_BYTES, .is_ours_alone = true};
    enum sl_status status = load(keys, err);
    if (status != SL_OK) {
        sl_error_prefix(err, path);
        sl_web_token_keys_close(&keys);
        return status;
    }
    *keys_out = keys;
    return SL_OK;
}

void sl_web_token_keys_close(struct sl_web_token_keys **keys_ptr) {
    SL_TAKE_OR_RETURN(keys, keys_ptr);
    sl_public_keys_cleanup(&keys->keys);
    pthread_mutex_destroy(&keys->mutex);
    free(keys);
}

enum sl_status sl_web_token_keys_check(struct sl_web_token_keys *keys, const char *token,
                                       char tenant_out[SL_TENANT_NAME_BYTES], struct sl_error *err) {
    struct sl_error why;
    SL_LOCKED(&keys->mutex);
    if (sl_changing_file_is_due(&keys->file) && load(keys, &why) != SL_OK && sl_changing_file_fail(&keys->file)) {
        sl_log_error("gateway", "%s: %s: the previous %d keys stay in use", keys->file.path, why.text, keys->keys.n);
    }
    return sl_web_token_check(&keys->keys, &keys->policy, token, sl_wall_ms() / 1000, tenant_out, err);
}
