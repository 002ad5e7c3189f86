// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: holds attention over listed slots to the formula of engine/tensor/ops.h, in every tier, and times it (--time).
 */
#include "tests/kernels/kv_fixture.h"
#include "tests/stream.h"

static void assert_close(double got, double want, double tolerance) {
    if (!(fabs(got - want) <= tolerance * (1.0 + fabs(want)))) {
        fail_msg("got %.9g, expected %.9g", got, want);
    }
}

static const struct attend_case {
    enum sl_kv_format work, packed;
    int n_heads, n_kv_heads, d;
    bool slot_positions;
    uint32_t n_slots[MAX_KV_HEADS], n_packed[MAX_KV_HEADS];
} cases[] = {
    {SL_KV_F32, SL_KV_F32, 2, 1, 8, false, {1}, {0}},
    {SL_KV_F32, SL_KV_F32, 4, 2, 16, true, {7, 100}, {0, 0}},
    {SL_KV_F16, SL_KV_F16, 4, 2, 64, false, {64, 193}, {0, 0}},
    {SL_KV_F16, SL_KV_F16, 3, 3, 128, true, {70, 128, 333}, {0, 0, 0}},
    {SL_KV_BF16, SL_KV_BF16, 6, 2, 72, false, {65, 66}, {0, 0}},
    {SL_KV_F16, SL_KV_INT8, 8, 2, 64, false, {200, 130}, {2, 1}},
    {SL_KV_F16, SL_KV_INT4, 8, 2, 128, true, {200, 330}, {3, 5}},
    {SL_KV_BF16, SL_KV_INT1, 4, 1, 64, true, {140}, {2}},
    {SL_KV_F16, SL_KV_INT2, 3, 1, 96, false, {130}, {1}},
    {SL_KV_F32, SL_KV_INT2, 5, 1, 40, false, {66}, {1}},
    {SL_KV_F16, SL_KV_INT1, 28, 4, 32, true, {64, 65, 127, 200}, {1, 1, 1, 3}},
    {SL_KV_F16, SL_KV_F16, 1, 1, 512, true, {90}, {0}},
// every format, also one that no case above names
#define X(name, ...) {SL_KV_F16, SL_KV_##name, 4, 2, 96, false, {200, 130}, {2, 1}},
    SL_KV_CODE_FORMATS(X)
#undef X
};
#define N_CASES (sizeof cases / sizeof cases[0])

static void case_open(const struct attend_case *a, const struct sl_ops *ops, struct cache *c, struct sl_rope *rope,
                      struct sl_attend *args) {
    cache_fill(c, ops, a->work, a->packed, a->n_kv_heads, a->d, 0, a->n_slots, a->n_packed);
    *rope = (struct sl_rope){a->d, a->d, inverse_frequencies(a->d), 1.0};
    size_t n_out = (size_t)a->n_heads * (size_t)a->d;
    *args = (struct sl_attend){.q = random_floats(n_out, 7),
                               .m = 1,
                               .n_heads = a->n_heads,
                               .head_dim = a->d,
                               .scale = 1.0f / sqrtf((float)a->d),
                               .heads = {c->kv, a->n_kv_heads},
                               .rope = a->slot_positions ? rope : NULL,
                               .out = take(n_out * sizeof(float)),
                               .lse = take((size_t)a->n_heads * sizeof(float))};
}

static void case_close(struct cache *c, struct sl_attend *args) {
    free((void *)args->q);
    free(args->out);
    free(args->lse);
    cache_free(c);
}

// Per head, the slots with (j + h) % every < some, and the last slot.
struct lists {
    uint32_t slots[MAX_KV_HEADS][512];
    uint32_t n[MAX_KV_HEADS];
};

static struct sl_lists lists_of(struct lists *l) {
    return (struct sl_lists){l->slots[0], 512};
}

static void list_slots(struct lists *l, const struct sl_attend *args, uint32_t every, uint32_t some) {
    for (int h = 0; h < args->heads.n; h++) {
        l->n[h] = 0;
        for (uint32_t j = 0; j < args->heads.kv[h].n_slots; j++) {
            if ((j + (uint32_t)h) % every < some || j + 1 == args->heads.kv[h].n_slots) {
                l->slots[h][l->n[h]++] = j;
            }
        }
    }
}

static void test_attend_slots_with_all_slots_gives_the_bits_of_attend(void **state) {
    (void)state;
    for (const char *const *name = tested(); *name != NULL; name++) {
        for (size_t i = 0; i < N_CASES; i++) {
            struct cache c;
            struct sl_rope rope;
            struct sl_attend args;
            struct lists all;
            case_open(&cases[i], tier(*name), &c, &rope, &args);
            list_slots(&all, &args, 1, 1);
            size_t n_out = (size_t)args.n_heads * (size_t)args.head_dim * sizeof(float);
            float *out = take(n_out), *lse = take((size_t)args.n_heads * sizeof *lse);
            tier(*name)->attend(NULL, &args, 1);
            memcpy(out, args.out, n_out);
            memcpy(lse, args.lse, (size_t)args.n_heads * sizeof *lse);
            memset(args.out, 0xff, n_out);
            memset(args.lse, 0xff, (size_t)args.n_heads * sizeof *lse);
            tier(*name)->attend_slots(NULL, &args, lists_of(&all), (struct sl_counts){.host = all.n});
            if (tier(*name)->attend_slots == tier("reference")->attend_slots || strcmp(*name, "avx2") == 0 ||
                (is_device(*name) && (!has_packed_pages(&args) || rounding_of(*name, &args) == 0))) {
                assert_memory_equal(args.out, out, n_out);
                assert_memory_equal(args.lse, lse, (size_t)args.n_heads * sizeof *lse);
            } // other tiers have the attend_slots of avx2, but an attend of their own, as a device has of packed pages
            free(out);
            free(lse);
            case_close(&c, &args);
        }
    }
}

static void rotate_f64(const struct sl_rope *rope, int64_t position, double *x) {
    int half = rope->head_dim / 2;
    for (int i = 0; rope != NULL && i < half; i++) {
        double angle = (double)position * rope->inv_freq[i];
        double a = x[i], b = x[i + half];
        x[i] = a * cos(angle) - b * sin(angle);
        x[i + half] = b * cos(angle) + a * sin(angle);
    }
}

// Softmax attention of one query head over the listed slots, in f64; see check_attend.c for how far a tier may be from it.
static void check_head(const char *name, const struct sl_attend *args, int head, const uint32_t *slots, uint32_t n) {
    const struct sl_kv *kv = &args->heads.kv[head / (args->n_heads / args->heads.n)];
    int d = args->head_dim;
    double q[SL_MAX_HEAD_DIM], key[SL_MAX_HEAD_DIM], out[SL_MAX_HEAD_DIM] = {0}, scores[512], max = -INFINITY, sum = 0;
    double magnitude[SL_MAX_HEAD_DIM] = {0},
           u = is_device(name) ? rounding_of(name, args) : 0,
           e = 0; // no tier rounds here
    float k[SL_MAX_HEAD_DIM], v[SL_MAX_HEAD_DIM];
    for (int i = 0; i < d; i++) {
        q[i] = (double)args->q[(size_t)head * (size_t)d + (size_t)i];
    }
    if (args->rope != NULL) {
        rotate_f64(args->rope, (int64_t)kv->n_slots - 1, q);
    }
    for (uint32_t j = 0; j < n; j++) {
        tier("reference")->read_rows(kv, slots[j], slots[j] + 1, k, NULL);
        scores[j] = 0;
        for (int i = 0; i < d; i++) {
            key[i] = (double)k[i];
        }
        if (args->rope != NULL) {
            rotate_f64(args->rope, slots[j], key);
        }
        for (int i = 0; i < d; i++) {
            scores[j] += q[i] * key[i] * (double)args->scale;
        }
        e = fmax(e, score_error(q, key, 1, d, (double)args->scale, u));
        max = fmax(max, scores[j]);
    }
    for (uint32_t j = 0; j < n; j++) {
        tier("reference")->read_rows(kv, slots[j], slots[j] + 1, NULL, v);
        sum += exp(scores[j] - max);
        for (int i = 0; i < d; i++) {
            out[i] += exp(scores[j] - max) * (double)v[i];
            magnitude[i] += exp(scores[j] - max) * fabs((double)v[i]);
        }
    }
    for (int i = 0; i < d; i++) {
        double bound = (exp(2 * e) * pow(1 + u, 3) - 1) * magnitude[i] / sum;
        assert_close((double)args->out[(size_t)head * (size_t)d + (size_t)i], out[i] / sum, within(name, 3e-6) + bound);
    }
    assert_close((double)args->lse[head], max + log(sum), within(name, 2e-6) + e);
}

static void test_attend_slots_of_a_subset_equals_dense_attention_over_it(void **state) {
    (void)state;
    static const uint32_t every[] = {2, 3, 10, 100}, some[] = {1, 2, 1, 70};
    struct sl_stream *stream;
    stream = test_stream_open(2);
    for (const char *const *name = tested(); *name != NULL; name++) {
        for (size_t i = 0; i < N_CASES; i++) {
            for (size_t s = 0; s < 4; s++) {
                struct cache c;
                struct sl_rope rope;
                struct sl_attend args;
                struct lists some_slots;
                case_open(&cases[i], tier(*name), &c, &rope, &args);
                list_slots(&some_slots, &args, every[s], some[s]);
                tier(*name)->attend_slots(s % 2 ? stream : NULL, &args, lists_of(&some_slots),
                                          (struct sl_counts){.host = some_slots.n});
                int group = args.n_heads / args.heads.n;
                for (int head = 0; head < args.n_heads; head++) {
                    check_head(*name, &args, head, some_slots.slots[head / group], some_slots.n[head / group]);
                }
                float *lse = args.lse; // which may be NULL
                args.lse = NULL;
                tier(*name)->attend_slots(NULL, &args, lists_of(&some_slots), (struct sl_counts){.host = some_slots.n});
                args.lse = lse;
                case_close(&c, &args);
            }
        }
    }
    test_stream_close(&stream);
}

// The same rows, listed in an order of their own, in pages where each lies elsewhere, as in a hot cache.
static void test_attend_slots_does_not_depend_on_where_slots_lie(void **state) {
    (void)state;
    static const struct attend_case places[] = {
        {SL_KV_F32, SL_KV_F32, 4, 2, 16, false, {7, 100}, {0, 0}},
        {SL_KV_F16, SL_KV_F16, 4, 1, 64, false, {501}, {0}},
        {SL_KV_F16, SL_KV_F16, 8, 2, 128, false, {512, 193}, {0, 0}},
        {SL_KV_BF16, SL_KV_BF16, 6, 2, 72, false, {65, 333}, {0, 0}},
    };
    for (const char *const *name = tested(); *name != NULL; name++) {
        for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
            const struct attend_case *a = &places[i];
            struct cache c, other;
            struct sl_rope rope;
            struct sl_attend args;
            struct lists here, there;
            uint64_t seed = i;
            case_open(a, tier(*name), &c, &rope, &args);
            cache_fill(&other, tier(*name), a->work, a->packed, a->n_kv_heads, a->d, 0, a->n_slots, a->n_packed);
            list_slots(&here, &args, 1, 1);
            list_slots(&there, &args, 1, 1);
            for (int h = 0; h < a->n_kv_heads; h++) {
                size_t row_bytes = (size_t)a->d * (size_t)sl_kv_format_bits(a->work) / 8;
                for (uint32_t j = here.n[h]; j-- > 1;) { // two shuffles
                    uint32_t x = (uint32_t)(next_random(&seed) % (j + 1)), y = (uint32_t)(next_random(&seed) % (j + 1));
                    uint32_t *p = here.slots[h], *q = there.slots[h], was = p[j];
                    p[j] = p[x], p[x] = was, was = q[j];
                    q[j] = q[y], q[y] = was;
                }
                char *rows = take(2 * here.n[h] * row_bytes);
                tier(*name)->host.copy_rows(&c.kv[h], here.slots[h], here.n[h], rows);
                put_rows(tier(*name), &other.kv[h], there.slots[h], there.n[h], rows);
                here.n[h] = there.n[h] = here.n[h] - here.n[h] / 4; // and not all of them
                free(rows);
            }
            size_t n_out = (size_t)args.n_heads * (size_t)args.head_dim * sizeof(float);
            float *out = take(n_out), *lse = take((size_t)args.n_heads * sizeof *lse);
            tier(*name)->attend_slots(NULL, &args, lists_of(&here), (struct sl_counts){.host = here.n});
            for (int head = 0; head < args.n_heads; head++) {
                int h = head / (args.n_heads / args.heads.n);
                check_head(*name, &args, head, here.slots[h], here.n[h]);
            }
            memcpy(out, args.out, n_out);
            memcpy(lse, args.lse, (size_t)args.n_heads * sizeof *lse);
            args.heads.kv = other.kv;
            tier(*name)->attend_slots(NULL, &args, lists_of(&there), (struct sl_counts){.host = there.n});
            assert_memory_equal(args.out, out, n_out);
            assert_memory_equal(args.lse, lse, (size_t)args.n_heads * sizeof *lse);
            free(out);
            free(lse);
            cache_free(&other);
            case_close(&c, &args);
        }
    }
}

static void test_attend_slots_without_slots_gives_zeros(void **state) {
    (void)state;
    for (const char *const *name = tested(); *name != NULL; name++) {
        struct cache c;
        struct sl_rope rope;
        struct sl_attend args;
        struct lists lists;
        case_open(&cases[2], tier(*name), &c, &rope, &args);
        list_slots(&lists, &args, 2, 1);
        lists.n[1] = 0;
        tier(*name)->attend_slots(NULL, &args, lists_of(&lists), (struct sl_counts){.host = lists.n});
        check_head(*name, &args, 0, lists.slots[0], lists.n[0]);
        for (int e = 2 * args.head_dim; e < 4 * args.head_dim; e++) {
            assert_true(args.out[e] == 0.0f);
        }
        assert_true(args.lse[2] == -INFINITY && args.lse[3] == -INFINITY);
        case_close(&c, &args);
    }
}

// --- mean_query ------------------------------------------------------------------------------------------------------

static void test_mean_query_is_the_mean_over_query_heads(void **state) {
    (void)state;
    enum { HEADS = 4, D = 136, MOST = 5 };
    struct sl_kv kv[HEADS] = {{0}};
    float *q = random_floats(HEADS * MOST * D, 8), means[HEADS * D], reference[HEADS * D];
    for (const char *const *name = tested(); *name != NULL; name++) {
        for (int group = 1; group <= MOST; group++) {
            const struct sl_attend args = {
                .m = 1, .n_heads = HEADS * group, .head_dim = D, .heads = {.kv = kv, .n = HEADS}};
            tier(*name)->mean_query(NULL, &args, q, means);
            tier("reference")->mean_query(NULL, &args, q, reference);
            assert_memory_equal(means, reference, sizeof means); // all tiers have the same
            for (int e = 0; e < HEADS * D; e++) {
                double sum = 0;
                for (int g = 0; g < group; g++) {
                    sum += (double)q[(e / D * group + g) * D + e % D];
                }
                assert_close((double)means[e], sum / group, 1e-6);
            }
        }
    }
    free(q);
}

// --- time ------------------------------------------------------------------------------------------------------------

static void print_time(const char *name, const char *op, enum sl_kv_format format, uint32_t n, int d,
                       const int64_t *ns) {
    int64_t best = ns[0];
    for (int i = 1; i < 5; i++) {
        best = ns[i] < best ? ns[i] : best;
    }
    printf("%-10s %-16s %-5s n=%-6u d=%-4d best %9.3f ms %7.2f ns/slot\n", name, op, sl_kv_format_name(format), n, d,
           (double)best * 1e-6, (double)best / n);
}

static void time_tier(const char *name, enum sl_kv_format format, int d) {
    enum { N = 16384, LISTED = 1024 };
    const struct sl_ops *ops = tier(name);
    uint32_t n = N, n_packed = sl_kv_format_is_quantized(format) ? N / 64 : 0, *slots = take(LISTED * sizeof *slots);
    struct attend_case a = {n_packed > 0 ? SL_KV_F16 : format, format, 4, 1, d, false, {n}, {n_packed}};
    struct cache c;
    struct sl_rope rope;
    struct sl_attend args;
    int64_t ns[5];
    case_open(&a, ops, &c, &rope, &args);
    for (uint32_t j = 0; j < LISTED; j++) {
        slots[j] = j * (N / LISTED);
    }
    for (int i = 0; i < 5; i++) {
        int64_t at = sl_now_ns();
        ops->attend_slots(NULL, &args, one_list(slots), (struct sl_counts){.host = (const uint32_t[]){LISTED}});
        ns[i] = sl_now_ns() - at;
    }
    print_time(name, "attend_slots G=4", format, LISTED, d, ns);
    free(slots);
    case_close(&c, &args);
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "--time") == 0) {
        for (const char *const *name = tested(); *name != NULL; name++) {
            time_tier(*name, SL_KV_F16, 64);
            time_tier(*name, SL_KV_F16, 128);
            time_tier(*name, SL_KV_INT4, 128);
        }
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attend_slots_with_all_slots_gives_the_bits_of_attend),
        cmocka_unit_test(test_attend_slots_of_a_subset_equals_dense_attention_over_it),
        cmocka_unit_test(test_attend_slots_does_not_depend_on_where_slots_lie),
        cmocka_unit_test(test_attend_slots_without_slots_gives_zeros),
        cmocka_unit_test(test_mean_query_is_the_mean_over_query_heads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
