// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: holds key indexes, the scan, and rows out of and into pages to the formulas of engine/tensor/ops.h and
 *          engine/kvcache/key_index.h, in every tier, and times them beside plain reading (--time [TIER]).
 */
#include "tests/kernels/kv_fixture.h"

static const enum sl_kv_format scan_formats[] = {SL_KV_F32, SL_KV_F16, SL_KV_BF16, SL_KV_INT8, SL_KV_INT1};
#define N_SCAN_FORMATS (sizeof scan_formats / sizeof scan_formats[0])

static const struct page_case {
    enum sl_kv_format work, packed;
    int d;
    uint32_t n_slots, n_packed;
} page_cases[] = {
    {SL_KV_F16, SL_KV_F16, 64, 333, 0},   {SL_KV_F16, SL_KV_F16, 128, 1, 0},    {SL_KV_F16, SL_KV_F16, 40, 64, 0},
    {SL_KV_BF16, SL_KV_BF16, 96, 130, 0}, {SL_KV_BF16, SL_KV_BF16, 72, 65, 0},  {SL_KV_F32, SL_KV_F32, 8, 200, 0},
    {SL_KV_F32, SL_KV_F32, 128, 700, 0},  {SL_KV_F16, SL_KV_INT8, 64, 200, 2},  {SL_KV_F16, SL_KV_INT4, 128, 256, 4},
    {SL_KV_BF16, SL_KV_INT2, 32, 90, 1},  {SL_KV_F32, SL_KV_INT1, 24, 129, 1},  {SL_KV_F16, SL_KV_F16, 512, 100, 0},
    {SL_KV_F16, SL_KV_F16, 128, 2048, 0}, {SL_KV_BF16, SL_KV_BF16, 8, 1000, 0},
// every format, also one that no case above names
#define X(name, ...) {SL_KV_F16, SL_KV_##name, 96, 140, 2},
    SL_KV_CODE_FORMATS(X)
#undef X
};
#define N_PAGE_CASES (sizeof page_cases / sizeof page_cases[0])

// One head of keys among which some are large, zero, equal to another's or, of f32, no numbers.
static void open_keys(struct cache *c, const struct page_case *a, const struct sl_ops *ops) {
    cache_fill(c, ops, a->work, a->packed, 1, a->d, 0, &a->n_slots, &a->n_packed);
    size_t d = (size_t)a->d;
    for (uint32_t j = a->n_packed * SL_PAGE_SLOTS; j < a->n_slots; j++) {
        float row[2][SL_MAX_HEAD_DIM];
        ops->read_rows(c->kv, j, j + 1, row[0], row[1]);
        row[0][3] = 0.0f; // a channel of zeros
        row[0][1] = j % 3 == 0 ? -0.0f : row[0][1];
        row[0][2] *= j % 50 == 0 ? 1000.0f : 0.01f;
        row[0][d - 1] = 0.5f;
        row[0][4] = a->work == SL_KV_F32 && j == 100 ? NAN : row[0][4];
        struct sl_kv until = *c->kv;
        until.n_slots = j;
        append_rows(ops, &until, row[0], row[1], a->d, 1, (const int64_t[]){0});
    }
}

static struct sl_key_index_layout layout_of(enum sl_kv_format format, int d, uint32_t n_slots) {
    struct sl_key_index_layout layout;
    assert_int_equal(sl_key_index_layout_init(&layout, format, d, n_slots), SL_OK);
    return layout;
}

static void *make_index(const struct sl_ops *ops, const struct sl_kv *kv, uint32_t n,
                        const struct sl_key_index_layout *layout) {
    void *index = take(layout->bytes); // 0xff everywhere
    ops->host.index_keys(kv, n, layout, index);
    return index;
}

// --- index_keys -------------------------------------------------------------------------------------------------------

// Checks channel c of an index of keys k[n][d] against engine/kvcache/key_index.h; zeros follow it.
static void check_channel(const struct sl_key_index_layout *l, const char *index, const float *k, uint32_t n,
                          size_t c) {
    const char *channel = index + l->codes + c * l->channel_bytes;
    float absmax = 0.0f, scale = l->scale < l->codes ? ((const float *)(index + l->scale))[c] : 0.0f;
    double sum = 0.0;
    for (uint32_t j = 0; j < n; j++) {
        float x = k[j * (size_t)l->head_dim + c];
        absmax = fmaxf(absmax, fabsf(x));
        sum += isnan(x) ? 0.0 : fabs((double)x);
        if (l->format == SL_KV_F32) {
            assert_memory_equal(channel + 4 * j, &x, 4);
        } else if (l->format == SL_KV_F16) {
            assert_int_equal(((const uint16_t *)channel)[j], sl_f32_to_f16_saturated(x));
        } else if (l->format == SL_KV_BF16) {
            assert_int_equal(((const uint16_t *)channel)[j], sl_f32_to_bf16(x));
        } else if (l->format == SL_KV_INT8) {
            double code = scale > 0.0f && !isnan(x) ? nearbyint((double)(x / scale)) : 0.0;
            assert_int_equal(((const int8_t *)channel)[j], (int)fmax(-127.0, fmin(127.0, code)));
        } else {
            assert_int_equal(channel[j / 8] >> j % 8 & 1, x >= 0.0f);
        }
    }
    assert_memory_equal(index + l->absmax + 4 * c, &absmax, 4);
    if (l->format == SL_KV_INT8) {
        assert_true(scale == absmax / 127.0f);
    } else if (l->format == SL_KV_INT1) {
        assert_true(scale == (float)(sum / n));
    }
    size_t bits = (size_t)sl_kv_format_bits(l->format);
    if (n * bits % 8 != 0) {
        assert_int_equal((uint8_t)channel[n / 8] >> n % 8, 0);
    }
    for (size_t at = (n * bits + 7) / 8; at < l->channel_bytes; at++) {
        assert_int_equal(channel[at], 0);
    }
}

static void test_key_index_holds_the_keys_channel_by_channel(void **state) {
    PROCESSORS_ONLY(); // ops->host
    (void)state;
    for (const char *const *name = tested(); *name != NULL; name++) {
        for (size_t i = 0; i < N_PAGE_CASES; i++) {
            struct cache c;
            const struct page_case *a = &page_cases[i];
            open_keys(&c, a, tier(*name));
            float *k = take((size_t)a->n_slots * (size_t)a->d * sizeof *k);
            tier(*name)->read_rows(c.kv, 0, a->n_slots, k, NULL);
            for (size_t f = 0; f < N_SCAN_FORMATS; f++) {
                const uint32_t counts[] = {a->n_slots, (a->n_slots + 1) / 2}; // all, and the first
                for (int s = 0; s < 2; s++) {
                    struct sl_key_index_layout layout = layout_of(scan_formats[f], a->d, a->n_slots + 70);
                    char *index = make_index(tier(*name), c.kv, counts[s], &layout);
                    for (size_t channel = 0; channel < (size_t)a->d; channel++) {
                        check_channel(&layout, index, k, counts[s], channel);
                    }
                    free(index);
                }
            }
            free(k);
            cache_free(&c);
        }
    }
}

static void test_key_index_of_no_slots_is_zeros(void **state) {
    PROCESSORS_ONLY(); // ops->host
    (void)state;
    for (const char *const *name = tested(); *name != NULL; name++) {
        struct cache c;
        open_keys(&c, &page_cases[0], tier(*name));
        for (size_t f = 0; f < N_SCAN_FORMATS; f++) {
            struct sl_key_index_layout layout = layout_of(scan_formats[f], page_cases[0].d, 100);
            char *index = make_index(tier(*name), c.kv, 0, &layout);
            for (size_t at = 0; at < layout.bytes; at++) {
                assert_int_equal(index[at], 0);
            }
            free(index);
        }
        cache_free(&c);
    }
}

// --- scan ------------------------------------------------------------------------------------------------------------

static float code_of(const struct sl_key_index_layout *l, const char *index, int c, uint32_t j) {
    const char *channel = index + l->codes + (size_t)c * l->channel_bytes;
    switch (l->format) {
    case SL_KV_F32:
        return ((const float *)channel)[j];
    case SL_KV_F16:
        return sl_f16_to_f32(((const uint16_t *)channel)[j]);
    case SL_KV_BF16:
        return sl_bf16_to_f32(((const uint16_t *)channel)[j]);
    case SL_KV_INT8:
        return ((const int8_t *)channel)[j];
    default:
        return (channel[j / 8] >> j % 8 & 1) != 0 ? 1.0f : -1.0f;
    }
}

// The sum in f32 in ascending i: with products that are rounded, or with fused ones.
static float expected_score(const struct sl_key_index_layout *l, const char *index, const float *q, const int *channels,
                            int n_channels, uint32_t j, bool fused) {
    float sum = 0.0f;
    for (int i = 0; i < n_channels; i++) {
        int c = channels[i];
        float weight = l->format >= SL_KV_INT8 ? q[c] * ((const float *)(index + l->scale))[c] : q[c];
        float code = code_of(l, index, c, j);
        sum = fused ? fmaf(weight, code, sum) : sum + weight * code;
    }
    return sum;
}

static const uint32_t ranges[][2] = {{0, 700}, {0, 1},    {0, 64},    {5, 9},  {63, 65},
                                     {1, 700}, {60, 333}, {128, 192}, {17, 17}};
#define N_RANGES (sizeof ranges / sizeof ranges[0])

// Bit by bit: whatever range a slot is asked for in, its score is the same chain of sums.
static void test_scan_is_the_sum_over_the_channels_in_order(void **state) {
    PROCESSORS_ONLY(); // ops->host
    (void)state;
    enum { N = 700, D = 64 };
    static const int counts[] = {0, 1, 2, 3, 8, 12, 13, 64};
    const struct page_case a = {SL_KV_F16, SL_KV_F16, D, N, 0};
    for (const char *const *name = tested(); *name != NULL; name++) {
        struct cache c;
        open_keys(&c, &a, tier(*name));
        float *q = random_floats(D, 5), got[N + 1];
        for (size_t s = 0; s < N_SCAN_FORMATS * sizeof counts / sizeof counts[0]; s++) {
            struct sl_key_index_layout layout = layout_of(scan_formats[s % N_SCAN_FORMATS], D, N);
            char *index = make_index(tier(*name), c.kv, N, &layout);
            int n_channels = counts[s / N_SCAN_FORMATS], channels[D];
            for (int i = 0; i < n_channels; i++) {
                channels[i] = n_channels == D ? i : (3 + 5 * i) % D;
            }
            for (size_t r = 0; r < N_RANGES; r++) {
                uint32_t begin = ranges[r][0], end = ranges[r][1];
                got[end - begin] = 123.0f;
                tier(*name)->host.scan(&(struct sl_scan_piece){layout, index, begin, end, 0}, q, channels, n_channels,
                                       got);
                for (uint32_t j = begin; j < end; j++) {
                    bool fused = strcmp(*name, "reference") != 0 && strcmp(*name, "neon") != 0;
                    float want = expected_score(&layout, index, q, channels, n_channels, j,
                                                fused && tier(*name)->host.scan != tier("reference")->host.scan);
                    assert_memory_equal(&got[j - begin], &want, sizeof want);
                }
                assert_true(got[end - begin] == 123.0f);
            }
            free(index);
        }
        free(q);
        cache_free(&c);
    }
}

// An index is made of many keys and ranked by all channels: what comes out on top are the keys nearest to the query.
static void test_scan_of_all_channels_ranks_as_the_logits(void **state) {
    PROCESSORS_ONLY(); // ops->host
    (void)state;
    enum { N = 1000, D = 64, TOP = 50 };
    const struct page_case a = {SL_KV_F16, SL_KV_F16, D, N, 0};
    static const uint32_t at_least[N_SCAN_FORMATS] = {TOP, TOP, TOP, TOP * 9 / 10, TOP / 4}; // of the exact ones
    for (const char *const *name = tested(); *name != NULL; name++) {
        struct cache c;
        uint32_t n_slots = N, n_packed = 0;
        cache_fill(&c, tier(*name), a.work, a.packed, 1, D, 0, &n_slots, &n_packed);
        float *q = random_floats(D, 9), got[N], want[N];
        int channels[D];
        uint32_t best[TOP], exact[TOP];
        for (int i = 0; i < D; i++) {
            channels[i] = i;
        }
        float *k = take(N * D * sizeof *k);
        tier("reference")->read_rows(c.kv, 0, N, k, NULL);
        for (int j = 0; j < N; j++) {
            double sum = 0;
            for (int i = 0; i < D; i++) {
                sum += (double)q[i] * (double)k[j * D + i];
            }
            want[j] = (float)sum;
        }
        free(k);
        tier(*name)->host.select(want, N, TOP, exact);
        for (size_t f = 0; f < N_SCAN_FORMATS; f++) {
            if (scan_formats[f] == SL_KV_BF16) {
                continue; // pages are f16: rounding them may swap neighbours
            }
            struct sl_key_index_layout layout = layout_of(scan_formats[f], D, N);
            char *index = make_index(tier(*name), c.kv, N, &layout);
            tier(*name)->host.scan(&(struct sl_scan_piece){layout, index, 0, N, 0}, q, channels, D, got);
            tier(*name)->host.select(got, N, TOP, best);
            uint32_t common = 0;
            for (uint32_t x = 0, y = 0; x < TOP && y < TOP;) {
                common += best[x] == exact[y];
                uint32_t smaller = best[x] < exact[y] ? best[x] : exact[y];
                x += best[x] == smaller;
                y += y < TOP && exact[y] == smaller;
            }
            assert_true(common >= at_least[f]);
            free(index);
        }
        free(q);
        cache_free(&c);
    }
}

// Pieces of several heads: the same bits as host.scan for each, and no other memory changes.
static void test_scan_of_heads_equals_each_piece_on_its_own(void **state) {
    (void)state;
    enum { HEADS = 3, PIECES = 3, D = 16, N = 700, STRIDE = 1100 };
    static const struct {
        uint32_t n, begin, end, at; // n: slots of the index; at: in the row
    } cut[HEADS][PIECES] = {{{128, 5, 128, 0}, {700, 0, 700, 123}, {333, 0, 9, 823}},
                            {{64, 0, 0, 0}, {64, 0, 0, 0}, {64, 0, 0, 0}}, // a head of which nothing came
                            {{1, 0, 1, 7}, {64, 63, 64, 9}, {700, 33, 699, 300}}};
    for (const char *const *name = tested(); *name != NULL; name++) {
        const struct sl_ops *ops = tier(*name), *reference = tier("reference");
        struct cache c;
        const struct page_case a = {SL_KV_F32, SL_KV_F32, D, N, 0};
        open_keys(&c, &a, reference);
        float *q = random_floats(HEADS * D, 11), *got = take(HEADS * STRIDE * sizeof *got),
              *want = take(HEADS * STRIDE * sizeof *want);
        for (size_t s = 0; s < 3 * N_SCAN_FORMATS; s++) { // devices: in three orders of threads
            struct sl_scan_piece pieces[HEADS][PIECES] = {0};
            int n_channels = s < N_SCAN_FORMATS ? 1 : D, all[D];
            for (int i = 0; i < D; i++) {
                all[i] = i;
            }
            for (int i = 0; i < HEADS * STRIDE; i++) {
                got[i] = want[i] = 123.0f;
            }
            for (int h = 0; h < HEADS; h++) {
                for (int p = 0; p < PIECES; p++) {
                    struct sl_scan_piece *piece = &pieces[h][p];
                    piece->layout = layout_of(scan_formats[s % N_SCAN_FORMATS], D, cut[h][p].n);
                    piece->index = make_index(reference, c.kv, cut[h][p].n, &piece->layout);
                    piece->begin = cut[h][p].begin;
                    piece->end = cut[h][p].end;
                    piece->at = cut[h][p].at;
                    ops->host.scan(piece, q + h * n_channels, all, n_channels, want + h * STRIDE + piece->at);
                }
            }
            const struct sl_scan_call call = {pieces[0], HEADS, PIECES, q, n_channels, {got, STRIDE}};
            ops->scan(NULL, &call);
            assert_memory_equal(got, want, HEADS * STRIDE * sizeof *got);
            for (int i = 0; i < HEADS * PIECES; i++) {
                free((void *)pieces[i / PIECES][i % PIECES].index);
            }
        }
        free(q);
        free(got);
        free(want);
        cache_free(&c);
    }
}

// --- rows ------------------------------------------------------------------------------------------------------------

static void test_copy_rows_gives_rows_in_the_working_format(void **state) {
    PROCESSORS_ONLY(); // ops->host
    (void)state;
    for (const char *const *name = tested(); *name != NULL; name++) {
        for (size_t i = 0; i < N_PAGE_CASES; i++) {
            struct cache c;
            const struct page_case *a = &page_cases[i];
            open_keys(&c, a, tier(*name));
            uint32_t slots[100], n = a->n_slots < 100 ? a->n_slots : 100;
            for (uint32_t s = 0; s < n; s++) {
                slots[s] = (s * 37 + 5) % a->n_slots; // in any order, some twice
            }
            size_t d = (size_t)a->d, row_bytes = d * (size_t)sl_kv_format_bits(a->work) / 8;
            char *rows = take(2 * n * row_bytes + 1), *want = take(c.work.bytes);
            tier(*name)->host.copy_rows(c.kv, slots, n, rows);
            for (uint32_t s = 0; s < n; s++) { // as if what is read were appended
                float k[SL_MAX_HEAD_DIM], v[SL_MAX_HEAD_DIM];
                struct sl_kv one = {(void *const[]){want}, 0, 0, &c.work, &c.work};
                tier(*name)->read_rows(c.kv, slots[s], slots[s] + 1, k, v);
                append_rows(tier(*name), &one, k, v, a->d, 1, (const int64_t[]){0});
                assert_memory_equal(rows + 2 * s * row_bytes, want + c.work.k, row_bytes);
                assert_memory_equal(rows + (2 * s + 1) * row_bytes, want + c.work.v, row_bytes);
            }
            assert_int_equal((uint8_t)rows[2 * n * row_bytes], 0xff);
            free(rows);
            free(want);
            cache_free(&c);
        }
    }
}

static void test_put_rows_is_the_inverse_and_touches_nothing_else(void **state) {
    (void)state;
    for (const char *const *name = tested(); *name != NULL; name++) {
        for (size_t i = 0; i < N_PAGE_CASES; i++) {
            struct cache c;
            const struct page_case *a = &page_cases[i];
            open_keys(&c, a, tier(*name));
            uint32_t first = a->n_packed * SL_PAGE_SLOTS, n_working = a->n_slots - first, slots[40], n = 0;
            if (n_working == 0) {
                cache_free(&c);
                continue;
            }
            for (uint32_t s = 0; s < 40 && s * 7 < n_working; s++, n++) {
                slots[n] = first + n_working - 1 - s * 7;
            }
            size_t d = (size_t)a->d, row_bytes = d * (size_t)sl_kv_format_bits(a->work) / 8;
            char *rows = take(2 * n * row_bytes), *back = take(2 * n * row_bytes);
            for (size_t at = 0; at < 2 * n * row_bytes; at++) {
                rows[at] = (char)(at * 31 % 101);
            }
            float *before = take(2 * a->n_slots * d * sizeof *before),
                  *after = take(2 * a->n_slots * d * sizeof *after);
            tier(*name)->read_rows(c.kv, 0, a->n_slots, before, before + a->n_slots * d);
            int64_t *positions = take(a->n_slots * sizeof *positions);
            put_rows(tier(*name), c.kv, slots, n, rows);
            tier(*name)->host.copy_rows(c.kv, slots, n, back);
            assert_memory_equal(back, rows, 2 * n * row_bytes);
            tier(*name)->read_rows(c.kv, 0, a->n_slots, after, after + a->n_slots * d);
            tier(*name)->read_positions(c.kv, positions);
            for (uint32_t j = 0; j < a->n_slots; j++) {
                bool listed = false;
                for (uint32_t s = 0; s < n; s++) {
                    listed = listed || slots[s] == j;
                }
                if (!listed) {
                    assert_memory_equal(after + j * d, before + j * d, d * sizeof *after);
                    assert_memory_equal(after + (a->n_slots + j) * d, before + (a->n_slots + j) * d, d * sizeof *after);
                }
                assert_true(j < first ? positions[j] == position_of(j) : positions[j] == 0); // as open_keys() left them
            }
            free(rows);
            free(back);
            free(before);
            free(after);
            free(positions);
            cache_free(&c);
        }
    }
}

static void test_put_rows_of_heads_equals_each_on_its_own(void **state) {
    (void)state;
    enum { HEADS = 4, D = 24, STRIDE = 512 };
    static const uint32_t n_slots[HEADS] = {65, 1000, 64, 130}, packed[HEADS] = {0, 3, 0, 1};
    static const uint32_t n_listed[HEADS] = {0, 400, 1, 60};
    static uint32_t slots[HEADS][STRIDE];
    for (int round = 0; round < 3 * n_tested(); round++) { // in every working format
        const struct sl_ops *ops = tier(tested()[round / 3]);
        struct cache many, single;
        cache_fill(&many, ops, (enum sl_kv_format)(round % 3), SL_KV_INT8, HEADS, D, 1, n_slots, packed);
        cache_fill(&single, ops, (enum sl_kv_format)(round % 3), SL_KV_INT8, HEADS, D, 1, n_slots, packed);
        float *rows = random_floats(STRIDE * 2 * D, 4);
        const void *of_heads[HEADS];
        for (uint32_t h = 0; h < HEADS; h++) {
            of_heads[h] = (char *)rows + 192 * h;
            for (uint32_t i = 0; i < n_listed[h]; i++) { // in any order
                slots[h][i] = packed[h] * 64 + i * 7 % (n_slots[h] - packed[h] * 64);
            }
            put_rows(ops, &single.kv[h], slots[h], n_listed[h], of_heads[h]);
        }
        const struct sl_kv_heads heads = {.kv = many.kv, .n = HEADS};
        ops->put_rows(NULL, &heads, (struct sl_lists){slots[0], STRIDE}, (struct sl_counts){.host = n_listed},
                      of_heads);
        for (int h = 0; h < HEADS; h++) {
            for (uint32_t p = 0; p < sl_pages_for(n_slots[h]); p++) {
                assert_memory_equal(many.pages[h][p], single.pages[h][p], sl_kv_page_layout(&many.kv[h], p)->bytes);
            }
        }
        free(rows);
        cache_free(&many);
        cache_free(&single);
    }
}

// --- time ------------------------------------------------------------------------------------------------------------

enum { REPEATS = 15 };

static int by_size(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static double median_ns(int64_t *ns) {
    qsort(ns, REPEATS, sizeof *ns, by_size);
    return (double)ns[REPEATS / 2];
}

static uint64_t read_plainly(const void *from, size_t bytes) {
    const uint64_t *x = from;
    uint64_t sum[8] = {0};
    for (size_t i = 0; i + 8 <= bytes / 8; i += 8) {
        for (size_t t = 0; t < 8; t++) {
            sum[t] += x[i + t];
        }
    }
    return sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
}

// Indexes of many segments, more than the caches hold, and by turns: channels of them scanned, as many bytes read.
static void time_scan(const char *name, enum sl_kv_format format, int n_channels) {
    enum { D = 128, SLOTS = 2048, N = 64 }; // 128k slots
    struct sl_key_index_layout layout = layout_of(format, D, SLOTS);
    char *indexes = take(N * layout.bytes);
    memset(indexes, 0x11, N * layout.bytes);
    float *q = random_floats(D, 1), *scores = take((size_t)N * SLOTS * sizeof *scores);
    int channels[D];
    int64_t ns[2][REPEATS];
    volatile uint64_t sink = 0;
    for (int r = 0; r < REPEATS; r++) {
        for (int i = 0; i < n_channels; i++) {
            channels[i] = i * (D / n_channels) + r % (D / n_channels);
        }
        int64_t at = sl_now_ns();
        for (int s = 0; s < N; s++) {
            const struct sl_scan_piece piece = {layout, indexes + (size_t)s * layout.bytes, 0, SLOTS, 0};
            tier(name)->host.scan(&piece, q, channels, n_channels, scores + s * SLOTS);
        }
        ns[0][r] = sl_now_ns() - at, at = sl_now_ns();
        for (int s = 0; s < N; s++) { // the channels next to them
            for (int i = 0; i < n_channels; i++) {
                size_t c = (size_t)(channels[i] + 1) % D;
                sink += read_plainly(indexes + (size_t)s * layout.bytes + layout.codes + c * layout.channel_bytes,
                                     layout.channel_bytes);
            }
        }
        ns[1][r] = sl_now_ns() - at;
    }
    double bytes = (double)n_channels * (double)layout.channel_bytes * N;
    double scan_ns = median_ns(ns[0]), read_ns = median_ns(ns[1]);
    printf("%-10s scan %-5s %2d channels of 128k: %8.1f us, %6.2f GB/s; read plainly %6.2f GB/s; ratio %.2f\n", name,
           sl_kv_format_name(format), n_channels, scan_ns * 1e-3, bytes / scan_ns, bytes / read_ns, read_ns / scan_ns);
    free(indexes);
    free(q);
    free(scores);
}

// A segment's pages, out of the caches, made an index of; their keys read plainly by turns.
static void time_copy(const char *name, enum sl_kv_format work, enum sl_kv_format format) {
    enum { D = 128, PAGES = 32, N = 32 };
    struct sl_page_layout page;
    assert_int_equal(sl_page_layout_init(&page, work, D, 0, false), SL_OK);
    struct sl_key_index_layout layout = layout_of(format, D, PAGES * SL_PAGE_SLOTS);
    char *all = take((size_t)N * PAGES * page.bytes), *indexes = take(N * layout.bytes);
    memset(all, 0x33, (size_t)N * PAGES * page.bytes);
    size_t key_bytes = page.v - page.k;
    int64_t ns[2][REPEATS];
    volatile uint64_t sink = 0;
    for (int r = 0; r < REPEATS; r++) {
        void *pages[PAGES];
        int64_t at = sl_now_ns();
        for (int s = 0; s < N; s++) {
            for (int p = 0; p < PAGES; p++) {
                pages[p] = all + (size_t)(s * PAGES + p) * page.bytes;
            }
            const struct sl_kv kv = {pages, 0, PAGES * SL_PAGE_SLOTS, &page, &page};
            tier(name)->host.index_keys(&kv, kv.n_slots, &layout, indexes + (size_t)s * layout.bytes);
        }
        ns[0][r] = sl_now_ns() - at, at = sl_now_ns();
        for (int p = 0; p < N * PAGES; p++) {
            sink += read_plainly(all + (size_t)p * page.bytes, key_bytes);
        }
        ns[1][r] = sl_now_ns() - at;
    }
    double bytes = (double)key_bytes * PAGES * N, copy_ns = median_ns(ns[0]), read_ns = median_ns(ns[1]);
    printf("%-10s index_keys %-5s from %-5s d=%d: %6.2f GB/s of keys; read plainly %6.2f GB/s\n", name,
           sl_kv_format_name(format), sl_kv_format_name(work), D, bytes / copy_ns, bytes / read_ns);
    free(all);
    free(indexes);
}

// Rows that lie anywhere in a long cache.
static void time_rows(const char *name) {
    enum { D = 128, PAGES = 2048, N = 1024 };
    struct sl_page_layout page;
    assert_int_equal(sl_page_layout_init(&page, SL_KV_F16, D, 0, false), SL_OK);
    char *all = take((size_t)PAGES * page.bytes), *rows = take((size_t)N * 4 * D);
    void **pages = take(PAGES * sizeof *pages);
    uint32_t slots[N];
    uint64_t seed = 3;
    int64_t ns[REPEATS];
    for (size_t p = 0; p < PAGES; p++) {
        pages[p] = all + p * page.bytes;
    }
    for (int r = 0; r < REPEATS; r++) {
        for (int i = 0; i < N; i++) {
            slots[i] = (uint32_t)i * (PAGES * SL_PAGE_SLOTS / N) +
                       (uint32_t)(next_random(&seed) % (PAGES * SL_PAGE_SLOTS / N));
        }
        const struct sl_kv kv = {pages, 0, PAGES * SL_PAGE_SLOTS, &page, &page};
        int64_t at = sl_now_ns();
        tier(name)->host.copy_rows(&kv, slots, N, rows);
        ns[r] = sl_now_ns() - at;
    }
    double copy_ns = median_ns(ns);
    printf("%-10s copy_rows %d of 128k f16 d=%d: %.1f us, %.2f GB/s\n", name, N, D, copy_ns * 1e-3,
           4.0 * D * N / copy_ns);
    free(all);
    free(rows);
    free(pages);
}

static void time_tier(const char *name) {
    for (size_t f = 0; f < N_SCAN_FORMATS; f++) {
        time_scan(name, scan_formats[f], 8);
        time_scan(name, scan_formats[f], 12);
    }
    for (size_t f = 0; f < N_SCAN_FORMATS; f++) {
        time_copy(name, SL_KV_F16, scan_formats[f]);
    }
    time_copy(name, SL_KV_BF16, SL_KV_BF16);
    time_copy(name, SL_KV_F32, SL_KV_F32);
    time_rows(name);
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--time") == 0) {
        for (const char *const *name = tested(); *name != NULL; name++) {
            if (argc < 3 || strcmp(*name, argv[2]) == 0) {
                time_tier(*name);
            }
        }
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_key_index_holds_the_keys_channel_by_channel),
        cmocka_unit_test(test_key_index_of_no_slots_is_zeros),
        cmocka_unit_test(test_scan_is_the_sum_over_the_channels_in_order),
        cmocka_unit_test(test_scan_of_all_channels_ranks_as_the_logits),
        cmocka_unit_test(test_scan_of_heads_equals_each_piece_on_its_own),
        cmocka_unit_test(test_copy_rows_gives_rows_in_the_working_format),
        cmocka_unit_test(test_put_rows_is_the_inverse_and_touches_nothing_else),
        cmocka_unit_test(test_put_rows_of_heads_equals_each_on_its_own),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
