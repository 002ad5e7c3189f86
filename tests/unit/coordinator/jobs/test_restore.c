// SPDX-License-Identifier: Apache-2.0
// Purpose: a restored job accepts no event that it could not have appended.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "coordinator/jobs/job_restore.h"

#define ID       "job-1-1"
#define N_VOCAB  100
#define N_EVENTS 7

static Sluice__V1__Event events[N_EVENTS];
static Sluice__V1__StateChange states[N_EVENTS];
static Sluice__V1__Token tokens[2];
static Sluice__V1__Finished finished;

// QUEUED, PREFILLING, DECODING, two tokens, DONE, Finished.
static int begin(void **state) {
    (void)state;
    const Sluice__V1__JobState path[] = {SLUICE__V1__JOB_STATE__QUEUED, SLUICE__V1__JOB_STATE__PREFILLING,
                                         SLUICE__V1__JOB_STATE__DECODING};
    for (int i = 0; i < N_EVENTS; i++) {
        sluice__v1__event__init(&events[i]);
        sluice__v1__state_change__init(&states[i]);
        events[i].sequence = i + 1;
        events[i].job_id = (char *)ID;
        events[i].what_case = SLUICE__V1__EVENT__WHAT_STATE;
        events[i].state = &states[i];
        states[i].state = i < 3 ? path[i] : SLUICE__V1__JOB_STATE__DONE;
    }
    for (int i = 0; i < 2; i++) {
        sluice__v1__token__init(&tokens[i]);
        tokens[i].index = i;
        tokens[i].id = 10 + i;
        events[3 + i].what_case = SLUICE__V1__EVENT__WHAT_TOKEN;
        events[3 + i].token = &tokens[i];
    }
    sluice__v1__finished__init(&finished);
    events[6].what_case = SLUICE__V1__EVENT__WHAT_FINISHED;
    events[6].finished = &finished;
    return 0;
}

static enum sl_status restore_as(const char *id, struct sl_job_spec *spec, size_t n, bool has_end,
                                 struct sl_job **job_out) {
    uint8_t bytes[N_EVENTS][256];
    struct sl_packed_event packed[N_EVENTS];
    Sluice__V1__Job end = SLUICE__V1__JOB__INIT;
    struct sl_error err;
    for (size_t i = 0; i < n; i++) {
        packed[i] = (struct sl_packed_event){bytes[i], sluice__v1__event__pack(&events[i], bytes[i])};
    }
    const struct sl_job_past past = {id, 1, packed, n, has_end ? &end : NULL, N_VOCAB};
    return sl_job_restore(&past, spec, job_out, &err);
}

static enum sl_status restore(size_t n, bool has_end, struct sl_job **job_out) {
    struct sl_job_spec spec = {.max_new_tokens = 4, .submitted_ns = sl_now_ns()};
    return restore_as(ID, &spec, n, has_end, job_out);
}

static void assert_refused(size_t n, bool has_end) {
    struct sl_job *job = NULL;
    assert_int_equal(restore(n, has_end, &job), SL_ERR_INVALID);
    assert_null(job);
    begin(NULL);
}

static void test_restore_takes_what_a_job_has_told(void **state) {
    (void)state;
    struct sl_job *job;
    assert_int_equal(restore(5, false, &job), SL_OK);
    assert_true(job->n_output == 2 && job->output[1] == 11 && job->spec.n_delivered == 2 && job->ended_ns == 0);
    assert_int_equal(sl_job_state(job), SLUICE__V1__JOB_STATE__DECODING);
    sl_job_unref(&job);
    assert_int_equal(restore(7, true, &job), SL_OK);
    assert_true(job->ended_ns != 0);
    assert_int_equal(sl_event_log_wait_closed(&job->log, 0), SL_OK);
    sl_job_unref(&job);
}

static void test_restore_refuses_what_no_job_has_told(void **state) {
    (void)state;
    events[2].sequence = 4;
    assert_refused(5, false);
    events[2].job_id = (char *)"job-1-2";
    assert_refused(5, false);
    events[2].what_case = SLUICE__V1__EVENT__WHAT__NOT_SET;
    assert_refused(5, false);
    states[1].state = SLUICE__V1__JOB_STATE__SHIPPING; // QUEUED ships nothing
    assert_refused(5, false);
    tokens[1].index = 2; // one is left out
    assert_refused(5, false);
    tokens[1].index = 0; // once more
    assert_refused(5, false);
    tokens[0].id = N_VOCAB;
    assert_refused(5, false);
    tokens[0].id = -1;
    assert_refused(5, false);
    assert_refused(6, false); // a final state without its end
    assert_refused(7, false); // likewise
    assert_refused(5, true);  // an end without its events
    assert_refused(6, true);
    events[5] = events[4]; // Finished where nothing has
    events[5].sequence = 6;
    tokens[1].index = 1;
    assert_refused(7, true);
}

// The answer has memory for max_new_tokens, whatever its events, or an older one's tokens, are.
static void test_restore_bounds_the_answer(void **state) {
    (void)state;
    char long_id[SL_JOB_ID_BYTES + 1] = {0};
    memset(long_id, 'j', SL_JOB_ID_BYTES);
    const struct {
        const char *id;
        int max_new_tokens, n_delivered;
        size_t n_events;
    } refused[] = {{ID, 1, 0, 5}, {ID, 0, 0, 3}, {ID, -1, 0, 3}, {ID, 4, 5, 3}, {long_id, 4, 0, 0}};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct sl_job_spec spec = {.max_new_tokens = refused[i].max_new_tokens, .n_delivered = refused[i].n_delivered};
        struct sl_job *job = NULL;
        spec.delivered = calloc(8, sizeof *spec.delivered);
        assert_int_equal(restore_as(refused[i].id, &spec, refused[i].n_events, false, &job), SL_ERR_INVALID);
        assert_null(job);
        free(spec.delivered);
    }
    struct sl_job_spec spec = {.max_new_tokens = 2};
    struct sl_job *job;
    assert_int_equal(restore_as(ID, &spec, 5, false, &job), SL_OK);
    sl_job_unref(&job);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_restore_takes_what_a_job_has_told, begin),
        cmocka_unit_test_setup(test_restore_refuses_what_no_job_has_told, begin),
        cmocka_unit_test_setup(test_restore_bounds_the_answer, begin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
