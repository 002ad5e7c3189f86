// SPDX-License-Identifier: Apache-2.0
// Capsules are equal byte by byte on every backend: from equal pages and scores, the CPU and a device choose, compact, quantize and collect
// the same bits.
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "engine/runtime/transfer.h"
#include "engine/tensor/half.h"
#include "tests/unit/capsule_body.h"

enum { LAYERS = 2, HEADS = 3, DIM = 64, SLOTS = 700, STATES = 2 };

static uint64_t seed;

static float random_float(void) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (float)(int32_t)(seed >> 32) * 0x1p-29f;
}

static void fill_page(const struct sl_page_layout *layout, uint32_t page, char *at) {
    memset(at, 0, layout->bytes);
    for (int i = 0; i < SL_PAGE_SLOTS * DIM; i++) {
        ((uint16_t *)(at + layout->k))[i] = sl_f32_to_f16(random_float());
        ((uint16_t *)(at + layout->v))[i] =
            sl_f32_to_f16(i / DIM % 7 == 0 ? 0.25f : random_float()); // a scale of 0, too
    }
    for (int j = 0; j < SL_PAGE_SLOTS; j++) {
        ((int32_t *)(at + layout->positions))[j] = (int32_t)(page * SL_PAGE_SLOTS) * 2 + j;
        for (int s = 0; s < STATES; s++) {
            ((float *)(at + layout->states))[s * SL_PAGE_SLOTS + j] = random_float();
        }
    }
}

static struct sl_session *make_session(const struct sl_runtime *r, enum sl_kv_format packed_format) {
    struct sl_page_layout work[LAYERS], packed[LAYERS];
    struct sl_session *session;
    for (int l = 0; l < LAYERS; l++) {
        assert_int_equal(sl_page_layout_init(&work[l], SL_KV_F16, DIM, STATES, true), SL_OK);
        assert_int_equal(sl_page_layout_init(&packed[l], packed_format, DIM, l % 2 == 0 ? STATES : 0, true), SL_OK);
    }
    struct sl_session_config config = {{LAYERS, HEADS, DIM}, SL_POSITION_ORIGINAL, SLOTS, work, packed};
    assert_int_equal(sl_session_create(&config, r->arena, &session, NULL), SL_OK);
    char *page = malloc(work[0].bytes);
    seed = 7;
    for (int l = 0; l < LAYERS; l++) {
        assert_int_equal(sl_session_reserve(session, l, SLOTS), SL_OK);
        sl_session_add_slots(session, l, SLOTS);
        for (int h = 0; h < HEADS; h++) {
            for (uint32_t p = 0; p < session->layers[l].heads[h].n_pages; p++) {
                fill_page(&work[l], p, page);
                assert_int_equal(sl_transfer_in(r, session->layers[l].heads[h].pages[p], page, work[l].bytes, NULL),
                                 SL_OK);
            }
        }
    }
    session->n_tokens = SLOTS;
    free(page);
    return session;
}

// Ties, a NaN, infinities.
static void *make_scores(const struct sl_runtime *r) {
    float scores[HEADS][SLOTS];
    for (int h = 0; h < HEADS; h++) {
        for (int j = 0; j < SLOTS; j++) {
            scores[h][j] = j % 97 == 0 ? NAN : j % 89 == 0 ? INFINITY : roundf(random_float() * 16);
        }
    }
    void *there = sl_device_alloc(r->device, SL_MEMORY_DEVICE, sizeof scores);
    assert_non_null(there);
    assert_int_equal(sl_transfer_in(r, there, scores, sizeof scores, NULL), SL_OK);
    return there;
}

// Does to a layer what eviction and packing do (engine/compress/evict), with given scores.
static void compress_layer(const struct sl_runtime *r, struct sl_session *session, int layer, float *scores,
                           uint32_t *keep) {
    static const uint32_t n_kept[HEADS] = {300, 64, 699};
    struct sl_kv kv[HEADS];
    struct sl_kv_heads heads = sl_session_heads(session, layer, kv);
    struct sl_counts kept = {.host = n_kept};
    struct sl_vectors x = {scores, SLOTS};
    struct sl_lists list = {keep, SLOTS};
    assert_int_equal(r->ops->publish(r->stream, &heads, NULL), SL_OK);
    r->ops->select(r->stream, &heads, x, (struct sl_vectors){0}, layer % 2 == 0, kept, list);
    r->ops->gather(r->stream, &heads, list, kept);
    for (int h = 0; h < HEADS; h++) {
        sl_session_set_slots(session, layer, h, n_kept[h]);
    }
    for (bool more = true; more;) {
        void *to[HEADS] = {NULL};
        more = false;
        heads = sl_session_heads(session, layer, kv);
        for (int h = 0; h < HEADS; h++) {
            if (kv[h].n_packed < kv[h].n_slots / SL_PAGE_SLOTS) {
                to[h] = sl_arena_alloc(session->arena, session->layers[layer].packed.bytes);
                assert_non_null(to[h]);
                more = true;
            }
        }
        assert_int_equal(r->ops->publish(r->stream, &heads, NULL), SL_OK);
        r->ops->quantize(r->stream, &heads, 1, to);
        for (int h = 0; h < HEADS; h++) {
            if (to[h] != NULL) {
                sl_session_pack_page(session, layer, h, to[h]);
            }
        }
    }
}

// malloc'd.
static char *capsule_of(const char *device, enum sl_kv_format format, size_t *bytes_out) {
    struct sl_runtime_config config = {.device = device, .threads = 1};
    struct sl_runtime r;
    assert_int_equal(sl_runtime_open(&config, &r, NULL), SL_OK);
    assert_int_equal(sl_runtime_open_arena(&r, (size_t)8 << 20, NULL), SL_OK);
    struct sl_session *session = make_session(&r, format);
    void *scores = make_scores(&r);
    uint32_t *keep = sl_device_alloc(r.device, SL_MEMORY_DEVICE, HEADS * SLOTS * sizeof *keep);
    assert_non_null(keep);
    for (int l = 0; l < LAYERS; l++) {
        compress_layer(&r, session, l, scores, keep);
    }
    *bytes_out = sl_capsule_body_bytes(session);
    char *body = malloc(*bytes_out);
    assert_int_equal(sl_transfer_body_out(&r, session, body, NULL), SL_OK);
    sl_device_free(r.device, SL_MEMORY_DEVICE, keep);
    sl_device_free(r.device, SL_MEMORY_DEVICE, scores);
    sl_session_destroy(&session);
    sl_runtime_close(&r);
    return body;
}

static void test_capsules_of_exact_operations_are_equal_to_the_bit(void **state) {
    static const enum sl_kv_format formats[] = {
#define X(name, ...) SL_KV_##name,
        SL_KV_CODE_FORMATS(X)
#undef X
    };
    (void)state;
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        size_t here_bytes, there_bytes;
        char *here = capsule_of("cpu", formats[i], &here_bytes),
             *there = capsule_of("emulated", formats[i], &there_bytes);
        assert_int_equal(here_bytes, there_bytes);
        assert_memory_equal(here, there, here_bytes);
        free(here);
        free(there);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_capsules_of_exact_operations_are_equal_to_the_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
