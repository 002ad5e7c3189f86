// SPDX-License-Identifier: Apache-2.0
// Purpose: JSON web tokens for tests, made by OpenSSL alone: what checks them is another library.
#pragma once

#include <openssl/bio.h>
#include <openssl/ecdsa.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/pem.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// base64url of bytes, without padding.
static inline void test_base64url(const unsigned char *bytes, size_t n, char *out) {
    EVP_EncodeBlock((unsigned char *)out, bytes, (int)n);
    out[strcspn(out, "=")] = '\0';
    for (char *c = out; *c; c++) {
        *c = (char)(*c == '+' ? '-' : *c == '/' ? '_' : *c);
    }
}

// r and s of an ECDSA signature, each of n_bytes. The number of bytes of both.
static inline size_t test_plain_signature(unsigned char *signature, size_t n, int n_bytes) {
    const unsigned char *at = signature;
    ECDSA_SIG *pair = d2i_ECDSA_SIG(NULL, &at, (long)n);
    if (!pair || BN_bn2binpad(ECDSA_SIG_get0_r(pair), signature, n_bytes) != n_bytes ||
        BN_bn2binpad(ECDSA_SIG_get0_s(pair), signature + n_bytes, n_bytes) != n_bytes) {
        abort();
    }
    ECDSA_SIG_free(pair);
    return 2 * (size_t)n_bytes;
}

// HEADER.CLAIMS, which are texts or any bytes.
static inline void test_token_body(const void *header, size_t n_header, const void *claims, size_t n_claims,
                                   char *out) {
    test_base64url(header, n_header, out);
    strcat(out, ".");
    test_base64url(claims, n_claims, out + strlen(out));
}

// Appends the signature; out has room. md: "SHA256".
static inline void test_token_sign(EVP_PKEY *key, const char *md, char *out) {
    unsigned char signature[1200];
    size_t n = sizeof signature;
    EVP_MD_CTX *context = EVP_MD_CTX_new();
    if (!context || EVP_DigestSignInit_ex(context, NULL, md, NULL, NULL, key, NULL) != 1 ||
        EVP_DigestSign(context, signature, &n, (const unsigned char *)out, strlen(out)) != 1) {
        abort();
    }
    EVP_MD_CTX_free(context);
    if (EVP_PKEY_get_base_id(key) == EVP_PKEY_EC) {
        n = test_plain_signature(signature, n, (EVP_PKEY_get_bits(key) + 7) / 8);
    }
    strcat(out, ".");
    test_base64url(signature, n, out + strlen(out));
}

// Signs by HMAC, with any text as the key.
static inline void test_token_sign_by_text(const char *text, const EVP_MD *md, char *out) {
    unsigned char signature[EVP_MAX_MD_SIZE];
    unsigned n = 0;
    if (!HMAC(md, text, (int)strlen(text), (const unsigned char *)out, strlen(out), signature, &n)) {
        abort();
    }
    strcat(out, ".");
    test_base64url(signature, n, out + strlen(out));
}

// malloc'd PEM of the public half.
static inline char *test_public_pem(EVP_PKEY *key) {
    BIO *bio = BIO_new(BIO_s_mem());
    char *bytes = NULL;
    if (!bio || PEM_write_bio_PUBKEY(bio, key) != 1) {
        abort();
    }
    long n = BIO_get_mem_data(bio, &bytes);
    char *pem = strndup(bytes, (size_t)n);
    BIO_free(bio);
    if (!pem) {
        abort();
    }
    return pem;
}
