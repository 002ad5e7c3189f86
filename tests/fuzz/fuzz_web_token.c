// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: libFuzzer target for JSON web tokens and for files of public keys. A token gives access only if the key has signed it. Neither a
 *          foreign signature does, nor one made with the public half. An accepted token names its user, and is valid now.
 * Design: the first byte chooses: any token; a token of header and claims, with a zero between, signed by the key, or by HMAC under the
 *         public key's text; or a file of keys.
 */
#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "gateway/access/web_token.h"
#include "tests/web_tokens.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

enum { NOW = 1800000000, MAX_BYTES = 2048 };

static const struct sl_web_token_policy policy = {.issuer = "i", .audience = "a", .claim = "tenant"};
static EVP_PKEY *key;
static struct sl_public_keys keys;

static void require(bool holds) {
    if (!holds) {
        abort();
    }
}

// A new one each time: what is signed is of the run that signs it.
int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    struct sl_error err;
    key = EVP_EC_gen("P-256");
    require(key != NULL);
    char *pem = test_public_pem(key);
    require(sl_public_keys_parse(pem, strlen(pem), &keys, &err) == SL_OK && keys.n == 1);
    free(pem);
    return 0;
}

static enum sl_status check(const char *token, char tenant_out[SL_TENANT_NAME_BYTES]) {
    struct sl_error err = {.text = ""};
    enum sl_status status = sl_web_token_check(&keys, &policy, token, NOW, tenant_out, &err);
    require(status == SL_OK || ((status == SL_ERR_DENIED || status == SL_ERR_NOT_FOUND) && err.text[0] != '\0'));
    return status;
}

static void check_any(const char *text) {
    char tenant[SL_TENANT_NAME_BYTES];
    require(check(text, tenant) == SL_ERR_DENIED);
}

static void check_claims(const uint8_t *claims, size_t n, const char *tenant) {
    char text[MAX_BYTES + 1];
    memcpy(text, claims, n);
    text[n] = '\0';
    json_t *json = json_loads(text, 0, NULL); // up to a zero, as the library reads them
    const char *issuer = json_string_value(json_object_get(json, "iss"));
    const char *named = json_string_value(json_object_get(json, "tenant"));
    require(json && issuer && named && strcmp(issuer, "i") == 0 && strcmp(named, tenant) == 0);
    require(json_number_value(json_object_get(json, "exp")) > NOW - SL_WEB_TOKEN_LEEWAY_S);
    require(sl_tenant_name_is_valid(tenant));
    json_decref(json);
}

static void check_made(const uint8_t *data, size_t size, bool is_signed) {
    char token[4 * MAX_BYTES], tenant[SL_TENANT_NAME_BYTES];
    const uint8_t *zero = memchr(data, 0, size);
    size_t n_header = zero ? (size_t)(zero - data) : 0, n_claims = zero ? size - n_header - 1 : size;
    const char *header = zero ? (const char *)data : "{\"alg\":\"ES256\"}";
    test_token_body(header, zero ? n_header : strlen(header), zero ? zero + 1 : data, n_claims, token);
    if (is_signed) {
        test_token_sign(key, "SHA256", token);
        if (check(token, tenant) == SL_OK) {
            check_claims(zero ? zero + 1 : data, n_claims, tenant);
        }
    } else {
        test_token_sign_by_text(keys.list[0].pem, EVP_sha256(), token);
        require(check(token, tenant) == SL_ERR_DENIED);
    }
}

static void check_file(const uint8_t *data, size_t size) {
    struct sl_public_keys read;
    struct sl_error err = {.text = ""};
    if (sl_public_keys_parse((const char *)data, size, &read, &err) == SL_OK) {
        require(read.n > 0 && read.n <= SL_MAX_PUBLIC_KEYS);
        for (int i = 0; i < read.n; i++) {
            require(strncmp(read.list[i].pem, "-----BEGIN PUBLIC KEY-----\n", 27) == 0);
        }
        sl_public_keys_cleanup(&read);
    } else {
        require(err.text[0] != '\0');
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size == 0 || size > MAX_BYTES) {
        return 0;
    }
    char text[MAX_BYTES];
    switch (data[0]) {
    case 'f':
        check_file(data + 1, size - 1);
        break;
    case 's':
        check_made(data + 1, size - 1, true);
        break;
    case 'h':
        check_made(data + 1, size - 1, false);
        break;
    default:
        memcpy(text, data + 1, size - 1);
        text[size - 1] = '\0';
        check_any(text);
    }
    return 0;
}
