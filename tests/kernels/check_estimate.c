// SPDX-License-Identifier: Apache-2.0
// Purpose: holds lost and page_error, what eviction and quantization cost, to their formulas in f64, in every tier.
#include "tests/kernels/evict_fixture.h"
#include "tests/stream.h"

static void test_lost_is_what_is_not_kept(void **state) {
    (void)state;
    enum { HEADS = 4, GROUP = 3, STRIDE = 6016 };
    static const uint32_t n_slots[HEADS] = {6000, 5000, 70, 70}, every[HEADS] = {2, 5, 1, 80}; // the third keeps all
    struct sl_stream *stream;
    stream = test_stream_open(2);
    for (const char *const *name = tested(); *name != NULL; name++) {
        struct sl_kv kv[HEADS];
        uint32_t kept[HEADS] = {0}, *keep = take(HEADS * STRIDE * sizeof *keep);
        float *x = random_floats(HEADS * GROUP * STRIDE, 3);
        double of_rows = 0, of_all = 0;
        for (size_t i = 0; i < HEADS * GROUP * STRIDE; i++) {
            x[i] = fabsf(x[i]);
        }
        for (int h = 0; h < HEADS; h++) {
            double sum = 0, first = 0, all = 0;
            kv[h] = (struct sl_kv){.n_slots = n_slots[h]};
            for (uint32_t j = 0; j < n_slots[h]; j++) {
                bool stays = j % every[h] == 0 && every[h] < n_slots[h];
                if (stays) {
                    keep[(uint32_t)h * STRIDE + kept[h]++] = j;
                }
                for (int g = 0; g < GROUP && !stays; g++) {
                    sum += (double)x[(size_t)(h * GROUP + g) * STRIDE + j];
                }
                first += stays ? 0 : (double)x[(size_t)h * STRIDE + j];
                all += (double)x[(size_t)h * STRIDE + j];
            }
            of_rows += sum / GROUP / HEADS;
            of_all += first / all * 1000 / HEADS;
        }
        assert_int_equal(kept[2], 70);
        assert_int_equal(kept[3], 0);
        const struct sl_kv_heads heads = {.kv = kv, .n = HEADS};
        const struct sl_mass queries = {.x = {x, STRIDE}, .group = GROUP};
        const struct sl_mass state_of_heads = {.x = {x, STRIDE}, .group = 1, .n_rows = 1000};
        const struct sl_lists lists = {keep, STRIDE};
        for (int side = 0; side < 4; side++) {
            const struct sl_counts counts =
                side < 2 ? (struct sl_counts){.host = kept} : (struct sl_counts){NULL, kept};
            double lost = 7;
            tier(*name)->lost(side % 2 ? stream : NULL, &heads, queries, lists, counts, &lost);
            assert_close(lost - 7, of_rows, 1e-12);
            lost = 0;
            tier(*name)->lost(side % 2 ? stream : NULL, &heads, state_of_heads, lists, counts, &lost);
            assert_close(lost, of_all, 1e-12);
        }
        memset(x, 0, HEADS * GROUP * STRIDE * sizeof *x);
        double lost = 0;
        tier(*name)->lost(NULL, &heads, state_of_heads, lists, (struct sl_counts){.host = kept}, &lost);
        assert_true(lost == 0); // 0 of 0
        free(x);
        free(keep);
    }
    test_stream_close(&stream);
}

// Pages as quantize() of all heads makes them are those that it makes one by one, and their error is what read_rows() says.
static void test_quantize_of_heads_and_its_error(void **state) {
    (void)state;
    enum { HEADS = 3, MOST_D = 128, N_PAGES = 3, N_DIMS = 5 };
    static const int dims[N_DIMS] = {32, 8, 24, 96, MOST_D};
    static const uint32_t n_slots[HEADS] = {300, 200, 64}, packed_before[HEADS] = {1, 0, 0};
    struct sl_stream *stream;
    stream = test_stream_open(3);
    for (const char *const *name = tested(); *name != NULL; name++) {
        const struct sl_ops *ops = tier(*name);
        for (int i_case = 0; i_case < (int)N_CODE_FORMATS * N_DIMS; i_case++) {
            enum sl_kv_format f = code_formats[i_case % (int)N_CODE_FORMATS];
            int d = dims[i_case / (int)N_CODE_FORMATS];
            struct cache c;
            struct sl_page_error want = {1, 2, 3, 4}, got = want;
            void *to[HEADS * N_PAGES];
            cache_fill(&c, ops, SL_KV_F16, f, HEADS, d, 2, n_slots, packed_before);
            if (i_case % 3 > 0) { // state travels where the packed layout has it; the page that is packed has none
                c.kv[0].n_packed = 0;
                free(c.pages[0][0]);
                c.pages[0][0] = take(c.work.bytes);
                memcpy(c.pages[0][0], c.pages[1][0], c.work.bytes);
                assert_int_equal(sl_page_layout_init(&c.packed, f, d, i_case % 3, true), SL_OK);
            }
            for (int plane = 0; plane < 2; plane++) {
                for (uint32_t j = 0; j < 64; j++) {
                    sl_page_state(&c.work, c.pages[1][0], plane)[j] = (float)(100 * plane) + (float)j;
                }
            }
            char *alone = take(c.packed.bytes);
            for (int i = 0; i < HEADS * N_PAGES; i++) {
                bool there = c.kv[i / N_PAGES].n_packed + i % N_PAGES < n_slots[i / N_PAGES] / SL_PAGE_SLOTS;
                to[i] = there && i != 4 ? take(c.packed.bytes) : NULL;
            }
            const struct sl_kv_heads heads = {.kv = c.kv, .n = HEADS};
            ops->quantize(f % 2 ? stream : NULL, &heads, N_PAGES, to);
            ops->page_error(f % 2 ? stream : NULL, &heads, N_PAGES, to, &got);
            for (int p = 0; p < N_PAGES; p++) {
                for (int h = 0; h < HEADS; h++) {
                    void *before = c.pages[h][c.kv[h].n_packed + (uint32_t)p], *after = to[h * N_PAGES + p];
                    if (after == NULL) {
                        continue;
                    }
                    ops->host.quantize(&c.work, before, &c.packed, alone);
                    assert_memory_equal(after, alone, c.packed.bytes);
                    float k[2][64 * MOST_D], v[2][64 * MOST_D];
                    const struct sl_kv kv[2] = {{&before, 0, 64, &c.work, &c.packed},
                                                {&after, 1, 64, &c.work, &c.packed}};
                    for (int side = 0; side < 2; side++) {
                        ops->read_rows(&kv[side], 0, 64, k[side], v[side]);
                    }
                    for (int i = 0; i < 64 * d; i++) {
                        want.key += pow((double)k[1][i] - (double)k[0][i], 2);
                        want.key_norm += pow((double)k[0][i], 2);
                        want.value += pow((double)v[1][i] - (double)v[0][i], 2);
                        want.value_norm += pow((double)v[0][i], 2);
                    }
                }
            }
            assert_close(got.key, want.key, 1e-9);
            assert_close(got.key_norm, want.key_norm, 1e-9);
            assert_close(got.value, want.value, 1e-9);
            assert_close(got.value_norm, want.value_norm, 1e-9);
            for (int i = 0; i < HEADS * N_PAGES; i++) {
                free(to[i]);
            }
            free(alone);
            cache_free(&c);
        }
    }
    test_stream_close(&stream);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lost_is_what_is_not_kept),
        cmocka_unit_test(test_quantize_of_heads_and_its_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
