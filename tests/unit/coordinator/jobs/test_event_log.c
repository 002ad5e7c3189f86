// SPDX-License-Identifier: Apache-2.0
// Purpose: every watcher sees every event once and in order, from any sequence, while others append; bounds hold.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>

#include "base/clock.h"
#include "base/thread.h"
#include "coordinator/jobs/event_log.h"

static enum sl_status append_token(struct sl_event_log *log, int id) {
    Sluice__V1__Token token = SLUICE__V1__TOKEN__INIT;
    token.id = id;
    token.text = "word ";
    Sluice__V1__Event event = SLUICE__V1__EVENT__INIT;
    event.job_id = "job-1";
    event.what_case = SLUICE__V1__EVENT__WHAT_TOKEN;
    event.token = &token;
    return sl_event_log_append(log, SL_EVENT_FACT, &event);
}

static enum sl_status append_progress(struct sl_event_log *log) {
    Sluice__V1__ShipProgress ship = SLUICE__V1__SHIP_PROGRESS__INIT;
    Sluice__V1__Event event = SLUICE__V1__EVENT__INIT;
    event.job_id = "job-1";
    event.what_case = SLUICE__V1__EVENT__WHAT_SHIP;
    event.ship = &ship;
    return sl_event_log_append(log, SL_EVENT_PROGRESS, &event);
}

#define N_EVENTS   3000
#define N_WATCHERS 8

struct watcher {
    struct sl_event_log *log;
    int64_t from, n_seen;
    bool ordered;
};

static void *watch(void *arg) {
    struct watcher *watcher = arg;
    watcher->ordered = true;
    for (int64_t sequence = watcher->from;; sequence++) {
        Sluice__V1__Event *event;
        enum sl_status status = sl_event_log_get(watcher->log, sequence, sl_deadline_in_ms(20000), &event);
        if (status != SL_OK) {
            watcher->ordered &= status == SL_ERR_NOT_FOUND;
            return NULL;
        }
        watcher->ordered &= event->sequence == sequence && event->token->id == sequence && event->time_ms > 0;
        watcher->n_seen++;
        sluice__v1__event__free_unpacked(event, NULL);
    }
}

static void test_event_log_concurrent_watchers_miss_nothing(void **state) {
    (void)state;
    struct sl_event_log log;
    sl_event_log_init(&log, N_EVENTS, 0);
    struct watcher watchers[N_WATCHERS];
    pthread_t threads[N_WATCHERS];
    for (int i = 0; i < N_WATCHERS; i++) {
        watchers[i] = (struct watcher){.log = &log, .from = 1 + i * 100};
        assert_int_equal(sl_thread_start("watcher", watch, &watchers[i], &threads[i], NULL), SL_OK);
    }
    for (int i = 1; i <= N_EVENTS; i++) {
        assert_int_equal(append_token(&log, i), SL_OK);
    }
    sl_event_log_close(&log);
    for (int i = 0; i < N_WATCHERS; i++) {
        pthread_join(threads[i], NULL);
        assert_true(watchers[i].ordered);
        assert_int_equal(watchers[i].n_seen, N_EVENTS - i * 100);
    }
    struct watcher late = {.log = &log, .from = N_EVENTS - 4}; // after the end: what is left, then the end
    watch(&late);
    assert_true(late.ordered);
    assert_int_equal(late.n_seen, 5);
    sl_event_log_cleanup(&log);
}

static void test_event_log_progress_cannot_crowd_out_facts(void **state) {
    (void)state;
    struct sl_event_log log;
    sl_event_log_init(&log, 15, 5);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(append_progress(&log), SL_OK);
    }
    assert_int_equal(append_progress(&log), SL_AGAIN);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(append_token(&log, i), SL_OK);
    }
    assert_int_equal(append_token(&log, 10), SL_ERR_EXHAUSTED);
    assert_int_equal(sl_event_log_last_sequence(&log), 15);
    assert_true(sl_event_log_bytes(&log) > 15 * 8);
    sl_event_log_close(&log);
    assert_int_equal(append_token(&log, 11), SL_ERR_PRECONDITION);
    sl_event_log_cleanup(&log);
}

static void test_event_log_waits_end_at_the_deadline(void **state) {
    (void)state;
    struct sl_event_log log;
    sl_event_log_init(&log, 10, 0);
    Sluice__V1__Event *event = NULL;
    int64_t start_ns = sl_now_ns();
    assert_int_equal(sl_event_log_get(&log, 1, sl_deadline_in_ms(60), &event), SL_ERR_DEADLINE);
    assert_int_equal(sl_event_log_wait_closed(&log, sl_deadline_in_ms(60)), SL_ERR_DEADLINE);
    assert_true(sl_now_ns() - start_ns >= 100 * SL_NS_PER_MS);
    sl_event_log_close(&log);
    assert_int_equal(sl_event_log_wait_closed(&log, sl_deadline_in_ms(60)), SL_OK);
    assert_int_equal(sl_event_log_get(&log, 1, sl_deadline_in_ms(60), &event), SL_ERR_NOT_FOUND);
    assert_null(event);
    sl_event_log_cleanup(&log);
}

static bool no_memory;

ProtobufCMessage *__real_protobuf_c_message_unpack(const ProtobufCMessageDescriptor *descriptor,
                                                   ProtobufCAllocator *allocator, size_t n, const uint8_t *data);
ProtobufCMessage *__wrap_protobuf_c_message_unpack(const ProtobufCMessageDescriptor *descriptor,
                                                   ProtobufCAllocator *allocator, size_t n, const uint8_t *data);
ProtobufCMessage *__wrap_protobuf_c_message_unpack(const ProtobufCMessageDescriptor *descriptor,
                                                   ProtobufCAllocator *allocator, size_t n, const uint8_t *data) {
    return no_memory ? NULL : __real_protobuf_c_message_unpack(descriptor, allocator, n, data);
}

static void test_event_log_says_when_there_is_no_memory_for_an_event(void **state) {
    (void)state;
    struct sl_event_log log;
    Sluice__V1__Event *event = NULL;
    sl_event_log_init(&log, 4, 4);
    assert_int_equal(append_token(&log, 7), SL_OK);
    no_memory = true;
    assert_int_equal(sl_event_log_get(&log, 1, sl_deadline_in_ms(1000), &event), SL_ERR_EXHAUSTED);
    no_memory = false;
    assert_null(event);
    assert_int_equal(sl_event_log_get(&log, 1, sl_deadline_in_ms(1000), &event), SL_OK); // it is still there
    sluice__v1__event__free_unpacked(event, NULL);
    sl_event_log_cleanup(&log);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_event_log_concurrent_watchers_miss_nothing),
        cmocka_unit_test(test_event_log_progress_cannot_crowd_out_facts),
        cmocka_unit_test(test_event_log_waits_end_at_the_deadline),
        cmocka_unit_test(test_event_log_says_when_there_is_no_memory_for_an_event),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
