// SPDX-License-Identifier: Apache-2.0
// D2O's merging: thresholds and merged rows against the formulas in f64, at the end of the prompt and at every step.
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "drive.h"
#include "engine/tensor/cpu/device.h"

#define N_SLOTS 400
#define D       16
#define N_KV    2

static const struct sl_kv_geometry geometry = {2, N_KV, D};

static void start(struct drive *drive, const char *text, int64_t n_prompt) {
    drive_start(drive, text, &geometry, 2, n_prompt, 21, 0.2f, 1);
}

struct rows { // of one head
    int n;
    int64_t positions[N_SLOTS];
    float k[N_SLOTS][D], v[N_SLOTS][D];
};

static void read_head(const struct drive *drive, int layer, int head, struct rows *rows) {
    struct sl_kv kv = drive_kv(drive, layer, head);
    assert_true(kv.n_slots <= N_SLOTS);
    rows->n = (int)kv.n_slots;
    drive->ops->read_positions(&kv, rows->positions);
    drive->ops->read_rows(&kv, 0, kv.n_slots, rows->k[0], rows->v[0]);
}

// Appends the slot of this token to the head's rows; evicts nothing.
static void append_row(const struct drive *drive, int layer, int head, int64_t token, struct rows *rows) {
    int j = rows->n++;
    rows->positions[j] = token;
    for (int c = 0; c < D; c++) {
        rows->k[j][c] = drive_element(drive, DRIVE_K, layer, token, head, c);
        rows->v[j][c] = drive_element(drive, DRIVE_V, layer, token, head, c);
    }
}

static double cosine(const float *a, const float *b) {
    double ab = 0, aa = 0, bb = 0;
    for (int c = 0; c < D; c++) {
        ab += (double)a[c] * (double)b[c];
        aa += (double)a[c] * (double)a[c];
        bb += (double)b[c] * (double)b[c];
    }
    return ab / sqrt(aa * bb);
}

struct match {
    int nearest; // slot of `before`; -1: this slot stayed
    double similarity;
};

// For every slot that went, the one that stayed and is most like it. Returns the sum of similarities.
static double match_evicted(const struct rows *before, const struct rows *after, struct match *matches,
                            int *n_evicted) {
    bool stayed[N_SLOTS] = {false};
    double sum = 0;
    for (int j = 0, i = 0; j < before->n; j++) {
        stayed[j] = i < after->n && after->positions[i] == before->positions[j];
        i += stayed[j];
    }
    for (int j = 0; j < before->n; j++) {
        matches[j] = (struct match){-1, -INFINITY};
        for (int i = 0; i < before->n && !stayed[j]; i++) {
            double u = cosine(before->k[j], before->k[i]);
            if (stayed[i] && u > matches[j].similarity) {
                matches[j] = (struct match){i, u};
            }
        }
        if (!stayed[j]) {
            sum += matches[j].similarity;
            ++*n_evicted;
        }
    }
    return sum;
}

// x_c = (e x_c + sum exp(u_i) x_i) / (e + sum exp(u_i)) over the slots at or above the threshold.
static void check_rows(const struct rows *before, const struct rows *after, const struct match *matches,
                       double threshold, int64_t *n_merged) {
    for (int i = 0; i < after->n; i++) {
        int at = 0;
        while (before->positions[at] != after->positions[i]) {
            at++;
        }
        double weight = exp(1), k[D], v[D];
        for (int c = 0; c < D; c++) {
            k[c] = weight * (double)before->k[at][c];
            v[c] = weight * (double)before->v[at][c];
        }
        for (int j = 0; j < before->n; j++) {
            if (matches[j].nearest == at && matches[j].similarity >= threshold) {
                double w = exp(matches[j].similarity);
                weight += w;
                for (int c = 0; c < D; c++) {
                    k[c] += w * (double)before->k[j][c];
                    v[c] += w * (double)before->v[j][c];
                }
                ++*n_merged;
            }
        }
        for (int c = 0; c < D; c++) {
            assert_true(fabs((double)after->k[i][c] - k[c] / weight) < 1e-4);
            assert_true(fabs((double)after->v[i][c] - v[c] / weight) < 1e-4);
        }
    }
}

// One eviction of a layer, whose threshold was `was` (0: none yet).
static void check_layer(const struct drive *drive, int layer, const struct rows *before, double was, double beta,
                        int64_t *n_merged) {
    static struct rows after[N_KV];
    static struct match matches[N_KV][N_SLOTS];
    double sum = 0;
    int n = 0;
    for (int h = 0; h < N_KV; h++) {
        read_head(drive, layer, h, &after[h]);
        sum += match_evicted(&before[h], &after[h], matches[h], &n);
    }
    double found = (double)drive->session->layers[layer].merge_threshold;
    assert_true(n > 0);
    assert_true(fabs(found - (was == 0 ? sum / n : (1 - beta) * was + beta * sum / n)) < 1e-5);
    for (int h = 0; h < N_KV; h++) {
        check_rows(&before[h], &after[h], matches[h], found, n_merged);
    }
}

static void test_compressor_merges_by_the_intended_formula(void **state) {
    (void)state;
    static struct rows before[2][N_KV];
    struct drive drive;
    struct sl_compress_stats stats;
    int64_t n_merged = 0, n_prompt = 300;
    const double beta = 0.3;
    start(&drive, "d2o,budget=60,evicted=merge:0.3,format=f32,chunk=64", n_prompt);
    while (drive_next_chunk(&drive)) {
    }
    for (int l = 0; l < 2; l++) {
        for (int h = 0; h < N_KV; h++) {
            before[l][h].n = 0;
            for (int64_t p = 0; p < n_prompt; p++) {
                append_row(&drive, l, h, p, &before[l][h]);
            }
        }
        check_layer(&drive, l, before[l], 0, beta, &n_merged);
    }
    sl_compressor_get_stats(drive.compressor, &stats);
    assert_int_equal(stats.slots_merged, n_merged);
    assert_true(n_merged > 0 && n_merged < stats.slots_evicted);

    for (int step = 0; step < 30; step++) { // and on from there, one slot per head and step
        double was[2];
        for (int l = 0; l < 2; l++) {
            was[l] = (double)drive.session->layers[l].merge_threshold;
            for (int h = 0; h < N_KV; h++) {
                read_head(&drive, l, h, &before[l][h]);
                append_row(&drive, l, h, drive.n_read, &before[l][h]);
            }
        }
        drive_step(&drive, 1);
        for (int l = 0; l < 2; l++) {
            check_layer(&drive, l, before[l], was[l], beta, &n_merged);
        }
    }
    int64_t at_end = stats.slots_merged;
    sl_compressor_get_stats(drive.compressor, &stats);
    assert_int_equal(stats.slots_merged, n_merged);
    assert_true(n_merged > at_end);
    drive_stop(&drive);
}

// Nothing reaches an infinite threshold: what is left is eviction, to the bit.
static void test_compressor_merging_nothing_is_plain_eviction(void **state) {
    (void)state;
    static struct rows left, right;
    struct drive merge, drop;
    struct sl_compress_stats stats;
    start(&merge, "d2o,budget=60,chunk=64", 300);
    start(&drop, "d2o,budget=60,evicted=drop,chunk=64", 300);
    for (int l = 0; l < 2; l++) {
        merge.session->layers[l].merge_threshold = INFINITY;
    }
    while (drive_next_chunk(&merge) && drive_next_chunk(&drop)) {
    }
    for (int i = 0; i < 10; i++) {
        drive_step(&merge, 1);
        drive_step(&drop, 1);
    }
    for (int l = 0; l < 2; l++) {
        for (int h = 0; h < N_KV; h++) {
            read_head(&merge, l, h, &left);
            read_head(&drop, l, h, &right);
            assert_int_equal(left.n, right.n);
            assert_memory_equal(&left, &right, sizeof left);
        }
    }
    sl_compressor_get_stats(merge.compressor, &stats);
    assert_true(stats.slots_evicted > 0);
    assert_int_equal(stats.slots_merged, 0);
    drive_stop(&merge), drive_stop(&drop);
}

// A session that was made elsewhere goes on with the threshold that it brought.
static void test_compressor_steps_go_on_with_the_landed_threshold(void **state) {
    (void)state;
    struct drive drive;
    struct sl_error err;
    start(&drive, "d2o,budget=60,chunk=64", 200);
    while (drive_next_chunk(&drive)) {
    }
    sl_compressor_destroy(&drive.compressor);
    assert_int_equal(sl_compressor_create(&drive.plan, drive.ops, sl_cpu_caller(), &drive.compressor, &err), SL_OK);
    drive.session->layers[0].merge_threshold = 4; // half of it is above any similarity
    drive_step(&drive, 1);
    float now = drive.session->layers[0].merge_threshold;
    assert_true(now > 1.5f && now < 2.5f);
    for (int h = 0; h < N_KV; h++) {
        assert_true(drive_kv(&drive, 0, h).n_slots < 200);
    }
    drive_stop(&drive);
}

// Rounding may put the cosine of a key with its like beyond 1. The average must not follow: no capsule could carry it.
static void test_compressor_threshold_of_equal_keys_is_at_most_1(void **state) {
    (void)state;
    static const struct sl_kv_geometry one_head = {1, 1, D};
    for (uint64_t seed = 1; seed <= 40; seed++) {
        struct drive drive;
        struct sl_compress_stats stats;
        drive_start(&drive, "d2o,budget=60,chunk=64", &one_head, 2, 100, seed, 0.2f, 1);
        drive.alike = true;
        while (drive_next_chunk(&drive)) {
        }
        for (int i = 0; i < 3; i++) {
            float threshold = drive.session->layers[0].merge_threshold;
            assert_true(threshold > 0.99999f && threshold <= 1);
            drive_step(&drive, 1);
        }
        sl_compressor_get_stats(drive.compressor, &stats);
        assert_int_equal(stats.slots_evicted, 43);
        drive_stop(&drive);
    }
}

// heads=adaptive may leave a head without slots: what it evicts has nothing to go into.
static void test_compressor_merges_nothing_where_a_head_keeps_nothing(void **state) {
    (void)state;
    enum { HEADS = 8 };
    static const struct sl_kv_geometry many_heads = {1, HEADS, D};
    struct drive drive;
    struct sl_compress_stats stats;
    int64_t n_dropped = 0;
    drive_start(&drive, "score=aas,budget=1,when=end,heads=adaptive,evicted=merge,chunk=64", &many_heads, 2, 100, 3,
                0.2f, 1);
    while (drive_next_chunk(&drive)) {
    }
    for (int h = 0; h < HEADS; h++) {
        n_dropped += drive_kv(&drive, 0, h).n_slots == 0 ? 100 : 0;
    }
    assert_true(n_dropped > 0);
    float threshold = drive.session->layers[0].merge_threshold;
    assert_true(threshold > 0 && threshold < 1); // a mean over those that have something
    sl_compressor_get_stats(drive.compressor, &stats);
    assert_int_equal(stats.slots_evicted, HEADS * 100 - HEADS);
    assert_true(stats.slots_merged > 0 && stats.slots_merged <= stats.slots_evicted - n_dropped);
    drive_stop(&drive);
}

static void test_compressor_step_before_begin_is_refused(void **state) {
    (void)state;
    struct drive drive;
    struct sl_error err;
    start(&drive, "h2o,budget=60,when=chunk+step,chunk=64", 100);
    while (drive_next_chunk(&drive)) {
    }
    drive.stepping = true; // but begin_steps() was not called
    assert_int_equal(drive_layer(&drive, 0, 1, false, &err), SL_ERR_PRECONDITION);
    assert_non_null(strstr(err.text, "before sl_compressor_begin_steps()"));
    drive_stop(&drive);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_compressor_merges_by_the_intended_formula),
        cmocka_unit_test(test_compressor_merging_nothing_is_plain_eviction),
        cmocka_unit_test(test_compressor_steps_go_on_with_the_landed_threshold),
        cmocka_unit_test(test_compressor_threshold_of_equal_keys_is_at_most_1),
        cmocka_unit_test(test_compressor_merges_nothing_where_a_head_keeps_nothing),
        cmocka_unit_test(test_compressor_step_before_begin_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
