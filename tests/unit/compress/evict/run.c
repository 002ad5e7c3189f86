// SPDX-License-Identifier: Apache-2.0
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include "run.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "drive.h"
#include "engine/tensor/cpu/device.h"
#include "engine/tensor/cpu/tiers.h"

static int query_heads(const struct run *run) {
    return run->geometry.n_kv_heads * run->group;
}

float run_element(const struct run *run, enum run_stream stream, int layer, int64_t token, int head, int c) {
    bool query = stream == RUN_Q || stream == RUN_NEXT_Q, scalar = stream == RUN_CIS_HIGH || stream == RUN_CIS_LOW;
    int64_t n_heads = query ? query_heads(run) : run->geometry.n_kv_heads, width = scalar ? 1 : run->geometry.head_dim;
    int64_t row = ((int64_t)layer * (run->n_prompt + run->n_steps) + token) * n_heads + head;
    float value = drive_value(run->seed, (enum drive_stream)stream, (uint64_t)(row * width + c));
    return query ? value * (float)(1 + (head + 2 * layer) % 4) / 2 : value;
}

void run_start(struct run *run, const char *text) {
    struct sl_error err;
    struct sl_recipe recipe;
    if (run->element == NULL) {
        run->element = run_element;
    }
    assert_in_range(run->geometry.n_layers, 1, RUN_MAX_LAYERS);
    assert_true(run->geometry.head_dim / 2 <= (int)(sizeof run->inv_freq / sizeof run->inv_freq[0]));
    if (sl_recipe_parse(text, &recipe, &err) != SL_OK ||
        sl_recipe_resolve(&recipe, NULL, run->geometry.n_layers, &err) != SL_OK ||
        sl_plan_make_local(&recipe, &run->geometry, run->n_prompt, 0, &run->plan, &err) != SL_OK) {
        fail_msg("%s: %s", text, err.text);
    }
    size_t n_heads = (size_t)run->geometry.n_layers * (size_t)run->geometry.n_kv_heads;
    size_t bytes = 2 * run->plan.prefill_peak_bytes + (1 << 16) +
                   n_heads * (sl_pages_for(run->n_steps) + 1) * (size_t)run->plan.work[0].bytes;
    bytes = (bytes + SL_ARENA_UNIT - 1) / SL_ARENA_UNIT * SL_ARENA_UNIT;
    run->memory = aligned_alloc(SL_ARENA_UNIT, bytes);
    assert_non_null(run->memory);
    assert_int_equal(sl_arena_create(run->memory, bytes, &run->arena, &err), SL_OK);
    assert_int_equal(sl_ops_select(run->tier, &run->ops, &err), SL_OK);
    assert_int_equal(sl_plan_create_session(&run->plan, run->n_steps, run->arena, &run->session, &err), SL_OK);
    if (sl_compressor_create(&run->plan, run->ops, sl_cpu_caller(), &run->compressor, &err) != SL_OK) {
        fail_msg("%s: %s", text, err.text);
    }
    for (int i = 0; i < run->geometry.head_dim / 2; i++) {
        run->inv_freq[i] = pow(10000.0, -2.0 * i / run->geometry.head_dim);
    }
    run->rope = (struct sl_rope){run->geometry.head_dim, run->geometry.head_dim, run->inv_freq, 1.0};
}

struct sl_kv run_kv(const struct run *run, int layer, int head) {
    return sl_session_kv(run->session, layer, head);
}

static float *floats(int64_t count) {
    float *data = aligned_alloc(64, ((size_t)count * sizeof *data + 63) / 64 * 64);
    assert_non_null(data);
    return data;
}

static float *rows(const struct run *run, enum run_stream stream, int layer, int m, int n_heads) {
    int d = run->geometry.head_dim;
    float *data = floats((int64_t)m * n_heads * d);
    for (int64_t r = 0, i = 0; r < m; r++) {
        for (int h = 0; h < n_heads; h++) {
            for (int c = 0; c < d; c++) {
                data[i++] = run->element(run, stream, layer, run->n_read + r, h, c);
            }
        }
    }
    return data;
}

static float *importance(const struct run *run, int layer, int m) {
    float *data = floats((int64_t)run->geometry.n_kv_heads * m);
    for (int64_t r = 0, i = 0; r < m; r++) {
        for (int h = 0; h < run->geometry.n_kv_heads; h++) {
            data[i++] = run->element(run, RUN_CIS_HIGH, layer, run->n_read + r, h, 0) +
                        run->element(run, RUN_CIS_LOW, layer, run->n_read + r, h, 0) / 256;
        }
    }
    return data;
}

// Append m tokens; kv[n_kv_heads] describes the heads then.
static void append(struct run *run, int layer, int m, struct sl_kv *kv) {
    int n_kv = run->geometry.n_kv_heads;
    float *k = rows(run, RUN_K, layer, m, n_kv), *v = rows(run, RUN_V, layer, m, n_kv);
    int64_t *positions = calloc((size_t)m, sizeof *positions);
    assert_non_null(positions);
    for (int r = 0; r < m; r++) {
        positions[r] = run->n_read + r;
    }
    assert_int_equal(sl_session_reserve(run->session, layer, m), SL_OK);
    sl_session_add_slots(run->session, layer, m);
    struct sl_attend attend = {
        .k = k, .v = v, .m = m, .heads = sl_session_heads(run->session, layer, kv), .positions = positions};
    run->ops->append(NULL, &attend, 1);
    free(k), free(v), free(positions);
}

static void must(enum sl_status status, const struct sl_error *err, const char *what, int layer) {
    if (status != SL_OK) {
        fail_msg("%s, layer %d: %s", what, layer, err->text);
    }
}

static void layer_pass(struct run *run, int layer, int m, enum run_pass kind) {
    struct sl_error err;
    int n_kv = run->geometry.n_kv_heads, n_heads = query_heads(run), d = run->geometry.head_dim;
    struct sl_compressor_wants wants = sl_compressor_wants(run->compressor, kind == RUN_STEP);
    struct sl_kv *kv = calloc((size_t)n_kv, sizeof *kv);
    assert_non_null(kv);
    append(run, layer, m, kv);
    free(run->q[layer]), free(run->out[layer]);
    run->q[layer] = rows(run, RUN_Q, layer, m, n_heads);
    run->out[layer] = floats((int64_t)m * n_heads * d);
    bool above = layer + 1 < run->geometry.n_layers;
    float *lse = wants.lse ? floats((int64_t)m * n_heads) : NULL;
    float *scores = wants.importance ? importance(run, layer, m) : NULL;
    bool retrieves = run->offloaded.retriever != NULL;
    float *next_q = retrieves && above ? rows(run, RUN_NEXT_Q, layer + 1, m, n_heads) : NULL;
    struct sl_attend attend = run_attend(run, layer, 0, kv, run->out[layer]);
    attend.m = m, attend.lse = lse, attend.importance = scores, attend.next_q = next_q;
    if (retrieves) {
        must(sl_retriever_attend(run->offloaded.retriever, layer, &attend, &err), &err, "attend", layer);
    } else if (kind == RUN_STEP || !sl_compressor_attend(run->compressor, layer, &attend)) { // as readers do
        run->ops->attend(NULL, &attend, 1);
    }
    bool final = false;
    if (kind != RUN_STEP) {
        must(sl_compressor_layer(run->compressor, run->session, layer, &attend, kind == RUN_LAST, &final, &err), &err,
             "chunk", layer);
    } else if (sl_compressor_steps(run->compressor)) {
        must(sl_compressor_step(run->compressor, run->session, layer, &attend, &err), &err, "step", layer);
    }
    free(kv), free(lse), free(scores), free(next_q);
}

struct sl_attend run_attend(const struct run *run, int layer, int row, const struct sl_kv *kv, float *out) {
    int n_heads = query_heads(run), d = run->geometry.head_dim;
    return (struct sl_attend){
        .q = run->q[layer] + (ptrdiff_t)row * n_heads * d,
        .m = 1,
        .n_heads = n_heads,
        .head_dim = d,
        .scale = run->scale,
        .heads = {kv, run->geometry.n_kv_heads},
        .rope = run->session->positions == SL_POSITION_SLOT ? &run->rope : NULL,
        .out = out,
    };
}

void run_pass(struct run *run, int m, enum run_pass kind) {
    struct sl_error err;
    if (kind == RUN_STEP && run->n_read == run->n_prompt) {
        if (sl_compressor_steps(run->compressor)) {
            must(sl_compressor_begin_steps(run->compressor, run->session, run->n_prompt, &err), &err, "begin", 0);
        }
        if (sl_recipe_offloads(&run->plan.recipe)) {
            struct sl_retriever_config config = {.plan = &run->plan,
                                                 .ops = run->ops,
                                                 .stream = sl_cpu_caller(),
                                                 .arena = run->session->arena,
                                                 .session = run->session,
                                                 .n_prompt = sl_plan_offloaded_slots(&run->plan, run->n_prompt)};
            must(sl_retrieval_open_local(&config, run->session, &run->offloaded, &err), &err, "retriever", 0);
        }
    }
    bool repeats = sl_recipe_repeats(&run->plan.recipe);
    if (kind == RUN_REPEAT) {
        sl_compressor_repeat(run->compressor);
    }
    for (int l = 0; l < run->geometry.n_layers; l++) {
        layer_pass(run, l, m, kind);
    }
    run->n_rows = m;
    run->n_read += m;
    run->session->n_tokens += m;
    if (kind == RUN_REPEAT) {
        must(sl_session_truncate(run->session, run->n_prompt, &err), &err, "truncate", 0);
    }
    if (repeats ? run->n_read == run->n_prompt + run->n_steps : kind == RUN_LAST) {
        must(sl_compressor_end(run->compressor, run->session, &err), &err, "end", 0);
    }
}

void run_prompt(struct run *run, int chunk) {
    int64_t body = sl_plan_body_tokens(&run->plan);
    while (run->n_read < run->n_prompt) {
        int64_t end = run->n_read < body ? body : run->n_prompt, left = end - run->n_read;
        int m = (int)(left < chunk ? left : chunk);
        run_pass(run, m, run->n_read + m == run->n_prompt ? RUN_LAST : RUN_CHUNK);
    }
}

int64_t *run_positions(const struct run *run, int layer, int head, uint32_t *n_out) {
    struct sl_kv kv = run_kv(run, layer, head);
    int64_t *positions = calloc(kv.n_slots + 1, sizeof *positions);
    assert_non_null(positions);
    run->ops->read_positions(&kv, positions);
    *n_out = kv.n_slots;
    return positions;
}

void run_stop(struct run *run) {
    struct sl_arena_stats stats;
    sl_retrieval_close(&run->offloaded);
    sl_compressor_destroy(&run->compressor);
    sl_session_destroy(&run->session);
    sl_arena_get_stats(run->arena, &stats);
    assert_int_equal(stats.n_blocks, 0);
    sl_arena_destroy(&run->arena);
    free(run->memory);
    for (int l = 0; l < RUN_MAX_LAYERS; l++) {
        free(run->q[l]), free(run->out[l]);
    }
}
