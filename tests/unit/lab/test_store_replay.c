// SPDX-License-Identifier: Apache-2.0
// Replays of a small trace against a store's memory: hits that can be counted by hand, and for every policy the bounds of its results.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "lab/bench/replay/replay_report.h"

#define GIB ((int64_t)1 << 30)

// The geometry of the tests: 16 heads of 64, 4 KiB a token in f16.
static struct sl_replay_config make_config(const struct sl_workload *workload, const char *policy, int64_t bytes) {
    return (struct sl_replay_config){.workload = workload,
                                     .policy = sl_eviction_find(policy),
                                     .store_bytes = bytes,
                                     .geometry = {4, 4, 64},
                                     .format = SL_KV_F16,
                                     .ms_per_token = 0.1,
                                     .chunk_tokens = 512,
                                     .n_tenants = 1};
}

static struct sl_replay_result replay(const struct sl_replay_config *config) {
    struct sl_replay_result result;
    struct sl_error err = {0};
    assert_int_equal(sl_replay_run(config, &result, &err), SL_OK);
    return result;
}

// Three turns of a conversation, and one whose capsule is still being read when the next begins.
static void test_store_replay_counts_hits(void **state) {
    (void)state;
    int64_t blocks[] = {1, 2, 3, 1, 2, 4, 5, 1, 2, 4, 6, 1, 2, 4, 6};
    struct sl_workload_arrival arrivals[] = {
        {0, 1536, 1, 0, 3},     // reads all; stored after 0.16 s
        {10, 1900, 1, 3, 4},    // its first two blocks are there
        {10.01, 2048, 1, 7, 4}, // the second is being read: two blocks again
        {20, 2048, 1, 11, 4},   // the same prompt: all of it
    };
    struct sl_workload workload = {arrivals, 4, blocks, 15, 20};
    struct sl_replay_config config = make_config(&workload, "lru", GIB);
    struct sl_replay_result result = replay(&config);
    assert_int_equal(result.n_requests, 4);
    assert_int_equal(result.n_hits, 3);
    assert_int_equal(result.hit_tokens, 1024 + 1024 + 2048);
    assert_int_equal(result.prompt_tokens, 1536 + 1900 + 2048 + 2048);
    assert_int_equal(result.n_evicted, 0);
    size_t bytes;
    assert_int_equal(sl_replay_capsule_bytes(&config, 1900, &bytes, NULL), SL_OK);
    assert_int_equal(bytes, 1920 * 4096); // whole pages of 64
    assert_true(result.stored_bytes == (1536.0 + 1920 + 2048) * 4096);
    assert_true(result.saved_ms > 409 && result.saved_ms < 430); // 4096 tokens at 0.1 ms, and a little more
}

static void test_store_replay_every_policy_stays_in_its_bounds(void **state) {
    (void)state;
    struct sl_workload workload;
    assert_int_equal(sl_workload_draw_conversations(400, 3, &workload, NULL), SL_OK);
    struct sl_replay_config config = make_config(&workload, "lru", 32 * GIB);
    config.n_tenants = 3;
    struct sl_replay_result all = replay(&config);
    assert_int_equal(all.n_evicted, 0);
    const struct sl_eviction_policy *policy;
    for (size_t i = 0; (policy = sl_eviction_at(i)) != NULL; i++) {
        config = make_config(&workload, policy->name, GIB);
        config.n_tenants = 3;
        config.ttl_ms = 30000;
        struct sl_replay_result result = replay(&config), again = replay(&config);
        assert_memory_equal(&result, &again, sizeof result); // nothing depends on the real clock
        assert_int_equal(result.n_requests, 400);
        assert_true(result.n_evicted > 50);
        assert_int_equal(result.n_refused, 0);
        assert_true(result.most_bytes <= GIB / 100 * 90);
        assert_true(result.hit_tokens > 0 && result.hit_tokens <= all.hit_tokens);
        int64_t tokens = 0, hits = 0;
        for (int k = 0; k < 3; k++) {
            tokens += result.tenants[k].prompt_tokens;
            hits += result.tenants[k].hit_tokens;
        }
        assert_int_equal(tokens, result.prompt_tokens);
        assert_int_equal(hits, result.hit_tokens);
    }
    sl_workload_cleanup(&workload);
}

// The default must not lose to LRU where conversations go on.
static void test_store_replay_the_default_beats_lru(void **state) {
    (void)state;
    struct sl_workload workload;
    assert_int_equal(sl_workload_draw_conversations(600, 5, &workload, NULL), SL_OK);
    struct sl_replay_config lru = make_config(&workload, "lru", 3 * GIB / 2),
                            best = make_config(&workload, SL_EVICTION_DEFAULT, 3 * GIB / 2);
    assert_true(replay(&best).saved_ms > replay(&lru).saved_ms);
    sl_workload_cleanup(&workload);
}

static enum sl_status stop(void *arg, struct sl_error *err) {
    return --*(int *)arg > 0 ? SL_OK : sl_fail(err, SL_ERR_CANCELLED, "stopped");
}

static void test_store_replay_stops_and_frees(void **state) {
    (void)state;
    struct sl_workload workload;
    int left = 50;
    struct sl_replay_result result;
    struct sl_error err = {0};
    assert_int_equal(sl_workload_draw_conversations(100, 1, &workload, NULL), SL_OK);
    struct sl_replay_config config = make_config(&workload, "cost", GIB);
    config.check = stop;
    config.arg = &left;
    assert_int_equal(sl_replay_run(&config, &result, &err), SL_ERR_CANCELLED);
    config.store_bytes = 3000 * GIB;
    config.check = NULL;
    enum sl_status status = sl_replay_run(&config, &result, &err);
    assert_true(status == SL_ERR_INVALID || status == SL_ERR_EXHAUSTED); // the second where address space is short
    sl_workload_cleanup(&workload);
}

// Loads a report's workload from this text; returns the error's text, which is valid until the next call.
static const char *complaint(const char *text) {
    static struct sl_error err;
    char path[] = "/tmp/sluice-replay-XXXXXX";
    FILE *file = fdopen(mkstemp(path), "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    struct sl_replay_report *report = calloc(1, sizeof *report);
    report->config = make_config(NULL, "lru", GIB);
    err = (struct sl_error){0};
    enum sl_status status = sl_replay_load(report, &(struct sl_replay_source){.trace = path}, &err);
    assert_int_equal(status == SL_OK, err.text[0] == '\0');
    sl_workload_cleanup(&report->workload);
    free(report);
    remove(path);
    return err.text;
}

#define ROW(ms, length, ids)                                                                                           \
    "{\"timestamp\": " ms ", \"input_length\": " length ", \"output_length\": 1, \"hash_ids\": " ids "}\n"

static void test_store_replay_says_which_row_is_wrong(void **state) {
    (void)state;
    assert_string_equal(complaint(ROW("5", "5", "[1]") ROW("5", "513", "[1, 2]")), "");
    assert_non_null(strstr(complaint(ROW("5", "5", "[1]") ROW("3", "5", "[1]")), ":2: timestamp 3 is before"));
    assert_non_null(strstr(complaint(ROW("5", "-5", "[1]")), ":1: input_length -5"));
    assert_non_null(strstr(complaint(ROW("5", "5", "[1]") "\n" ROW("5", "5", "[\"x\"]")), ":3: hash_ids[0] is not an"));
    assert_non_null(strstr(complaint(ROW("5", "5", "[]")), ":1: 0 hash_ids"));
    assert_non_null(strstr(complaint(""), "has no requests"));
    assert_non_null(
        strstr(complaint("{\"timestamp\": 5, \"input_length\": 5, \"output_length\": 1}"), "no request has hash_ids"));
    struct sl_replay_report *report = calloc(1, sizeof *report);
    struct sl_error err = {0};
    assert_int_equal(sl_replay_load(report, &(struct sl_replay_source){.trace = "/nowhere/trace"}, &err),
                     SL_ERR_NOT_FOUND);
    assert_non_null(strstr(err.text, "github.com/kvcache-ai/Mooncake"));
    free(report);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_store_replay_counts_hits),
        cmocka_unit_test(test_store_replay_every_policy_stays_in_its_bounds),
        cmocka_unit_test(test_store_replay_the_default_beats_lru),
        cmocka_unit_test(test_store_replay_stops_and_frees),
        cmocka_unit_test(test_store_replay_says_which_row_is_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
