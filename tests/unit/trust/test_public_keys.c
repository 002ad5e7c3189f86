// SPDX-License-Identifier: Apache-2.0
// Purpose: PEM files of public keys: their kinds, and what is none.
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h> // setjmp.h before cmocka.h

#include <cmocka.h>

#include "tests/web_tokens.h"
#include "net/trust/public_keys.h"

static char *public_of(EVP_PKEY *key) {
    assert_non_null(key);
    char *pem = test_public_pem(key);
    EVP_PKEY_free(key);
    return pem;
}

static void assert_refused(const char *text, const char *says) {
    struct sl_public_keys keys;
    struct sl_error err;
    assert_int_equal(sl_public_keys_parse(text, strlen(text), &keys, &err), SL_ERR_INVALID);
    if (!strstr(err.text, says)) {
        fail_msg("%s: \"%s\", expected \"%s\"", text, err.text, says);
    }
}

static void test_kinds(void **state) {
    (void)state;
    char *rsa = public_of(EVP_RSA_gen(2048)), *p256 = public_of(EVP_EC_gen("P-256")),
         *p384 = public_of(EVP_EC_gen("P-384"));
    char text[8192];
    int n = snprintf(text, sizeof text, "of 2026:\n%s\nof 2027:\n%s%s", rsa, p256, p384);
    struct sl_public_keys keys;
    struct sl_error err;
    assert_int_equal(sl_public_keys_parse(text, (size_t)n, &keys, &err), SL_OK);
    assert_int_equal(keys.n, 3);
    assert_int_equal(keys.list[0].kind, SL_KEY_RSA);
    assert_int_equal(keys.list[1].kind, SL_KEY_P256);
    assert_int_equal(keys.list[2].kind, SL_KEY_P384);
    assert_string_equal(keys.list[1].pem, p256);
    sl_public_keys_cleanup(&keys);
    assert_int_equal(keys.n, 0);

    text[0] = '\0';
    for (int i = 0; i <= SL_MAX_PUBLIC_KEYS; i++) {
        strcat(text, p256);
    }
    assert_refused(text, "more than 8");
    snprintf(text, sizeof text, "%s%.60s", p256, p384);
    assert_refused(text, "damaged behind 1");
    free(rsa);
    free(p256);
    free(p384);
}

static void test_what_is_none(void **state) {
    (void)state;
    assert_refused("", "no PUBLIC KEY");
    assert_refused("ssh-rsa AAAA", "no PUBLIC KEY");
    assert_refused("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n", "damaged PUBLIC KEY");
    assert_refused("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", "has a PRIVATE KEY");
    assert_refused("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n", "has a CERTIFICATE");
    char *weak = public_of(EVP_RSA_gen(1024)), *curve = public_of(EVP_EC_gen("P-521"));
    char *edwards = public_of(EVP_PKEY_Q_keygen(NULL, NULL, "ED25519"));
    assert_refused(weak, "1024 bits");
    assert_refused(curve, "secp521r1");
    assert_refused(edwards, "neither RSA nor");
    free(weak);
    free(curve);
    free(edwards);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_what_is_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
