// SPDX-License-Identifier: Apache-2.0
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include "scene.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tensor/cpu/tiers.h"
#include "tests/one_head.h"
#include "tests/stream.h"
#include "tests/unit/compress/evict/drive.h"

// The ops of this processor, and what attend_slots was last called with.
static struct sl_ops spy_ops;
static const struct sl_ops *real_ops;
int n_spied;
static uint32_t n_spied_rows[N_KV];
static float spied_k[N_KV][MAX_SLOTS][D], spied_v[N_KV][MAX_SLOTS][D];

static void spy_attend_slots(struct sl_stream *stream, const struct sl_attend *args, struct sl_lists slots,
                             struct sl_counts n) {
    n_spied++;
    for (int h = 0; h < N_KV; h++) {
        assert_true(n.host[h] <= MAX_SLOTS);
        n_spied_rows[h] = n.host[h];
        for (uint32_t i = 0; i < n.host[h]; i++) {
            uint32_t slot = slots.at[(size_t)h * slots.stride + i];
            assert_true(slot < args->heads.kv[h].n_slots);
            real_ops->read_rows(&args->heads.kv[h], slot, slot + 1, spied_k[h][i], spied_v[h][i]);
        }
    }
    real_ops->attend_slots(stream, args, slots, n);
}

// --- the scene -----------------------------------------------------------------------------------------------------

static void append_row(struct sl_session *session, int layer, int h, const float *k, const float *v, int64_t position) {
    struct sl_kv kv = sl_session_kv(session, layer, h);
    append_rows(real_ops, &kv, k, v, D, 1, &position);
    sl_session_set_slots(session, layer, h, kv.n_slots + 1);
}

static bool is_offloaded(int layer) {
    return layer == 1 || layer == 2;
}

void scene_append(struct scene *s, int n, float loudness) {
    for (int i = 0; i < n * N_LAYERS * N_KV; i++) { // token by token, layer by layer, head by head
        int t = s->n_tokens + i / (N_LAYERS * N_KV), l = i / N_KV % N_LAYERS, h = i % N_KV;
        bool into_session = s->session != s->whole && !(is_offloaded(l) && t < s->n_prompt);
        _Alignas(64) float k[D], v[D];
        if (h == 0) {
            assert_int_equal(sl_session_reserve(s->whole, l, 1), SL_OK);
            assert_int_equal(into_session ? sl_session_reserve(s->session, l, 1) : SL_OK, SL_OK);
        }
        for (int c = 0; c < D; c++) {
            uint64_t index = ((uint64_t)(l * N_KV + h) * MAX_SLOTS + (uint64_t)t) * D + (uint64_t)c;
            k[c] =
                loudness * (c % 3 == 0 ? 0.25f : 1.0f) * drive_value(5, DRIVE_K, index); // quiet channels: absmax tells
            v[c] = drive_value(5, DRIVE_V, index);
        }
        append_row(s->whole, l, h, k, v, t);
        if (into_session) {
            append_row(s->session, l, h, k, v, t);
        }
    }
    s->n_tokens += n;
    s->whole->n_tokens = s->session->n_tokens = s->n_tokens;
}

static void tell(void *arg, int layer, const char *why) {
    struct scene *s = arg;
    s->n_fallbacks++;
    s->fallback_layer = layer;
    snprintf(s->why, sizeof s->why, "%s", why);
}

enum sl_status scene_create(struct scene *s, struct sl_error *err) {
    struct sl_retriever_config config = {
        .plan = &s->plan,
        .ops = &spy_ops,
        .stream = s->stream,
        .arena = s->arena,
        .session = s->session,
        .source = &s->shares->base,
        .n_prompt = s->n_prompt,
        .resident_only = s->resident_only,
        .search_bytes = s->search_bytes,
        .least_recall = s->least_recall,
        .lost_ms = s->lost_ms,
        .on_fallback = tell,
        .arg = s,
    };
    return sl_retriever_create(&config, &s->retriever, err);
}

static void make_plan(struct scene *s) {
    s->plan.geometry = (struct sl_kv_geometry){N_LAYERS, N_KV, D};
    s->plan.n_prompt = s->n_prompt;
    s->plan.recipe = s->recipe;
    s->plan.recipe.sinks = SINKS;
    s->plan.recipe.recent.slots = RECENT;
    s->plan.recipe.topk = TOPK;
    s->plan.recipe.channels = s->recipe.channels > 0 ? s->recipe.channels : 4;
    for (int l = 0; l < N_LAYERS; l++) {
        assert_int_equal(sl_page_layout_init(&s->plan.work[l], SL_KV_F16, D, 0, false), SL_OK);
        s->plan.packed[l] = s->plan.work[l];
        if (is_offloaded(l)) {
            sl_layers_add(&s->plan.recipe.offload, l);
        }
    }
}

void scene_open(struct scene *s) {
    struct sl_error err = {0};
    s->group = s->group > 0 ? s->group : 3;
    s->n_prompt = s->n_prompt > 0 ? s->n_prompt : 200;
    make_plan(s);
    assert_int_equal(sl_ops_select(NULL, &real_ops, &err), SL_OK);
    spy_ops = *real_ops;
    spy_ops.attend_slots = spy_attend_slots;
    n_spied = 0;
    size_t bytes = 4 << 20;
    s->memory = aligned_alloc(SL_ARENA_UNIT, bytes);
    assert_non_null(s->memory);
    assert_int_equal(sl_arena_create(s->memory, bytes, &s->arena, &err), SL_OK);
    s->stream = test_stream_open(s->n_threads > 0 ? s->n_threads : 1);
    struct sl_session_config config = {s->plan.geometry, SL_POSITION_ORIGINAL, MAX_SLOTS, s->plan.work, s->plan.packed};
    assert_int_equal(sl_session_create(&config, s->arena, &s->whole, &err), SL_OK);
    s->session = s->whole;
    if (s->resident_only) {
        assert_int_equal(sl_session_create(&config, s->arena, &s->session, &err), SL_OK);
    }
    scene_append(s, s->n_prompt, 1.0f);
    struct sl_kv offloaded_heads[2 * N_KV];
    for (int i = 0; i < 2 * N_KV; i++) {
        offloaded_heads[i] = sl_session_kv(s->whole, 1 + i / N_KV, i % N_KV);
    }
    enum sl_kv_format scan = sl_plan_scan_format(&s->plan);
    s->shares = shares_create(real_ops, s->arena, offloaded_heads, 2 * N_KV, (uint32_t)s->n_prompt, scan,
                              s->n_shares > 0 ? s->n_shares : 1);
    if (scene_create(s, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
}

void scene_close(struct scene *s) {
    struct sl_arena_stats stats;
    sl_retriever_destroy(&s->retriever);
    assert_null(s->retriever);
    shares_destroy(&s->shares);
    if (s->session != s->whole) {
        sl_session_destroy(&s->session);
    }
    sl_session_destroy(&s->whole);
    sl_arena_get_stats(s->arena, &stats);
    assert_int_equal(stats.n_blocks, 0);
    sl_arena_destroy(&s->arena);
    test_stream_close(&s->stream);
    free(s->memory);
}

void scene_invent(struct scene *s, uint64_t seed) {
    for (int i = 0; i < s->group * N_KV * D; i++) {
        s->q[i] = drive_value(seed, DRIVE_Q, (uint64_t)i);
        s->next_q[i] = drive_value(seed, DRIVE_Q, 1000 + (uint64_t)i);
    }
}

enum sl_status scene_try(struct scene *s, int layer, bool with_next_q, struct sl_error *err) {
    for (int h = 0; h < N_KV; h++) {
        s->kv[h] = sl_session_kv(s->session, layer, h);
    }
    struct sl_attend attend = {
        .q = s->q,
        .m = 1,
        .n_heads = N_KV * s->group,
        .head_dim = D,
        .scale = 0.25f,
        .heads = {s->kv, N_KV},
        .out = s->out,
        .lse = s->lse,
        .next_q = with_next_q ? s->next_q : NULL,
    };
    return sl_retriever_attend(s->retriever, layer, &attend, err);
}

void scene_attend(struct scene *s, int layer, bool with_next_q) {
    struct sl_error err = {0};
    if (scene_try(s, layer, with_next_q, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
}

// --- the same, plainly ---------------------------------------------------------------------------------------------

// Returns whether item i is among the n best of values[count]: larger first, then the smaller index.
static bool is_best(const double *values, int count, int i, int n) {
    int better = 0;
    for (int j = 0; j < count; j++) {
        better += values[j] > values[i] || (values[j] == values[i] && j < i);
    }
    return better < n;
}

static void plain_mean(const struct scene *s, const float *q, int h, double *mean) {
    for (int c = 0; c < D; c++) {
        mean[c] = 0.0;
        for (int g = 0; g < s->group; g++) {
            mean[c] += (double)q[(h * s->group + g) * D + c] / s->group;
        }
    }
}

static void read_token(const struct scene *s, int layer, int h, int token, float *k, float *v) {
    struct sl_kv kv = sl_session_kv(s->whole, layer, h);
    real_ops->read_rows(&kv, (uint32_t)token, (uint32_t)token + 1, k, v);
}

static void plain_channels(const struct scene *s, int layer, int h, const float *by, bool *chosen) {
    double mean[D], value[D], absmax[D] = {0};
    float k[D];
    plain_mean(s, by, h, mean);
    for (int j = 0; j < s->n_prompt; j++) {
        read_token(s, layer, h, j, k, NULL);
        for (int c = 0; c < D; c++) {
            absmax[c] = fmax(absmax[c], fabs((double)k[c]));
        }
    }
    for (int c = 0; c < D; c++) {
        value[c] = fabs(mean[c]) * absmax[c];
    }
    for (int c = 0; c < D; c++) {
        chosen[c] = is_best(value, D, c, s->plan.recipe.channels);
    }
}

uint32_t plain_tokens(struct scene *s, int layer, int h, const float *by, const float *with, uint32_t *tokens) {
    int first = SINKS, last = s->n_prompt - RECENT, n = 0;
    double mean[D], scores[MAX_SLOTS];
    bool channels[D];
    float k[D];
    plain_mean(s, with, h, mean);
    plain_channels(s, layer, h, by, channels);
    for (int j = first; j < last; j++) {
        read_token(s, layer, h, j, k, NULL);
        scores[j - first] = 0.0;
        for (int c = 0; c < D; c++) {
            scores[j - first] += channels[c] ? mean[c] * (double)k[c] : 0.0;
        }
    }
    for (int j = 0; j < s->n_tokens; j++) {
        if (j < first || j >= last || is_best(scores, last - first, j - first, TOPK)) {
            tokens[n++] = (uint32_t)j;
        }
    }
    return (uint32_t)n;
}

uint32_t plain_common(const uint32_t *a, uint32_t n, const uint32_t *b) {
    uint32_t common = 0;
    for (uint32_t i = SINKS; i < SINKS + TOPK; i++) {
        for (uint32_t j = SINKS; j < SINKS + TOPK; j++) {
            common += i < n && j < n && a[i] == b[j];
        }
    }
    return common;
}

void assert_attended(struct scene *s, int layer, int h, const uint32_t *tokens, uint32_t n) {
    assert_int_equal(n_spied_rows[h], n);
    for (uint32_t i = 0; i < n; i++) {
        float k[D], v[D];
        read_token(s, layer, h, (int)tokens[i], k, v);
        if (memcmp(k, spied_k[h][i], sizeof k) != 0 || memcmp(v, spied_v[h][i], sizeof v) != 0) {
            fail_msg("layer %d, head %d: row %u of the list is not token %u", layer, h, i, tokens[i]);
        }
    }
    for (int g = h * s->group; g < (h + 1) * s->group; g++) {
        double sum = 0.0, out[D] = {0};
        for (uint32_t i = 0; i < n; i++) {
            double score = 0.0;
            for (int c = 0; c < D; c++) {
                score += 0.25 * (double)s->q[g * D + c] * (double)spied_k[h][i][c];
            }
            sum += exp(score);
            for (int c = 0; c < D; c++) {
                out[c] += exp(score) * (double)spied_v[h][i][c];
            }
        }
        assert_true(fabs(log(sum) - (double)s->lse[g]) < 1e-2 * (1.0 + fabs(log(sum))));
        for (int c = 0; c < D; c++) {
            assert_true(fabs(out[c] / sum - (double)s->out[g * D + c]) < 4e-2);
        }
    }
}

void assert_retrieved(struct scene *s, int layer, const float *by, const float *with) {
    for (int h = 0; h < N_KV; h++) {
        uint32_t tokens[MAX_SLOTS], n = plain_tokens(s, layer, h, by, with, tokens);
        assert_attended(s, layer, h, tokens, n);
    }
}
