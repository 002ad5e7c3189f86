// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: weights and rows on ranks.
 *
 * Design: a rank packs its share of a matrix's outputs: rows of W; for a gated matrix, the same rows of gate and of up.
 *         Its product is as many columns of y, between the columns of the other ranks. Shares are whole UNITs of rows,
 *         so that the panels of the tiers are as full as in one piece. An embedding is divided by rows, too.
 *         Where the ranks share one memory, row-wise operations are divided by rows. Where each rank has memory of its
 *         own and the activations are replicated, every rank reads and writes its own replica: products gather their
 *         columns (gather.c), and every rank executes row-wise operations for all rows. Activations that are not
 *         replicated belong to rank 0.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tensor/ranks/internal.h"
#include "engine/tensor/weights.h"

#define UNIT          32 // outputs
#define ARRANGED_ROWS 32 // rows of x from which on ranks arrange them together

// The struct that sl_matrix.packed points to here.
struct split {
    struct sl_ranks *ranks;
    struct sl_share outputs[SL_MAX_RANKS];
    struct sl_matrix parts[SL_MAX_RANKS]; // n is 0 for a rank where there are too few outputs for all ranks
    float *bias;                          // owned; for a gated matrix in one memory: [n], rank by rank
};

// --- weights ---------------------------------------------------------------------------------------------------------

static struct sl_share outputs_of(const struct sl_matrix *w, int rank, int n) {
    int64_t outputs = sl_matrix_outputs(w), units = (outputs + UNIT - 1) / UNIT;
    struct sl_share share = sl_share_of(units, rank, n);
    int64_t first = share.first * UNIT, end = (share.first + share.n) * UNIT;
    return (struct sl_share){first, (end < outputs ? end : outputs) - first};
}

// Adds rows [first, first + n) of W to *to as more parts.
static void add_rows(const struct sl_matrix *w, int64_t first, int64_t n, struct sl_matrix *to, int *n_parts) {
    for (int i = 0; i < SL_MAX_PARTS && n > 0; i++) {
        int64_t of_part = w->parts[i].n - first;
        if (of_part > 0) {
            int64_t taken = of_part < n ? of_part : n;
            assert(*n_parts < SL_MAX_PARTS);
            const struct sl_matrix of_one = {.k = w->k, .dtype = w->dtype, .format = w->format, .parts = {w->parts[i]}};
            to->parts[(*n_parts)++] = (struct sl_rows){sl_weight_row(&of_one, first), taken, w->parts[i].dtype};
            first += taken;
            n -= taken;
        }
        first -= w->parts[i].n;
    }
}

// Returns a rank's share of W, not yet packed.
static struct sl_matrix part_of(const struct sl_ranks *ranks, int rank, const struct sl_matrix *w,
                                struct sl_share outputs, float *bias) {
    struct sl_matrix part = {
        .k = w->k, .dtype = w->dtype, .format = w->format, .activation = w->activation, .gated = w->gated};
    int n_parts = 0;
    part.n = (w->gated ? 2 : 1) * outputs.n;
    part.whole_n = sl_matrix_whole_n(w);
    add_rows(w, outputs.first, outputs.n, &part, &n_parts);
    if (w->gated) {
        add_rows(w, w->n / 2 + outputs.first, outputs.n, &part, &n_parts);
    }
    if (w->bias != NULL && bias != NULL) {
        part.bias = memcpy(bias, w->bias + outputs.first, (size_t)outputs.n * sizeof *bias);
        memcpy(bias + outputs.n, w->bias + w->n / 2 + outputs.first, (size_t)outputs.n * sizeof *bias);
    } else if (w->bias != NULL) {
        part.bias = (const float *)sl_ranks_here(ranks, rank, w->bias) + outputs.first;
        part.up_bias = w->gated ? w->n / 2 : 0;
    }
    part.first_id = outputs.first;
    return part;
}

static size_t held_bytes(const struct sl_matrix *part) {
    return part->packed != NULL ? part->packed_bytes : (size_t)part->n * sl_dtype_row_bytes(part->dtype, part->k);
}

struct packed { // one rank's packed share
    enum sl_status status;
    struct sl_error err;
};

struct pack_call {
    struct sl_ranks_call call;
    struct split *split;
    struct packed *packed; // [ranks]
    bool rows;             // only embed() reads it
};

static void pack_part(const struct sl_ranks_call *call, int rank, struct sl_stream *stream) {
    const struct pack_call *c = (const struct pack_call *)call;
    struct sl_matrix *part = &c->split->parts[rank];
    struct packed *packed = &c->packed[rank];
    const struct sl_ops *each = call->ranks->each;
    packed->status = part->n == 0 ? SL_OK
                     : c->rows    ? each->pack_rows(stream, part, &packed->err)
                                  : each->pack(stream, part, &packed->err);
}

static void drop_split(struct split *split) {
    for (int r = 0; r < split->ranks->n; r++) {
        atomic_fetch_sub(&split->ranks->weight_bytes[r], held_bytes(&split->parts[r]));
        split->ranks->each->unpack(&split->parts[r]);
    }
    free(split->bias);
    free(split);
}

static void unpack(struct sl_matrix *matrix) {
    struct split *split = matrix->packed;
    if (split != NULL && atomic_load(&split->ranks->lost) < 0) {
        drop_split(split);
        matrix->packed = NULL;
        matrix->packed_bytes = 0;
        matrix->packed_reads_parts = false;
    }
}

// Makes the shares of a matrix, not yet packed. Returns NULL when out of memory.
static struct split *make_split(struct sl_ranks *ranks, const struct sl_matrix *matrix) {
    struct split *split = calloc(1, sizeof *split);
    bool copies = matrix->gated && matrix->bias != NULL && !ranks->apart;
    if (split != NULL && copies) {
        split->bias = malloc((size_t)matrix->n * sizeof *split->bias);
    }
    if (split == NULL || (copies && split->bias == NULL)) {
        free(split);
        return NULL;
    }
    split->ranks = ranks;
    for (int r = 0; r < ranks->n; r++) {
        split->outputs[r] = outputs_of(matrix, r, ranks->n);
        split->parts[r] =
            part_of(ranks, r, matrix, split->outputs[r], copies ? split->bias + 2 * split->outputs[r].first : NULL);
    }
    return split;
}

// Gives the matrix what the ranks have packed. Returns the first failure, and names its rank.
static enum sl_status take_packed(const struct packed *packed, struct split *split, struct sl_matrix *matrix,
                                  struct sl_error *err) {
    struct sl_ranks *ranks = split->ranks;
    enum sl_status status = SL_OK;
    matrix->packed = split;
    for (int r = 0; r < ranks->n; r++) {
        if (status == SL_OK && packed[r].status != SL_OK) {
            status = sl_ranks_say_whose(r, ranks->n, packed[r].status, &packed[r].err, err);
        }
        atomic_fetch_add(&ranks->weight_bytes[r], held_bytes(&split->parts[r]));
        matrix->packed_bytes += held_bytes(&split->parts[r]);
        matrix->packed_reads_parts |= split->parts[r].n > 0 && sl_matrix_reads_parts(&split->parts[r]);
        matrix->rounds_x |= split->parts[r].rounds_x;
    }
    if (status != SL_OK) {
        unpack(matrix);
    }
    return status;
}

static enum sl_status pack_shares(struct sl_stream *stream, struct sl_matrix *matrix, bool rows, struct sl_error *err) {
    struct sl_ranks *ranks = sl_ranks_of(stream);
    struct split *split = make_split(ranks, matrix);
    struct packed *packed = calloc(SL_MAX_RANKS, sizeof *packed);
    if (split == NULL || packed == NULL) {
        free(packed);
        if (split != NULL) {
            free(split->bias);
            free(split);
        }
        return sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
    }
    struct pack_call c = {{ranks, ranks->n, pack_part}, split, packed, rows};
    SL_RANKS_RUN(c);
    enum sl_status status = sl_stream_wait(stream, err);
    if (status == SL_OK) { // else a rank is lost: its data stays allocated
        status = take_packed(packed, split, matrix, err);
        free(packed);
    }
    return status;
}

static enum sl_status pack(struct sl_stream *stream, struct sl_matrix *matrix, struct sl_error *err) {
    return pack_shares(stream, matrix, false, err);
}

// In one memory all ranks look up rows in the parts themselves.
static enum sl_status pack_rows(struct sl_stream *stream, struct sl_matrix *matrix, struct sl_error *err) {
    const struct sl_ranks *ranks = sl_ranks_of(stream);
    return ranks->apart ? pack_shares(stream, matrix, true, err)
                        : ranks->each->pack_rows(sl_ranks_compute(ranks, 0), matrix, err);
}

// --- products --------------------------------------------------------------------------------------------------------

// Returns the scratch bytes of one rank, a multiple of 64.
static size_t scratch_of_rank(const struct split *split, int64_t m) {
    size_t most = 0;
    for (int r = 0; r < split->ranks->n; r++) {
        if (split->parts[r].n > 0) {
            size_t bytes = split->ranks->each->matmul_scratch(&split->parts[r], m);
            most = bytes > most ? bytes : most;
        }
    }
    return (most + 63) / 64 * 64;
}

static size_t matmul_scratch(const struct sl_matrix *w, int64_t m) {
    const struct split *split = w->packed;
    return scratch_of_rank(split, m) * (size_t)split->ranks->n;
}

struct prepare_call {
    struct sl_ranks_call call;
    const struct split *split;
};

static void prepare_part(const struct sl_ranks_call *call, int rank, struct sl_stream *stream) {
    const struct sl_matrix *part = &((const struct prepare_call *)call)->split->parts[rank];
    if (part->n > 0) {
        call->ranks->each->prepare(stream, part);
    }
}

static void prepare(struct sl_stream *stream, const struct sl_matrix *w) {
    struct sl_ranks *ranks = sl_ranks_of(stream);
    struct prepare_call c = {{ranks, ranks->n, prepare_part}, w->packed};
    SL_RANKS_RUN(c);
}

struct matmul_call {
    struct sl_ranks_call call;
    const struct split *split;
    struct sl_matmul args;
    size_t scratch_bytes;      // for each rank
    struct sl_columns columns; // of y, to gather
};

static void multiply_part(const struct sl_ranks_call *call, int rank, struct sl_stream *stream) {
    const struct matmul_call *c = (const struct matmul_call *)call;
    struct sl_share share = c->split->outputs[rank];
    struct sl_matmul args = c->args;
    int64_t wanted = args.n_columns > 0 ? args.n_columns - share.first : share.n;
    if (share.n > 0 && wanted > 0) {
        args.x = sl_ranks_here(call->ranks, rank, args.x);
        args.y = (float *)sl_ranks_here(call->ranks, rank, args.y) + share.first;
        args.n_columns = wanted < share.n ? wanted : 0;
        args.scratch = c->scratch_bytes > 0 ? (char *)args.scratch + (size_t)rank * c->scratch_bytes : args.scratch;
        call->ranks->each->matmul(stream, &c->split->parts[rank], &args);
    }
    sl_ranks_gather_part(call, rank, stream, &c->columns);
}

// Returns the columns of y that each rank computes, where all ranks need all columns.
static struct sl_columns columns_of(const struct split *split, const struct sl_matmul *args) {
    struct sl_columns columns = {.stride = args->y_stride, .m = args->m, .n_parts = split->ranks->n};
    if (!sl_ranks_is_replicated(split->ranks, args->y)) {
        return columns;
    }
    columns.x = args->y;
    columns.bf16 = args->then != NULL && args->then->rounds_x;
    for (int r = 0; r < columns.n_parts; r++) {
        int64_t end = split->outputs[r].first + split->outputs[r].n;
        columns.bounds[r + 1] = args->n_columns > 0 && end > args->n_columns ? args->n_columns : end;
    }
    return columns;
}

static void arrange_part(const struct sl_ranks_call *call, int rank, struct sl_stream *stream) {
    const struct matmul_call *c = (const struct matmul_call *)call;
    call->ranks->each->arrange(stream, &c->split->parts[0], &c->args, rank, call->n);
}

// Ranks read the same x. Where it has many rows they arrange it together, which costs a barrier.
static void matmul(struct sl_stream *stream, const struct sl_matrix *w, const struct sl_matmul *args) {
    const struct split *split = w->packed;
    struct sl_ranks *ranks = sl_ranks_of(stream);
    struct matmul_call c = {
        {ranks, ranks->n, multiply_part}, split, *args, scratch_of_rank(split, args->m), columns_of(split, args)};
    const struct sl_matrix *any = &split->parts[0];
    if (args->m >= ARRANGED_ROWS && any->n > 0 && ranks->each->arranges != NULL && ranks->each->arranges(any)) {
        struct matmul_call first = c;
        first.call.run = arrange_part;
        SL_RANKS_RUN(first);
        c.args.arranged = true;
        c.scratch_bytes = 0;
    }
    SL_RANKS_RUN(c);
    sl_ranks_gather_rest(ranks, &c.columns);
}

// --- row-wise operations ---------------------------------------------------------------------------------------------

// An operation on m rows, as its parts need it. It begins with the call.
struct rows {
    struct sl_ranks_call call;
    int64_t m;
};

// Returns the rows of a rank: all rows, where it has memory of its own.
static struct sl_share rows_of(const struct sl_ranks_call *call, int rank) {
    int64_t m = ((const struct rows *)call)->m;
    return call->ranks->apart ? (struct sl_share){0, m} : sl_share_of(m, rank, call->n);
}

// Makes the call of an operation that writes `out`. Where ranks have memory of their own, all write their replicas of
// it, or rank 0 alone writes it.
static struct sl_ranks_call rows_call(struct sl_stream *stream, size_t work, const void *out,
                                      void (*run)(const struct sl_ranks_call *, int, struct sl_stream *)) {
    struct sl_ranks *ranks = sl_ranks_of(stream);
    return ranks->apart ? (struct sl_ranks_call){ranks, sl_ranks_is_replicated(ranks, out) ? ranks->n : 1, run}
                        : sl_ranks_call(stream, work, run);
}

// Returns a rank's vectors of these rows.
static struct sl_row_vectors vectors_of(const struct sl_ranks *ranks, int rank, struct sl_row_vectors x,
                                        struct sl_share rows) {
    float *at = sl_ranks_here(ranks, rank, x.at);
    return (struct sl_row_vectors){at + rows.first * x.stride, x.stride, rows.n, x.n};
}

struct embed_call {
    struct rows rows;
    const struct sl_matrix *table;
    const int32_t *ids;
    float *out;
};

// Every rank reads all shares of the table, which are in shared memory, and each embed() writes the rows whose ids it
// has.
static void look_up_part(const struct sl_ranks_call *call, int rank, struct sl_stream *stream) {
    const struct embed_call *c = (const struct embed_call *)call;
    const struct sl_matrix *parts = ((const struct split *)c->table->packed)->parts;
    for (int r = 0; r < call->ranks->n; r++) {
        if (parts[r].n > 0) {
            call->ranks->each->embed(stream, &parts[r], c->ids, c->rows.m, sl_ranks_here(call->ranks, rank, c->out));
        }
    }
}

static void embed_part(const struct sl_ranks_call *call, int rank, struct sl_stream *stream) {
    const struct embed_call *c = (const struct embed_call *)call;
    struct sl_share share = rows_of(call, rank);
    call->ranks->each->embed(stream, c->table, c->ids + share.first, share.n, c->out + share.first * c->table->k);
}

static void embed(struct sl_stream *stream, const struct sl_matrix *table, const int32_t *ids, int64_t m, float *out) {
    struct sl_ranks *ranks = sl_ranks_of(stream);
    struct embed_call c = {
        {rows_call(stream, (size_t)(m * table->k), out, ranks->apart ? look_up_part : embed_part), m}, table, ids, out};
    SL_RANKS_RUN(c);
}

struct norm_call {
    struct rows rows;
    const struct sl_norm *norm;
    struct sl_row_vectors x;
    float *out;
    int64_t out_stride;
};

static void norm_part(const struct sl_ranks_call *call, int rank, struct sl_stream *stream) {
    const struct norm_call *c = (const struct norm_call *)call;
    struct sl_share share = rows_of(call, rank);
    const struct sl_ranks *ranks = call->ranks;
    struct sl_norm norm = *c->norm;
    norm.weight = sl_ranks_here(ranks, rank, norm.weight);
    norm.bias = sl_ranks_here(ranks, rank, norm.bias);
    float *out = sl_ranks_here(ranks, rank, c->out);
    ranks->each->norm(stream, &norm, vectors_of(ranks, rank, c->x, share), out + share.first * c->out_stride,
                      c->out_stride);
}

static void norm(struct sl_stream *stream, const struct sl_norm *norm, struct sl_row_vectors x, float *out,
                 int64_t out_stride) {
    size_t work = (size_t)(x.m * x.n * norm->n);
    struct norm_call c = {{rows_call(stream, work, out, norm_part), x.m}, norm, x, out, out_stride};
    SL_RANKS_RUN(c);
}

struct angles_call {
    struct rows rows;
    const struct sl_rope *rope;
    const int64_t *positions;
    float *cosines, *sines;
};

static void angles_part(const struct sl_ranks_call *call, int rank, struct sl_stream *stream) {
    const struct angles_call *c = (const struct angles_call *)call;
    struct sl_share share = rows_of(call, rank);
    int64_t at = share.first * (c->rope->rotary_dim / 2);
    float *cosines = sl_ranks_here(call->ranks, rank, c->cosines), *sines = sl_ranks_here(call->ranks, rank, c->sines);
    call->ranks->each->angles(stream, c->rope, c->positions + share.first, share.n, cosines + at, sines + at);
}

static void angles(struct sl_stream *stream, const struct sl_rope *rope, const int64_t *positions, int64_t m,
                   float *cosines, float *sines) {
    size_t work = (size_t)(m * rope->rotary_dim) * 16; // a cosine takes as long as this many other numbers
    struct angles_call c = {{rows_call(stream, work, cosines, angles_part), m}, rope, positions, cosines, sines};
    SL_RANKS_RUN(c);
}

struct rotate_call {
    struct rows rows;
    const struct sl_rope *rope;
    const float *cosines, *sines;
    struct sl_row_vectors x;
};

static void rotate_part(const struct sl_ranks_call *call, int rank, struct sl_stream *stream) {
    const struct rotate_call *c = (const struct rotate_call *)call;
    struct sl_share share = rows_of(call, rank);
    int64_t at = share.first * (c->rope->rotary_dim / 2);
    const float *cosines = sl_ranks_here(call->ranks, rank, c->cosines);
    const float *sines = sl_ranks_here(call->ranks, rank, c->sines);
    call->ranks->each->rotate(stream, c->rope, cosines + at, sines + at, vectors_of(call->ranks, rank, c->x, share));
}

static void rotate(struct sl_stream *stream, const struct sl_rope *rope, const float *cosines, const float *sines,
                   struct sl_row_vectors x) {
    size_t work = (size_t)(x.m * x.n * rope->rotary_dim);
    struct rotate_call c = {{rows_call(stream, work, x.at, rotate_part), x.m}, rope, cosines, sines, x};
    SL_RANKS_RUN(c);
}

void sl_ranks_fill_dense(struct sl_ops *ops) {
    ops->pack = pack;
    ops->pack_rows = pack_rows;
    ops->prepare = ops->prepare != NULL ? prepare : NULL;
    ops->unpack = unpack;
    ops->matmul_scratch = matmul_scratch;
    ops->arranges = NULL; // ranks arrange x only inside matmul
    ops->arrange = NULL;
    ops->matmul = matmul;
    ops->embed = embed;
    ops->norm = norm;
    ops->angles = angles;
    ops->rotate = rotate;
}
