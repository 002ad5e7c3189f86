// SPDX-License-Identifier: Apache-2.0
// Purpose: trace contexts as text, and spans without a queue, spans that are not sampled, and too many spans.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "net/trace/trace.h"

static const char *const known = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

static struct sl_trace parse(const char *text) {
    struct sl_trace trace;
    if (!sl_trace_parse(text, strlen(text), &trace)) {
        fail_msg("'%s' is not taken", text);
    }
    return trace;
}

static void test_a_context_is_its_text(void **state) {
    (void)state;
    struct sl_trace trace = parse(known);
    char text[SL_TRACEPARENT_BYTES];
    assert_true(trace.sampled && trace.trace_id[0] == 0x0a && trace.span_id[7] == 0x31);
    sl_trace_format(&trace, text);
    assert_string_equal(text, known);
    assert_false(parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-02").sampled);
    // Later versions may have more fields, after a dash.
    assert_true(parse("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-the-future-has").sampled);
}

static void test_what_is_no_context_is_none(void **state) {
    (void)state;
    static const char *const cases[] = {
        "",
        "00",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-011",
        "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01.",
        "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-00000000000000000000000000000000-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
        "00-0AF7651916CD43DD8448EB211C80319C-B7AD6B7169203331-01",
        "00_0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "0g-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
        "00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333 -01",
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct sl_trace trace;
        assert_false(sl_trace_parse(cases[i], strlen(cases[i]), &trace));
        assert_false(sl_trace_is_set(&trace));
    }
}

// Without a queue for spans, a context is passed on as it came.
static void test_without_a_queue_contexts_pass_through(void **state) {
    (void)state;
    struct sl_trace trace = parse(known), now;
    struct sl_span span;
    sl_trace_set(&trace);
    sl_span_begin(&span, "work", SL_SPAN_SERVER);
    now = sl_trace_current();
    assert_memory_equal(&now, &trace, sizeof trace);
    sl_span_end(&span, SL_OK, NULL);
    now = sl_trace_current();
    assert_memory_equal(&now, &trace, sizeof trace);
    sl_trace_set(NULL);
    sl_span_begin(&span, "work", SL_SPAN_SERVER);
    now = sl_trace_current();
    assert_false(sl_trace_is_set(&now));
    sl_span_end(&span, SL_OK, NULL);
}

static void test_spans_are_parts_of_each_other(void **state) {
    (void)state;
    struct sl_error err;
    struct sl_span outer, inner, taken[4];
    assert_int_equal(sl_spans_open(1, &err), SL_OK);
    sl_span_begin(&outer, "outer", SL_SPAN_SERVER);
    sl_span_begin(&inner, "inner", SL_SPAN_CLIENT);
    sl_span_set_int(&inner, "n", 7);
    sl_span_set_text(&inner, "name", "lantern");
    struct sl_trace now = sl_trace_current();
    assert_memory_equal(&now, &inner.trace, sizeof now);
    sl_span_end(&inner, SL_ERR_INVALID, "no such thing");
    sl_span_record("before", outer.start_ns - 5, outer.start_ns);
    sl_span_end(&outer, SL_OK, NULL);
    now = sl_trace_current();
    assert_false(sl_trace_is_set(&now));
    assert_int_equal(sl_spans_take(taken, 4, 0), 3);
    assert_string_equal(taken[0].name, "inner");
    assert_int_equal(taken[0].status, SL_ERR_INVALID);
    assert_string_equal(taken[0].why, "no such thing");
    assert_int_equal(taken[0].n_attributes, 2);
    assert_int_equal(taken[0].attributes[0].integer, 7);
    assert_string_equal(taken[0].attributes[1].text, "lantern");
    assert_memory_equal(taken[0].parent.span_id, taken[2].trace.span_id, 8);
    assert_memory_equal(taken[1].parent.span_id, taken[2].trace.span_id, 8);
    assert_int_equal(taken[1].end_ns - taken[1].start_ns, 5);
    assert_memory_equal(taken[0].trace.trace_id, taken[2].trace.trace_id, 16);
    assert_false(sl_trace_is_set(&taken[2].parent));
    assert_true(taken[0].start_ns >= taken[2].start_ns && taken[0].end_ns <= taken[2].end_ns);
    sl_spans_close();
}

static void test_attributes_are_bounded(void **state) {
    (void)state;
    struct sl_error err;
    struct sl_span span;
    char text[300];
    memset(text, 'x', sizeof text);
    text[299] = '\0';
    assert_int_equal(sl_spans_open(1, &err), SL_OK);
    sl_span_begin(&span, "work", SL_SPAN_INTERNAL);
    for (int i = 0; i < 2 * SL_SPAN_ATTRIBUTES; i++) {
        sl_span_set_text(&span, "key", text);
    }
    sl_span_end(&span, SL_ERR_INTERNAL, text);
    assert_int_equal(sl_spans_take(&span, 1, 0), 1);
    assert_int_equal(span.n_attributes, SL_SPAN_ATTRIBUTES);
    assert_int_equal(strlen(span.attributes[3].text), SL_SPAN_TEXT_BYTES - 1);
    assert_int_equal(strlen(span.why), SL_SPAN_TEXT_BYTES - 1);
    sl_spans_close();
}

static void test_only_a_share_of_new_traces_is_kept(void **state) {
    (void)state;
    struct sl_error err;
    struct sl_span span;
    int n = 0;
    assert_int_equal(sl_spans_open(0.25, &err), SL_OK);
    for (int i = 0; i < 4000; i++) {
        sl_span_begin(&span, "work", SL_SPAN_INTERNAL);
        n += span.kept;
        assert_true(sl_trace_is_set(&span.trace)); // unsampled, too: by its context others decide alike
        sl_span_end(&span, SL_OK, NULL);
    }
    assert_in_range(n, 840, 1160); // six standard deviations
    struct sl_trace unwanted = parse("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00");
    sl_trace_set(&unwanted);
    sl_span_begin(&span, "work", SL_SPAN_INTERNAL);
    assert_false(span.kept);
    sl_span_end(&span, SL_OK, NULL);
    sl_trace_set(NULL);
    sl_spans_close();
}

static void *make_spans(void *arg) {
    (void)arg;
    for (int i = 0; i < 1000; i++) {
        struct sl_span span;
        sl_span_begin(&span, "work", SL_SPAN_INTERNAL);
        sl_span_end(&span, SL_OK, NULL);
    }
    return NULL;
}

// Four threads make more than there is room for: what is taken and what is counted as lost are all of them.
static void test_too_many_are_counted(void **state) {
    (void)state;
    struct sl_error err;
    static struct sl_span taken[5000];
    pthread_t threads[4];
    int64_t before = sl_spans_dropped();
    assert_int_equal(sl_spans_open(1, &err), SL_OK);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, make_spans, NULL), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
    }
    int n = sl_spans_take(taken, 5000, 0);
    assert_in_range(n, 1000, 3999);
    assert_int_equal(n + sl_spans_dropped() - before, 4000);
    sl_spans_close();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_context_is_its_text),
        cmocka_unit_test(test_what_is_no_context_is_none),
        cmocka_unit_test(test_without_a_queue_contexts_pass_through),
        cmocka_unit_test(test_spans_are_parts_of_each_other),
        cmocka_unit_test(test_attributes_are_bounded),
        cmocka_unit_test(test_only_a_share_of_new_traces_is_kept),
        cmocka_unit_test(test_too_many_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
