// SPDX-License-Identifier: Apache-2.0
// Purpose: the progress line says what the events said, and never is wider than the terminal.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "client/cli/progress.h"

static const char *render(const struct sl_progress *progress, int width) {
    static char buf[256];
    return sl_progress_render(progress, width, buf, sizeof buf);
}

static void test_progress_bar_has_share_amount_and_note(void **state) {
    (void)state;
    struct sl_progress p = {.phase = "prefill", .done = 512, .total = 1024, .note = "resident 6.0 MiB"};
    assert_string_equal(render(&p, 79),
                        "prefill [==============>              ]  50%  512/1024 tokens  resident 6.0 MiB");
    assert_int_equal(strlen(render(&p, 200)),
                     strlen("prefill [] ") + 40 + strlen(" 50%  512/1024 tokens  resident 6.0 MiB"));
}

static void test_progress_bar_is_empty_and_full_at_its_ends(void **state) {
    (void)state;
    struct sl_progress p = {.phase = "ship", .done = 0, .total = 2048, .bytes = true};
    assert_string_equal(render(&p, 43), "ship [>                 ]   0%  0 B/2.0 KiB");
    p.done = 2048;
    assert_string_equal(render(&p, 43), "ship [==============] 100%  2.0 KiB/2.0 KiB");
    p.done = 5000; // more than the estimate
    assert_non_null(strstr(render(&p, 60), "100%"));
    p.done = -5;
    assert_non_null(strstr(render(&p, 60), "  0%"));
}

static void test_progress_without_total_has_no_bar(void **state) {
    (void)state;
    struct sl_progress p = {.phase = "ship", .done = 3 << 20, .bytes = true};
    assert_string_equal(render(&p, 79), "ship 3.0 MiB");
    p = (struct sl_progress){.phase = "queued"};
    assert_string_equal(render(&p, 79), "queued");
    p = (struct sl_progress){0};
    assert_string_equal(render(&p, 79), "");
}

static void test_progress_of_loading_names_the_model(void **state) {
    (void)state;
    char phase[SL_LOADING_PHASE_BYTES];
    static const char *const models[][2] = {{"smollm2", "loading smollm2"},
                                            {"/a/b/x.gguf", "loading x.gguf"},
                                            {"/a/b//", "loading b"},
                                            {"/", "loading "},
                                            {"a\033[2Jb\x7f\xc2\x9b", "loading a?[2Jb???"}};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        assert_string_equal(sl_progress_loading_phase(models[i][0], phase, sizeof phase), models[i][1]);
    }
    char name[200] = "";
    memset(name, 'x', sizeof name - 1);
    assert_int_equal(strlen(sl_progress_loading_phase(name, phase, sizeof phase)), sizeof phase - 1);
}

static const char *printed(const struct sl_progress *progress) {
    static char buf[256];
    FILE *file = fmemopen(buf, sizeof buf, "w");
    assert_non_null(file);
    sl_progress_print(progress, "sluice up", file);
    fclose(file);
    return buf;
}

static void test_progress_as_a_line(void **state) {
    (void)state;
    struct sl_progress p = {.phase = "loading x", .done = 43 << 20, .total = 100 << 20, .bytes = true};
    assert_string_equal(printed(&p), "sluice up: loading x: 43% of 100.0 MiB\n");
    strcpy(p.note, "decode-0 43%");
    assert_string_equal(printed(&p), "sluice up: loading x: 43% of 100.0 MiB, decode-0 43%\n");
    p.total = 0;
    assert_string_equal(printed(&p), "sluice up: loading x: 43.0 MiB, decode-0 43%\n");
    p = (struct sl_progress){.phase = "waiting for decode-0", .note = "12 s"};
    assert_string_equal(printed(&p), "sluice up: waiting for decode-0: 12 s\n");
}

static void test_progress_lines_are_seconds_apart(void **state) {
    (void)state;
    int64_t second = 1000000000, next_ns = 0;
    assert_false(sl_progress_is_due(&next_ns, 7 * second));
    assert_false(sl_progress_is_due(&next_ns, 8 * second - 1));
    assert_true(sl_progress_is_due(&next_ns, 8 * second));
    assert_false(sl_progress_is_due(&next_ns, 8 * second));
    assert_false(sl_progress_is_due(&next_ns, 13 * second - 1));
    assert_true(sl_progress_is_due(&next_ns, 20 * second)); // late
    assert_false(sl_progress_is_due(&next_ns, 24 * second));
}

static void test_progress_never_exceeds_the_width(void **state) {
    (void)state;
    struct sl_progress p = {.phase = "prefill", .total = 131072, .note = "resident 6.0 MiB, 65536 reused"};
    for (int width = 0; width < 120; width++) {
        for (p.done = 0; p.done <= p.total; p.done += 8191) {
            const char *line = render(&p, width);
            assert_true((int)strlen(line) <= width);
            // A bar that is begun is ended.
            if (width >= 45) {
                assert_true(!strchr(line, '[') == !strchr(line, ']'));
            }
        }
    }
    // The least important parts go first: the note, then the bar; the amount stays.
    p.done = 65536;
    assert_null(strstr(render(&p, 50), "resident"));
    assert_non_null(strstr(render(&p, 50), "["));
    assert_string_equal(render(&p, 40), "prefill  50%  65536/131072 tokens");
}

static void test_progress_respects_small_buffers(void **state) {
    (void)state;
    struct sl_progress p = {.phase = "prefill", .done = 1, .total = 2};
    char buf[10];
    memset(buf, 'x', sizeof buf);
    sl_progress_render(&p, 79, buf, 8);
    assert_int_equal(buf[7], '\0');
    assert_int_equal(buf[8], 'x');
}

static void test_progress_follows_events(void **state) {
    (void)state;
    struct sl_progress p = {0};
    Sluice__V1__Event event = SLUICE__V1__EVENT__INIT;
    Sluice__V1__StateChange change = SLUICE__V1__STATE_CHANGE__INIT;
    event.what_case = SLUICE__V1__EVENT__WHAT_STATE;
    event.state = &change;
    change.state = SLUICE__V1__JOB_STATE__QUEUED;
    assert_true(sl_progress_update(&p, &event));
    assert_string_equal(render(&p, 79), "queued");
    change.state = SLUICE__V1__JOB_STATE__DECODING;
    assert_false(sl_progress_update(&p, &event));

    Sluice__V1__PrefillProgress prefill = SLUICE__V1__PREFILL_PROGRESS__INIT;
    prefill.tokens_done = 100;
    prefill.tokens_total = 400;
    prefill.tokens_reused = 64;
    prefill.resident_bytes = 2048;
    event.what_case = SLUICE__V1__EVENT__WHAT_PREFILL;
    event.prefill = &prefill;
    assert_true(sl_progress_update(&p, &event));
    assert_non_null(strstr(render(&p, 100), "25%  100/400 tokens  resident 2.0 KiB, 64 reused"));

    Sluice__V1__ShipProgress ship = SLUICE__V1__SHIP_PROGRESS__INIT;
    ship.bytes_sent = 1024;
    event.what_case = SLUICE__V1__EVENT__WHAT_SHIP;
    event.ship = &ship;
    assert_true(sl_progress_update(&p, &event));
    assert_string_equal(render(&p, 79), "ship 1.0 KiB");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_progress_of_loading_names_the_model),
        cmocka_unit_test(test_progress_as_a_line),
        cmocka_unit_test(test_progress_lines_are_seconds_apart),
        cmocka_unit_test(test_progress_bar_has_share_amount_and_note),
        cmocka_unit_test(test_progress_bar_is_empty_and_full_at_its_ends),
        cmocka_unit_test(test_progress_without_total_has_no_bar),
        cmocka_unit_test(test_progress_never_exceeds_the_width),
        cmocka_unit_test(test_progress_respects_small_buffers),
        cmocka_unit_test(test_progress_follows_events),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
