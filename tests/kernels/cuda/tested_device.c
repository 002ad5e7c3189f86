// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the operations of a device (device_under_test.h) as the checks call those of the processors: with the host's memory, any
 *          stream, and done when they return. See ../tested.h.
 *
 * Design: an entry names what its operation reads and writes (image.h), publishes the heads, and calls the device's entry with
 *         the same arguments, led there. So what a check asserts of the processors it asserts of kernels, and a pointer of the
 *         host that came through would be met by memory that is not there. Each operation goes through the orders of threads and
 *         blocks, one call after the other. Rows and positions are read by the device's own entries; ops->host is the reference's.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/tensor/cpu/tiers.h"
#include "tests/kernels/cuda/call.h"
#include "tests/kernels/cuda/device_under_test.h"
#include "tests/kernels/cuda/tested_evict.h"
#include "tests/kernels/tested.h"

// --- weights ---------------------------------------------------------------------------------------------------------

struct packed { // sl_matrix.packed
    struct sl_matrix there;
    float *bias; // device
};

static void unpack(struct sl_matrix *matrix) {
    struct packed *packed = matrix->packed;
    if (packed != NULL) {
        here.ops->unpack(&packed->there);
        sl_device_free(here.device, SL_MEMORY_DEVICE, packed->bias);
        free(packed);
    }
    matrix->packed = NULL;
    matrix->packed_bytes = 0;
}

static enum sl_status pack(struct sl_stream *stream, struct sl_matrix *matrix, struct sl_error *err) {
    struct packed *packed = calloc(1, sizeof *packed);
    size_t bytes = (size_t)matrix->n * sizeof *packed->bias;
    (void)stream;
    assert_non_null(packed);
    packed->there = *matrix;
    packed->bias = sl_device_alloc(here.device, SL_MEMORY_DEVICE, bytes);
    if (matrix->bias != NULL) {
        float *bias = sl_device_alloc(here.device, SL_MEMORY_SHARED, bytes);
        memcpy(bias, matrix->bias, bytes);
        sl_stream_copy(here.stream, packed->bias, bias, bytes);
        assert_int_equal(sl_stream_wait(here.stream, NULL), SL_OK);
        sl_device_free(here.device, SL_MEMORY_SHARED, bias);
        packed->there.bias = packed->bias;
    }
    enum sl_status status = here.ops->pack(here.stream, &packed->there, err);
    matrix->packed = packed;
    matrix->packed_bytes = packed->there.packed_bytes;
    return status;
}

static const struct sl_matrix *matrix_of(const struct sl_matrix *w) {
    return &((const struct packed *)w->packed)->there;
}

static size_t matmul_scratch(const struct sl_matrix *w, int64_t m) {
    return here.ops->matmul_scratch(matrix_of(w), m);
}

static void matmul(struct sl_stream *stream, const struct sl_matrix *w, const struct sl_matmul *args) {
    struct sl_matmul to = *args;
    to.x = rows_of(args->x, args->m, args->x_stride, w->k, READ);
    int64_t columns = args->n_columns > 0 ? args->n_columns : sl_matrix_outputs(w);
    to.y = rows_of(args->y, args->m, args->y_stride, columns, WRITTEN);
    CALL(matmul, matrix_of(w), &to);
}

static void embed(struct sl_stream *stream, const struct sl_matrix *table, const int32_t *ids, int64_t m, float *out) {
    const int32_t *ids_there = led(ids, (size_t)m * sizeof *ids, READ);
    float *out_there = floats(out, m * table->k, WRITTEN);
    CALL(embed, matrix_of(table), ids_there, m, out_there);
}

static void norm(struct sl_stream *stream, const struct sl_norm *of, struct sl_row_vectors x, float *out,
                 int64_t out_stride) {
    struct sl_norm to = *of;
    to.weight = floats(of->weight, of->n, READ);
    to.bias = floats(of->bias, of->n, READ);
    float *out_there = rows_of(out, x.m, out_stride, x.n * of->n, WRITTEN);
    struct sl_row_vectors x_there = x;
    x_there.at = rows_of(x.at, x.m, x.stride, x.n * of->n, READ);
    CALL(norm, &to, x_there, out_there, out_stride);
}

static void angles(struct sl_stream *stream, const struct sl_rope *rope, const int64_t *positions, int64_t m,
                   float *cosines, float *sines) {
    const int64_t *positions_there = led(positions, (size_t)m * sizeof *positions, READ);
    float *c = floats(cosines, m * rope->rotary_dim / 2, WRITTEN),
          *s = floats(sines, m * rope->rotary_dim / 2, WRITTEN);
    CALL(angles, rope, positions_there, m, c, s);
}

static void rotate(struct sl_stream *stream, const struct sl_rope *rope, const float *cosines, const float *sines,
                   struct sl_row_vectors x) {
    const float *c = floats(cosines, x.m * rope->rotary_dim / 2, READ),
                *s = floats(sines, x.m * rope->rotary_dim / 2, READ);
    struct sl_row_vectors x_there = x;
    x_there.at = rows_of(x.at, x.m, x.stride, (int64_t)x.n * rope->head_dim, WRITTEN);
    CALL(rotate, rope, c, s, x_there);
}

static void pick(struct sl_stream *stream, const float *logits, int64_t n_vocab, const struct sl_pick *asked, int64_t m,
                 struct sl_picked *picked_out) {
    const float *logits_there = floats(logits, m * n_vocab, READ);
    struct sl_picked *picked = led(picked_out, (size_t)m * sizeof *picked, WRITTEN);
    CALL(pick, logits_there, n_vocab, asked, m, picked);
}

// --- attention -------------------------------------------------------------------------------------------------------

static enum sl_status publish(struct sl_stream *stream, struct sl_kv_heads *heads_inout, struct sl_error *err) {
    (void)stream;
    (void)heads_inout;
    (void)err;
    return SL_OK; // every call does
}

static struct sl_attend *calls_of(const struct sl_attend *calls, int n_calls, enum use heads, bool has_out) {
    struct sl_attend *to = calloc((size_t)n_calls, sizeof *to);
    assert_non_null(to);
    for (int i = 0; i < n_calls; i++) {
        to[i] = attend_of(&calls[i], heads, WRITTEN, has_out);
    }
    return to;
}

static void append(struct sl_stream *stream, const struct sl_attend *calls, int n_calls) {
    struct sl_attend *to = calls_of(calls, n_calls, WRITTEN, false);
    CALL(append, to, n_calls);
    free(to);
}

static void attend(struct sl_stream *stream, const struct sl_attend *calls, int n_calls) {
    struct sl_attend *to = calls_of(calls, n_calls, READ, true);
    CALL(attend, to, n_calls);
    free(to);
}

static void attend_before(struct sl_stream *stream, const struct sl_attend *args,
                          const struct sl_softmax *before_inout) {
    struct sl_attend to = attend_of(args, READ, READ, false);
    struct sl_softmax *before = softmax_of(args, before_inout, WRITTEN);
    CALL(attend_before, &to, before);
}

static void attend_slots(struct sl_stream *stream, const struct sl_attend *args, struct sl_lists slots,
                         struct sl_counts n) {
    struct sl_attend to = attend_of(args, READ, WRITTEN, true);
    struct sl_lists lists = slots_of(slots, &args->heads, n, false, READ);
    struct sl_counts n_there = counts_of(n, args->heads.n, READ);
    CALL(attend_slots, &to, lists, n_there);
}

static void fold(struct sl_stream *stream, const struct sl_attend *args, int first_row, const struct sl_fold *what) {
    struct sl_attend to = attend_of(args, WRITTEN, READ, false);
    CALL(fold, &to, first_row, what);
}

static void window_sums(struct sl_stream *stream, const struct sl_attend *args, int first_row,
                        struct sl_vectors sums_out) {
    struct sl_attend to = attend_of(args, READ, READ, false);
    struct sl_vectors sums = vectors_of(sums_out, &args->heads, args->n_heads / args->heads.n, WRITTEN);
    CALL(window_sums, &to, first_row, sums);
}

static void mean_query(struct sl_stream *stream, const struct sl_attend *args, const float *q, float *means_out) {
    const float *q_there = floats(q, (int64_t)args->n_heads * args->head_dim, READ);
    float *means = floats(means_out, (int64_t)args->heads.n * args->head_dim, WRITTEN);
    CALL(mean_query, args, q_there, means);
}

// --- pages -----------------------------------------------------------------------------------------------------------

// The packed pages of heads, [n][n_pages].
static void **targets_of(const struct sl_kv_heads *heads, uint32_t n_pages, void *const *to, enum use use) {
    size_t n = (size_t)heads->n * n_pages;
    void **there = calloc(n + 1, sizeof *there);
    assert_non_null(there);
    for (size_t i = 0; i < n; i++) {
        there[i] = led(to[i], heads->kv[i / n_pages].packed->bytes, use);
    }
    return there;
}

static void quantize(struct sl_stream *stream, const struct sl_kv_heads *heads, uint32_t n_pages, void *const *to) {
    struct sl_kv_heads there = heads_of(heads, READ);
    void **targets = targets_of(heads, n_pages, to, WRITTEN);
    CALL(quantize, &there, n_pages, targets);
    free(targets);
}

static void page_error(struct sl_stream *stream, const struct sl_kv_heads *heads, uint32_t n_pages, void *const *to,
                       struct sl_page_error *error_inout) {
    struct sl_kv_heads there = heads_of(heads, READ);
    void **targets = targets_of(heads, n_pages, to, READ);
    struct sl_page_error *error = led(error_inout, sizeof *error, WRITTEN);
    CALL(page_error, &there, n_pages, targets, error);
    free(targets);
}

static void collect(struct sl_stream *stream, const struct sl_byte_range *pieces, uint32_t n, void *to) {
    struct sl_byte_range *there = calloc((size_t)n + 1, sizeof *there);
    size_t bytes = 0;
    assert_non_null(there);
    for (uint32_t i = 0; i < n; i++) {
        there[i] = (struct sl_byte_range){led(pieces[i].at, pieces[i].bytes, READ), pieces[i].bytes};
        bytes += pieces[i].bytes;
    }
    void *to_there = led(to, bytes, WRITTEN);
    CALL(collect, there, n, to_there);
    free(there);
}

static void digest(struct sl_stream *stream, const struct sl_digest_piece *pieces, uint32_t n, uint64_t *digests_out) {
    struct sl_digest_piece *there = calloc((size_t)n + 1, sizeof *there);
    assert_non_null(there);
    for (uint32_t i = 0; i < n; i++) {
        size_t bytes = 0;
        for (uint32_t part = 0; part < pieces[i].n_parts; part++) {
            bytes += pieces[i].part_bytes[part];
        }
        there[i] = pieces[i];
        there[i].data = led(pieces[i].data, bytes, READ);
    }
    uint64_t *digests = led(digests_out, n * sizeof *digests, WRITTEN);
    CALL(digest, there, n, digests);
    free(there);
}

static void read_rows(const struct sl_kv *kv, uint32_t begin, uint32_t end, float *k_out, float *v_out) {
    const struct sl_kv_heads heads = {.kv = kv, .n = 1};
    struct sl_kv_heads there = heads_of(&heads, READ);
    image_up(here.stream);
    assert_int_equal(sl_stream_wait(here.stream, NULL), SL_OK);
    here.ops->read_rows(there.kv, begin, end, k_out, v_out);
    call_end("read_rows");
}

static void read_positions(const struct sl_kv *kv, int64_t *positions_out) {
    const struct sl_kv_heads heads = {.kv = kv, .n = 1};
    struct sl_kv_heads there = heads_of(&heads, READ);
    image_up(here.stream);
    assert_int_equal(sl_stream_wait(here.stream, NULL), SL_OK);
    here.ops->read_positions(there.kv, positions_out);
    call_end("read_positions");
}

// --- the table -------------------------------------------------------------------------------------------------------

static struct sl_ops table;
static size_t image_bytes = (size_t)48 << 20;

void tested_room(size_t bytes) {
    image_bytes = bytes;
}

static void close_device(void) {
    bool all = call_has_seen_all_orders();
    image_close();
    sl_device_close(&here.device);
    if (device_under_test_used() != 0) {
        fprintf(stderr, "%zu bytes of the device were not freed\n", device_under_test_used());
        all = false;
    }
    if (!all) {
        fflush(stderr);
        _exit(1);
    }
}

static void open_device(void) {
    struct sl_error err = {0};
    const struct sl_ops *host;
    if (sl_ops_select("reference", &host, &err) != SL_OK ||
        device_under_test_open(host, &here.device, &here.ops, &err) != SL_OK) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    here.stream = sl_device_stream(here.device, SL_STREAM_COMPUTE);
    image_open(here.device, image_bytes);
    table = (struct sl_ops){.name = here.ops->name,
                            .host = here.ops->host,
                            .pack = pack,
                            .pack_rows = pack,
                            .unpack = unpack,
                            .matmul_scratch = matmul_scratch,
                            .matmul = matmul,
                            .embed = embed,
                            .norm = norm,
                            .angles = angles,
                            .rotate = rotate,
                            .pick = pick,
                            .publish = publish,
                            .append = append,
                            .attend = attend,
                            .attend_before = attend_before,
                            .attend_slots = attend_slots,
                            .fold = fold,
                            .window_sums = window_sums,
                            .mean_query = mean_query,
                            .quantize = quantize,
                            .page_error = page_error,
                            .collect = collect,
                            .digest = digest,
                            .read_rows = read_rows,
                            .read_positions = read_positions};
    tested_evict_fill(&table);
    atexit(close_device);
}

const char *const *tested(void) {
    static const char *names[2]; // NULL ends it
    names[0] = device_under_test;
    return names;
}

const struct sl_ops *tier(const char *name) {
    if (is_device(name)) {
        if (here.device == NULL) {
            open_device();
        }
        return &table;
    }
    const struct sl_ops *ops;
    struct sl_error err;
    if (sl_ops_select(name, &ops, &err) != SL_OK) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    return ops;
}

bool is_device(const char *name) {
    return strcmp(name, device_under_test) == 0;
}

bool is_emulated(const char *name) {
    return strcmp(name, "emulated") == 0;
}
