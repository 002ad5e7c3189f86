// SPDX-License-Identifier: Apache-2.0
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include "drive.h"
#include "engine/tensor/cpu/tiers.h"
#include "tests/stream.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define DRIVE_STEPS 512 // tokens that can follow the prompt

// The finalizer of splitmix64, its upper 8 bits as a signed number.
float drive_value(uint64_t seed, enum drive_stream stream, uint64_t index) {
    uint64_t z = (seed * 4 + (uint64_t)stream) * 0x9e3779b97f4a7c15u + index;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    return (float)((int)(z >> 56) - 128) / 32.0f;
}

float drive_element(const struct drive *drive, enum drive_stream stream, int layer, int64_t token, int head, int c) {
    const struct sl_kv_geometry *g = &drive->plan.geometry;
    uint64_t n_heads = (uint64_t)g->n_kv_heads * (stream == DRIVE_Q ? (uint64_t)drive->group : 1);
    token = (drive->flat && stream == DRIVE_V) || (drive->alike && stream == DRIVE_K) ? 0 : token;
    int width = stream == DRIVE_IMPORTANCE ? 1 : g->head_dim;
    uint64_t row = ((uint64_t)layer * (uint64_t)drive->plan.n_prompt + (uint64_t)token) * n_heads + (uint64_t)head;
    return drive_value(drive->seed, stream, row * (uint64_t)width + (uint64_t)c);
}

void drive_start(struct drive *drive, const char *text, const struct sl_kv_geometry *geometry, int group,
                 int64_t n_prompt, uint64_t seed, float scale, int n_threads) {
    struct sl_error err;
    struct sl_recipe recipe;
    memset(drive, 0, sizeof *drive);
    drive->group = group;
    drive->seed = seed;
    drive->scale = scale;
    if (sl_recipe_parse(text, &recipe, &err) != SL_OK ||
        sl_recipe_resolve(&recipe, NULL, geometry->n_layers, &err) != SL_OK ||
        sl_plan_make_local(&recipe, geometry, n_prompt, 0, &drive->plan, &err) != SL_OK) {
        fail_msg("%s: %s", text, err.text);
    }
    size_t bytes = 2 * drive->plan.prefill_peak_bytes + (1 << 16);
    drive->memory = aligned_alloc(SL_ARENA_UNIT, (bytes + SL_ARENA_UNIT - 1) / SL_ARENA_UNIT * SL_ARENA_UNIT);
    assert_non_null(drive->memory);
    assert_int_equal(sl_arena_create(drive->memory, bytes, &drive->arena, &err), SL_OK);
    assert_int_equal(sl_ops_select(NULL, &drive->ops, &err), SL_OK);
    drive->stream = test_stream_open(n_threads);
    assert_int_equal(sl_plan_create_session(&drive->plan, DRIVE_STEPS, drive->arena, &drive->session, &err), SL_OK);
    assert_int_equal(sl_compressor_create(&drive->plan, drive->ops, drive->stream, &drive->compressor, &err), SL_OK);
    assert_true(geometry->head_dim / 2 <= 64);
    for (int i = 0; i < geometry->head_dim / 2; i++) {
        drive->inv_freq[i] = pow(10000.0, -2.0 * i / geometry->head_dim);
    }
    drive->rope = (struct sl_rope){geometry->head_dim, geometry->head_dim, drive->inv_freq, 1.0};
}

struct sl_kv drive_kv(const struct drive *drive, int layer, int head) {
    return sl_session_kv(drive->session, layer, head);
}

static float *floats(int64_t count) {
    float *data = aligned_alloc(64, ((size_t)count * sizeof *data + 63) / 64 * 64);
    assert_non_null(data);
    return data;
}

static float *rows(const struct drive *drive, enum drive_stream stream, int layer, int m, int n_heads) {
    int d = drive->plan.geometry.head_dim;
    float *data = floats((int64_t)m * n_heads * d);
    for (int64_t r = 0, i = 0; r < m; r++) {
        for (int h = 0; h < n_heads; h++) {
            for (int c = 0; c < d; c++) {
                data[i++] = drive_element(drive, stream, layer, drive->n_read + r, h, c);
            }
        }
    }
    return data;
}

enum sl_status drive_layer(struct drive *drive, int layer, int m, bool last, struct sl_error *err) {
    int n_kv = drive->plan.geometry.n_kv_heads, d = drive->plan.geometry.head_dim, n_heads = n_kv * drive->group;
    float *q = rows(drive, DRIVE_Q, layer, m, n_heads), *k = rows(drive, DRIVE_K, layer, m, n_kv);
    float *v = rows(drive, DRIVE_V, layer, m, n_kv), *out = floats((int64_t)m * n_heads * d);
    float *lse = floats((int64_t)m * n_heads);
    struct sl_compressor_wants wants = sl_compressor_wants(drive->compressor, drive->stepping);
    struct sl_kv *kv = calloc((size_t)n_kv, sizeof *kv);
    int64_t *positions = calloc((size_t)m, sizeof *positions);
    float *importance = floats((int64_t)n_kv * m);
    assert_true(kv != NULL && positions != NULL);
    for (int r = 0; r < m; r++) {
        positions[r] = drive->n_read + r;
        for (int h = 0; h < n_kv; h++) {
            importance[r * n_kv + h] = drive_element(drive, DRIVE_IMPORTANCE, layer, drive->n_read + r, h, 0);
        }
    }
    assert_int_equal(sl_session_reserve(drive->session, layer, m), SL_OK);
    sl_session_add_slots(drive->session, layer, m);
    struct sl_attend attend = {
        .q = q,
        .k = k,
        .v = v,
        .m = m,
        .n_heads = n_heads,
        .head_dim = d,
        .scale = drive->scale,
        .heads = sl_session_heads(drive->session, layer, kv),
        .positions = positions,
        .rope = drive->session->positions == SL_POSITION_SLOT ? &drive->rope : NULL,
        .out = out,
        .lse = wants.lse ? lse : NULL,
        .importance = wants.importance ? importance : NULL,
    };
    drive->ops->append(drive->stream, &attend, 1);
    if (attend.lse != NULL && (drive->stepping || !sl_compressor_attend(drive->compressor, layer, &attend))) {
        drive->ops->attend(drive->stream, &attend, 1); // attention itself matters only to tests that read it
    }
    bool final = false;
    enum sl_status status =
        drive->stepping ? sl_compressor_step(drive->compressor, drive->session, layer, &attend, err)
                        : sl_compressor_layer(drive->compressor, drive->session, layer, &attend, last, &final, err);
    drive->n_final += final;
    free(q), free(k), free(v), free(out), free(lse), free(kv), free(positions), free(importance);
    return status;
}

static void read_tokens(struct drive *drive, int m, bool last) {
    struct sl_error err;
    for (int l = 0; l < drive->plan.geometry.n_layers; l++) {
        if (drive_layer(drive, l, m, last, &err) != SL_OK) {
            fail_msg("layer %d: %s", l, err.text);
        }
    }
    drive->n_read += m;
    drive->session->n_tokens = drive->n_read;
}

void drive_chunk(struct drive *drive, int m, bool last) {
    struct sl_error err;
    read_tokens(drive, m, last);
    if (last && sl_compressor_end(drive->compressor, drive->session, &err) != SL_OK) {
        fail_msg("end: %s", err.text);
    }
}

bool drive_next_chunk(struct drive *drive) {
    int64_t n_prompt = drive->plan.n_prompt, chunk = drive->plan.recipe.chunk_tokens, begin = drive->n_read;
    int64_t end = (begin / chunk + 1) * chunk, body = sl_plan_body_tokens(&drive->plan);
    if (begin >= n_prompt) {
        return false;
    }
    end = begin < body && end > body ? body : end;
    end = end < n_prompt ? end : n_prompt;
    drive_chunk(drive, (int)(end - begin), end == n_prompt);
    return true;
}

void drive_step(struct drive *drive, int m) {
    struct sl_error err;
    if (!drive->stepping &&
        sl_compressor_begin_steps(drive->compressor, drive->session, drive->n_read, &err) != SL_OK) {
        fail_msg("begin_steps: %s", err.text);
    }
    drive->stepping = true;
    read_tokens(drive, m, false);
}

void drive_stop(struct drive *drive) {
    struct sl_arena_stats stats;
    sl_compressor_destroy(&drive->compressor);
    sl_session_destroy(&drive->session);
    sl_arena_get_stats(drive->arena, &stats);
    assert_int_equal(stats.n_blocks, 0);
    assert_int_equal(stats.used_bytes, 0);
    sl_arena_destroy(&drive->arena);
    test_stream_close(&drive->stream);
    free(drive->memory);
}
