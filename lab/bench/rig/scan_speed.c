// SPDX-License-Identifier: Apache-2.0
/*
 * Design: many adjacent key indexes, a GiB in all. A run scans a few channels of every index, different from the
 *         previous run's, so that it reads data that was not read recently. Then it sums as many bytes, and compares
 *         both. Codes are random: no speed depends on them.
 */
#include "lab/bench/rig/scan_speed.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "base/clock.h"
#include "lab/bench/rig/peak.h"
#include "lab/bench/rig/store_rig.h"
#include "lab/result.h"

#define TOTAL_BYTES ((size_t)1 << 30)
#define PIECE_BYTES ((size_t)32 << 20) // filled between two looks for a signal
#define MAX_RUNS    64

struct indexes {
    struct sl_key_index_layout layout;
    size_t n, bytes;
    uint8_t *memory;
    float *q, *scores;
    uint32_t *found;
};

static enum sl_status make_indexes(const struct sl_scan_speed_config *config, uint32_t topk, struct indexes *c,
                                   struct sl_error *err) {
    enum sl_status status = sl_key_index_layout_init(&c->layout, config->format, config->head_dim, config->n_slots);
    SL_FAIL_IF(status != SL_OK, err, status, "no key index of %u slots of head_dim %d", config->n_slots,
               config->head_dim);
    c->n = TOTAL_BYTES / c->layout.bytes > 0 ? TOTAL_BYTES / c->layout.bytes : 1;
    c->bytes = c->n * c->layout.bytes;
    c->memory = mmap(NULL, c->bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    c->q = calloc((size_t)config->head_dim, sizeof *c->q);
    c->scores = aligned_alloc(64, (config->n_slots * sizeof *c->scores + 63) / 64 * 64);
    c->found = malloc(topk * sizeof *c->found);
    SL_FAIL_IF(c->memory == MAP_FAILED || c->q == NULL || c->scores == NULL || c->found == NULL, err, SL_ERR_EXHAUSTED,
               "out of memory for %zu bytes of key indexes", c->bytes);
    madvise(c->memory, c->bytes, MADV_HUGEPAGE); // advice: without it results are for small pages
    for (size_t at = 0; at < c->bytes && status == SL_OK; at += PIECE_BYTES) {
        size_t bytes = c->bytes - at < PIECE_BYTES ? c->bytes - at : PIECE_BYTES;
        sl_random_halves((uint16_t *)(c->memory + at), bytes / sizeof(uint16_t), 1 + at);
        status = sl_signals_check(config->signals, err);
    }
    for (int i = 0; i < config->head_dim; i++) {
        c->q[i] = (float)(i % 7) - 3.0f;
    }
    for (size_t i = 0; i < c->n && status == SL_OK; i++) { // makes scales valid numbers
        float *scales = (float *)(c->memory + i * c->layout.bytes);
        for (size_t j = 0; j < c->layout.codes / sizeof *scales; j++) {
            scales[j] = 1.0f;
        }
    }
    return status;
}

static void free_indexes(struct indexes *c) {
    if (c->memory != NULL && c->memory != MAP_FAILED) {
        munmap(c->memory, c->bytes);
    }
    free(c->q);
    free(c->scores);
    free(c->found);
}

// Scans the channels of run `run` in every index, and finds the largest scores; measures seconds.
static void scan_all(const struct sl_scan_speed_config *config, struct indexes *c, uint32_t topk, int run,
                     double *scan_s_out, double *select_s_out) {
    int channels[256], stride = config->head_dim / config->n_channels;
    for (int i = 0; i < config->n_channels; i++) {
        channels[i] = i * stride + run % stride;
    }
    int64_t scan_ns = 0, select_ns = 0;
    for (size_t i = 0; i < c->n; i++) {
        int64_t begin = sl_now_ns();
        const struct sl_scan_piece piece = {
            .layout = c->layout, .index = c->memory + i * c->layout.bytes, .end = config->n_slots};
        config->ops->host.scan(&piece, c->q, channels, config->n_channels, c->scores);
        int64_t middle = sl_now_ns();
        config->ops->host.select(c->scores, config->n_slots, topk, c->found);
        select_ns += sl_now_ns() - middle;
        scan_ns += middle - begin;
    }
    *scan_s_out = (double)scan_ns / SL_NS_PER_S;
    *select_s_out = (double)select_ns / SL_NS_PER_S;
}

enum sl_status sl_scan_speed_measure(const struct sl_scan_speed_config *config, uint32_t topk,
                                     struct sl_scan_speed *speed_out, struct sl_error *err) {
    struct indexes c = {0};
    double scan[MAX_RUNS], read[MAX_RUNS], ratio[MAX_RUNS], share[MAX_RUNS];
    int runs = config->runs < MAX_RUNS ? config->runs : MAX_RUNS;
    enum sl_status status = make_indexes(config, topk, &c, err);
    double bytes = (double)c.n * config->n_channels * (double)c.layout.channel_bytes / 1e9;
    for (int run = -1; run < runs && status == SL_OK; run++) {
        double scan_s, select_s;
        int at = run < 0 ? 0 : run; // run -1 warms up
        scan_all(config, &c, topk, run + 1, &scan_s, &select_s);
        size_t read_bytes;
        status = sl_peak_read_gbps(config->team, config->signals, &read_bytes, &read[at], err);
        scan[at] = bytes / scan_s;
        ratio[at] = scan[at] / read[at];
        share[at] = select_s / (scan_s + select_s);
    }
    free_indexes(&c);
    if (status == SL_OK) {
        speed_out->scan_gbps = sl_bench_median(scan, (size_t)runs);
        speed_out->read_gbps = sl_bench_median(read, (size_t)runs);
        speed_out->ratio = sl_bench_median(ratio, (size_t)runs);
        speed_out->select_share = sl_bench_median(share, (size_t)runs);
    }
    return status;
}
