// SPDX-License-Identifier: Apache-2.0
// Purpose: which URIs are identities, what they name, and where a server may listen without one.
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>

#include "net/trust/identity.h"
#include "net/trust/tls_files.h"

static void test_identities(void **state) {
    (void)state;
    const struct {
        const char *uri;
        unsigned role;
        const char *cluster, *name, *tenant;
    } rows[] = {
        {"spiffe://sluice/worker/prefill/prefill-0", SL_ROLE_PREFILL, "sluice", "prefill-0", ""},
        {"spiffe://sluice/worker/decode/decode-0", SL_ROLE_DECODE, "sluice", "decode-0", ""},
        {"spiffe://sluice/worker/kvstore/k", SL_ROLE_KVSTORE, "sluice", "k", ""},
        {"spiffe://sluice/worker/decode-0", SL_ROLE_UNSTATED_WORKER, "sluice", "decode-0", ""},
        {"spiffe://sluice/worker/decode", SL_ROLE_UNSTATED_WORKER, "sluice", "decode", ""},
        {"spiffe://eu.example.org/client/acme/alice", SL_ROLE_CLIENT, "eu.example.org", "acme/alice", "acme"},
        {"spiffe://s/client/a_b-c.D9", SL_ROLE_CLIENT, "s", "a_b-c.D9", "a_b-c.D9"},
        {"spiffe://s/operator/me", SL_ROLE_OPERATOR, "s", "me", ""},
        {"spiffe://s/coordinator/c", SL_ROLE_COORDINATOR, "s", "c", ""},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sl_identity identity;
        assert_int_equal(sl_identity_parse(rows[i].uri, &identity, NULL), SL_OK);
        assert_int_equal(identity.role, rows[i].role);
        assert_string_equal(identity.cluster, rows[i].cluster);
        assert_string_equal(identity.name, rows[i].name);
        assert_string_equal(identity.tenant, rows[i].tenant);
    }
}

static void test_what_is_no_identity(void **state) {
    (void)state;
    const char *const bad[] = {
        "",
        "spiffe://",
        "spiffe://sluice",
        "spiffe://sluice/worker",
        "spiffe://sluice/worker/",
        "spiffe:///worker/a",
        "spiffe://sluice//a",
        "spiffe://sluice/Worker/a",
        "spiffe://sluice/workers/a",
        "spiffe://sluice/worke/a",
        "spiffe://sluice/worker/a/",
        "spiffe://sluice/worker/decode/",
        "spiffe://sluice/worker/decode//a",
        "spiffe://sluice/worker/Decode/a",
        "spiffe://sluice/worker/prefil/a", // else it would be a worker of an unstated role
        "spiffe://sluice/worker//a",
        "spiffe://sluice/worker/a b",
        "spiffe://sluice/worker/a%2fb",
        "spiffe://sluice/client/a\n",
        "spiffe://slu:80/client/a",
        "https://sluice/worker/a",
        " spiffe://sluice/worker/a",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        struct sl_identity identity = {.role = 99};
        struct sl_error err = {0};
        if (sl_identity_parse(bad[i], &identity, &err) != SL_ERR_INVALID) {
            fail_msg("\"%s\" is taken for an identity", bad[i]);
        }
        assert_int_equal(identity.role, 99);
        assert_non_null(strstr(err.text, "spiffe://CLUSTER/ROLE/NAME"));
    }
}

// One more letter than fits, at each place.
static void test_lengths_are_bounded(void **state) {
    (void)state;
    const struct {
        const char *format;
        int most;
    } rows[] = {{"spiffe://%s/worker/a", SL_CLUSTER_NAME_BYTES - 1},
                {"spiffe://s/client/%s", SL_TENANT_BYTES - 1},
                {"spiffe://s/worker/%s", SL_IDENTITY_BYTES - 1},
                {"spiffe://s/worker/kvstore/%s", SL_IDENTITY_BYTES - 1},
                {"spiffe://s/client/t/%s", SL_IDENTITY_BYTES - 3}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        for (int more = 0; more < 2; more++) {
            char word[256] = "", uri[400];
            memset(word, 'x', (size_t)(rows[i].most + more));
            snprintf(uri, sizeof uri, rows[i].format, word);
            struct sl_identity identity;
            assert_int_equal(sl_identity_parse(uri, &identity, NULL), more ? SL_ERR_INVALID : SL_OK);
        }
    }
}

static void test_roles_and_clusters_are_checked(void **state) {
    (void)state;
    struct sl_identity worker;
    struct sl_error err = {0};
    assert_int_equal(sl_identity_parse("spiffe://sluice/worker/kvstore/w", &worker, NULL), SL_OK);
    assert_true(sl_identity_is_worker(&worker) && !sl_identity_is_worker(&sl_identity_anybody));
    assert_int_equal(sl_identity_check(&worker, "sluice", SL_ROLE_WORKER, NULL), SL_OK);
    assert_int_equal(sl_identity_check(&worker, "sluice", SL_ROLE_WORKER | SL_ROLE_COORDINATOR, NULL), SL_OK);
    assert_int_equal(sl_identity_check(&worker, "sluic", SL_ROLE_WORKER, NULL), SL_ERR_DENIED);
    assert_int_equal(sl_identity_check(&worker, "sluice", SL_ROLE_CLIENT | SL_ROLE_OPERATOR, &err), SL_ERR_DENIED);
    assert_string_equal(err.text, "spiffe://sluice/worker/kvstore/w: expected client or operator of sluice");
    assert_int_equal(sl_identity_check(&worker, "sluice", SL_ROLE_COMPUTE, &err), SL_ERR_DENIED);
    assert_string_equal(err.text,
                        "spiffe://sluice/worker/kvstore/w: expected worker/prefill or worker/decode of sluice");
}

// A certificate without a role has none, unless a process was told to accept it; then it has a worker's, and no other.
static void test_an_unstated_role_is_accepted_on_purpose_alone(void **state) {
    (void)state;
    struct sl_identity worker;
    struct sl_error err = {0};
    assert_int_equal(sl_identity_parse("spiffe://sluice/worker/w", &worker, NULL), SL_OK);
    assert_true(sl_identity_is_worker(&worker));
    assert_int_equal(sl_roles_accepted(SL_ROLE_PREFILL, false), SL_ROLE_PREFILL);
    assert_int_equal(sl_identity_check(&worker, "sluice", SL_ROLE_WORKER, &err), SL_ERR_DENIED);
    assert_non_null(strstr(err.text, "states the role"));
    assert_int_equal(sl_identity_check(&worker, "sluice", sl_roles_accepted(SL_ROLE_PREFILL, true), NULL), SL_OK);
    const unsigned others = SL_ROLE_CLIENT | SL_ROLE_OPERATOR | SL_ROLE_COORDINATOR;
    assert_int_equal(sl_identity_check(&worker, "sluice", sl_roles_accepted(others, true), NULL), SL_ERR_DENIED);
}

static void test_an_address_names_its_server(void **state) {
    (void)state;
    char name[SL_IDENTITY_BYTES], long_one[SL_IDENTITY_BYTES + 8];
    assert_string_equal(sl_identity_split_address("kvstore-0@h:1", name), "h:1");
    assert_string_equal(name, "kvstore-0");
    struct sl_identity server;
    struct sl_error err = {0};
    assert_int_equal(sl_identity_parse("spiffe://s/worker/kvstore/kvstore-1", &server, NULL), SL_OK);
    assert_int_equal(sl_identity_check_name(&server, name, &err), SL_ERR_DENIED);
    assert_non_null(strstr(err.text, "kvstore-0"));
    assert_non_null(strstr(err.text, "kvstore-1"));
    assert_string_equal(sl_identity_split_address("[::1]:1", name), "[::1]:1");
    assert_string_equal(name, "");
    assert_int_equal(sl_identity_check_name(&server, name, NULL), SL_OK);
    memset(long_one, 'x', SL_IDENTITY_BYTES);
    strcpy(long_one + SL_IDENTITY_BYTES, "@h:1");
    assert_null(sl_identity_split_address(long_one, name));
}

static void test_strangers_are_let_in_on_purpose_alone(void **state) {
    (void)state;
    const struct {
        const char *address;
        bool loopback;
    } rows[] = {{"127.0.0.1", true}, {"127.9.9.9", true}, {"::1", true},      {"0.0.0.0", false},
                {"10.0.0.1", false}, {"::", false},       {"fe80::1", false}, {"128.0.0.1", false}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct sockaddr_in v4 = {.sin_family = AF_INET};
        struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
        bool is_v6 = strchr(rows[i].address, ':') != NULL;
        assert_int_equal(inet_pton(is_v6 ? AF_INET6 : AF_INET, rows[i].address,
                                   is_v6 ? (void *)&v6.sin6_addr : (void *)&v4.sin_addr),
                         1);
        const struct sockaddr *at = is_v6 ? (const struct sockaddr *)&v6 : (const struct sockaddr *)&v4;
        struct sl_error err = {0};
        assert_int_equal(sl_tls_may_listen(at, "HERE", "--ours", false, false, &err),
                         rows[i].loopback ? SL_OK : SL_ERR_INVALID);
        assert_true(rows[i].loopback || (strstr(err.text, "HERE") && strstr(err.text, "give --ours, or --insecure")));
        assert_int_equal(sl_tls_may_listen(at, "HERE", "--ours", true, false, &err), SL_OK);
        assert_int_equal(sl_tls_may_listen(at, "HERE", "--ours", false, true, &err), SL_OK);
    }
}

static void test_all_files_or_none(void **state) {
    (void)state;
    for (int given = 0; given < 8; given++) {
        const struct sl_tls_files files = {given & 1 ? "a" : "", given & 2 ? "b" : NULL, given & 4 ? "c" : "",
                                           .revoked = NULL};
        bool has = !given;
        assert_int_equal(sl_tls_files_given(&files, &has, NULL), given == 0 || given == 7 ? SL_OK : SL_ERR_INVALID);
        assert_true(given == 0 ? !has : given == 7 ? has : !has);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_identities),
        cmocka_unit_test(test_what_is_no_identity),
        cmocka_unit_test(test_lengths_are_bounded),
        cmocka_unit_test(test_roles_and_clusters_are_checked),
        cmocka_unit_test(test_an_unstated_role_is_accepted_on_purpose_alone),
        cmocka_unit_test(test_an_address_names_its_server),
        cmocka_unit_test(test_strangers_are_let_in_on_purpose_alone),
        cmocka_unit_test(test_all_files_or_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
