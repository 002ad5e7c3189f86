// SPDX-License-Identifier: Apache-2.0
// Purpose: every state of a job run allows the events of the diagram in states.h and no other; every run can end, and an illegal event is
//          logged and counted.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "coordinator/run/attempt.h"

struct edge {
    enum sl_run_state from;
    enum sl_run_event event;
    enum sl_run_state to;
};

// The diagram, arrow by arrow, except the failures that every step has.
static const struct edge edges[] = {
    {SL_RUN_WAITING, SL_RUN_ON_CLAIMED, SL_RUN_RESERVING},
    {SL_RUN_WAITING, SL_RUN_ON_CLAIMED_ALONE, SL_RUN_STARTING},
    {SL_RUN_RESERVING, SL_RUN_ON_NO_MEMORY, SL_RUN_WAITING},
    {SL_RUN_RESERVING, SL_RUN_ON_GRANTED, SL_RUN_PREFILLING},
    {SL_RUN_RESERVING, SL_RUN_ON_GRANTED_FOR_COPY, SL_RUN_RESTORING},
    {SL_RUN_PREFILLING, SL_RUN_ON_ARRIVED, SL_RUN_STARTING},
    {SL_RUN_RESTORING, SL_RUN_ON_ARRIVED, SL_RUN_STARTING},
    {SL_RUN_RESTORING, SL_RUN_ON_MISS_SESSION, SL_RUN_NO_SESSION},
    {SL_RUN_STARTING, SL_RUN_ON_HEARD, SL_RUN_WRITING},
    {SL_RUN_STARTING, SL_RUN_ON_ENDED, SL_RUN_ANSWERED},
    {SL_RUN_WRITING, SL_RUN_ON_HEARD, SL_RUN_WRITING},
    {SL_RUN_WRITING, SL_RUN_ON_ENDED, SL_RUN_ANSWERED},
    {SL_RUN_ANSWERED, SL_RUN_ON_COMPLETED, SL_RUN_DONE},
    {SL_RUN_LOST, SL_RUN_ON_RETRY, SL_RUN_WAITING},
    {SL_RUN_STORE_FULL, SL_RUN_ON_RETRY, SL_RUN_WAITING},
    {SL_RUN_LOST, SL_RUN_ON_FALL_BACK, SL_RUN_WAITING},
    {SL_RUN_STORE_FULL, SL_RUN_ON_FALL_BACK, SL_RUN_WAITING},
    {SL_RUN_NO_SESSION, SL_RUN_ON_FALL_BACK, SL_RUN_WAITING},
    {SL_RUN_HOPELESS, SL_RUN_ON_FALL_BACK, SL_RUN_WAITING},
    {SL_RUN_UNFIT, SL_RUN_ON_FALL_BACK, SL_RUN_WAITING},
    {SL_RUN_LOST, SL_RUN_ON_GIVE_UP, SL_RUN_FAILED},
    {SL_RUN_STORE_FULL, SL_RUN_ON_GIVE_UP, SL_RUN_FAILED},
    {SL_RUN_NO_SESSION, SL_RUN_ON_GIVE_UP, SL_RUN_FAILED},
    {SL_RUN_HOPELESS, SL_RUN_ON_GIVE_UP, SL_RUN_FAILED},
    {SL_RUN_UNFIT, SL_RUN_ON_GIVE_UP, SL_RUN_FAILED},
    {SL_RUN_STOPPED, SL_RUN_ON_GIVE_UP, SL_RUN_FAILED},
    {SL_RUN_DEPOSED, SL_RUN_ON_GIVE_UP, SL_RUN_ELSEWHERE},
    {SL_RUN_LOST, SL_RUN_ON_KEEP_ANSWER, SL_RUN_DONE},
    {SL_RUN_STORE_FULL, SL_RUN_ON_KEEP_ANSWER, SL_RUN_DONE},
    {SL_RUN_NO_SESSION, SL_RUN_ON_KEEP_ANSWER, SL_RUN_DONE},
    {SL_RUN_HOPELESS, SL_RUN_ON_KEEP_ANSWER, SL_RUN_DONE},
    {SL_RUN_UNFIT, SL_RUN_ON_KEEP_ANSWER, SL_RUN_DONE},
    {SL_RUN_STOPPED, SL_RUN_ON_KEEP_ANSWER, SL_RUN_DONE},
    {SL_RUN_DEPOSED, SL_RUN_ON_KEEP_ANSWER, SL_RUN_DONE},
};

static const enum sl_run_state steps[] = {SL_RUN_WAITING,  SL_RUN_RESERVING, SL_RUN_PREFILLING, SL_RUN_RESTORING,
                                          SL_RUN_STARTING, SL_RUN_WRITING,   SL_RUN_ANSWERED};

static const struct {
    enum sl_run_event event;
    enum sl_run_state to;
} failures[] = {{SL_RUN_ON_LOSE, SL_RUN_LOST},      {SL_RUN_ON_FILL_STORE, SL_RUN_STORE_FULL},
                {SL_RUN_ON_REFUSE, SL_RUN_UNFIT},   {SL_RUN_ON_LOSE_HOPE, SL_RUN_HOPELESS},
                {SL_RUN_ON_DEPOSE, SL_RUN_DEPOSED}, {SL_RUN_ON_STOP, SL_RUN_STOPPED}};

#define COUNT(array) (sizeof(array) / sizeof *(array))

static bool is_one_of_steps(enum sl_run_state state) {
    bool found = false;
    for (size_t i = 0; i < COUNT(steps); i++) {
        found |= steps[i] == state;
    }
    return found;
}

// Returns what the diagram says; SL_N_RUN_STATES: there is no such arrow.
static enum sl_run_state expected(enum sl_run_state from, enum sl_run_event event) {
    for (size_t i = 0; i < COUNT(edges); i++) {
        if (edges[i].from == from && edges[i].event == event) {
            return edges[i].to;
        }
    }
    for (size_t i = 0; i < COUNT(failures); i++) {
        if (failures[i].event == event && is_one_of_steps(from)) {
            return failures[i].to;
        }
    }
    return SL_N_RUN_STATES;
}

static void test_every_state_allows_the_events_of_the_diagram_and_no_other(void **state) {
    (void)state;
    size_t n_allowed = 0;
    for (int from = 0; from < SL_N_RUN_STATES; from++) {
        for (int event = 0; event < SL_N_RUN_EVENTS; event++) {
            enum sl_run_state to = sl_run_next((enum sl_run_state)from, (enum sl_run_event)event);
            assert_int_equal(to, expected((enum sl_run_state)from, (enum sl_run_event)event));
            n_allowed += to != SL_N_RUN_STATES;
        }
        assert_int_equal(sl_run_next((enum sl_run_state)from, SL_N_RUN_EVENTS), SL_N_RUN_STATES);
        assert_int_equal(sl_run_is_step((enum sl_run_state)from), is_one_of_steps((enum sl_run_state)from));
    }
    assert_int_equal(sl_run_next(SL_N_RUN_STATES, SL_RUN_ON_LOSE), SL_N_RUN_STATES);
    assert_int_equal(n_allowed, COUNT(edges) + COUNT(steps) * COUNT(failures));
}

static void test_every_state_has_a_name_and_every_run_can_end(void **state) {
    (void)state;
    bool ends[SL_N_RUN_STATES] = {[SL_RUN_DONE] = true, [SL_RUN_FAILED] = true, [SL_RUN_ELSEWHERE] = true};
    for (int round = 0; round < SL_N_RUN_STATES; round++) {
        for (int from = 0; from < SL_N_RUN_STATES; from++) {
            for (int event = 0; event < SL_N_RUN_EVENTS; event++) {
                enum sl_run_state to = sl_run_next((enum sl_run_state)from, (enum sl_run_event)event);
                ends[from] |= to != SL_N_RUN_STATES && ends[to];
            }
        }
    }
    for (int i = 0; i < SL_N_RUN_STATES; i++) {
        assert_true(ends[i]);
        for (int j = 0; j < i; j++) {
            assert_string_not_equal(sl_run_state_name((enum sl_run_state)i), sl_run_state_name((enum sl_run_state)j));
        }
    }
    for (int i = 0; i < SL_N_RUN_EVENTS; i++) {
        for (int j = 0; j < i; j++) {
            assert_string_not_equal(sl_run_event_name((enum sl_run_event)i), sl_run_event_name((enum sl_run_event)j));
        }
    }
}

static void test_an_illegal_event_is_counted_and_changes_nothing(void **state) {
    (void)state;
    struct sl_job_figures *figures = test_calloc(1, sizeof *figures);
    struct sl_job *job = test_calloc(1, sizeof *job);
    struct sl_run *run = test_calloc(1, sizeof *run);
    strcpy(job->id, "job-1");
    struct sl_run_context context = {.figures = figures};
    run->context = &context;
    run->job = job;
    struct sl_error err = {0};
    assert_int_equal(sl_run_move(run, SL_RUN_ON_CLAIMED_ALONE, &err), SL_OK);
    assert_int_equal(run->state, SL_RUN_STARTING);
    assert_int_equal(atomic_load(&figures->n_illegal_events), 0);

    assert_int_equal(sl_run_move(run, SL_RUN_ON_COMPLETED, &err), SL_ERR_INTERNAL);
    assert_non_null(strstr(err.text, "\"starting\""));
    assert_non_null(strstr(err.text, "\"completed\""));
    assert_int_equal(run->state, SL_RUN_STARTING);
    assert_int_equal(atomic_load(&figures->n_illegal_events), 1);

    // A failure keeps the last step, which says what the attempt holds.
    assert_int_equal(sl_run_move(run, SL_RUN_ON_HEARD, &err), SL_OK);
    assert_int_equal(sl_run_move(run, SL_RUN_ON_LOSE, &err), SL_OK);
    assert_int_equal(run->state, SL_RUN_LOST);
    assert_int_equal(run->step, SL_RUN_WRITING);
    test_free(run);
    test_free(job);
    test_free(figures);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_state_allows_the_events_of_the_diagram_and_no_other),
        cmocka_unit_test(test_every_state_has_a_name_and_every_run_can_end),
        cmocka_unit_test(test_an_illegal_event_is_counted_and_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
