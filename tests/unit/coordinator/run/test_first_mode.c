// SPDX-License-Identifier: Apache-2.0
// Purpose: tests of a job's first attempt: the part of its prompt that it takes from stores, and the memory that it claims at a decode worker.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include "coordinator/run/attempt.h"
#include "tests/unit/coordinator/workers/admit_fixture.h"

#define DOCUMENT 10000 // tokens
#define QUESTION 200

static const struct sl_kv_geometry geometry = {2, 2, 64};
static const struct sl_model_config model = {.n_layers = 2, .n_kv_heads = 2, .head_dim = 64};

static struct sl_demand demand_of(const struct sl_recipe *recipe, int64_t n_prompt) {
    struct sl_demand demand;
    assert_int_equal(sl_demand_make(recipe, &geometry, n_prompt, 16, &demand, NULL), SL_OK);
    return demand;
}

// A question on a document that stores have, and on another one that is joined to it.
static struct sl_run *run_of(const struct sl_run_context *context, bool joins) {
    struct sl_run *run = calloc(1, sizeof *run);
    struct sl_job *job = calloc(1, sizeof *job);
    struct sl_job_spec *spec = &job->spec;
    assert_int_equal(sl_recipe_parse("full", &spec->parsed_recipe, NULL), SL_OK);
    spec->n_tokens = (joins ? 2 : 1) * DOCUMENT + QUESTION;
    spec->max_new_tokens = 16;
    spec->demand = demand_of(&spec->parsed_recipe, spec->n_tokens);
    spec->whole = (struct sl_session_copy){.n_tokens = DOCUMENT,
                                           .bytes = demand_of(&spec->parsed_recipe, DOCUMENT + 1).capsule_bytes};
    if (joins) {
        spec->joins = calloc(1, sizeof *spec->joins);
        spec->n_joins = 1;
        spec->joined_tokens = spec->joins[0].n_tokens = DOCUMENT;
    }
    *run = (struct sl_run){.context = context, .job = job};
    return run;
}

static void free_run(struct sl_run *run) {
    free(run->job->spec.joins);
    free(run->job);
    free(run);
}

// Pages of later documents are copied from their capsules, so these are on the worker twice.
static void test_documents_are_joined_where_they_fit_twice(void **state) {
    (void)state;
    struct fixture f = make(4, 4);
    const struct sl_run_context context = {
        .registry = f.registry, .admission = f.admission, .affinity = f.affinity, .model = &model};
    struct sl_run *one = run_of(&context, false), *two = run_of(&context, true);
    const struct sl_job_spec *spec = &two->job->spec;
    join(&f, "kvstore", SLUICE__V1__WORKER_ROLE__KVSTORE, spec->demand.capsule_bytes, 4);
    join(&f, "small", DECODE, spec->demand.decode_bytes + spec->whole.bytes / 2, 4);
    assert_int_equal(sl_turn_first_mode(one), SL_TURN_PREFIX);
    assert_int_equal(one->held_bytes, spec->whole.bytes); // of the document alone
    assert_true(one->prefix_demand.decode_bytes < spec->demand.decode_bytes);
    assert_int_equal(sl_turn_first_mode(two), SL_TURN_WHOLE); // both documents fit once

    join(&f, "large", DECODE, 2 * spec->demand.decode_bytes, 4);
    assert_int_equal(sl_turn_first_mode(two), SL_TURN_PREFIX);
    assert_int_equal(two->held_bytes, spec->demand.capsule_bytes); // of both
    assert_true(two->prefix_demand.decode_bytes >= 3 * spec->whole.bytes);
    assert_int_not_equal(two->held_key, one->held_key);
    free_run(one);
    free_run(two);
    cleanup(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_documents_are_joined_where_they_fit_twice)};
    return cmocka_run_group_tests(tests, start_rpc, stop_rpc);
}
