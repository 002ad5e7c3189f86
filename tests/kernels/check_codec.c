// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: holds the elements that tier avx2 reads and writes to those of the reference, in every format, by the
 *          functions of avx2_codec.h that serve formats without code of their own.
 */
#include "engine/tensor/cpu/pages/avx2_codec.h"
#include "tests/kernels/kv_fixture.h"

enum { N = 64 };

static void fill(unsigned char *bytes, size_t n) {
    uint64_t seed = 3;
    for (size_t i = 0; i < n; i++) {
        bytes[i] = (unsigned char)next_random(&seed);
    }
}

static void assert_same(__m256 got, __m256 want) {
    float a[8], b[8];
    _mm256_storeu_ps(a, got);
    _mm256_storeu_ps(b, want);
    for (int i = 0; i < 8; i++) { // a processor may make a NaN quiet
        assert_true(a[i] == b[i] || (isnan(a[i]) && isnan(b[i])));
    }
}

static void check_floats(enum sl_kv_format format, __m256 (*load)(const char *, size_t),
                         void (*store)(char *, size_t, __m256)) {
    _Alignas(64) unsigned char from[N * 4], got[N * 4] = {0}, want[N * 4] = {0};
    const float extremes[8] = {65504.0f, 65520.0f, -1e30f, 5.9e-8f, 1.0f / 3.0f, -0.0f, INFINITY, 1e-40f};
    fill(from, sizeof from);
    for (size_t e = 0; e < N; e += 8) {
        assert_same(load((const char *)from, e), sl_avx2_load8_by_reference((const char *)from, e, format));
    }
    store((char *)got, 8, _mm256_loadu_ps(extremes));
    for (size_t i = 0; i < 8; i++) {
        sl_ref_write_float(format, (char *)want, 8 + i, extremes[i]);
    }
    assert_memory_equal(got, want, sizeof want);
}

static void check_codes(enum sl_kv_format format, __m256 (*decode)(const uint8_t *, size_t, const uint16_t *)) {
    const uint16_t pair[2] = {sl_f32_to_f16(0.37f), sl_f32_to_f16(-1.3f)};
    const struct sl_avx2_codebook b = sl_avx2_codebook(pair, format);
    unsigned char row[N];
    fill(row, sizeof row);
    for (size_t n = 0; n < N / 8; n++) {
        __m256 got = decode(row, n, pair);
        assert_same(got, sl_avx2_decode8_by_reference(row, n, format, &b));
        for (size_t i = 0; i < 8; i++) {
            float x[8];
            _mm256_storeu_ps(x, got);
            assert_true(x[i] == sl_avx2_decode(row, 8 * n + i, format, pair));
            assert_true(fabsf(x[i] - sl_ref_decode(row, (int)(8 * n + i), format, pair)) <= 1e-5f * (1 + fabsf(x[i])));
        }
    }
}

#define X(name, word, ...)                                                                                             \
    static __m256 load_##word(const char *part, size_t e) {                                                            \
        return sl_avx2_load8(part, e, SL_KV_##name);                                                                   \
    }                                                                                                                  \
    static void store_##word(char *part, size_t e, __m256 x) {                                                         \
        sl_avx2_store8(part, e, SL_KV_##name, x);                                                                      \
    }
SL_KV_FLOAT_FORMATS(X)
#undef X
#define X(name, word, ...)                                                                                             \
    static __m256 decode_##word(const uint8_t *row, size_t n, const uint16_t *pair) {                                  \
        const struct sl_avx2_codebook b = sl_avx2_codebook(pair, SL_KV_##name);                                        \
        return sl_avx2_decode8(row, n, SL_KV_##name, &b);                                                              \
    }
SL_KV_CODE_FORMATS(X)
#undef X

static void test_elements_are_those_of_the_reference(void **state) {
    (void)state;
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
        skip();
    }
#define X(name, word, ...) check_floats(SL_KV_##name, load_##word, store_##word);
    SL_KV_FLOAT_FORMATS(X)
#undef X
#define X(name, word, ...) check_codes(SL_KV_##name, decode_##word);
    SL_KV_CODE_FORMATS(X)
#undef X
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_elements_are_those_of_the_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
