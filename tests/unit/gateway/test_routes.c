// SPDX-License-Identifier: Apache-2.0
// Purpose: tests the table of the gateway's paths: their methods, who may call them, and refusals of all others.
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <setjmp.h> // setjmp.h before cmocka.h

#include <cmocka.h>

#include "gateway/routes.h"

// The interface: docs/HTTP.md. A route that is added or opened to other callers needs a line here.
static const struct {
    const char *path, *methods;
    enum sl_route_caller caller;
} expected[] = {
    {"/v1/chat/completions", "POST", SL_ROUTE_KEYED},
    {"/v1/completions", "POST", SL_ROUTE_KEYED},
    {"/v1/responses", "POST", SL_ROUTE_KEYED},
    {"/v1/documents", "GET, POST", SL_ROUTE_KEYED},
    {"/v1/documents/", "GET, HEAD, DELETE", SL_ROUTE_KEYED},
    {"/v1/documents/import", "GET, HEAD, POST, DELETE", SL_ROUTE_KEYED},
    {"/v1/models", "GET, HEAD", SL_ROUTE_KEYED},
    {"/v1/models/", "GET, HEAD", SL_ROUTE_KEYED},
    {"/status.json", "GET, HEAD", SL_ROUTE_KEYED},
    {"/status", "GET, HEAD", SL_ROUTE_OPEN},
    {"/health", "GET, HEAD", SL_ROUTE_OPEN},
    {"/metrics", "GET, HEAD", SL_ROUTE_OPEN},
};
enum { N_EXPECTED = sizeof expected / sizeof *expected };

static const struct sl_route *find(const char *path) {
    return sl_route_find(sl_gateway_routes, sl_n_gateway_routes, path);
}

static struct sl_refusal refusal;

static enum sl_status check(const char *path, const char *method) {
    memset(&refusal, 0, sizeof refusal);
    return sl_route_check(sl_gateway_routes, sl_n_gateway_routes, find(path), path, method, &refusal);
}

static void test_every_route_has_its_methods_and_callers(void **state) {
    (void)state;
    assert_int_equal(sl_n_gateway_routes, N_EXPECTED);
    for (size_t i = 0; i < N_EXPECTED; i++) {
        const struct sl_route *route = find(expected[i].path);
        assert_non_null(route);
        assert_string_equal(route->path, expected[i].path);
        assert_string_equal(route->methods, expected[i].methods);
        assert_int_equal(route->caller, expected[i].caller);
        assert_non_null(route->answer_fn);
        for (size_t j = 0; j < i; j++) {
            assert_ptr_not_equal(route, find(expected[j].path));
        }
    }
}

static void test_every_route_takes_its_methods_alone(void **state) {
    (void)state;
    static const char *const methods[] = {"GET",   "HEAD",    "POST",  "PUT", "DELETE", "OPTIONS",
                                          "PATCH", "CONNECT", "TRACE", "GE",  "get",    "GET, HEAD"};
    for (size_t i = 0; i < N_EXPECTED; i++) {
        for (size_t m = 0; m < sizeof methods / sizeof *methods; m++) {
            const char *taken = expected[i].methods, *at = strstr(taken, methods[m]);
            size_t n = strlen(methods[m]);
            bool is_taken = at && strchr(methods[m], ',') == NULL && (at == taken || at[-1] == ' ') &&
                            (at[n] == '\0' || at[n] == ',');
            enum sl_status status = check(expected[i].path, methods[m]);
            if (is_taken) {
                assert_int_equal(status, SL_OK);
                continue;
            }
            assert_int_equal(status, SL_ERR_UNSUPPORTED);
            assert_int_equal(refusal.http_status, 405);
            assert_string_equal(refusal.allow, expected[i].methods);
            assert_non_null(strstr(refusal.text, expected[i].path));
        }
    }
}

static void test_models_by_name(void **state) {
    (void)state;
    assert_ptr_equal(find("/v1/models/demo"), find("/v1/models/"));
    assert_ptr_equal(find("/v1/models/a/b"), find("/v1/models/"));
    assert_ptr_not_equal(find("/v1/models"), find("/v1/models/"));
}

static void test_unknown_paths_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *path, *meant; // NULL: no path is similar
    } unknown[] = {
        {"/", NULL},
        {"", NULL},
        {"/h", NULL},
        {"/hello", NULL},
        {"/m", NULL},
        {"/models", NULL},
        {"/v2", NULL},
        {"/status/", "/status"},
        {"/healthz", "/health"},
        {"/metric", "/metrics"},
        {"/Health", "/health"},
        {"/v1/chat/completion", "/v1/chat/completions"},
        {"/v1/completions/", "/v1/completions"},
        {"/v1/model", "/v1/models"},
        {"/statusXjson", "/status.json"},
    };
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        assert_null(find(unknown[i].path)); // so that it needs a key, too
        assert_int_equal(check(unknown[i].path, "GET"), SL_ERR_NOT_FOUND);
        assert_int_equal(refusal.http_status, 404);
        assert_null(refusal.allow);
        char text[300];
        snprintf(text, sizeof text, "there is nothing at %s%s%s", unknown[i].path,
                 unknown[i].meant ? ": did you mean " : "", unknown[i].meant ? unknown[i].meant : "");
        assert_string_equal(refusal.text, text);
    }
    char path[600];
    memset(path, 'a', sizeof path);
    path[0] = '/';
    path[sizeof path - 1] = 0;
    assert_int_equal(check(path, "GET"), SL_ERR_NOT_FOUND);
    assert_true(strlen(refusal.text) < 230);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_route_has_its_methods_and_callers),
        cmocka_unit_test(test_every_route_takes_its_methods_alone),
        cmocka_unit_test(test_models_by_name),
        cmocka_unit_test(test_unknown_paths_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
