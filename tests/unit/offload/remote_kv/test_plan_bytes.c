// SPDX-License-Identifier: Apache-2.0
// A plan's bytes in kvstores bound what segments take, however offloaded heads are divided over stores.
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "engine/compress/plan/plan.h"
#include "engine/offload/remote_kv/remote_kv.h"

// The segments of adjacent offloaded heads [first, first + n) as prefill ships them (net/offload/prefill/offload.h),
// and the blocks of those that are on their way together.
static size_t share_bytes(const struct sl_plan *plan, int first, int n, size_t *blocks_out) {
    int64_t end = 0, full = plan->n_prompt / SL_PAGE_SLOTS * SL_PAGE_SLOTS;
    size_t bytes = 0;
    *blocks_out = 0;
    for (int64_t begin = 0; begin < plan->n_prompt; begin = end) {
        end = begin + SL_KV_SEGMENT_TOKENS <= plan->n_prompt ? begin + SL_KV_SEGMENT_TOKENS
              : begin < full                                 ? full
                                                             : plan->n_prompt;
        struct sl_kv_segment_config config = {.begin = begin,
                                              .n_slots = (uint32_t)(end - begin),
                                              .first_offloaded_head = first,
                                              .n_offloaded_heads = n,
                                              .work = plan->work[1],
                                              .rows = sl_plan_row_format(plan),
                                              .scan = sl_plan_scan_format(plan)};
        size_t segment = sl_kv_segment_bytes(&config), block = sl_kv_segment_block_bytes(&config);
        assert_true(segment > 0 && block > 0);
        bytes += segment;
        *blocks_out += begin < SL_KV_SEGMENTS_QUEUED * SL_KV_SEGMENT_TOKENS ? block : 0;
    }
    return bytes;
}

static void test_plan_remote_kv_bytes_bound_segments(void **state) {
    (void)state;
    static const char *const rows[] = {"f32", "f16", "bf16", "int8"}, *const scans[] = {"stored", "int8", "int1"};
    srand(1);
    for (int round = 0; round < 500; round++) {
        struct sl_kv_geometry geometry = {1 + 1 + rand() % 6, 1 + rand() % 4, 8 << rand() % 5};
        int64_t n_prompt = 1 + rand() % 9000;
        char text[128];
        struct sl_recipe recipe;
        struct sl_plan plan;
        struct sl_error err;
        const char *format = rows[rand() % 4];
        snprintf(text, sizeof text, "place=offload/1-,format=%s,scan=%s,chunk=%d,channels=4", format, scans[rand() % 3],
                 64 * (1 + rand() % 16));
        if (sl_recipe_parse(text, &recipe, &err) != SL_OK ||
            sl_recipe_resolve(&recipe, NULL, geometry.n_layers, &err) != SL_OK ||
            sl_plan_make(&recipe, &geometry, n_prompt, 0, &plan, &err) != SL_OK) {
            fail_msg("%s: %s", text, err.text);
        }
        int n_offloaded_heads = (geometry.n_layers - 1) * geometry.n_kv_heads;
        size_t bytes = 0, blocks = 0;
        for (int first = 0; first < n_offloaded_heads;) {
            int n = 1 + rand() % (n_offloaded_heads - first);
            size_t shipped;
            bytes += share_bytes(&plan, first, n, &shipped);
            blocks += sl_plan_row_format(&plan) == SL_KV_INT8 ? shipped : 0; // there while rows are packed
            first += n;
        }
        size_t said = sl_plan_remote_kv_bytes(&plan);
        if (bytes + blocks > said || said > 2 * (bytes + blocks) + (1 << 20)) {
            fail_msg("%s, %lld tokens: %zu bytes and %zu, the plan says %zu", text, (long long)n_prompt, bytes, blocks,
                     said);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plan_remote_kv_bytes_bound_segments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
