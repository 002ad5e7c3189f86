// SPDX-License-Identifier: Apache-2.0
// Purpose: /status.json for odd replies; tests/cluster/test_status.py tests it with a real cluster.
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h> // setjmp.h before cmocka.h

#include <cmocka.h>
#include <jansson.h>
#include <math.h>

#include "gateway/status_json.h"

static const struct sl_served_model model = {.answers = true, .ready = true, .name = "demo"};

static json_t *told(const Sluice__V1__ListReply *queued, const Sluice__V1__ListReply *running,
                    const Sluice__V1__ListReply *ended, const Sluice__V1__WorkersReply *workers) {
    struct sl_status_input what = {
        .model = &model, .why = "", .queued = queued, .running = running, .ended = ended, .workers = workers};
    char *text = sl_status_json(&what);
    assert_non_null(text);
    json_t *object = json_loads(text, 0, NULL);
    assert_non_null(object);
    free(text);
    return object;
}

static const char *text_in(const json_t *object, const char *field) {
    return json_string_value(json_object_get(object, field));
}

static void test_no_answer_has_no_figures(void **state) {
    (void)state;
    json_t *object = told(NULL, NULL, NULL, NULL);
    assert_true(json_is_null(json_object_get(object, "totals")) && json_is_null(json_object_get(object, "workers")));
    assert_true(json_is_false(json_object_get(json_object_get(object, "coordinator"), "answers")));
    assert_int_equal(json_array_size(json_object_get(object, "jobs")), 0);
    json_decref(object);
}

// Bytes of a client and numbers of a worker never make the reply invalid JSON.
static void test_odd_texts_and_numbers_are_shown_as_well_as_can_be(void **state) {
    (void)state;
    Sluice__V1__Job job = SLUICE__V1__JOB__INIT;
    Sluice__V1__Statistics statistics = SLUICE__V1__STATISTICS__INIT;
    Sluice__V1__Job bare = SLUICE__V1__JOB__INIT, *jobs[] = {&job, &bare};
    Sluice__V1__ListReply list = SLUICE__V1__LIST_REPLY__INIT, none = SLUICE__V1__LIST_REPLY__INIT;
    job.job_id = "one";
    job.label = "<b>\xff\xc3\xa9";
    job.statistics = &statistics;
    job.state = (Sluice__V1__JobState)77;
    statistics.queue_ms = NAN;
    bare.job_id = "two";
    list.n_jobs = 2;
    list.jobs = jobs;
    Sluice__V1__WorkerStatus worker = SLUICE__V1__WORKER_STATUS__INIT, *workers[] = {&worker};
    Sluice__V1__WorkerLoad load = SLUICE__V1__WORKER_LOAD__INIT;
    Sluice__V1__WorkersReply reply = SLUICE__V1__WORKERS_REPLY__INIT;
    load.tokens_per_s = INFINITY;
    worker.load = &load;
    reply.n_workers = 1;
    reply.workers = workers;
    json_t *object = told(&none, &none, &list, &reply), *shown = json_object_get(object, "jobs");
    assert_int_equal(json_array_size(shown), 2);
    assert_string_equal(text_in(json_array_get(shown, 0), "label"), "<b>???");
    assert_string_equal(text_in(json_array_get(shown, 0), "state"), "unknown");
    assert_true(json_real_value(json_object_get(json_array_get(shown, 0), "queue_ms")) == 0);
    assert_string_equal(text_in(json_array_get(shown, 1), "id"), "two");
    assert_int_equal(json_array_size(json_object_get(object, "workers")), 1);
    json_decref(object);
}

// Between two questions a job goes from one list to the next.
static void test_a_job_is_there_once(void **state) {
    (void)state;
    Sluice__V1__Job before = SLUICE__V1__JOB__INIT, after = SLUICE__V1__JOB__INIT;
    Sluice__V1__Job *first[] = {&before}, *last[] = {&after};
    Sluice__V1__ListReply queued = SLUICE__V1__LIST_REPLY__INIT, running = queued, ended = queued;
    Sluice__V1__Totals totals = SLUICE__V1__TOTALS__INIT;
    before.job_id = after.job_id = "one";
    before.state = SLUICE__V1__JOB_STATE__DECODING;
    after.state = SLUICE__V1__JOB_STATE__DONE;
    queued.n_jobs = running.n_jobs = ended.n_jobs = 1;
    queued.jobs = running.jobs = first;
    ended.jobs = last;
    totals.n_done = 1;
    ended.totals = &totals;
    json_t *object = told(&queued, &running, &ended, NULL), *jobs = json_object_get(object, "jobs");
    assert_int_equal(json_array_size(jobs), 1);
    assert_string_equal(text_in(json_array_get(jobs, 0), "state"), "done");
    assert_int_equal(json_integer_value(json_object_get(json_object_get(object, "totals"), "done")), 1);
    json_decref(object);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_answer_has_no_figures),
        cmocka_unit_test(test_odd_texts_and_numbers_are_shown_as_well_as_can_be),
        cmocka_unit_test(test_a_job_is_there_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
