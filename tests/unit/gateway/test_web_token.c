// SPDX-License-Identifier: Apache-2.0
// Purpose: JSON web tokens: the identity in a token, tokens that prove nothing, and a file of keys that changes.
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <setjmp.h> // setjmp.h before cmocka.h

#include <cmocka.h>

#include "base/clock.h"
#include "gateway/access/web_token.h"
#include "tests/replaced_file.h"
#include "tests/web_tokens.h"

#define NOW 1800000000

static const struct sl_web_token_policy policy = {.issuer = "https://who", .audience = "sluice", .claim = "tenant"};

enum { RSA_KEY, P256, P384, OTHER, N_KEYS };
static EVP_PKEY *private[N_KEYS];
static char *pem[N_KEYS];
static struct sl_public_keys keys; // of the first three

static int make_keys(void **state) {
    (void)state;
    private[RSA_KEY] = EVP_RSA_gen(2048);
    private[P256] = EVP_EC_gen("P-256");
    private[P384] = EVP_EC_gen("P-384");
    private[OTHER] = EVP_EC_gen("P-256");
    char *all = NULL;
    for (int i = 0; i < N_KEYS; i++) {
        pem[i] = private[i] ? test_public_pem(private[i]) : NULL;
    }
    struct sl_error err;
    int made = asprintf(&all, "%s%s%s", pem[RSA_KEY], pem[P256], pem[P384]) > 0 &&
               sl_public_keys_parse(all, strlen(all), &keys, &err) == SL_OK;
    free(all);
    return made ? 0 : -1;
}

static int free_keys(void **state) {
    (void)state;
    for (int i = 0; i < N_KEYS; i++) {
        EVP_PKEY_free(private[i]);
        free(pem[i]);
    }
    sl_public_keys_cleanup(&keys);
    return 0;
}

// ---- one token ----------------------------------------------------------------------------------------------------------

#define CLAIMS(more) "{\"iss\":\"https://who\",\"aud\":\"sluice\",\"exp\":1800000100,\"tenant\":\"acme\"" more "}"

static void make(char *out, const char *header, const char *claims) {
    test_token_body(header, strlen(header), claims, strlen(claims), out);
}

static void assert_says(const char *token, enum sl_status wanted, const char *says) {
    char tenant[SL_TENANT_NAME_BYTES] = "";
    struct sl_error err = {.text = ""};
    enum sl_status status = sl_web_token_check(&keys, &policy, token, NOW, tenant, &err);
    if (status != wanted || !strstr(status == SL_OK ? tenant : err.text, says)) {
        fail_msg("%s: %d \"%s\" \"%s\", expected %d \"%s\"", token, status, tenant, err.text, wanted, says);
    }
}

static void test_signed_tokens_name_their_tenant(void **state) {
    (void)state;
    static const struct {
        int key;
        const char *header, *md;
    } rows[] = {
        {RSA_KEY, "{\"alg\":\"RS256\",\"typ\":\"JWT\"}", "SHA256"},
        {P256, "{\"alg\":\"ES256\"}", "SHA256"},
        {P384, "{\"kid\":\"x\",\"alg\":\"ES384\"}", "SHA384"},
    };
    char token[4096];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        make(token, rows[i].header, CLAIMS());
        test_token_sign(private[rows[i].key], rows[i].md, token);
        assert_says(token, SL_OK, "acme");
    }
}

static void test_what_a_claim_must_be(void **state) {
    (void)state;
    static const struct {
        enum sl_status status;
        const char *says, *claims;
    } rows[] = {
        {SL_OK, "acme", CLAIMS(",\"nbf\":1799999000,\"sub\":\"somebody\"")},
        {SL_OK, "b.c-2",
         "{\"iss\":\"https://who\",\"aud\":[\"a\",\"sluice\"],\"exp\":1.8000001e9,\"tenant\":\"b.c-2\"}"},
        // Clocks differ by 30 s, and no more.
        {SL_OK, "acme", "{\"iss\":\"https://who\",\"aud\":\"sluice\",\"exp\":1799999971,\"tenant\":\"acme\"}"},
        {SL_ERR_DENIED, "expired",
         "{\"iss\":\"https://who\",\"aud\":\"sluice\",\"exp\":1799999970,\"tenant\":\"acme\"}"},
        {SL_OK, "acme", CLAIMS(",\"nbf\":1800000030")},
        {SL_ERR_DENIED, "not good yet", CLAIMS(",\"nbf\":1800000031")},
        {SL_ERR_DENIED, "nbf is not a time", CLAIMS(",\"nbf\":\"soon\"")},
        {SL_ERR_DENIED, "no exp", "{\"iss\":\"https://who\",\"aud\":\"sluice\",\"tenant\":\"acme\"}"},
        {SL_ERR_DENIED, "no exp", "{\"iss\":\"https://who\",\"aud\":\"sluice\",\"exp\":\"never\",\"tenant\":\"acme\"}"},
        {SL_ERR_DENIED, "issuer", "{\"aud\":\"sluice\",\"exp\":1800000100,\"tenant\":\"acme\"}"},
        {SL_ERR_DENIED, "issuer",
         "{\"iss\":\"https://whom\",\"aud\":\"sluice\",\"exp\":1800000100,\"tenant\":\"acme\"}"},
        {SL_ERR_DENIED, "audience",
         "{\"iss\":\"https://who\",\"aud\":[\"a\",1],\"exp\":1800000100,\"tenant\":\"acme\"}"},
        {SL_ERR_DENIED, "audience", "{\"iss\":\"https://who\",\"exp\":1800000100,\"tenant\":\"acme\"}"},
        {SL_ERR_NOT_FOUND, "names no tenant", "{\"iss\":\"https://who\",\"aud\":\"sluice\",\"exp\":1800000100}"},
        {SL_ERR_NOT_FOUND, "names no tenant",
         "{\"iss\":\"https://who\",\"aud\":\"sluice\",\"exp\":1800000100,\"tenant\":7}"},
        {SL_ERR_NOT_FOUND, "names no tenant",
         "{\"iss\":\"https://who\",\"aud\":\"sluice\",\"exp\":1800000100,\"tenant\":\"../acme\"}"},
        {SL_ERR_DENIED, "not an object", "[1]"},
        {SL_ERR_DENIED, "damaged", "nonsense"},
    };
    char token[4096];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        make(token, "{\"alg\":\"ES256\"}", rows[i].claims);
        test_token_sign(private[P256], "SHA256", token);
        assert_says(token, rows[i].status, rows[i].says);
    }
    struct sl_error err;
    char tenant[SL_TENANT_NAME_BYTES];
    struct sl_web_token_policy any = {.issuer = "", .audience = "", .claim = "org"};
    make(token, "{\"alg\":\"ES256\"}", "{\"org\":\"beta\",\"exp\":1800000100}");
    test_token_sign(private[P256], "SHA256", token);
    assert_int_equal(sl_web_token_check(&keys, &any, token, NOW, tenant, &err), SL_OK);
    assert_string_equal(tenant, "beta");
}

static void test_what_proves_nothing(void **state) {
    (void)state;
    char token[16384];
    // No signature, and that of a stranger.
    make(token, "{\"alg\":\"none\"}", CLAIMS());
    strcat(token, ".");
    assert_says(token, SL_ERR_DENIED, "not a JSON web token");
    strcat(token, "AAAA");
    assert_says(token, SL_ERR_DENIED, "not signed");
    make(token, "{\"alg\":\"ES256\"}", CLAIMS());
    test_token_sign(private[OTHER], "SHA256", token);
    assert_says(token, SL_ERR_DENIED, "not signed");
    // HMAC under a key that is public.
    static const struct {
        const char *header, *md;
    } by_text[] = {
        {"{\"alg\":\"HS256\"}", "SHA256"}, {"{\"alg\":\"HS384\"}", "SHA384"}, {"{\"alg\":\"HS512\"}", "SHA512"}};
    for (int i = 0; i < keys.n; i++) {
        for (size_t j = 0; j < sizeof by_text / sizeof *by_text; j++) {
            make(token, by_text[j].header, CLAIMS());
            test_token_sign_by_text(keys.list[i].pem, EVP_get_digestbyname(by_text[j].md), token);
            assert_says(token, SL_ERR_DENIED, "not signed");
        }
    }
    // A good key and another algorithm than its own.
    make(token, "{\"alg\":\"RS512\"}", CLAIMS());
    test_token_sign(private[RSA_KEY], "SHA512", token);
    assert_says(token, SL_ERR_DENIED, "not signed");
    make(token, "{\"alg\":\"ES256\"}", CLAIMS());
    test_token_sign(private[P384], "SHA256", token);
    assert_says(token, SL_ERR_DENIED, "not signed");
    make(token, "{\"alg\":\"ES256\",\"crit\":[\"exp\"]}", CLAIMS());
    test_token_sign(private[P256], "SHA256", token);
    assert_says(token, SL_ERR_DENIED, "critical");

    // Every change of one character of a good one.
    make(token, "{\"alg\":\"ES256\"}", CLAIMS());
    test_token_sign(private[P256], "SHA256", token);
    assert_says(token, SL_OK, "acme");
    size_t n = strlen(token);
    for (size_t i = 0; i + 1 < n; i++) { // of the last one four bits count
        char was = token[i];
        token[i] = was == 'A' ? 'B' : 'A';
        assert_says(token, SL_ERR_DENIED, "");
        token[i] = was;
    }
    strcpy(token + n, "=");
    assert_says(token, SL_ERR_DENIED, "not a JSON web token");
    static const char *const none[] = {"", ".", "..", "a.b", "a.b.", ".b.c", "a.b.c.d", "a b.c.d", "sk-key"};
    for (size_t i = 0; i < sizeof none / sizeof *none; i++) {
        assert_says(none[i], SL_ERR_DENIED, "not a JSON web token");
    }
    memset(token, 'a', sizeof token - 1);
    token[sizeof token - 1] = '\0';
    assert_says(token, SL_ERR_DENIED, "more than 8192 bytes");
}

// ---- the file -----------------------------------------------------------------------------------------------------------

static char path[64];

static enum sl_status check_eventually(struct sl_web_token_keys *file, const char *token, enum sl_status wanted) {
    char tenant[SL_TENANT_NAME_BYTES];
    struct sl_error err;
    enum sl_status status = SL_ERR_INTERNAL;
    for (int64_t deadline_ns = sl_deadline_in_ms(20000); status != wanted && sl_deadline_left_ms(deadline_ns) > 0;) {
        status = sl_web_token_keys_check(file, token, tenant, &err);
        sl_sleep_ms(10);
    }
    return status;
}

static void test_a_file_that_changes(void **state) {
    (void)state;
    char one[4096], other[4096], claims[256];
    snprintf(path, sizeof path, "/tmp/sluice-test-jwt-keys-%d", (int)getpid());
    snprintf(claims, sizeof claims, "{\"iss\":\"https://who\",\"aud\":\"sluice\",\"exp\":%lld,\"tenant\":\"acme\"}",
             (long long)(sl_wall_ms() / 1000 + 600));
    make(one, "{\"alg\":\"ES256\"}", claims);
    strcpy(other, one);
    test_token_sign(private[P256], "SHA256", one);
    test_token_sign(private[OTHER], "SHA256", other);
    struct sl_web_token_keys *file;
    struct sl_error err;
    replace_file(path, pem[P256], 0644);
    assert_int_equal(sl_web_token_keys_open(path, &policy, &file, &err), SL_OK);
    assert_int_equal(check_eventually(file, one, SL_OK), SL_OK);
    assert_int_equal(check_eventually(file, other, SL_ERR_DENIED), SL_ERR_DENIED);
    replace_file(path, pem[OTHER], 0644);
    assert_int_equal(check_eventually(file, other, SL_OK), SL_OK);
    assert_int_equal(check_eventually(file, one, SL_ERR_DENIED), SL_ERR_DENIED);
    replace_file(path, "nonsense\n", 0644); // a mistake in the file locks no user out
    sl_sleep_ms(1200);
    assert_int_equal(check_eventually(file, other, SL_OK), SL_OK);
    sl_web_token_keys_close(&file);
    sl_web_token_keys_close(&file); // there is none
    assert_int_equal(sl_web_token_keys_open(path, &policy, &file, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, path));
    replace_file(path, pem[OTHER], 0666);
    assert_int_equal(sl_web_token_keys_open(path, &policy, &file, &err), SL_ERR_PRECONDITION);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(sl_web_token_keys_open(path, &policy, &file, &err), SL_ERR_IO);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_signed_tokens_name_their_tenant),
        cmocka_unit_test(test_what_a_claim_must_be),
        cmocka_unit_test(test_what_proves_nothing),
        cmocka_unit_test(test_a_file_that_changes),
    };
    return cmocka_run_group_tests(tests, make_keys, free_keys);
}
