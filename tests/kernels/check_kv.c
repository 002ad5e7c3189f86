// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: holds the operations on the slots of KV pages to the formulas of engine/tensor/ops.h, in every tier. Attention:
 *         check_attend.c.
 *
 * Design: a fixture is one head set of random pages in ordinary memory. Every operation has a result that can be computed
 *         exactly (what was appended, qsort, a copy, a group's extremes).
 */
#include "engine/tensor/cpu/pages/ref_codec.h"
#include "engine/tensor/cpu/attention/ref_kv_slots.h"
#include "tests/kernels/kv_fixture.h"
#include "tests/stream.h"

// --- rows, positions -------------------------------------------------------------------------------------------------

static void test_append_stores_rows_rounded_and_saturated(void **state) {
    (void)state;
    enum { D = 16, N = 130 };
    static const float extremes[] = {65504.0f, 65519.9f, 65520.0f, 1e6f, -1e30f, 5.9e-8f, -6e-5f, 1.0f / 3.0f};
    for (const char *const *name = tested(); *name != NULL; name++) {
        const struct sl_ops *ops = tier(*name);
        for (int f = SL_KV_F32; f <= SL_KV_BF16; f++) {
            struct cache c;
            uint32_t none[1] = {0};
            cache_fill(&c, ops, (enum sl_kv_format)f, (enum sl_kv_format)f, 1, D, 1, none, none);
            for (int p = 0; p < 3; p++) {
                c.pages[0][p] = take(c.work.bytes);
            }
            float *k = random_floats(N * D, 1), *v = random_floats(N * D, 2);
            memcpy(k + 64 * D, extremes, sizeof extremes);
            int64_t positions[N], positions_back[N];
            for (int j = 0; j < N; j++) {
                positions[j] = 1000 + 7 * j;
            }
            append_rows(ops, &c.kv[0], k, v, D, 65, positions); // in two parts, over a page boundary
            c.kv[0].n_slots = 65;
            append_rows(ops, &c.kv[0], k + 65 * D, v + 65 * D, D, N - 65, positions + 65);
            c.kv[0].n_slots = N;
            float *k_back = take((N * D + 1) * sizeof(float)), *v_back = take(N * D * sizeof(float));
            ops->read_rows(&c.kv[0], 0, N, k_back, v_back);
            ops->read_positions(&c.kv[0], positions_back);
            assert_memory_equal(positions, positions_back, sizeof positions);
            for (int e = 0; e < N * D; e++) {
                float want_k = f == SL_KV_F32 ? k[e]
                               : f == SL_KV_BF16
                                   ? sl_bf16_to_f32(sl_f32_to_bf16(k[e]))
                                   : sl_f16_to_f32(sl_f32_to_f16(fminf(fmaxf(k[e], -65504.0f), 65504.0f)));
                float want_v = f == SL_KV_F32    ? v[e]
                               : f == SL_KV_BF16 ? sl_bf16_to_f32(sl_f32_to_bf16(v[e]))
                                                 : sl_f16_to_f32(sl_f32_to_f16(v[e]));
                assert_true(k_back[e] == want_k && v_back[e] == want_v);
            }
            ops->read_rows(&c.kv[0], 63, 129, k_back, NULL);
            float *all = take(N * D * sizeof(float));
            ops->read_rows(&c.kv[0], 0, N, all, NULL);
            assert_memory_equal(k_back, all + 63 * D, (129 - 63) * D * sizeof(float));
            free(all);
            free(k);
            free(v);
            free(k_back);
            free(v_back);
            cache_free(&c);
        }
    }
}

// A step of many sessions, their rows within wider ones, is what each of them would have appended head by head.
static void test_append_of_many_calls_equals_head_by_head(void **state) {
    (void)state;
    enum { D = 24, HEADS = 3, WIDE = 2 * HEADS * D + 16, CALLS = 5, STATES = 2 };
    static const int rows[CALLS] = {1, 100, 0, 7, 1};
    struct sl_stream *stream;
    stream = test_stream_open(3);
    for (const char *const *name = tested(); *name != NULL; name++) {
        const struct sl_ops *ops = tier(*name);
        struct cache many[CALLS], single[CALLS];
        struct sl_attend calls[CALLS];
        float *wide = random_floats(128 * WIDE, 5);
        int64_t positions[128];
        for (int r = 0; r < 128; r++) {
            positions[r] = 5 * r + 3;
        }
        for (int i = 0; i < CALLS; i++) {
            uint32_t before[HEADS] = {(uint32_t)(i * 40), 63, 64}, none[HEADS] = {0};
            for (int side = 0; side < 2; side++) {
                struct cache *c = side ? &single[i] : &many[i];
                cache_fill(c, ops, SL_KV_F16, SL_KV_F16, HEADS, D, STATES, before, none);
                for (int h = 0; h < HEADS; h++) {
                    for (uint32_t p = sl_pages_for(before[h]); p < sl_pages_for(before[h] + (uint32_t)rows[i]); p++) {
                        c->pages[h][p] = take(c->work.bytes);
                    }
                }
            }
            for (int h = 0; h < HEADS; h++) {
                append_rows(ops, &single[i].kv[h], wide + h * D, wide + (HEADS + h) * D, WIDE, rows[i], positions);
                many[i].kv[h].n_slots += (uint32_t)rows[i];
            }
            calls[i] = (struct sl_attend){.k = wide,
                                          .v = wide + HEADS * D,
                                          .kv_stride = WIDE,
                                          .m = rows[i],
                                          .n_heads = HEADS,
                                          .head_dim = D,
                                          .heads = {many[i].kv, HEADS},
                                          .positions = positions};
        }
        ops->append(stream, calls, CALLS);
        for (int i = 0; i < CALLS; i++) {
            for (int h = 0; h < HEADS; h++) {
                for (uint32_t p = 0; p < sl_pages_for(many[i].kv[h].n_slots); p++) {
                    assert_memory_equal(many[i].pages[h][p], single[i].pages[h][p], many[i].work.bytes);
                }
            }
            cache_free(&many[i]);
            cache_free(&single[i]);
        }
        free(wide);
    }
    test_stream_close(&stream);
}

// --- quantize --------------------------------------------------------------------------------------------------------

static void test_quantize_stays_within_half_a_step(void **state) {
    (void)state;
    for (const char *const *name = tested(); *name != NULL; name++) {
        const struct sl_ops *ops = tier(*name);
        static const int dims[] = {8, 40, 64, 96, 128};
        for (size_t s = 0; s < sizeof dims / sizeof dims[0]; s++) {
            for (size_t f = 0; f < N_CODE_FORMATS; f++) {
                int d = dims[s], group = d == 96 ? 32 : d < 64 ? d : 64;
                struct cache plain, packed;
                uint32_t n[1] = {64}, none[1] = {0};
                cache_fill(&plain, ops, SL_KV_F16, code_formats[f], 1, d, 1, n, none);
                cache_fill(&packed, ops, SL_KV_F16, code_formats[f], 1, d, 1, n, none);
                void *page = take(packed.packed.bytes);
                quantize_page(ops, &packed.work, packed.pages[0][0], &packed.packed, page);
                free(packed.pages[0][0]);
                packed.pages[0][0] = page;
                packed.kv[0].n_packed = 1;
                size_t count = (size_t)(64 * d);
                float *k = take(count * 4), *v = take(count * 4), *kq = take(count * 4), *vq = take(count * 4);
                ops->read_rows(&plain.kv[0], 0, 64, k, v);
                ops->read_rows(&packed.kv[0], 0, 64, kq, vq);
                int64_t positions[64];
                ops->read_positions(&packed.kv[0], positions);
                assert_true(positions[63] == position_of(63));
                for (int part = 0; part < 2; part++) {
                    const float *x = part ? v : k, *y = part ? vq : kq;
                    int bits = sl_kv_format_bits(part ? packed.packed.v_format : packed.packed.k_format);
                    if (bits == 16) {
                        assert_memory_equal(x, y, count * sizeof *x);
                        continue;
                    }
                    for (int e = 0; e < 64 * d; e++) {
                        float min = INFINITY, max = -INFINITY; // of e's group
                        int first = part ? e / group * group : e % d, step = part ? 1 : d, size = part ? group : 64;
                        for (int i = 0; i < size; i++) {
                            min = fminf(min, x[first + i * step]);
                            max = fmaxf(max, x[first + i * step]);
                        }
                        double scale = (double)(max - min) / ((1 << bits) - 1), range = (double)(max - min);
                        // f16 scale is off by 2^-11 of itself, times the largest code: 2^-11 of the range
                        double slack = range * 0x1p-11 + fabs((double)min) * 0x1p-11;
                        if (fabs((double)(y[e] - x[e])) > scale / 2 + slack) {
                            fail_msg("int%d d=%d: %g became %g", bits, d, (double)x[e], (double)y[e]);
                        }
                        if (x[e] == min) {
                            assert_true(y[e] == min); // it is an f16: exact
                        }
                        if (x[e] == max) {
                            assert_true(fabs((double)(y[e] - max)) <= slack);
                        }
                        if (bits == 1) {
                            assert_true(y[e] == min || fabs((double)(y[e] - max)) <= slack);
                        }
                    }
                }
                free(k);
                free(v);
                free(kq);
                free(vq);
                cache_free(&plain);
                cache_free(&packed);
            }
        }
    }
}

// Returns eight codes as they are packed, on a little-endian machine.
static uint64_t packed_codes(const unsigned *codes, int bits) {
    uint64_t word = 0;
    for (int e = 0; e < 8; e++) {
        word |= (uint64_t)codes[e] << e * bits;
    }
    return word;
}

// Codes are packed least significant bits first, ties go to even, equal values give scale 0 and code 0.
static void test_quantize_packs_codes_lsb_first(void **state) {
    (void)state;
    enum { D = 8 };
    for (const char *const *name = tested(); *name != NULL; name++) {
        const struct sl_ops *ops = tier(*name);
        for (size_t f = 0; f < N_CODE_FORMATS; f++) {
            struct sl_page_layout work, packed;
            assert_int_equal(sl_page_layout_init(&work, SL_KV_F32, D, 0, false), SL_OK);
            assert_int_equal(sl_page_layout_init(&packed, code_formats[f], D, 0, false), SL_OK);
            int k_bits = sl_kv_format_bits(packed.k_format), v_bits = sl_kv_format_bits(packed.v_format);
            char *page = take(work.bytes), *out = take(packed.bytes);
            float *k = (float *)(page + work.k), *v = (float *)(page + work.v);
            int k_top = k_bits < 16 ? (1 << k_bits) - 1 : 9, v_top = v_bits < 16 ? (1 << v_bits) - 1 : 9;
            for (int j = 0; j < 64; j++) {
                for (int i = 0; i < D; i++) {
                    k[j * D + i] = i == 7 ? 3.0f : j == 0 ? (float)(i == 0) : (float)(j % 2 * k_top); // range 0..top
                    v[j * D + i] = i == 0 ? 1.0f : i == 7 ? (float)v_top : 0.0f; // codes 1,0,..,top
                }
            }
            v[1] = v_top > 2 ? 0.5f : 0.0f; // halves round to even
            v[2] = v_top > 2 ? 1.5f : 0.0f;
            quantize_page(ops, &work, page, &packed, out);
            const uint8_t *k_codes = (const uint8_t *)out + packed.k, *v_codes = (const uint8_t *)out + packed.v;
            // channel 0 holds the codes 1, top, 0, top, ... of its 64 slots; channel 1 the same but for slot 0
            if (k_bits < 16) {
                unsigned u = (unsigned)k_top;
                uint64_t mixed = packed_codes((const unsigned[]){1, u, 0, u, 0, u, 0, u}, k_bits);
                assert_memory_equal(k_codes, &mixed, (size_t)k_bits);
                mixed--;
                assert_memory_equal(k_codes + 8 * k_bits, &mixed, (size_t)k_bits);
            }
            if (v_bits < 16) {
                unsigned u = (unsigned)v_top;
                uint64_t tied = packed_codes((const unsigned[]){1, 0, v_top > 2 ? 2 : 0, 0, 0, 0, 0, u}, v_bits);
                assert_memory_equal(v_codes, &tied, (size_t)v_bits);
            }
            struct sl_kv kv = {(void *const[]){out}, 1, 64, &work, &packed};
            float back[64 * D];
            ops->read_rows(&kv, 0, 64, back, NULL);
            for (int j = 0; j < 64; j++) {
                assert_true(back[j * D + 7] == 3.0f);
                assert_true(back[j * D] == k[j * D]); // integers of the range are codes
            }
            free(page);
            free(out);
        }
    }
}

// The bytes of the reference, whatever the values: zeros of both signs, infinities, NaNs, equal values, far ones.
static void test_quantize_gives_the_bytes_of_the_reference(void **state) {
    (void)state;
    PROCESSORS_ONLY();
    static const float odd[] = {0.0f, -0.0f, INFINITY, -INFINITY, NAN, 65504.0f, -65504.0f, 1e-7f, 1.0f, 1.0f};
    static const int dims[] = {8, 64, 96, 128};
    for (const char *const *name = tested(); *name != NULL; name++) {
        uint64_t seed = 9;
        for (int trial = 0; trial < 480; trial++) {
            struct sl_page_layout work, packed;
            int d = dims[trial / 3 % 4], n_odd = trial % 2 ? 0 : 1 + (int)(next_random(&seed) % 10);
            enum sl_kv_format format = code_formats[trial % (int)N_CODE_FORMATS];
            assert_int_equal(sl_page_layout_init(&work, (enum sl_kv_format)(trial % 3), d, 2, true), SL_OK);
            assert_int_equal(sl_page_layout_init(&packed, format, d, trial % 3, trial % 5 > 0), SL_OK);
            char *page = take(work.bytes), *want = take(packed.bytes), *got = take(packed.bytes);
            memset(page, 1, work.bytes);
            for (size_t e = 0; e < (size_t)(64 * d); e++) { // as many odd values as leave some groups without
                bool is_odd = n_odd > 0 && next_random(&seed) % (trial % 4 ? 300 : 3) == 0;
                sl_ref_write_float(work.format, page + work.k, e,
                                   is_odd ? odd[next_random(&seed) % (uint64_t)n_odd] : random_float(&seed));
                is_odd = n_odd > 0 && next_random(&seed) % (trial % 4 ? 300 : 3) == 0;
                sl_ref_write_float(work.format, page + work.v, e,
                                   is_odd ? odd[next_random(&seed) % (uint64_t)n_odd] : fabsf(random_float(&seed)));
            }
            quantize_page(tier("reference"), &work, page, &packed, want);
            quantize_page(tier(*name), &work, page, &packed, got);
            if (memcmp(got, want, packed.bytes) != 0) {
                print_error("%s: %s from %s, d=%d\n", *name, sl_kv_format_name(format), sl_kv_format_name(work.format),
                            d);
            }
            assert_memory_equal(got, want, packed.bytes);
            free(page);
            free(want);
            free(got);
        }
    }
}

// --- gather ----------------------------------------------------------------------------------------------------------

static void test_gather_equals_a_copy(void **state) {
    (void)state;
    enum { D = 24, N = 321 };
    for (const char *const *name = tested(); *name != NULL; name++) {
        const struct sl_ops *ops = tier(*name);
        for (int f = SL_KV_F32; f <= SL_KV_BF16; f++) {
            uint64_t seed = 11 + (uint64_t)f;
            struct cache c;
            uint32_t n[1] = {N}, none[1] = {0}, keep[N], n_keep = 0;
            cache_fill(&c, ops, (enum sl_kv_format)f, (enum sl_kv_format)f, 1, D, 2, n, none);
            for (uint32_t j = 0; j < N; j++) {
                sl_page_state(&c.work, c.pages[0][j / 64], 0)[j % 64] = (float)j;
                sl_page_state(&c.work, c.pages[0][j / 64], 1)[j % 64] = -(float)j;
                if (next_random(&seed) % 3 != 0) {
                    keep[n_keep++] = j;
                }
            }
            float *k = take(N * D * 4), *v = take(N * D * 4), *k2 = take(N * D * 4), *v2 = take(N * D * 4), scores[N];
            int64_t positions[N];
            ops->read_rows(&c.kv[0], 0, N, k, v);
            gather_slots(ops, &c.kv[0], keep, n_keep);
            c.kv[0].n_slots = n_keep;
            ops->read_rows(&c.kv[0], 0, n_keep, k2, v2);
            ops->read_positions(&c.kv[0], positions);
            for (uint32_t i = 0; i < n_keep; i++) {
                assert_memory_equal(k2 + i * D, k + keep[i] * D, D * sizeof *k);
                assert_memory_equal(v2 + i * D, v + keep[i] * D, D * sizeof *v);
                assert_true(positions[i] == position_of(keep[i]));
            }
            for (int plane = 0; plane < 2; plane++) {
                read_plane(ops, &c.kv[0], plane, scores);
                for (uint32_t i = 0; i < n_keep; i++) {
                    assert_true(scores[i] == (plane == 0 ? (float)keep[i] : -(float)keep[i]));
                }
            }
            free(k);
            free(v);
            free(k2);
            free(v2);
            cache_free(&c);
        }
    }
}

// Heads of several lengths at once, of which some keep all and one nothing: the bytes that each makes alone.
static void test_gather_of_heads_equals_each_on_its_own(void **state) {
    (void)state;
    enum { HEADS = 4, D = 16, STRIDE = 512 };
    static const uint32_t n_slots[HEADS] = {500, 1, 64, 65}, every[HEADS] = {3, 1, 2, 100}, none[HEADS];
    static uint32_t keep[HEADS][STRIDE];
    struct sl_stream *stream = test_stream_open(2);
    for (const char *const *name = tested(); *name != NULL; name++) {
        const struct sl_ops *ops = tier(*name);
        for (int f = SL_KV_F32; f <= SL_KV_BF16; f++) {
            struct cache many, single;
            uint32_t kept[HEADS] = {0};
            cache_fill(&many, ops, (enum sl_kv_format)f, (enum sl_kv_format)f, HEADS, D, 1, n_slots, none);
            cache_fill(&single, ops, (enum sl_kv_format)f, (enum sl_kv_format)f, HEADS, D, 1, n_slots, none);
            for (int h = 0; h < HEADS; h++) {
                for (uint32_t j = 0; j < n_slots[h] && h != 2; j++) {
                    if (j % every[h] == 0) {
                        keep[h][kept[h]++] = j;
                    }
                }
                gather_slots(ops, &single.kv[h], keep[h], kept[h]);
            }
            const struct sl_kv_heads heads = {.kv = many.kv, .n = HEADS};
            ops->gather(stream, &heads, (struct sl_lists){keep[0], STRIDE}, (struct sl_counts){NULL, kept});
            for (int h = 0; h < HEADS; h++) {
                for (uint32_t p = 0; p < sl_pages_for(n_slots[h]); p++) {
                    assert_memory_equal(many.pages[h][p], single.pages[h][p], many.work.bytes);
                }
            }
            cache_free(&many);
            cache_free(&single);
        }
    }
    test_stream_close(&stream);
}

// --- collect ---------------------------------------------------------------------------------------------------------

static void test_collect_puts_pieces_side_by_side(void **state) {
    (void)state;
    enum { N = 3, MOST = 50000 };
    static const size_t sizes[N] = {16, 16384 * 3 + 48, 4096};
    for (const char *const *name = tested(); *name != NULL; name++) {
        for (int round = 0; round < 3; round++) {
            struct sl_byte_range pieces[N];
            char *from[N], *to = take(N * MOST + 1), *at = to;
            for (int i = 0; i < N; i++) {
                from[i] = take(sizes[i]);
                for (size_t b = 0; b < sizes[i]; b++) {
                    from[i][b] = (char)(b * 7 + (size_t)i + b / 256);
                }
                pieces[i] = (struct sl_byte_range){from[i], sizes[i]};
            }
            tier(*name)->collect(NULL, pieces, N, to);
            for (int i = 0; i < N; i++) {
                assert_memory_equal(at, from[i], sizes[i]);
                at += sizes[i];
                free(from[i]);
            }
            assert_int_equal((unsigned char)*at, 0xff);
            free(to);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_append_stores_rows_rounded_and_saturated),
        cmocka_unit_test(test_append_of_many_calls_equals_head_by_head),
        cmocka_unit_test(test_quantize_stays_within_half_a_step),
        cmocka_unit_test(test_quantize_packs_codes_lsb_first),
        cmocka_unit_test(test_quantize_gives_the_bytes_of_the_reference),
        cmocka_unit_test(test_gather_equals_a_copy),
        cmocka_unit_test(test_gather_of_heads_equals_each_on_its_own),
        cmocka_unit_test(test_collect_puts_pieces_side_by_side),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
