// SPDX-License-Identifier: Apache-2.0
// Purpose: one tenant's share of what all tenants share: entries, ended jobs.
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/processors.h"
#include "coordinator/jobs/jobs.h"

static struct sl_tenant *take(struct sl_tenants *tenants, const char *name) {
    struct sl_tenant *tenant = NULL;
    assert_int_equal(sl_tenants_take(tenants, name, &tenant, NULL), SL_OK);
    return tenant;
}

static void test_entries_live_while_they_are_held(void **state) {
    (void)state;
    struct sl_tenants *tenants = NULL;
    assert_int_equal(sl_tenants_create(50, &tenants, NULL), SL_OK);
    struct sl_tenant *first = take(tenants, "acme"), *again = take(tenants, "acme"), *other = take(tenants, "umbrella");
    assert_ptr_equal(first, again);
    assert_ptr_not_equal(first, other);
    first->n_queued = 7;
    sl_tenant_give(&again);
    assert_null(again);
    assert_int_equal(first->n_queued, 7);
    sl_tenant_give(&first);
    first = take(tenants, "acme");
    assert_int_equal(first->n_queued, 0); // begun anew
    sl_tenant_give(&first);
    sl_tenant_give(&other);
    struct sl_tenant *many[1000]; // more than buckets
    for (int i = 0; i < 1000; i++) {
        char name[32];
        snprintf(name, sizeof name, "tenant-%d", i);
        many[i] = take(tenants, name);
        assert_string_equal(many[i]->name, name);
    }
    for (int i = 0; i < 1000; i++) {
        sl_tenant_give(&many[i]);
    }
    sl_tenants_destroy(&tenants); // asserts that it is empty
}

static void test_shares(void **state) {
    (void)state;
    struct sl_tenants *tenants = NULL;
    assert_int_equal(sl_tenants_create(30, &tenants, NULL), SL_OK);
    struct sl_tenant *acme = take(tenants, "acme"), *nobody = take(tenants, "");
    assert_int_equal(sl_tenant_share(acme, 100), 30);
    assert_int_equal(sl_tenant_share(acme, 2), 1); // each tenant has at least one
    assert_int_equal(sl_tenant_share(nobody, 100), 100);
    assert_int_equal(sl_tenant_share(NULL, 100), 100);
    struct sl_tenant *callers[5] = {NULL}; // only those without a tenant are told apart
    const char *const names[] = {"", "", "", "", "acme"};
    const uint64_t numbers[] = {7, 7, 9, 0, 7};
    for (int i = 0; i < 5; i++) {
        assert_int_equal(sl_tenants_take_caller(tenants, names[i], numbers[i], &callers[i], NULL), SL_OK);
        assert_int_equal(sl_tenant_share(callers[i], 100), i == 3 ? 100 : 30);
    }
    assert_ptr_equal(callers[0], callers[1]);
    assert_ptr_not_equal(callers[0], callers[2]);
    assert_ptr_not_equal(callers[0], nobody);
    assert_ptr_equal(callers[3], nobody);
    assert_ptr_equal(callers[4], acme);
    for (int i = 0; i < 5; i++) {
        sl_tenant_give(&callers[i]);
    }
    sl_tenant_give(&acme);
    sl_tenant_give(&nobody);
    sl_tenants_destroy(&tenants);
}

// An ended job of a tenant, in the table.
static void add_ended(struct sl_jobs *jobs, struct sl_tenants *tenants, const char *tenant, int number) {
    char id[SL_JOB_ID_BYTES];
    snprintf(id, sizeof id, "%s-%d", tenant, number);
    struct sl_job_spec spec = {.max_new_tokens = 1, .deadline_ns = SL_NO_DEADLINE};
    snprintf(spec.tenant, sizeof spec.tenant, "%s", tenant);
    struct sl_job *job = NULL;
    assert_int_equal(sl_job_create(id, &spec, &job, NULL), SL_OK);
    job->place.tenant = take(tenants, tenant);
    Sluice__V1__Finished finished = SLUICE__V1__FINISHED__INIT;
    sl_job_finish(job, SLUICE__V1__JOB_STATE__CANCELLED, &finished);
    assert_null(sl_jobs_add(jobs, job));
    sl_job_unref(&job);
}

static size_t count(struct sl_jobs *jobs, const char *tenant) {
    struct sl_job *list[100];
    size_t n = sl_jobs_list(jobs, tenant, ~0U, list, 100);
    for (size_t i = 0; i < n; i++) {
        sl_job_unref(&list[i]);
    }
    return n;
}

static void test_a_tenant_does_not_push_out_the_ended_jobs_of_others(void **state) {
    (void)state;
    struct sl_tenants *tenants = NULL;
    struct sl_jobs *jobs = NULL;
    struct sl_retention retention = {.ms = 1000000, .max_jobs = 20, .max_bytes = INT64_MAX};
    assert_int_equal(sl_tenants_create(50, &tenants, NULL), SL_OK);
    assert_int_equal(sl_jobs_create(&retention, &jobs, NULL), SL_OK);
    for (int i = 0; i < 5; i++) {
        add_ended(jobs, tenants, "victim", i);
    }
    for (int i = 0; i < 60; i++) {
        add_ended(jobs, tenants, "greedy", i);
    }
    assert_int_equal(count(jobs, "victim"), 5);
    assert_int_equal(count(jobs, "greedy"), 10);
    assert_int_equal(count(jobs, NULL), 15);
    sl_jobs_destroy(&jobs);
    sl_tenants_destroy(&tenants);
}

static void test_a_tenants_streams_take_turns(void **state) {
    (void)state;
    enum { MANY = 100000 };
    struct sl_tenants *tenants = NULL;
    assert_int_equal(sl_tenants_create(50, &tenants, NULL), SL_OK);
    struct sl_tenant *greedy = take(tenants, "greedy"), *victim = take(tenants, "victim"), *all = take(tenants, "");
    int n = 0;
    while (n < MANY && sl_tenant_begin_sending(greedy, 0)) {
        n++;
    }
    assert_in_range(n, 1, sl_processors_count());
    assert_true(sl_tenant_begin_sending(victim, 0));
    for (int i = 0; i < MANY; i++) {
        assert_true(sl_tenant_begin_sending(all, 0));
    }
    sl_tenant_end_sending(greedy);
    assert_true(sl_tenant_begin_sending(greedy, 0));
    sl_tenant_give(&greedy);
    sl_tenant_give(&victim);
    sl_tenant_give(&all);
    sl_tenants_destroy(&tenants);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_entries_live_while_they_are_held),
        cmocka_unit_test(test_shares),
        cmocka_unit_test(test_a_tenant_does_not_push_out_the_ended_jobs_of_others),
        cmocka_unit_test(test_a_tenants_streams_take_turns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
