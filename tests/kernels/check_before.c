// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: attention in parts: attend_before over whole splits and then attend over the rest give the bits of one attend over all slots.
 *          This holds in every tier, however calls and threads share the splits. Tiers that differ in instructions alone give the same bits.
 */
#include "engine/tensor/cpu/attention/integer/fills.h"
#include "tests/kernels/kv_fixture.h"
#include "tests/stream.h"

#define SPLIT_PAGES (SL_ATTEND_SPLIT / SL_PAGE_SLOTS)

static const struct part_case {
    enum sl_kv_format work, packed;
    int n_heads, n_kv_heads, d, m;
    uint32_t n_slots[MAX_KV_HEADS], n_packed[MAX_KV_HEADS];
    int q_gap; // floats between rows of q
} cases[] = {
    {SL_KV_F16, SL_KV_F16, 4, 1, 64, 1, {12300}, {0}, 0}, // three splits and a tail
    {SL_KV_F16, SL_KV_F16, 4, 1, 64, 7, {16384}, {0}, 16},
    {SL_KV_F16, SL_KV_F16, 2, 2, 128, 1, {8193, 12289}, {0, 0}, 0}, // tails of the row alone; heads of several lengths
    {SL_KV_BF16, SL_KV_BF16, 4, 1, 64, 64, {8300}, {0}, 0},
    {SL_KV_F16, SL_KV_F16, 4, 1, 32, 300, {4500}, {0}, 0},          // more vectors than a block has
    {SL_KV_F32, SL_KV_F32, 2, 2, 16, 300, {8400, 4200}, {0, 0}, 0}, // a head of which nothing comes before
    {SL_KV_F32, SL_KV_F32, 4, 1, 16, 64, {9000}, {0}, 8},
    {SL_KV_F16, SL_KV_INT4, 8, 2, 32, 7, {8300, 12400}, {100, 193}, 0},
    {SL_KV_F16, SL_KV_INT8, 4, 1, 64, 64, {8400}, {131}, 0},
    {SL_KV_BF16, SL_KV_BF16, 1, 1, 40, 7, {8200}, {0}, 0}, // no whole steps of tiles
    {SL_KV_F16, SL_KV_F16, 4, 4, 64, 1, {64, 4096, 4097, 16001}, {0, 0, 0, 0}, 0},
    {SL_KV_F16, SL_KV_F16, 4, 2, 64, 64, {63 + 64, 4200}, {0, 0}, 0}, // nothing comes before: one attend
};
#define N_CASES (sizeof cases / sizeof cases[0])

struct setup {
    struct cache cache;
    struct sl_attend args;
    size_t n_out, n_rows; // of out, of lse
};

static void case_open(const struct part_case *a, const struct sl_ops *ops, struct setup *s) {
    cache_fill(&s->cache, ops, a->work, a->packed, a->n_kv_heads, a->d, 0, a->n_slots, a->n_packed);
    size_t row = (size_t)a->n_heads * (size_t)a->d;
    s->n_out = (size_t)a->m * row;
    s->n_rows = (size_t)a->m * (size_t)a->n_heads;
    s->args = (struct sl_attend){.q = random_floats((size_t)a->m * (row + (size_t)a->q_gap), 7),
                                 .q_stride = a->q_gap > 0 ? (int64_t)row + a->q_gap : 0,
                                 .m = a->m,
                                 .n_heads = a->n_heads,
                                 .head_dim = a->d,
                                 .scale = 1.0f / sqrtf((float)a->d),
                                 .heads = {s->cache.kv, a->n_kv_heads},
                                 .out = take(s->n_out * sizeof(float)),
                                 .lse = take(s->n_rows * sizeof(float))};
}

static void case_close(struct setup *s) {
    free((void *)s->args.q);
    free(s->args.out);
    free(s->args.lse);
    cache_free(&s->cache);
}

// Slots [begin, end) of a head; begin is a multiple of a page.
static struct sl_kv part_of(const struct sl_kv *kv, uint32_t begin, uint32_t end) {
    uint32_t first = begin / SL_PAGE_SLOTS, n_pages = sl_pages_for(end) - first;
    uint32_t n_packed = kv->n_packed > first ? kv->n_packed - first : 0;
    struct sl_kv part = *kv;
    part.pages += first;
    part.n_slots = end - begin;
    part.n_packed = n_packed < n_pages ? n_packed : n_pages;
    return part;
}

// Whole splits of a head that come before all rows, less the last `left` of them.
static uint32_t splits_before(const struct sl_attend *args, int h, uint32_t left) {
    uint32_t all = (args->heads.kv[h].n_slots - (uint32_t)args->m) / SL_ATTEND_SPLIT;
    return all > left ? all - left : 0;
}

static struct sl_softmax no_softmax(const struct setup *s) {
    struct sl_softmax none = {take(s->n_out * sizeof(float)), take(s->n_rows * sizeof(float)),
                              take(s->n_rows * sizeof(float))}; // NaN: an op must not read an empty part
    for (size_t i = 0; i < s->n_rows; i++) {
        none.max[i] = -INFINITY;
    }
    return none;
}

static void softmax_free(struct sl_softmax *x) {
    free(x->out);
    free(x->max);
    free(x->sum);
}

// `a_call` splits in each attend_before(), but for the last `left`. kv_out: what attend() is then to see.
static void attend_before_rest(const struct sl_ops *ops, struct sl_stream *stream, const struct setup *s,
                               uint32_t a_call, uint32_t left, struct sl_softmax *before, struct sl_kv *kv_out) {
    struct sl_attend args = s->args;
    args.out = args.lse = NULL;
    args.heads.kv = kv_out;
    bool more = true;
    for (uint32_t split = 0; more; split += a_call) {
        more = false;
        for (int h = 0; h < args.heads.n; h++) { // heads that are through have no slots in a call
            uint32_t all = splits_before(&s->args, h, left), begin = split < all ? split : all;
            uint32_t end = begin + a_call < all ? begin + a_call : all;
            kv_out[h] = part_of(&s->args.heads.kv[h], begin * SL_ATTEND_SPLIT, end * SL_ATTEND_SPLIT);
            more = more || end > begin;
        }
        ops->attend_before(stream, &args, before);
    }
    for (int h = 0; h < args.heads.n; h++) {
        kv_out[h] = part_of(&s->args.heads.kv[h], splits_before(&s->args, h, left) * SL_ATTEND_SPLIT,
                            s->args.heads.kv[h].n_slots);
    }
}

static void test_attend_in_parts_gives_the_bits_of_one_attend(void **state) {
    (void)state;
    static const int team_sizes[] = {0, 2, 5};
    static const uint32_t splits_a_call[] = {1, 2, 4};
    for (size_t t = 0; t < sizeof team_sizes / sizeof team_sizes[0]; t++) {
        struct sl_stream *stream = NULL;
        stream = team_sizes[t] == 0 ? NULL : test_stream_open(team_sizes[t]);
        for (const char *const *name = tested(); *name != NULL; name++) {
            for (size_t i = 0; i < N_CASES; i++) {
                if (strcmp(*name, "reference") == 0 && cases[i].m > 7 && (t + i) % 3 != 0) {
                    continue; // seconds each: every such case with one team
                }
                if (is_emulated(*name) && (cases[i].m > 7 || (t + i) % 3 != 0)) {
                    continue;
                }
                struct setup s;
                struct sl_kv kv[MAX_KV_HEADS];
                case_open(&cases[i], tier(*name), &s);
                float *out = take(s.n_out * sizeof *out), *lse = take(s.n_rows * sizeof *lse);
                tier(*name)->attend(stream, &s.args, 1);
                struct sl_softmax before = no_softmax(&s);
                attend_before_rest(tier(*name), stream, &s, splits_a_call[(i + t) % 3], (uint32_t)t, &before, kv);
                struct sl_attend rest = s.args;
                rest.heads.kv = kv;
                rest.before = &before;
                rest.out = out;
                rest.lse = lse;
                tier(*name)->attend(stream, &rest, 1);
                assert_memory_equal(out, s.args.out, s.n_out * sizeof *out);
                assert_memory_equal(lse, s.args.lse, s.n_rows * sizeof *lse);
                softmax_free(&before);
                free(out);
                free(lse);
                case_close(&s);
            }
        }
        test_stream_close(&stream);
    }
}

// The softmax itself does not tell who computed it, and calls with and without one share a step.
static void test_attend_before_does_not_depend_on_the_team_or_the_step(void **state) {
    (void)state;
    struct sl_stream *stream;
    stream = test_stream_open(3);
    for (const char *const *name = tested(); *name != NULL; name++) {
        struct setup s[2];
        struct sl_kv kv[2][MAX_KV_HEADS];
        case_open(&cases[0], tier(*name), &s[0]);
        case_open(&cases[is_emulated(*name) ? 2 : 7], tier(*name), &s[1]);
        struct sl_softmax alone = no_softmax(&s[0]), shared = no_softmax(&s[0]);
        attend_before_rest(tier(*name), NULL, &s[0], 1, 0, &alone, kv[0]);
        attend_before_rest(tier(*name), stream, &s[0], 3, 0, &shared, kv[0]);
        assert_memory_equal(alone.out, shared.out, s[0].n_out * sizeof *alone.out);
        assert_memory_equal(alone.max, shared.max, s[0].n_rows * sizeof *alone.max);
        assert_memory_equal(alone.sum, shared.sum, s[0].n_rows * sizeof *alone.sum);
        for (size_t v = 0; v < s[0].n_rows; v++) {
            assert_true(shared.max[v] > -INFINITY && shared.sum[v] >= 1.0f && shared.sum[v] <= 12300.0f);
        }
        float *want[2], *lse = s[0].args.lse;
        for (int i = 0; i < 2; i++) {
            tier(*name)->attend(NULL, &s[i].args, 1);
            want[i] = take(s[i].n_out * sizeof *want[i]);
            memcpy(want[i], s[i].args.out, s[i].n_out * sizeof *want[i]);
            memset(s[i].args.out, 0xff, s[i].n_out * sizeof *want[i]);
        }
        struct sl_attend calls[2] = {s[0].args, s[1].args};
        calls[0].heads.kv = kv[0];
        calls[0].before = &alone;
        calls[0].lse = NULL;
        tier(*name)->attend(stream, calls, 2);
        for (int i = 0; i < 2; i++) {
            assert_memory_equal(s[i].args.out, want[i], s[i].n_out * sizeof *want[i]);
            free(want[i]);
        }
        s[0].args.lse = lse;
        softmax_free(&alone);
        softmax_free(&shared);
        case_close(&s[0]);
        case_close(&s[1]);
    }
    test_stream_close(&stream);
}

// Tier avx512vnni reads codes in its own way, with and without VBMI: but for those that it multiplies as integers with the bits of avx512.
static void test_avx512vnni_has_the_bits_of_avx512(void **state) {
    (void)state;
    bool both[2] = {false, false};
    for (const char *const *name = tested(); *name != NULL; name++) {
        both[0] |= strcmp(*name, "avx512") == 0;
        both[1] |= strcmp(*name, "avx512vnni") == 0;
    }
    if (!both[0] || !both[1]) {
        skip();
    }
    for (size_t f = 0; f < sizeof code_formats / sizeof code_formats[0]; f++) {
        for (int d = 32; d <= 128; d += 32) {
            const struct part_case a = {SL_KV_F16, code_formats[f], 8, 2, d, 3, {200, 130}, {3, 2}, 0};
            struct setup s;
            case_open(&a, tier("avx512"), &s);
            float *out = take(s.n_out * sizeof *out);
            tier("avx512")->attend(NULL, &s.args, 1);
            memcpy(out, s.args.out, s.n_out * sizeof *out);
            tier("avx512vnni")->attend(NULL, &s.args, 1);
            if (by_integers("avx512vnni", &s.args, true) || by_integers("avx512vnni", &s.args, false)) {
                assert_memory_not_equal(s.args.out, out, s.n_out * sizeof *out);
            } else {
                assert_memory_equal(s.args.out, out, s.n_out * sizeof *out);
            }
            memcpy(out, s.args.out, s.n_out * sizeof *out);
#if defined(__x86_64__)
            struct sl_ops without_vbmi = *tier("avx512vnni");
            sl_avx512vnni_kv_fill(&without_vbmi);
            without_vbmi.attend(NULL, &s.args, 1);
            assert_memory_equal(s.args.out, out, s.n_out * sizeof *out);
#endif
            free(out);
            case_close(&s);
        }
    }
}

// Tiers whose elements are f32 multiply few vectors by codes as they decode them, and more by a tile: up to 24 and above that.
static void check_few_vectors(const struct sl_ops *ops, const struct part_case *a) {
    struct setup s;
    case_open(a, ops, &s);
    ops->attend(NULL, &s.args, 1);
    size_t row = (size_t)a->n_heads * (size_t)a->d;
    for (int m = 1; m * a->n_heads / a->n_kv_heads <= 6; m++) { // the last rows alone
        struct sl_attend few = s.args;
        few.q += (size_t)(a->m - m) * row;
        few.m = m;
        few.out = take((size_t)m * row * sizeof(float));
        few.lse = NULL;
        ops->attend(NULL, &few, 1);
        assert_memory_equal(few.out, s.args.out + (size_t)(a->m - m) * row, (size_t)m * row * sizeof(float));
        free(few.out);
    }
    case_close(&s);
}

static void test_few_vectors_of_codes_have_the_bits_of_many(void **state) {
    (void)state;
    for (const char *const *name = tested(); *name != NULL; name++) {
        bool has_f32 = strcmp(*name, "avx512") == 0 || strcmp(*name, "avx512vnni") == 0;
        for (size_t f = 0; has_f32 && f < sizeof code_formats / sizeof code_formats[0]; f++) {
            for (int group = 1; group <= 6; group++) {
                for (int d = 32; d <= 128; d *= 2) { // 32: groups of half a page's slots
                    for (int m = 7; m <= 25; m += 18) {
                        const struct part_case a = {SL_KV_F16, code_formats[f], 2 * group, 2, d,
                                                    m,         {230, 190},      {3, 2},    0};
                        check_few_vectors(tier(*name), &a);
                    }
                }
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_few_vectors_of_codes_have_the_bits_of_many),
        cmocka_unit_test(test_avx512vnni_has_the_bits_of_avx512),
        cmocka_unit_test(test_attend_in_parts_gives_the_bits_of_one_attend),
        cmocka_unit_test(test_attend_before_does_not_depend_on_the_team_or_the_step),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
