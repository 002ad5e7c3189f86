// SPDX-License-Identifier: Apache-2.0
// Purpose: the state machine takes every edge of its diagram and no other; the table of jobs keeps its caps.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "coordinator/jobs/job.h"
#include "coordinator/jobs/jobs.h"
#include "tests/unit/scarce.h"

enum { Q = 1, P, S, D, DONE, FAILED, CANCELLED, N_STATES };

static struct sl_job *make_job(const char *id) {
    struct sl_job_spec spec = {.n_tokens = 3, .max_new_tokens = 4, .submitted_ns = sl_now_ns()};
    spec.deadline_ns = sl_deadline_in_ms(60000);
    spec.tokens = calloc(3, sizeof(*spec.tokens));
    struct sl_job *job = NULL;
    struct sl_error err;
    assert_int_equal(sl_job_create(id, &spec, &job, &err), SL_OK);
    assert_null(spec.tokens); // taken over
    return job;
}

static void finish(struct sl_job *job, int state, const char *text) {
    Sluice__V1__Finished finished = SLUICE__V1__FINISHED__INIT;
    finished.status_text = (char *)text;
    finished.status_code = state == DONE ? 0 : 14;
    sl_job_finish(job, (Sluice__V1__JobState)state, &finished);
}

// A job that is in `state`, by the shortest way.
static struct sl_job *job_in(int state) {
    static const int path[N_STATES][4] = {
        [Q] = {0}, [P] = {P}, [S] = {P, S}, [D] = {P, S, D}, [DONE] = {P, S, D}, [FAILED] = {0}, [CANCELLED] = {0}};
    struct sl_job *job = make_job("job-1");
    for (int i = 0; i < 4 && path[state][i] != 0; i++) {
        assert_int_equal(sl_job_move(job, (Sluice__V1__JobState)path[state][i], ""), SL_OK);
    }
    if (state >= DONE) {
        finish(job, state, "");
    }
    assert_int_equal((int)sl_job_state(job), state);
    return job;
}

static void test_job_takes_every_edge_and_no_other(void **state) {
    (void)state;
    static const char *const legal[N_STATES] = {
        // to:  QPSDdfc
        [Q] = "11---11",    [P] = "-111-11",      [S] = "-1-1-11",        [D] = "-1--111",
        [DONE] = "-------", [FAILED] = "-------", [CANCELLED] = "-------"};
    for (int from = Q; from < N_STATES; from++) {
        for (int to = 0; to <= N_STATES; to++) {
            struct sl_job *job = job_in(from);
            int64_t sequence = sl_event_log_last_sequence(&job->log);
            bool may = to >= Q && to < N_STATES && legal[from][to - Q] == '1';
            enum sl_status status = sl_job_move(job, (Sluice__V1__JobState)to, "why");
            if (may) {
                assert_int_equal(status, SL_OK);
                assert_int_equal((int)sl_job_state(job), to);
                assert_int_equal(sl_event_log_last_sequence(&job->log), sequence + 1);
            } else { // refused, and nothing has happened
                assert_int_equal(status, SL_ERR_PRECONDITION);
                assert_int_equal((int)sl_job_state(job), from);
                assert_int_equal(sl_event_log_last_sequence(&job->log), sequence);
            }
            sl_job_unref(&job);
            assert_null(job);
        }
    }
}

static void test_job_end_is_the_last_event(void **state) {
    (void)state;
    struct sl_job *job = job_in(D);
    Sluice__V1__Token token = SLUICE__V1__TOKEN__INIT;
    token.id = 42;
    assert_int_equal(sl_job_tell_token(job, &token), SL_OK);
    assert_int_equal(sl_job_ended_ns(job), 0);
    finish(job, FAILED, "worker lost");
    assert_true(sl_job_ended_ns(job) > 0);
    assert_null(job->spec.tokens);

    Sluice__V1__Job *report = sl_job_describe(job);
    assert_non_null(report);
    assert_int_equal(report->state, SLUICE__V1__JOB_STATE__FAILED);
    assert_int_equal(report->status_code, 14);
    assert_string_equal(report->status_text, "worker lost");
    assert_int_equal(report->n_output_tokens, 1);
    assert_int_equal(report->n_prompt_tokens, 3);
    Sluice__V1__Event *event;
    assert_int_equal(sl_event_log_get(&job->log, report->last_sequence, 0, &event), SL_OK);
    assert_int_equal(event->what_case, SLUICE__V1__EVENT__WHAT_FINISHED);
    assert_string_equal(event->finished->status_text, "worker lost");
    sluice__v1__event__free_unpacked(event, NULL);
    assert_int_equal(sl_event_log_get(&job->log, report->last_sequence + 1, 0, &event), SL_ERR_NOT_FOUND);
    sluice__v1__job__free_unpacked(report, NULL);
    sl_job_unref(&job);
}

static void test_job_interruption_names_its_cause(void **state) {
    (void)state;
    struct sl_error err;
    struct sl_job *job = make_job("job-1");
    assert_int_equal(sl_job_interrupted(job, &err), SL_OK);
    sl_job_cancel(job);
    assert_int_equal(sl_job_interrupted(job, &err), SL_ERR_CANCELLED);
    job->spec.deadline_ns = sl_now_ns() - 1;
    assert_int_equal(sl_job_interrupted(job, &err), SL_ERR_DEADLINE);
    sl_job_unref(&job);
}

// The statistics that a retained job has take the memory of the model's heads, not of the most heads that there may be.
static void test_job_holds_what_its_statistics_need(void **state) {
    (void)state;
    struct sl_job *job = make_job("job-1");
    size_t before = sl_job_bytes(job);
    assert_true(before < 8192);
    int32_t layers[] = {7, 9};
    float means[] = {7, 9};
    uint32_t heads[] = {7, 7, 9, 9};
    Sluice__V1__KvBytes bytes = SLUICE__V1__KV_BYTES__INIT;
    Sluice__V1__Statistics told = SLUICE__V1__STATISTICS__INIT;
    told.n_slots_min = told.n_slots_max = told.n_slots_mean = 2;
    told.slots_min = told.slots_max = layers;
    told.slots_mean = means;
    told.n_slots = 4;
    told.slots = heads;
    told.kv_bytes = &bytes;
    for (int i = 0; i < 2; i++) { // a second attempt replaces those of the first
        (void)sl_job_statistics_lock(job);
        sl_job_set_slots(job, &told);
        sl_job_statistics_unlock(job);
        assert_in_range(sl_job_bytes(job) - before, 1, 4096);
    }
    Sluice__V1__Job *report = sl_job_describe(job);
    assert_int_equal(report->statistics->n_slots, 4);
    assert_int_equal(report->statistics->slots[3], 9);
    assert_int_equal(report->statistics->slots_max[0], 7);
    sluice__v1__job__free_unpacked(report, NULL);
    sl_job_unref(&job);
}

// Estimates of errors take memory in jobs that ask for them.
static void test_job_holds_estimates_that_were_made(void **state) {
    (void)state;
    struct sl_job *job = make_job("job-1");
    size_t before = sl_job_bytes(job);
    float attention[] = {0.5F, 0}, keys[] = {1, 2}, later_attention[] = {1, 0};
    int64_t rows[] = {3, 0}, later_rows[] = {1, 0};
    Sluice__V1__ErrorEstimates errors = SLUICE__V1__ERROR_ESTIMATES__INIT, steps = SLUICE__V1__ERROR_ESTIMATES__INIT;
    errors.n_evicted_attention = errors.n_evicting_rows = errors.n_key_error = errors.n_value_error = 2;
    errors.evicted_attention = attention;
    errors.evicting_rows = rows;
    errors.key_error = errors.value_error = keys;
    steps = errors;
    steps.evicted_attention = later_attention;
    steps.evicting_rows = later_rows;
    Sluice__V1__Statistics told = SLUICE__V1__STATISTICS__INIT;
    told.errors = &errors;
    job->spec.demand.n_prefill_tokens = 3;
    (void)sl_job_statistics_lock(job);
    sl_job_add_errors(job, &told); // there are none to which they could be added
    sl_job_statistics_unlock(job);
    assert_int_equal(sl_job_bytes(job), before);
    (void)sl_job_statistics_lock(job);
    sl_job_set_errors(job, &told);
    told.errors = &steps;
    sl_job_add_errors(job, &told);
    sl_job_statistics_unlock(job);
    assert_true(sl_job_bytes(job) > before);
    Sluice__V1__Job *report = sl_job_describe(job);
    assert_int_equal(report->statistics->errors->n_key_error, 2);
    assert_true(report->statistics->errors->value_error[1] == 2);
    assert_true(report->statistics->errors->evicting_rows[0] == 4);
    assert_true(report->statistics->errors->evicted_attention[0] == 0.625F);
    told.errors = NULL; // another attempt, which estimates nothing
    (void)sl_job_statistics_lock(job);
    sl_job_set_errors(job, &told);
    sl_job_statistics_unlock(job);
    sluice__v1__job__free_unpacked(report, NULL);
    report = sl_job_describe(job);
    assert_null(report->statistics->errors);
    assert_int_equal(sl_job_bytes(job), before);
    sluice__v1__job__free_unpacked(report, NULL);
    sl_job_unref(&job);
}

static void test_jobs_keep_what_lives_and_cap_what_ended(void **state) {
    (void)state;
    struct sl_jobs *jobs = NULL;
    struct sl_error err;
    struct sl_retention retention = {.ms = 1000, .max_jobs = 10, .max_bytes = INT64_MAX};
    assert_int_equal(sl_jobs_create(&retention, &jobs, &err), SL_OK);
    char id[SL_JOB_ID_BYTES], first_living[SL_JOB_ID_BYTES] = "", first_ended[SL_JOB_ID_BYTES] = "";
    for (int i = 0; i < 60; i++) { // every third one goes on living
        assert_int_equal(sl_jobs_new_id(id, &err), SL_OK);
        struct sl_job *job = make_job(id);
        if (i % 3 == 0) {
            if (first_living[0] == 0) {
                strcpy(first_living, id);
            }
        } else {
            if (first_ended[0] == 0) {
                strcpy(first_ended, id);
            }
            finish(job, CANCELLED, "");
        }
        assert_null(sl_jobs_add(jobs, job));
        sl_job_unref(&job);
    }
    struct sl_job *list[100];
    size_t n = sl_jobs_list(jobs, NULL, ~0U, list, 100);
    assert_int_equal(n, 30);
    for (size_t i = 0; i + 1 < n; i++) { // newest first
        assert_true(list[i]->spec.submitted_ns > list[i + 1]->spec.submitted_ns);
    }
    for (size_t i = 0; i < n; i++) {
        sl_job_unref(&list[i]);
    }
    n = sl_jobs_list(jobs, NULL, 1U << CANCELLED, list, 100);
    assert_int_equal(n, 10);
    for (size_t i = 0; i < n; i++) {
        sl_job_unref(&list[i]);
    }
    struct sl_job *job = NULL;
    assert_int_equal(sl_jobs_find(jobs, first_ended, NULL, &job, &err), SL_ERR_NOT_FOUND);
    assert_non_null(strstr(err.text, first_ended));
    assert_non_null(strstr(err.text, "`sluice jobs` lists them"));
    assert_int_equal(sl_jobs_find(jobs, first_living, NULL, &job, &err), SL_OK);
    sl_job_unref(&job);
    sl_jobs_trim(jobs, sl_now_ns() + 2 * SL_NS_PER_S); // all that have ended are too old now
    n = sl_jobs_list(jobs, NULL, ~0U, list, 100);
    assert_int_equal(n, 20);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal((int)sl_job_state(list[i]), Q);
        sl_job_unref(&list[i]);
    }
    sl_jobs_destroy(&jobs);
}

// Beside many that live, those that have ended are trimmed when a sixteenth of all is new: not more stay meanwhile.
static void test_few_ended_jobs_stay_beside_many(void **state) {
    (void)state;
    enum { LIVING = 400, ENDED = 100, KEPT = 10 };
    struct sl_jobs *jobs = NULL;
    struct sl_error err;
    struct sl_retention retention = {.ms = 100000, .max_jobs = KEPT, .max_bytes = INT64_MAX};
    assert_int_equal(sl_jobs_create(&retention, &jobs, &err), SL_OK);
    struct sl_job *list[LIVING + ENDED];
    for (int i = 0; i < LIVING + ENDED; i++) {
        char id[SL_JOB_ID_BYTES];
        assert_int_equal(sl_jobs_new_id(id, &err), SL_OK);
        struct sl_job *job = make_job(id);
        if (i >= LIVING) {
            finish(job, CANCELLED, "");
        }
        assert_null(sl_jobs_add(jobs, job));
        sl_job_unref(&job);
        size_t n = sl_jobs_list(jobs, NULL, 1U << CANCELLED, list, LIVING + ENDED);
        assert_true(n <= KEPT + (LIVING + ENDED) / 16);
        while (n > 0) {
            sl_job_unref(&list[--n]);
        }
    }
    sl_jobs_trim(jobs, sl_now_ns());
    size_t n = sl_jobs_list(jobs, NULL, ~0U, list, LIVING + ENDED);
    assert_int_equal(n, LIVING + KEPT);
    while (n > 0) {
        sl_job_unref(&list[--n]);
    }
    sl_jobs_destroy(&jobs);
}

static void test_jobs_cap_bytes_of_ended_jobs(void **state) {
    (void)state;
    struct sl_jobs *jobs = NULL;
    struct sl_error err;
    struct sl_job *probe = job_in(CANCELLED);
    int64_t each = (int64_t)sl_job_bytes(probe);
    sl_job_unref(&probe);
    struct sl_retention retention = {.ms = 100000, .max_jobs = 1000, .max_bytes = each * 7 / 2};
    assert_int_equal(sl_jobs_create(&retention, &jobs, &err), SL_OK);
    for (int i = 0; i < 20; i++) {
        char id[SL_JOB_ID_BYTES];
        assert_int_equal(sl_jobs_new_id(id, &err), SL_OK);
        struct sl_job *job = make_job(id);
        finish(job, CANCELLED, "");
        assert_null(sl_jobs_add(jobs, job));
        sl_job_unref(&job);
    }
    struct sl_job *list[100];
    size_t n = sl_jobs_list(jobs, NULL, ~0U, list, 100);
    assert_int_equal(n, 3);
    for (size_t i = 0; i < n; i++) {
        sl_job_unref(&list[i]);
    }
    sl_jobs_destroy(&jobs);
}

static struct sl_job *job_of(const char *id, const char *tenant, const char *key) {
    struct sl_job *job = make_job(id);
    strcpy(job->spec.tenant, tenant);
    strcpy(job->spec.key, key);
    return job;
}

static void test_jobs_know_tenants_and_their_keys(void **state) {
    (void)state;
    struct sl_jobs *jobs = NULL;
    struct sl_error err;
    struct sl_retention retention = {.ms = 1000, .max_jobs = 10, .max_bytes = INT64_MAX};
    assert_int_equal(sl_jobs_create(&retention, &jobs, &err), SL_OK);
    struct sl_job *first = job_of("first", "acme", "k"), *again = job_of("again", "acme", "k");
    struct sl_job *theirs = job_of("theirs", "umbrella", "k"), *plain = job_of("plain", "acme", "");
    assert_null(sl_jobs_find_key(jobs, "acme", "k"));
    assert_null(sl_jobs_add(jobs, first));
    struct sl_job *found = sl_jobs_add(jobs, again);
    assert_ptr_equal(found, first);
    sl_job_unref(&found);
    assert_null(sl_jobs_add(jobs, theirs));
    assert_null(sl_jobs_add(jobs, plain));
    assert_null(sl_jobs_find_key(jobs, "acme", "other"));

    struct sl_job *list[8];
    const struct {
        const char *tenant;
        size_t n;
    } rows[] = {{NULL, 3}, {"acme", 2}, {"umbrella", 1}, {"", 0}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        size_t n = sl_jobs_list(jobs, rows[i].tenant, ~0U, list, 8);
        assert_int_equal(n, rows[i].n);
        while (n > 0) {
            sl_job_unref(&list[--n]);
        }
    }
    assert_int_equal(sl_jobs_find(jobs, "first", "umbrella", &found, &err), SL_ERR_NOT_FOUND);
    assert_int_equal(sl_jobs_find(jobs, "again", NULL, &found, &err), SL_ERR_NOT_FOUND);
    assert_int_equal(sl_jobs_find(jobs, "first", "acme", &found, &err), SL_OK);
    sl_job_unref(&found);

    finish(first, CANCELLED, ""); // a client that submits it again wants it done
    assert_null(sl_jobs_find_key(jobs, "acme", "k"));
    assert_null(sl_jobs_add(jobs, again));
    found = sl_jobs_find_key(jobs, "acme", "k");
    assert_ptr_equal(found, again);
    sl_job_unref(&found);
    sl_jobs_trim(jobs, sl_now_ns() + 2 * SL_NS_PER_S); // takes the first one out of both chains
    found = sl_jobs_find_key(jobs, "acme", "k");
    assert_ptr_equal(found, again);
    sl_job_unref(&found);
    sl_jobs_remove(jobs, again);
    assert_null(sl_jobs_find_key(jobs, "acme", "k"));
    sl_job_unref(&first);
    sl_job_unref(&again);
    sl_job_unref(&theirs);
    sl_job_unref(&plain);
    sl_jobs_destroy(&jobs);
}

static enum sl_status make_table(void *arg, struct sl_error *err) {
    (void)arg;
    struct sl_retention retention = {.ms = 1000, .max_jobs = 10, .max_bytes = 1 << 20};
    struct sl_jobs *jobs = NULL;
    struct sl_job *job = NULL;
    struct sl_job_spec spec = {.n_tokens = 3, .max_new_tokens = 4, .deadline_ns = sl_deadline_in_ms(60000)};
    spec.tokens = calloc(3, sizeof(*spec.tokens));
    enum sl_status status = sl_jobs_create(&retention, &jobs, err);
    status = status == SL_OK && spec.tokens == NULL ? SL_ERR_EXHAUSTED : status;
    status = status == SL_OK ? sl_job_create("job-1", &spec, &job, err) : status;
    status = status == SL_OK ? sl_job_move(job, (Sluice__V1__JobState)P, "") : status;
    sl_job_unref(&job);
    sl_job_spec_cleanup(&spec); // if it was not taken over
    sl_jobs_destroy(&jobs);
    return status;
}

static void test_job_without_memory_is_not_made(void **state) {
    (void)state;
    assert_true(assert_refused_without_memory(make_table, NULL) >= 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_job_takes_every_edge_and_no_other),
        cmocka_unit_test(test_job_end_is_the_last_event),
        cmocka_unit_test(test_job_interruption_names_its_cause),
        cmocka_unit_test(test_jobs_know_tenants_and_their_keys),
        cmocka_unit_test(test_job_holds_what_its_statistics_need),
        cmocka_unit_test(test_job_holds_estimates_that_were_made),
        cmocka_unit_test(test_jobs_keep_what_lives_and_cap_what_ended),
        cmocka_unit_test(test_few_ended_jobs_stay_beside_many),
        cmocka_unit_test(test_jobs_cap_bytes_of_ended_jobs),
        cmocka_unit_test(test_job_without_memory_is_not_made),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
