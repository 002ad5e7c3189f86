// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: holds a device's operations at the sizes of Llama-3-8B (128k slots of 8 KV heads of 128, a vocabulary of 128,256) to those of the
 *          processors. The other checks go through small and odd shapes; indices that overflow, grids that are too large and splits that
 *          never end show at these.
 *
 * Design: a tier that sums f32 and rounds nothing says what is expected. Outputs begin as NaN (poisoned()), so an element that is left out is
 *         an error. Queries are four times as long as keys, so that a few slots have most of the weight: a mean over 128k random
 *         values would be near zero whatever was computed. Errors are printed. Emulated devices, and processors among themselves, have
 *         small sizes; emulated devices get every call in all orders of threads.
 */
#include <math.h>
#include <stdio.h>

#include "engine/tensor/cpu/tiers.h"
#include "tests/kernels/dense_fixture.h"
#include "tests/stream.h"

enum { MOST_KV_HEADS = 8, STATES = 2, ROUNDS_EMULATED = 3 };

static struct {
    int64_t slots, hidden, ffn, vocab;
    int heads, kv_heads, d, rows; // rows: of a prompt
} size;

static const struct sl_ops *expected; // the tier
static struct sl_stream *threads;     // of it
static double slack = 1.0;            // factor of tolerances: some tiers round both sides to bf16

// --- comparing -------------------------------------------------------------------------------------------------------

static void *poisoned(size_t bytes) {
    void *block = aligned_alloc(64, (bytes + 63) / 64 * 64 + 64);
    assert_non_null(block);
    memset(block, 0xff, bytes);
    return block;
}

// The root of the mean square of the errors is held to `tolerance` of that of what is expected, and every error to 50 times as much.
static void assert_near(const char *what, const float *got, const float *want, size_t n, double tolerance) {
    tolerance *= slack;
    double errors = 0, all = 0, most = 0;
    size_t worst = 0;
    for (size_t i = 0; i < n; i++) {
        double error = fabs((double)got[i] - (double)want[i]);
        if (!isfinite(got[i])) {
            fail_msg("%s: element %zu of %zu is %g, expected %g", what, i, n, (double)got[i], (double)want[i]);
        }
        worst = error > most ? i : worst;
        most = error > most ? error : most;
        errors += error * error;
        all += (double)want[i] * (double)want[i];
    }
    double scale = sqrt(all / (double)n), off = sqrt(errors / (double)n) / scale;
    printf("%-28s off by %.1e of at most %.0e, element %zu by %.1e\n", what, off, tolerance, worst, most / scale);
    if (!(off <= tolerance) || !(most <= 50 * tolerance * scale) || !(all > 0)) {
        fail_msg("%s: off by %g of %g, at most %g; element %zu is %g, expected %g", what, off, scale, tolerance, worst,
                 (double)got[worst], (double)want[worst]);
    }
}

static void assert_same(const char *what, const void *got, const void *want, size_t bytes) {
    for (size_t i = 0; i < bytes; i++) {
        if (((const unsigned char *)got)[i] != ((const unsigned char *)want)[i]) {
            fail_msg("%s: byte %zu of %zu differs", what, i, bytes);
        }
    }
    printf("%-28s exact, %zu bytes\n", what, bytes);
}

static int rounds_of(const char *name) {
    slack = strncmp(name, "amx", 3) == 0 || strcmp(name, "avx512bf16") == 0 ? 4.0 : 1.0;
    return is_emulated(name) ? ROUNDS_EMULATED : 1;
}

// Runs `call`, in which ops and stream are the tier's and then the device's, once and as often as there are orders of threads.
#define WITH_EACH(name, ops, stream, of_device)                                                                        \
    for (int round_ = 0; round_ < 1 + rounds_of(name); round_++)                                                       \
        for (bool of_device = round_ > 0, once_ = true; once_; once_ = false)                                          \
            for (struct sl_stream *stream = of_device ? NULL : threads; once_; once_ = false)                          \
                for (const struct sl_ops *ops = of_device ? tier(name) : expected; once_; once_ = false)

// --- pages -----------------------------------------------------------------------------------------------------------

struct world {
    struct sl_page_layout work, packed;
    struct sl_kv kv[MOST_KV_HEADS];
    char *pages, **lists; // [kv_heads][pages of a head]
    uint32_t n_pages;     // of a head
    float *q, *k, *v, *out[2], *lse[2];
    int64_t *positions;
};

static float *random_times(int64_t n, uint64_t seed, float factor) {
    float *x = random_floats(n, seed);
    for (int64_t i = 0; i < n; i++) {
        x[i] *= factor;
    }
    return x;
}

static struct sl_attend rows_at_end(struct world *w, int m) {
    return (struct sl_attend){.q = w->q,
                              .k = w->k,
                              .v = w->v,
                              .m = m,
                              .n_heads = size.heads,
                              .head_dim = size.d,
                              .scale = 1.0f / sqrtf((float)size.d),
                              .heads = {.kv = w->kv, .n = size.kv_heads},
                              .positions = w->positions + w->kv[0].n_slots - m,
                              .out = w->out[0],
                              .lse = w->lse[0]};
}

static void open_pages(struct world *w, int64_t slots, enum sl_kv_format packed) {
    assert_int_equal(sl_page_layout_init(&w->work, SL_KV_F16, size.d, STATES, true), SL_OK);
    assert_int_equal(sl_page_layout_init(&w->packed, packed, size.d, 0, true), SL_OK);
    w->n_pages = sl_pages_for((uint32_t)slots);
    size_t n = (size_t)size.kv_heads * w->n_pages;
    w->pages = poisoned(n * w->work.bytes);
    w->lists = poisoned(n * sizeof *w->lists);
    for (size_t p = 0; p < n; p++) {
        w->lists[p] = w->pages + p * w->work.bytes;
    }
    for (int h = 0; h < size.kv_heads; h++) {
        w->kv[h] = (struct sl_kv){(void **)w->lists + (size_t)h * w->n_pages, 0, 0, &w->work, &w->packed};
    }
}

static void open_world(struct world *w, int64_t slots, enum sl_kv_format packed) {
    memset(w, 0, sizeof *w);
    open_pages(w, slots, packed);
    int64_t of_q = (int64_t)size.heads * size.d, of_kv = (int64_t)size.kv_heads * size.d;
    w->q = random_times(size.rows * of_q, 1, 4.0f);
    w->k = random_floats(size.rows * of_kv, 2);
    w->v = random_floats(size.rows * of_kv, 3);
    w->positions = poisoned((size_t)slots * sizeof *w->positions);
    for (int64_t j = 0; j < slots; j++) {
        w->positions[j] = 2 * j + 1;
    }
    for (int i = 0; i < 2; i++) {
        w->out[i] = poisoned((size_t)(size.rows * of_q) * sizeof(float));
        w->lse[i] = poisoned((size_t)size.rows * (size_t)size.heads * sizeof(float));
    }
    for (int64_t at = 0; at < slots;) { // new rows for every part: no two slots are alike
        int m = (int)(slots - at < size.rows ? slots - at : size.rows);
        float *k = random_floats(m * of_kv, 100 + (uint64_t)at), *v = random_floats(m * of_kv, 200 + (uint64_t)at);
        at += m;
        for (int h = 0; h < size.kv_heads; h++) {
            w->kv[h].n_slots = (uint32_t)at;
        }
        struct sl_attend call = rows_at_end(w, m);
        call.k = k, call.v = v;
        expected->append(threads, &call, 1);
        free(k);
        free(v);
    }
}

static void close_world(struct world *w) {
    for (int i = 0; i < 2; i++) {
        free(w->out[i]);
        free(w->lse[i]);
    }
    free(w->q), free(w->k), free(w->v), free(w->positions), free(w->lists), free(w->pages);
}

static size_t pages_bytes(const struct world *w) {
    return (size_t)size.kv_heads * w->n_pages * w->work.bytes;
}

static void *copy_of(const void *data, size_t bytes) {
    void *copy = poisoned(bytes);
    memcpy(copy, data, bytes);
    return copy;
}

// --- attention -------------------------------------------------------------------------------------------------------

static void check_attend(const char *name, struct world *w, const char *what, int m) {
    size_t n_out = (size_t)m * (size_t)size.heads * (size_t)size.d, n_lse = (size_t)m * (size_t)size.heads;
    char text[64];
    WITH_EACH(name, ops, stream, device) {
        struct sl_attend call = rows_at_end(w, m);
        call.out = w->out[device], call.lse = w->lse[device];
        memset(call.out, 0xff, n_out * sizeof(float));
        memset(call.lse, 0xff, n_lse * sizeof(float));
        ops->attend(stream, &call, 1);
    }
    snprintf(text, sizeof text, "attend %s, %d rows", what, m);
    assert_near(text, w->out[1], w->out[0], n_out, 4e-3);
    snprintf(text, sizeof text, "lse %s, %d rows", what, m);
    assert_near(text, w->lse[1], w->lse[0], n_lse, 1e-3);
}

static void test_attention(void **state) {
    struct world w;
    (void)state;
    open_world(&w, size.slots, SL_KV_INT8);
    for (const char *const *name = tested(); *name != NULL; name++) {
        check_attend(*name, &w, "f16", size.rows);
        check_attend(*name, &w, "f16", 1);
    }
    close_world(&w);
}

// Compares packed pages of each format byte by byte, and attention over them.
static void test_packed_pages(void **state) {
    static const struct {
        const char *name;
        enum sl_kv_format format;
    } formats[] = {
#define X(name, word, ...) {#word, SL_KV_##name},
        SL_KV_CODE_FORMATS(X)
#undef X
#define X(word, wire, ...) {#word, (enum sl_kv_format)wire},
            SL_KV_PAIRS(X)
#undef X
    };
    (void)state;
    for (size_t f = 0; f < sizeof formats / sizeof formats[0]; f++) {
        struct world w;
        open_world(&w, size.slots, formats[f].format);
        size_t n = (size_t)size.kv_heads * w.n_pages, bytes = n * w.packed.bytes;
        char *packed[2] = {poisoned(bytes), poisoned(bytes)}, text[64], **to = poisoned(n * sizeof *to);
        for (const char *const *name = tested(); *name != NULL; name++) {
            WITH_EACH(*name, ops, stream, device) {
                for (size_t p = 0; p < n; p++) {
                    to[p] = packed[device] + p * w.packed.bytes;
                }
                memset(packed[device], 0xff, bytes);
                ops->quantize(stream, &(struct sl_kv_heads){.kv = w.kv, .n = size.kv_heads}, w.n_pages,
                              (void *const *)to);
            }
            snprintf(text, sizeof text, "quantize to %s", formats[f].name);
            assert_same(text, packed[1], packed[0], bytes);
        }
        memcpy(w.lists, to, n * sizeof *to);
        for (int h = 0; h < size.kv_heads; h++) {
            w.kv[h].n_packed = w.n_pages;
        }
        for (const char *const *name = tested(); *name != NULL; name++) {
            check_attend(*name, &w, formats[f].name, 1);
        }
        free(packed[0]), free(packed[1]), free(to);
        close_world(&w);
    }
}

// --- statistics and scores -------------------------------------------------------------------------------------------

static void test_fold(void **state) {
    struct world w;
    (void)state;
    open_world(&w, size.slots, SL_KV_F16);
    size_t bytes = pages_bytes(&w), n = (size_t)size.kv_heads * (size_t)size.slots;
    void *before = copy_of(w.pages, bytes);
    float *planes[2] = {poisoned(n * sizeof(float)), poisoned(n * sizeof(float))};
    float *sums[2] = {poisoned((size_t)size.heads * (size_t)size.slots * sizeof(float)),
                      poisoned((size_t)size.heads * (size_t)size.slots * sizeof(float))};
    struct sl_attend call = rows_at_end(&w, size.rows);
    expected->attend(threads, &call, 1); // for the lse
    for (const char *const *name = tested(); *name != NULL; name++) {
        WITH_EACH(*name, ops, stream, device) {
            memcpy(w.pages, before, bytes);
            ops->fold(stream, &call, 0, &(struct sl_fold){.sum = 0, .square = 1, .above = -1});
            ops->read_state(stream, &call.heads, 0, (struct sl_vectors){planes[device], (size_t)size.slots});
            ops->window_sums(stream, &call, size.rows / 2, (struct sl_vectors){sums[device], (size_t)size.slots});
        }
        assert_near("fold", planes[1], planes[0], n, 1e-2);
        assert_near("window_sums", sums[1], sums[0], (size_t)size.heads * (size_t)size.slots, 1e-2);
    }
    free(before), free(planes[0]), free(planes[1]), free(sums[0]), free(sums[1]);
    close_world(&w);
}

static void test_scores(void **state) {
    struct world w;
    (void)state;
    open_world(&w, size.slots, SL_KV_F16);
    const struct sl_kv_heads heads = {.kv = w.kv, .n = size.kv_heads};
    size_t n = (size_t)size.kv_heads * (size_t)size.slots, stride = (size_t)size.slots;
    int group = size.heads / size.kv_heads;
    float *weights = random_floats((int64_t)size.heads * size.slots, 5);
    for (size_t i = 0; i < (size_t)size.heads * stride; i++) {
        weights[i] = expf(4.0f * weights[i]);
    }
    float *change[2], *chance[2], *pooled[2];
    for (int i = 0; i < 2; i++) {
        change[i] = poisoned(n * sizeof(float)), chance[i] = poisoned(n * sizeof(float));
        pooled[i] = poisoned((size_t)size.heads * stride * sizeof(float));
    }
    for (const char *const *name = tested(); *name != NULL; name++) {
        WITH_EACH(*name, ops, stream, device) {
            struct sl_vectors of_queries = {weights, stride};
            ops->value_change(stream, &heads, group, of_queries, false, (struct sl_vectors){change[device], stride});
            ops->chance(stream, &heads, 7, 3, 11, (struct sl_vectors){chance[device], stride});
            ops->pool(stream, &heads, group, of_queries, (struct sl_pooling){false, 7, 32},
                      (struct sl_vectors){pooled[device], stride});
        }
        assert_near("value_change", change[1], change[0], n, 1e-3);
        assert_same("chance", chance[1], chance[0], n * sizeof(float));
        assert_near("pool", pooled[1], pooled[0], (size_t)size.heads * stride, 1e-5);
    }
    for (int i = 0; i < 2; i++) {
        free(change[i]), free(chance[i]), free(pooled[i]);
    }
    free(weights);
    close_world(&w);
}

// --- which slots stay ------------------------------------------------------------------------------------------------

// A quarter is chosen, attended to as a list, and moved together.
static void test_select_and_gather(void **state) {
    struct world w;
    (void)state;
    open_world(&w, size.slots, SL_KV_F16);
    const struct sl_kv_heads heads = {.kv = w.kv, .n = size.kv_heads};
    size_t bytes = pages_bytes(&w), stride = (size_t)size.slots, n = (size_t)size.kv_heads * stride;
    size_t n_out = (size_t)size.heads * (size_t)size.d;
    float *scores = random_floats((int64_t)n, 6);
    uint32_t kept[MOST_KV_HEADS], *keep[2] = {poisoned(n * sizeof **keep), poisoned(n * sizeof **keep)};
    void *before = copy_of(w.pages, bytes), *after = poisoned(bytes);
    for (int h = 0; h < size.kv_heads; h++) {
        kept[h] = (uint32_t)(size.slots / 4 - h);
    }
    const struct sl_counts counts = {.host = kept};
    for (const char *const *name = tested(); *name != NULL; name++) {
        WITH_EACH(*name, ops, stream, device) {
            struct sl_lists to = {keep[device], stride};
            struct sl_attend call = rows_at_end(&w, 1);
            call.out = w.out[device], call.lse = w.lse[device];
            memset(keep[device], 0xff, n * sizeof **keep);
            memcpy(w.pages, before, bytes);
            ops->select(stream, &heads, (struct sl_vectors){scores, stride}, (struct sl_vectors){NULL, 0}, true, counts,
                        to);
            ops->attend_slots(stream, &call, to, counts);
            ops->gather(stream, &heads, to, counts);
            if (!device) {
                memcpy(after, w.pages, bytes);
            }
        }
        assert_same("select", keep[1], keep[0], n * sizeof **keep);
        assert_near("attend_slots", w.out[1], w.out[0], n_out, 4e-3);
        for (int h = 0; h < size.kv_heads; h++) { // whole pages that are kept; what lies after them is of no meaning
            size_t at = (size_t)h * w.n_pages * w.work.bytes, whole = kept[h] / SL_PAGE_SLOTS * w.work.bytes;
            assert_same("gather", w.pages + at, (char *)after + at, whole);
        }
    }
    free(scores), free(keep[0]), free(keep[1]), free(before), free(after);
    close_world(&w);
}

// Every evicted slot beside every kept one: of fewer slots, for the tier's sake.
static void test_nearest(void **state) {
    struct world w;
    (void)state;
    int64_t slots = size.slots < 8192 ? size.slots : 8192;
    open_world(&w, slots, SL_KV_F16);
    const struct sl_kv_heads heads = {.kv = w.kv, .n = size.kv_heads};
    size_t stride = (size_t)slots, n = (size_t)size.kv_heads * stride;
    uint32_t kept[MOST_KV_HEADS], *keep = poisoned(n * sizeof *keep);
    uint32_t *evicted[2], *into[2];
    float *cosines[2], *best[2];
    for (int h = 0; h < size.kv_heads; h++) {
        kept[h] = (uint32_t)slots / 5;
        for (uint32_t i = 0; i < kept[h]; i++) {
            keep[(size_t)h * stride + i] = 5 * i + (uint32_t)h % 5;
        }
    }
    size_t n_evicted = stride - kept[0];
    for (int i = 0; i < 2; i++) {
        evicted[i] = poisoned(n * sizeof **evicted), into[i] = poisoned(n * sizeof **into);
        cosines[i] = poisoned(n * sizeof **cosines),
        best[i] = poisoned((size_t)size.kv_heads * n_evicted * sizeof **best);
    }
    for (const char *const *name = tested(); *name != NULL; name++) {
        WITH_EACH(*name, ops, stream, device) {
            ops->nearest(
                stream, &heads, (struct sl_lists){keep, stride}, (struct sl_counts){.host = kept},
                (struct sl_nearest){{evicted[device], stride}, {into[device], stride}, {cosines[device], stride}});
        }
        for (int h = 0; h < size.kv_heads; h++) {
            assert_same("nearest: evicted", evicted[1] + (size_t)h * stride, evicted[0] + (size_t)h * stride,
                        n_evicted * sizeof **evicted);
            for (int i = 0; i < 2; i++) {
                memcpy(best[i] + (size_t)h * n_evicted, cosines[i] + (size_t)h * stride, n_evicted * sizeof **best);
            }
        }
        assert_near("nearest: cosine", best[1], best[0], (size_t)size.kv_heads * n_evicted, 1e-3);
    }
    for (int i = 0; i < 2; i++) {
        free(evicted[i]), free(into[i]), free(cosines[i]), free(best[i]);
    }
    free(keep);
    close_world(&w);
}

// --- dense -----------------------------------------------------------------------------------------------------------

static float to_bf16(float x) {
    return sl_bf16_to_f32(sl_f32_to_bf16(x));
}

struct product {
    const char *name;
    int64_t n, k;
    bool gated;
    enum sl_weight_format format;
    int64_t m;
    bool reading;
};

// Returns true where products with codes take bytes of x, as they do on `expected`.
static bool by_bytes(const char *name, const struct product *p) {
    return p->format != SL_WEIGHT_STORED && !is_device(name) && !(p->reading && strncmp(name, "amx", 3) == 0);
}

// Multiplies x that bf16 represents exactly: a device rounds it, the tier does not. Where bytes are not compared with
// bytes, `expected` gets codes as numbers. Tier amx makes bf16 of codes for rows of a prompt.
static void check_product(const struct product *p, struct sl_matrix w) {
    w.format = p->format;
    w.gated = p->gated;
    w.activation = p->gated ? SL_ACT_SILU : SL_ACT_NONE;
    int64_t columns = sl_matrix_outputs(&w);
    float *x = random_floats(p->m * p->k, 8), *y[2], *numbers = NULL;
    struct sl_matrix exact = w.format == SL_WEIGHT_STORED ? w : as_numbers(&w, &numbers);
    char text[64];
    for (int64_t i = 0; i < p->m * p->k; i++) {
        x[i] = to_bf16(x[i]);
    }
    y[0] = poisoned((size_t)(p->m * columns) * sizeof(float)),
    y[1] = poisoned((size_t)(p->m * columns) * sizeof(float));
    for (const char *const *name = tested(); *name != NULL; name++) {
        WITH_EACH(*name, ops, stream, device) {
            struct sl_matrix packed = device || by_bytes(*name, p) ? w : exact;
            assert_int_equal(ops->pack(stream, &packed, NULL), SL_OK);
            size_t bytes = ops->matmul_scratch(&packed, p->m);
            void *scratch = bytes > 0 ? poisoned(bytes) : NULL;
            struct sl_matmul product = {.x = x,
                                        .x_stride = p->k,
                                        .m = p->m,
                                        .y = y[device],
                                        .y_stride = columns,
                                        .reading = p->reading,
                                        .scratch = scratch};
            memset(y[device], 0xff, (size_t)(p->m * columns) * sizeof(float));
            ops->matmul(stream, &packed, &product);
            ops->unpack(&packed);
            free(scratch);
        }
        snprintf(text, sizeof text, "matmul %s, %lld rows%s", p->name, (long long)p->m,
                 p->reading ? " of a prompt" : "");
        bool rounds = p->reading && p->format != SL_WEIGHT_STORED && strcmp(*name, "amx") == 0;
        assert_near(text, y[1], y[0], (size_t)(p->m * columns), rounds ? 4e-3 : 2e-4);
    }
    free(x), free(y[0]), free(y[1]), free(numbers);
}

static void test_products(void **state) {
    const int64_t qkv = (int64_t)(size.heads + 2 * size.kv_heads) * size.d;
    const int64_t many = size.rows;
    const struct product products[] = {
        {"qkv bf16", qkv, size.hidden, false, SL_WEIGHT_STORED, many, true},
        {"qkv bf16", qkv, size.hidden, false, SL_WEIGHT_STORED, 1, false},
        {"up bf16", 2 * size.ffn, size.hidden, true, SL_WEIGHT_STORED, many, true},
        {"up bf16", 2 * size.ffn, size.hidden, true, SL_WEIGHT_STORED, 64, false},
        {"up int8", 2 * size.ffn, size.hidden, true, SL_WEIGHT_INT8, many, true},
        {"up int4", 2 * size.ffn, size.hidden, true, SL_WEIGHT_INT4, 8, false},
        {"down bf16", size.hidden, size.ffn, false, SL_WEIGHT_STORED, many, true},
        {"down bf16", size.hidden, size.ffn, false, SL_WEIGHT_STORED, 16, false},
        {"down int4", size.hidden, size.ffn, false, SL_WEIGHT_INT4, many, true},
        {"down bf16", size.hidden, size.ffn, false, SL_WEIGHT_STORED, 1, false},
        {"head bf16", size.vocab, size.hidden, false, SL_WEIGHT_STORED, 3, false},
    };
    void *owner = NULL;
    struct sl_matrix w = {0};
    (void)state;
    for (size_t i = 0; i < sizeof products / sizeof products[0]; i++) {
        if (w.n != products[i].n || w.k != products[i].k) {
            free(owner);
            w = random_matrix(products[i].n, products[i].k, SL_BF16, 9, &owner);
        }
        check_product(&products[i], w);
    }
    free(owner);
}

static void test_pick(void **state) {
    enum { ROWS = 3 };
    struct sl_pick asked[ROWS] = {{SL_MAX_CANDIDATES, 0.8f}, {1, 0.0f}, {100, 1.0f}};
    float *logits = random_times(ROWS * size.vocab, 12, 5.0f);
    struct sl_picked *picked[2] = {poisoned(ROWS * sizeof **picked), poisoned(ROWS * sizeof **picked)};
    (void)state;
    for (const char *const *name = tested(); *name != NULL; name++) {
        WITH_EACH(*name, ops, stream, device) {
            ops->pick(stream, logits, size.vocab, asked, ROWS, picked[device]);
        }
        for (int r = 0; r < ROWS; r++) {
            assert_int_equal(picked[1][r].n_finite, size.vocab);
            assert_int_equal(picked[1][r].n, picked[0][r].n);
            assert_same("pick", picked[1][r].best, picked[0][r].best,
                        (size_t)picked[0][r].n * sizeof picked[0][r].best[0]);
            assert_true(fabs(picked[1][r].lse - picked[0][r].lse) <= 1e-9 * fabs(picked[0][r].lse));
        }
    }
    free(logits), free(picked[0]), free(picked[1]);
}

// --- the whole -------------------------------------------------------------------------------------------------------

static bool is_large(void) {
    for (const char *const *name = tested(); *name != NULL; name++) {
        if (!is_device(*name) || is_emulated(*name)) {
            return false;
        }
    }
    return true;
}

// --small: small sizes on any device, for tools under which it is slow.
int main(int argc, char **argv) {
    static const char *const plain[] = {"avx512", "avx2", "reference"};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention),
        cmocka_unit_test(test_packed_pages),
        cmocka_unit_test(test_fold),
        cmocka_unit_test(test_scores),
        cmocka_unit_test(test_select_and_gather),
        cmocka_unit_test(test_nearest),
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_pick),
    };
    struct sl_error err;
    bool large = is_large() && !(argc > 1 && strcmp(argv[1], "--small") == 0);
    for (size_t i = 0; i < 3 && expected == NULL; i++) {
        if (sl_ops_select(plain[i], &expected, &err) != SL_OK) {
            expected = NULL;
        }
    }
    assert_non_null(expected);
    size.heads = large ? 32 : 4, size.kv_heads = large ? 8 : 2, size.d = 128, size.rows = large ? 70 : 19;
    size.slots = large ? 131072 : 256, size.hidden = large ? 4096 : 128, size.ffn = large ? 14336 : 192;
    size.vocab = large ? 128256 : 2100;
    if (large) {
        tested_room((size_t)2 << 30);
    }
    threads = test_stream_open(large ? 0 : 2);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    test_stream_close(&threads);
    return failed;
}
