// SPDX-License-Identifier: Apache-2.0
// Purpose: the output of a job for a person and for a script: the streams, the order, the exit code.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pty.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/cli/follow.h"
#include "proto/kept.h"

struct screen {
    struct sl_follow follow;
    struct sl_watch watch;
    char *out, *err;
    size_t out_bytes, err_bytes;
};

static void open_screen(struct screen *s, int width, bool json) {
    memset(s, 0, sizeof *s);
    s->follow = (struct sl_follow){.command = "run", .json = json, .width = width};
    s->follow.out = open_memstream(&s->out, &s->out_bytes);
    s->follow.err = open_memstream(&s->err, &s->err_bytes);
    sl_follow_attach(&s->follow, &s->watch);
}

static void flush_screen(struct screen *s) {
    fflush(s->follow.out);
    fflush(s->follow.err);
}

static void close_screen(struct screen *s) {
    fclose(s->follow.out);
    fclose(s->follow.err);
    free(s->out);
    free(s->err);
}

static void send_prefill(struct screen *s, int64_t done, int64_t total) {
    Sluice__V1__PrefillProgress progress = SLUICE__V1__PREFILL_PROGRESS__INIT;
    progress.tokens_done = done;
    progress.tokens_total = total;
    Sluice__V1__Event event = SLUICE__V1__EVENT__INIT;
    event.what_case = SLUICE__V1__EVENT__WHAT_PREFILL;
    event.prefill = &progress;
    s->watch.on_event(s->watch.arg, &event);
}

static void send_token(struct screen *s, const char *text) {
    Sluice__V1__Token token = SLUICE__V1__TOKEN__INIT;
    token.text = (char *)text;
    Sluice__V1__Event event = SLUICE__V1__EVENT__INIT;
    event.what_case = SLUICE__V1__EVENT__WHAT_TOKEN;
    event.token = &token;
    s->watch.on_event(s->watch.arg, &event);
}

static void send_finished(struct screen *s, Sluice__V1__Finished__Reason reason, int code, const char *text) {
    Sluice__V1__Statistics statistics = SLUICE__V1__STATISTICS__INIT;
    statistics.n_prompt_tokens = 1000;
    statistics.n_reused_tokens = 512;
    statistics.capsule_bytes = 1 << 20;
    statistics.full_bytes = 10 << 20;
    statistics.transport = (char *)"put/shm";
    Sluice__V1__Finished finished = SLUICE__V1__FINISHED__INIT;
    finished.reason = reason;
    finished.status_code = code;
    finished.status_text = (char *)text;
    finished.statistics = &statistics;
    Sluice__V1__Event event = SLUICE__V1__EVENT__INIT;
    event.what_case = SLUICE__V1__EVENT__WHAT_FINISHED;
    event.finished = &finished;
    s->watch.on_event(s->watch.arg, &event);
}

static void test_follow_streams_the_answer_and_ends_with_statistics(void **state) {
    (void)state;
    struct screen s;
    open_screen(&s, 0, false);
    send_prefill(&s, 500, 1000);
    send_token(&s, "4");
    flush_screen(&s);
    assert_string_equal(s.out, "4"); // at once, not at the end
    send_token(&s, "2");
    send_finished(&s, SLUICE__V1__FINISHED__REASON__STOP_TOKEN, 0, "");
    assert_int_equal(sl_follow_end(&s.follow, SL_OK, NULL), SL_EXIT_OK);
    flush_screen(&s);
    assert_string_equal(s.out, "42\n");
    assert_non_null(strstr(s.err, "1000 tokens, 512 of them reused"));
    assert_non_null(strstr(s.err, "1.0 MiB instead of 10.0 MiB: 10.0 times smaller, by put/shm"));
    assert_null(strchr(s.err, '\033')); // not a terminal: no bar, no escapes
    assert_null(strchr(s.err, '\r'));
    close_screen(&s);
}

static void test_one_worker_ships_nothing(void **state) {
    (void)state;
    Sluice__V1__Statistics statistics = SLUICE__V1__STATISTICS__INIT;
    statistics.capsule_bytes = 1 << 20;
    statistics.full_bytes = 2 << 20;
    statistics.transport = (char *)"nothing: one worker";
    char *text;
    size_t n_bytes;
    FILE *file = open_memstream(&text, &n_bytes);
    sl_statistics_print(&statistics, file);
    fclose(file);
    assert_non_null(strstr(text, "2.0 times smaller, ships nothing: one worker\n"));
    free(text);
    assert_int_equal(sl_statistics_shipped_bytes(&statistics), 0);
    statistics.transport = (char *)"put posix";
    assert_int_equal(sl_statistics_shipped_bytes(&statistics), 1 << 20);
}

static void test_follow_prints_error_estimates_where_there_are_some(void **state) {
    (void)state;
    float evicted[3] = {0.01f, 0.04f, 0.01f}, key[3] = {0}, value[3] = {0, 0, 0.5f};
    int64_t rows[3] = {10, 10, 10};
    Sluice__V1__ErrorEstimates errors = SLUICE__V1__ERROR_ESTIMATES__INIT;
    errors.n_evicted_attention = errors.n_evicting_rows = errors.n_key_error = errors.n_value_error = 3;
    errors.evicted_attention = evicted;
    errors.evicting_rows = rows;
    errors.key_error = key;
    errors.value_error = value;
    Sluice__V1__Statistics statistics = SLUICE__V1__STATISTICS__INIT;
    for (int i = 0; i < 3; i++) {
        char *text;
        size_t n_bytes;
        FILE *file = open_memstream(&text, &n_bytes);
        statistics.errors = i > 0 ? &errors : NULL;
        errors.n_key_error -= i == 2; // of a peer that is not ours
        sl_statistics_print(&statistics, file);
        fclose(file);
        const char *line =
            strstr(text, "errors       evicted attention 2.00% (4.00% in layer 1); quantization of K 0.00%, "
                         "of V 16.67% (50.00% in layer 2)\n");
        assert_int_equal(line != NULL, i == 1);
        assert_int_equal(strstr(text, "errors") != NULL, i == 1);
        free(text);
    }
}

// Shows "-" for a value that was never measured, and not a zero that looks like a measurement.
static void test_follow_shows_what_is_unknown_as_unknown(void **state) {
    (void)state;
    Sluice__V1__Statistics statistics = SLUICE__V1__STATISTICS__INIT;
    statistics.n_prompt_tokens = 4591;
    statistics.full_bytes = 20 << 20;
    for (int stored = 0; stored < 2; stored++) { // failed while it was queued; from a store
        char *text;
        size_t n_bytes;
        FILE *file = open_memstream(&text, &n_bytes);
        statistics.capsule_bytes = stored ? 1 << 20 : 0;
        statistics.n_reused_tokens = stored ? 4590 : 0;
        statistics.ttft_ms = stored;
        sl_statistics_print(&statistics, file);
        fclose(file);
        assert_non_null(strstr(text, "slots        -\n"));
        assert_non_null(strstr(text, stored ? "4591 tokens, 4590 of them reused, 1 read\n" : "4591 tokens\n"));
        assert_non_null(strstr(text, stored ? "1.0 MiB instead of 20.0 MiB" : "capsule      - instead of 20.0 MiB\n"));
        assert_non_null(strstr(text, stored ? "TTFT         1 ms: queue 0" : "TTFT         -\n"));
        assert_non_null(strstr(text, "TPOT         -, 0 tokens in - altogether\n"));
        assert_non_null(strstr(text, "resident KV  prefill -, decode -\n"));
        free(text);
    }
}

static void test_follow_says_what_is_kept(void **state) {
    (void)state;
    static const struct {
        Sluice__V1__Kept kept, kept_state;
        const char *line;
    } cases[] = {
        {SLUICE__V1__KEPT__KEPT_PENDING, 0, "kept         the prompt: on its way to a store\n"},
        {SLUICE__V1__KEPT__KEPT_NOT_TOO_LARGE, SLUICE__V1__KEPT__KEPT_STORED,
         "kept         the prompt: no, too_large; its beginning: in a store\n"},
        {SLUICE__V1__KEPT__KEPT_NOT_SAID, 99, NULL}, // of a newer worker
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Sluice__V1__Statistics statistics = SLUICE__V1__STATISTICS__INIT;
        statistics.kept = cases[i].kept;
        statistics.kept_state = cases[i].kept_state;
        char *text;
        size_t n_bytes;
        FILE *file = open_memstream(&text, &n_bytes);
        sl_statistics_print(&statistics, file);
        fclose(file);
        assert_true(cases[i].line ? strstr(text, cases[i].line) != NULL : strstr(text, "kept ") == NULL);
        free(text);
    }
}

static void test_follow_says_why_nothing_was_reused(void **state) {
    (void)state;
    for (int why = 0; why <= SLUICE__V1__NOT_CACHED__NOT_CACHED_FAILED + 1; why++) { // the last is of a newer worker
        Sluice__V1__Statistics statistics = SLUICE__V1__STATISTICS__INIT;
        statistics.n_prompt_tokens = 4591;
        statistics.capsule_bytes = 1;
        statistics.not_cached = (Sluice__V1__NotCached)why;
        const char *word = sl_not_cached_word(statistics.not_cached);
        assert_int_equal(word != NULL, why > 0 && why <= SLUICE__V1__NOT_CACHED__NOT_CACHED_FAILED);
        char *text, *line;
        size_t n_bytes;
        FILE *file = open_memstream(&text, &n_bytes);
        sl_statistics_print(&statistics, file);
        fclose(file);
        assert_true(asprintf(&line,
                             word ? "4591 tokens, 0 of them reused (not cached: %s), 4591 read\n"
                                  : "4591 tokens, 0 of them reused%s, 4591 read\n",
                             word ? word : "") > 0);
        assert_non_null(strstr(text, line));
        free(line);
        free(text);
    }
}

static void test_follow_says_why_documents_were_not_joined(void **state) {
    (void)state;
    for (int why = 0; why <= SLUICE__V1__NOT_JOINED__NOT_JOINED_UNAVAILABLE + 1;
         why++) { // the last is of a newer worker
        Sluice__V1__Statistics statistics = SLUICE__V1__STATISTICS__INIT;
        statistics.not_joined = (Sluice__V1__NotJoined)why;
        statistics.ttft_ms = 100;
        statistics.restore_ms = why;
        const char *word = sl_not_joined_word(statistics.not_joined);
        assert_int_equal(word != NULL, why > 0 && why <= SLUICE__V1__NOT_JOINED__NOT_JOINED_UNAVAILABLE);
        char *text, *line;
        size_t n_bytes;
        FILE *file = open_memstream(&text, &n_bytes);
        sl_statistics_print(&statistics, file);
        fclose(file);
        assert_true(asprintf(&line, "\ndocuments    read as one text (not joined: %s)\n", word ? word : "") > 0);
        assert_int_equal(strstr(text, line) != NULL, word != NULL);
        assert_int_equal(strstr(text, ", document back from disk ") != NULL, why > 0);
        free(line);
        free(text);
    }
}

static void test_follow_says_that_an_answer_is_empty(void **state) {
    (void)state;
    for (int chat = 0; chat < 2; chat++) {
        struct screen s;
        open_screen(&s, 0, false);
        s.follow.no_chat = !chat;
        send_token(&s, "");
        send_finished(&s, SLUICE__V1__FINISHED__REASON__STOP_TOKEN, 0, "");
        assert_int_equal(sl_follow_end(&s.follow, SL_OK, NULL), SL_EXIT_OK);
        flush_screen(&s);
        assert_string_equal(s.out, "");
        assert_non_null(strstr(s.err, "sluice run: the answer is empty: the model ended it at once"));
        assert_int_equal(strstr(s.err, "--chat") != NULL, !chat);
        close_screen(&s);
    }
}

static void test_follow_says_why_a_short_capsule_is_larger(void **state) {
    (void)state;
    Sluice__V1__Statistics statistics = SLUICE__V1__STATISTICS__INIT;
    char *text;
    size_t n_bytes;
    FILE *file = open_memstream(&text, &n_bytes);
    statistics.capsule_bytes = 2 << 20;
    statistics.full_bytes = 1 << 20;
    sl_statistics_print(&statistics, file);
    fclose(file);
    assert_non_null(strstr(text, "2.0 MiB instead of 1.0 MiB: whole pages of 64 slots\n"));
    free(text);
}

static void test_follow_draws_progress_on_a_terminal_until_the_answer(void **state) {
    (void)state;
    struct screen s;
    open_screen(&s, 80, false);
    send_prefill(&s, 1000, 1000);
    flush_screen(&s);
    assert_non_null(strstr(s.err, "100%"));
    send_token(&s, "x");
    flush_screen(&s);
    assert_string_equal(s.err + strlen(s.err) - 4, "\r\033[K"); // cleared before the answer
    size_t n = strlen(s.err);
    send_prefill(&s, 1000, 1000); // late: must not be drawn into the answer
    flush_screen(&s);
    assert_int_equal(strlen(s.err), n);
    close_screen(&s);
}

static void test_follow_json_is_lines_of_events(void **state) {
    (void)state;
    struct screen s;
    open_screen(&s, 80, true);
    send_prefill(&s, 1, 2);
    send_token(&s, "x");
    send_finished(&s, SLUICE__V1__FINISHED__REASON__LENGTH, 0, "");
    flush_screen(&s);
    int n_lines = 0;
    for (const char *c = s.out; *c; c++) {
        n_lines += *c == '\n';
    }
    assert_int_equal(n_lines, 3);
    assert_non_null(strstr(s.out, "\"tokens_done\":1"));
    assert_non_null(strstr(s.out, "\"reason\":\"LENGTH\""));
    assert_int_equal(s.err_bytes, 0);
    close_screen(&s);
}

static void test_follow_exit_codes_follow_the_end(void **state) {
    (void)state;
    static const struct {
        Sluice__V1__Finished__Reason reason;
        int code; // gRPC
        int exit_code;
    } ends[] = {
        {SLUICE__V1__FINISHED__REASON__STOP_STRING, 0, SL_EXIT_OK},
        {SLUICE__V1__FINISHED__REASON__LENGTH, 0, SL_EXIT_OK},
        {SLUICE__V1__FINISHED__REASON__ERROR, 13, SL_EXIT_FAILED},
        {SLUICE__V1__FINISHED__REASON__ERROR, 3, SL_EXIT_FAILED},
        {SLUICE__V1__FINISHED__REASON__ERROR, 4, SL_EXIT_DEADLINE},
        {SLUICE__V1__FINISHED__REASON__ERROR, 14, SL_EXIT_UNAVAILABLE},
        {SLUICE__V1__FINISHED__REASON__CANCELLED_BY_CLIENT, 1, SL_EXIT_CANCELLED},
    };
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        struct screen s;
        open_screen(&s, 0, false);
        send_finished(&s, ends[i].reason, ends[i].code, "decode-0 was lost");
        assert_int_equal(sl_follow_end(&s.follow, SL_OK, NULL), ends[i].exit_code);
        flush_screen(&s);
        assert_true(!strstr(s.err, "decode-0 was lost") == (ends[i].exit_code == SL_EXIT_OK));
        close_screen(&s);
    }
}

static void test_follow_stops_when_the_reader_has_gone(void **state) {
    (void)state;
    struct sl_watch watch = {0};
    struct screen s = {0};
    s.follow = (struct sl_follow){.command = "run", .out = fopen("/dev/full", "w"), .err = fopen("/dev/null", "w")};
    sl_follow_attach(&s.follow, &watch);
    s.watch = watch;
    assert_false(watch.stopped(watch.arg));
    send_token(&s, "x");
    assert_true(watch.stopped(watch.arg));
    send_finished(&s, SLUICE__V1__FINISHED__REASON__LENGTH, 0, "");
    assert_int_equal(sl_follow_end(&s.follow, SL_OK, NULL), SL_EXIT_FAILED);
    fclose(s.follow.out);
    fclose(s.follow.err);
}

static void test_follow_tells_of_an_outage_once(void **state) {
    (void)state;
    struct screen s;
    open_screen(&s, 0, false);
    struct sl_error why = {.status = SL_ERR_PEER_LOST, .text = "connection refused"};
    s.watch.on_reconnect(s.watch.arg, &why);
    s.watch.on_reconnect(s.watch.arg, &why);
    flush_screen(&s);
    const char *first = strstr(s.err, "connection refused");
    assert_non_null(first);
    assert_null(strstr(first + 1, "connection refused"));
    send_prefill(&s, 1, 2); // back again
    s.watch.on_reconnect(s.watch.arg, &why);
    flush_screen(&s);
    assert_non_null(strstr(strstr(s.err, "connection refused") + 1, "connection refused"));
    close_screen(&s);
}

// Reads what was written to a terminal, up to its mark "end".
static void test_follow_writes_no_commands_to_a_terminal(void **state) {
    (void)state;
    static const char text[] = "a\x1b]0;x\ab\tc\r\nd\x7f\xc2\x9b\xc2\xa0\xc3\xa9 end";
    struct screen s;
    int main_fd, terminal;
    char seen[128] = "";
    assert_int_equal(openpty(&main_fd, &terminal, NULL, NULL, NULL), 0);
    open_screen(&s, 0, false);
    send_token(&s, text);
    flush_screen(&s);
    assert_string_equal(s.out, text); // a file gets what the model wrote
    FILE *before = s.follow.out;
    s.follow.out = fdopen(terminal, "w");
    send_token(&s, text);
    for (size_t n = 0; !strstr(seen, "end");) {
        ssize_t got = read(main_fd, seen + n, sizeof seen - 1 - n);
        assert_true(got > 0);
        n += (size_t)got;
    }
    assert_string_equal(seen, "a?]0;x?b\tc\r\nd??\xc2\xa0\xc3\xa9 end"); // the terminal makes \n a \r\n
    fclose(s.follow.out);
    close(main_fd);
    s.follow.out = before;
    close_screen(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_follow_streams_the_answer_and_ends_with_statistics),
        cmocka_unit_test(test_one_worker_ships_nothing),
        cmocka_unit_test(test_follow_prints_error_estimates_where_there_are_some),
        cmocka_unit_test(test_follow_shows_what_is_unknown_as_unknown),
        cmocka_unit_test(test_follow_says_what_is_kept),
        cmocka_unit_test(test_follow_says_why_nothing_was_reused),
        cmocka_unit_test(test_follow_says_why_documents_were_not_joined),
        cmocka_unit_test(test_follow_says_that_an_answer_is_empty),
        cmocka_unit_test(test_follow_says_why_a_short_capsule_is_larger),
        cmocka_unit_test(test_follow_draws_progress_on_a_terminal_until_the_answer),
        cmocka_unit_test(test_follow_json_is_lines_of_events),
        cmocka_unit_test(test_follow_exit_codes_follow_the_end),
        cmocka_unit_test(test_follow_stops_when_the_reader_has_gone),
        cmocka_unit_test(test_follow_tells_of_an_outage_once),
        cmocka_unit_test(test_follow_writes_no_commands_to_a_terminal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
