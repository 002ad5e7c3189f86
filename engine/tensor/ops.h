// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the table of operations on tensors, whose memory is opaque to every caller. Only engine/tensor/cpu and
 *         engine/tensor/cuda dereference activations, weights and pages. The forward pass and engine/compress/ only
 *         orchestrate this table.
 *
 * Design: the ref_*.c of engine/tensor/cpu fill the whole table with plain C that reads like the formulas. A faster
 *         tier overwrites the entries that it has better versions of (engine/tensor/cpu/tiers.h). Callers never branch
 *         on the tier or the device. tests/kernels/ checks and times every entry of every tier against the reference.
 *
 *         Differences between model families are data here, so that one forward pass serves all: a matrix carries the
 *         bias and the activation that its product goes through, a norm its kind, a rope its dimensions.
 *
 * Reproducibility: the result of a row never depends on how many other rows are in the call. The result of a product
 *         depends at most on whether the rows are rows of a prompt (sl_matmul.reading). matmul sums over k in one fixed
 *         order for each element, and attend visits pages in slot order. So a prompt gives the same bits for every
 *         chunk size, and one process gives the same bits as the cluster (on processors of the same tier).
 *
 * Precision: sums are f32 everywhere, and weights are used as they are stored. A tier may round the other side of a
 *         product (activations, queries, attention weights) to bf16 where the weights are bf16, or keys and values have
 *         16 bits or fewer, and then these too: tiers "amx" and "avx512bf16" do. Devices round both for quantized
 *         weights. Products with codes round activations to bytes, relative to the largest of 32 of them, and give the
 *         same bits on all tiers; but "amx" and "amx2" multiply prompts by tiles made of codes. "amx2" keeps 16 bits of
 *         both sides, except for attention weights and values, for keys that are rotated or quantized, and in steps
 *         with codes; its steps with f16 weights round nothing. "avx512vnni" rounds queries and attention weights to 16
 *         bits of the largest of a page for codes of 2 or 3 bits in heads of 64 n channels, but no queries for keys
 *         that it rotates (engine/tensor/cpu/attention/integer). With f32 weights and f32 pages no tier rounds
 *         anything.
 *
 * Order: an operation is queued in a stream (engine/tensor/device.h) and may finish after the call returns. The tensors
 *         that it names (vectors, lists, rows, pages, scratch, what counts.device points to) are memory of the device,
 *         or shared memory where the host writes or reads them, which it does after a wait. The arguments that describe
 *         the call (page lists, counts.host, protections, lists of pointers) belong to the host and are read before the
 *         call returns. Processors finish everything before they return. They also accept a stream NULL, which means
 *         the calling thread alone. docs/DESIGN.md lists the places that wait.
 *
 * Shapes: m rows (tokens of one call), d = head_dim, H query heads, Hk KV heads, G = H / Hk query heads for each KV
 *         head. Activations are f32, row-major. Rows are packed unless a stride is given (in floats, from row to row),
 *         and the first row is aligned to 64 bytes.
 *
 * To add an op: add an entry here with its formula, ref_<op> in a ref_*.c of engine/tensor/cpu, and
 *         tests/kernels/check_<op>.c; then tiers.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/kvcache/key_index.h"
#include "engine/kvcache/page.h"
#include "engine/tensor/device.h"
#include "engine/tensor/slots.h"

// --- weights ---------------------------------------------------------------------------------------------------------

// The types of tensors in a file: numbers, then blocks of codes (engine/tensor/codes.h). Devices that do not keep codes
// (sl_ops.keeps_codes) only get the first five.
enum sl_dtype {
    SL_F32,
    SL_F16,
    SL_BF16,
    SL_Q8_0,
    SL_Q4_0,
    SL_Q4_1,
    SL_Q5_0,
    SL_Q5_1,
    SL_Q2_K,
    SL_Q3_K,
    SL_Q4_K,
    SL_Q5_K,
    SL_Q6_K,
    SL_DTYPES
};

/*
 * The formats that pack() makes of a matrix. In the quantized ones, groups of SL_WEIGHT_GROUP weights of a row,
 * adjacent in k (the last group of a row may be shorter), share a scale s, an f16; x^ = s * code. Let t be the x of the
 * largest |x|, the first of equals:
 *   INT8  s = |t| / 127 rounded to f16
 *         code = round-half-even(clamp(x * (1 / s), -127, 127))
 *   INT4  s = the one of t / -8, t / -8.5, t / -7.5, t / -7, rounded to f16, that makes sum (x - s * code)^2 over the
 *         group the least; the first of equals
 *         code = round-half-even(clamp(x * (1 / s), -8, 7))
 * All of this is in f32; where s is 0, code is 0. Four scales in place of t / -8 alone make INT4's squared error 8%
 * less. Codes that a file has (SL_Q8_0, SL_Q4_0) stay as they are, with their scale, where they fit the format. Codes
 * of 8 bits from a file go down to -128.
 *   CODES  blocks of codes exactly as the file has them, of one type for each part
 */
enum sl_weight_format { SL_WEIGHT_STORED, SL_WEIGHT_INT8, SL_WEIGHT_INT4, SL_WEIGHT_CODES };
#define SL_WEIGHT_GROUP 32

// Accepts "stored", "int8" and "int4": the values of every --weights flag. Returns SL_ERR_INVALID for others. "stored"
// becomes SL_WEIGHT_CODES for blocks of codes, where the device keeps them.
enum sl_status sl_weight_format_parse(const char *name, enum sl_weight_format *format_out, struct sl_error *err);
const char *sl_weight_format_name(enum sl_weight_format format);

enum sl_activation {
    SL_ACT_NONE,
    SL_ACT_SILU,      // x / (1 + exp(-x))
    SL_ACT_GELU,      // x (1 + erf(x / sqrt 2)) / 2
    SL_ACT_GELU_TANH, // x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2
};

// Adjacent rows of a tensor as its file has them, or as they were made from it: [n][k], of any alignment.
struct sl_rows {
    const void *data; // not owned
    int64_t n;
    enum sl_dtype dtype; // set where the matrix is SL_WEIGHT_CODES; otherwise the matrix has the type of all parts
};

#define SL_MAX_PARTS 3 // tensors of a file that form one matrix here: q, k, v; gate, up

/*
 * A weight matrix W[n][k] as the tier keeps it, and what its product goes through:
 *
 *     y = act(x W^T + bias)                                        [m][n]
 *     y = act(x G^T + bias_G) * (x U^T + bias_U)    when gated:    [m][n/2], G the first n/2 rows of W and U the others
 *
 * Made by ops->pack(), freed by ops->unpack().
 */
struct sl_matrix {
    int64_t n, k;
    enum sl_dtype dtype; // the type of all parts; of the first where the format is SL_WEIGHT_CODES
    // the format that pack() is asked for; it never takes blocks of codes as SL_WEIGHT_STORED
    enum sl_weight_format format;
    struct sl_rows parts[SL_MAX_PARTS]; // W's rows, one part after the other; embed() reads rows of parts[0]
    const float *bias;                  // [n] or NULL; not owned
    enum sl_activation activation;
    bool gated;
    struct sl_shared_weights *shared; // gets the packed form (shared_weights.h); NULL: memory of this process
    void *packed;                     // the tier's own layout, or NULL when it computes from the parts
    size_t packed_bytes;
    bool packed_reads_parts; // the packed form points into the parts, at least in places
    bool in_two_terms;       // set by tier amx2: engine/tensor/cpu/dense/amx_dense.c
    bool rounds_x;           // set by pack() of a device with memory of its own: products read only the bf16 of x
    // For a rank's share (engine/tensor/ranks):
    int64_t whole_n; // n of the whole matrix, which may decide how sums over k are cut; 0: this is the whole matrix
    // Only where the device has memory of its own:
    int64_t up_bias;  // offset in floats of U's bias from `bias`; 0: n / 2
    int64_t first_id; // for embed(): the id of the first row; ids outside [first_id, first_id + n) are skipped
};

// Returns true where products read the parts, which must then live as long as the matrix.
static inline bool sl_matrix_reads_parts(const struct sl_matrix *w) {
    return w->packed == NULL || w->packed_reads_parts;
}

// Returns how many columns y has.
static inline int64_t sl_matrix_outputs(const struct sl_matrix *w) {
    return w->gated ? w->n / 2 : w->n;
}

static inline int64_t sl_matrix_whole_n(const struct sl_matrix *w) {
    return w->whole_n > 0 ? w->whole_n : w->n;
}

// One product.
struct sl_matmul {
    const float *x; // [m][k]
    int64_t x_stride;
    int64_t m;
    float *y; // [m][sl_matrix_outputs()]
    int64_t y_stride;
    int64_t n_columns; // compute only the first n_columns of y; 0: all. Not with a gated matrix
    bool accumulate;   // y = act(y + x W^T + bias); not with a gated matrix
    bool reading;      // rows of prompts, usually many: a device may use another method for all of them
    // Where y is replicated memory: the matrix whose products alone read y, as their x. Ranks then exchange y in the
    // precision that this matrix reads, which may be rounded. NULL: any operation may read y.
    const struct sl_matrix *then;
    bool arranged; // ops->arrange has written every part of scratch; concurrent calls may then share it
    void *scratch; // ops->matmul_scratch() bytes, aligned to 64; concurrent calls share it only when `arranged`
};

// --- norms and positions ---------------------------------------------------------------------------------------------

enum sl_norm_kind {
    SL_NORM_RMS,   // x / sqrt(mean x^2 + eps) * weight
    SL_NORM_LAYER, // (x - mean x) / sqrt(mean (x - mean x)^2 + eps) * weight + bias
};

struct sl_norm {
    enum sl_norm_kind kind;
    int64_t n;
    float eps;
    const float *weight; // [n]
    const float *bias;   // [n] or NULL
};

// The vectors of m rows of activations: n adjacent ones in each row, such as its heads, or the row as one vector.
struct sl_row_vectors {
    float *at;
    int64_t stride; // floats from row to row
    int64_t m;
    int n;
};

// the angles of one position, and one head's row, must fit on the stack; models are checked for this
#define SL_MAX_HEAD_DIM 512

// Angles of RoPE: angle(pos, i) = pos * inv_freq[i], in f64. The first rotary_dim of a head's d channels are rotated:
// channel i < rotary_dim / 2 with channel i + rotary_dim / 2 (halves, not interleaved).
struct sl_rope {
    int head_dim;
    int rotary_dim;         // <= head_dim, a multiple of 8
    const double *inv_freq; // [rotary_dim / 2]
    double scale;           // multiplies cos and sin (1 except for long-context scalings)
};

// --- what ranks exchange ---------------------------------------------------------------------------------------------

#define SL_MAX_RANKS 16

// Columns of x that ranks have computed. Rank r has computed those in [bounds[r], bounds[r + 1]). Its part is
// [m][bounds[r + 1] - bounds[r]] without gaps, at parts + r * part_bytes, as f32, or rounded to bf16.
struct sl_columns {
    float *x; // [m][bounds[n_parts]]
    int64_t stride, m;
    int n_parts;
    int64_t bounds[SL_MAX_RANKS + 1];
    bool bf16;
    void *parts;
    size_t part_bytes;
};

// --- attention -------------------------------------------------------------------------------------------------------

/*
 * The softmax of rows over slots that came before those of a call, not yet divided by its sum. The max of a row that
 * has seen no slot is minus infinity, and its other fields are not read.
 */
struct sl_softmax {
    float *out; // [m][H][d] sum_j exp(s_j - max) V_j
    float *max; // [H][m]    max_j s_j; tier amx: at most 14 less
    float *sum; // [H][m]    sum_j exp(s_j - max)
};
#define SL_ATTEND_SPLIT (64 * SL_PAGE_SLOTS) // slots; see attend_before

/*
 * m new rows of one session in one layer, and the slots of that session. The slots include the rows' own as the last m:
 * append() writes them. Attention is causal: row r sees the slots of KV head h below kv[h].n_slots - m + r + 1.
 *
 * out[r][h] = sum_j softmax_j(scale * q[r][h] . K_j) V_j
 * lse[h][r] = log sum_j exp(scale * q . K_j)
 *
 * With a window (sliding-window attention), row r sees only those of these slots whose position is above
 * positions[r] - window. Slots ascend by position, so they form a range of slots: see sl_attend_first() in kv_page.h.
 */
struct sl_attend {
    const float *q;     // [m][H][d]; after RoPE, or before it when rope is set
    int64_t q_stride;   // 0: packed
    const float *k, *v; // read by append: [m][Hk][d], as they are to be stored
    int64_t kv_stride;  // 0: packed
    int m, n_heads, head_dim;
    float scale;
    struct sl_kv_heads heads; // [Hk]
    // rotate key j by slot j, and query r by its own slot; NULL: keys are rotated already
    const struct sl_rope *rope;
    int64_t window;               // 0: none. Not with rope
    const int64_t *positions;     // [m], of the rows; required with a window, and by append where pages keep positions
    float *out;                   // [m][H][d]; written by attend and attend_slots
    int64_t out_stride;           // for out, and for before->out; 0: packed
    float *lse;                   // [H][m]; may be NULL in attend and attend_slots, required by fold and window_sums
    const struct sl_matrix *then; // for out: as sl_matmul.then
    // Read by attend: slots that are not in `heads` and come before them; NULL: none. Not with rope or window
    const struct sl_softmax *before;
    // Values of the forward pass for a hook that asked for them (engine/model/model.h); no op uses them.
    const float *importance; // [m][Hk]: the retaining heads' score of every new token
    const float *next_q;     // [m][H][d]: the next layer's query as predicted from this layer's input, after RoPE
};

static inline int64_t sl_attend_q_stride(const struct sl_attend *args) {
    return args->q_stride != 0 ? args->q_stride : (int64_t)args->n_heads * args->head_dim;
}

static inline int64_t sl_attend_out_stride(const struct sl_attend *args) {
    return args->out_stride != 0 ? args->out_stride : (int64_t)args->n_heads * args->head_dim;
}

// The sums that fold() adds up over rows, each into a score plane of its own (struct sl_page_layout.states); -1: not
// wanted. With abar[r][j] = mean over the G query heads of softmax_j(scale * q[r][g] . K_j):
struct sl_fold {
    int sum;    // += sum_r abar[r][j]
    int square; // += sum_r abar[r][j]^2
    int above;  // += number of rows r with abar[r][j] > 1 / (slots that r sees)
    // The plane `sum` becomes max(itself, max over rows r and query heads g of softmax_j(scale * q[r][g] . K_j))
    // instead; square and above are not wanted then.
    bool largest;
};

// --- digests, candidates and scans -----------------------------------------------------------------------------------

// Bytes whose digest is taken part by part: d_0 = 0, d_i = hash of part i (base/hash.h) with the seed d_{i-1}.
struct sl_digest_piece {
    const void *data;
    const uint32_t *part_bytes; // [n_parts], host memory; each at least 1
    uint32_t n_parts;
};

#define SL_MAX_CANDIDATES 1024

// The candidates that a caller asks for in a row of logits.
struct sl_pick {
    int32_t most;      // candidates, at most SL_MAX_CANDIDATES; 0: the row is skipped
    float temperature; // used for `rest`; 0: `rest` is not computed
};

/*
 * The best of the finite logits of a row: best[0 .. n), by descending logit, then by ascending id; n is the smaller of
 * n_finite and pick.most. With m the logit of the last of them, sums in f64 over finite logits:
 *     lse  = log sum_i exp(l_i)
 *     rest = sum_i exp((l_i - m) / pick.temperature), over those that are not among the best
 * Where no logit is finite, the other fields are not set.
 */
struct sl_picked {
    double lse, rest;
    int32_t n_finite, n;
    struct sl_candidate {
        float logit;
        int32_t id;
    } best[SL_MAX_CANDIDATES];
};

// Adjacent bytes of a page; `at` and `bytes` are multiples of 16.
struct sl_byte_range {
    const void *at;
    size_t bytes;
};

/*
 * Some slots of a key index (engine/kvcache/key_index.h), and the address of their scores: the score of slot j,
 * begin <= j < end, goes to out.at[h * out.stride + at + j - begin], in the row h of its head. Where begin == end
 * nothing is read or written.
 */
struct sl_scan_piece {
    struct sl_key_index_layout layout;
    const void *index; // shared or device memory, aligned to 64
    uint32_t begin, end;
    uint32_t at;
};

// Pieces of one format, and n_channels channels of each head.
struct sl_scan_call {
    const struct sl_scan_piece *pieces; // [n_heads][n_pieces], host memory
    int n_heads;
    uint32_t n_pieces;
    const float *q; // [n_heads][n_channels]
    int n_channels;
    struct sl_vectors out;
};

// Operations of stores, and of callers that search or measure, on memory of the host. The calling thread executes them,
// and they have finished on return.
struct sl_host_ops {
    // Selects the b largest of scores[n], as ops->select without ties.
    void (*select)(const float *scores, uint32_t n, uint32_t b, uint32_t *keep_out);
    // Quantizes one page, as ops->quantize.
    void (*quantize)(const struct sl_page_layout *work, const void *page, const struct sl_page_layout *packed,
                     void *packed_page);
    // Makes a key index (engine/kvcache/key_index.h) of the keys of the first n_slots slots of kv, at most
    // layout->capacity. For quantized pages it indexes the keys that the codes stand for. Every tier makes the same
    // bytes.
    void (*index_keys)(const struct sl_kv *kv, uint32_t n_slots, const struct sl_key_index_layout *layout,
                       void *index_out);
    // scores_out[j - begin] = sum_i q[channels[i]] * K^_j[channels[i]] for the slots of the piece, in f32, in
    // ascending i; piece->at is not read. The bits are the same however the slots are divided into calls.
    void (*scan)(const struct sl_scan_piece *piece, const float *q, const int *channels, int n_channels,
                 float *scores_out);
    // Copies K and V rows of the listed slots, [n][2][d] in the format of kv->work, for ops->put_rows. Rows of
    // quantized pages are the values that the codes stand for, rounded to that format.
    void (*copy_rows)(const struct sl_kv *kv, const uint32_t *slots, uint32_t n, void *rows_out);
};

struct sl_ops {
    const char *name;
    // The type to which 16-bit weights of another type are converted for products: SL_F16, or SL_BF16 where that is
    // faster.
    enum sl_dtype widened;
    // Matrices may be SL_WEIGHT_CODES, and embed() reads rows of any type. All parts of such a matrix but the
    // last have a multiple of 16 rows, and so has each half of a gated one.
    bool keeps_codes;

    // --- weights ---------------------------------------------------------------------------------------------------
    // Prepares matrix->packed from the parts. Returns SL_ERR_EXHAUSTED. The inverse accepts a matrix that was never
    // packed.
    enum sl_status (*pack)(struct sl_stream *stream, struct sl_matrix *matrix, struct sl_error *err);
    void (*unpack)(struct sl_matrix *matrix);
    // Packs a matrix that only embed() reads. Does nothing where the device reaches the parts.
    enum sl_status (*pack_rows)(struct sl_stream *stream, struct sl_matrix *matrix, struct sl_error *err);
    // For benchmarks: prepares matrix->packed as pack() does (as pack_rows() where is_rows), from random numbers
    // (engine/tensor/drawn.h) instead of the parts: element i of the rows is number first + i. The matrix is bf16 and
    // stays bf16. NULL: the host makes the parts.
    enum sl_status (*draw)(struct sl_stream *stream, struct sl_matrix *matrix, bool is_rows, uint64_t first,
                           struct sl_error *err);

    // Finds out which method multiplies rows of prompts (sl_matmul.reading) fastest by matrices like w, which is
    // packed. Without this call the first such product does so, and its request waits. Waits; the next wait returns a
    // failure of the device. NULL: the device has one method.
    void (*prepare)(struct sl_stream *stream, const struct sl_matrix *w);

    // --- dense -----------------------------------------------------------------------------------------------------
    // Returns the bytes of sl_matmul.scratch for up to m rows of a packed matrix; 0: none is needed.
    size_t (*matmul_scratch)(const struct sl_matrix *w, int64_t m);
    // Returns true where matmul first writes x into scratch in the layout that it reads best. Matrices of w's k, type
    // and format then share that layout, and threads that multiply the same rows may write it once: each arranges its
    // part of n_parts, waits for the others, and calls matmul with args->arranged. NULL: never.
    bool (*arranges)(const struct sl_matrix *w);
    void (*arrange)(struct sl_stream *stream, const struct sl_matrix *w, const struct sl_matmul *args, int part,
                    int n_parts);
    // Computes the product of struct sl_matrix.
    void (*matmul)(struct sl_stream *stream, const struct sl_matrix *w, const struct sl_matmul *args);
    // out[r] = table[ids[r]], r < m
    void (*embed)(struct sl_stream *stream, const struct sl_matrix *table, const int32_t *ids, int64_t m, float *out);
    // Normalizes each vector of x, of norm->n floats, on its own, into out, which has as many; out may be x.at.
    void (*norm)(struct sl_stream *stream, const struct sl_norm *norm, struct sl_row_vectors x, float *out,
                 int64_t out_stride);
    // cosines[r][i], sines[r][i] = scale * cos, sin of angle(positions[r], i), i < rotary_dim / 2: computed in f64,
    // rounded once. Callers compute them once for all layers.
    void (*angles)(struct sl_stream *stream, const struct sl_rope *rope, const int64_t *positions, int64_t m,
                   float *cosines, float *sines);
    // Rotates each vector of x_inout, of rope->head_dim floats, by its row's angles.
    void (*rotate)(struct sl_stream *stream, const struct sl_rope *rope, const float *cosines, const float *sines,
                   struct sl_row_vectors x_inout);

    // Writes picked_out[r], in shared memory, for logits[r][n_vocab], r < m, as asked[r] says. `asked` is host memory.
    void (*pick)(struct sl_stream *stream, const float *logits, int64_t n_vocab, const struct sl_pick *asked, int64_t m,
                 struct sl_picked *picked_out);

    // --- between ranks whose devices have memory of their own; else NULL ---------------------------------------------
    // Writes the part of one rank from its columns of x.
    void (*put_columns)(struct sl_stream *stream, const struct sl_columns *columns, int rank);
    // Writes the columns of all ranks but this one into x, from their parts.
    void (*take_columns)(struct sl_stream *stream, const struct sl_columns *columns, int rank);

    // --- KV pages --------------------------------------------------------------------------------------------------
    // Tells the device the current page lists and counts, and sets `published`. Every other operation on heads requires
    // heads that were published, and whose lists have not changed since. So callers publish once for each layer of a
    // step, and again where pages or counts have changed. A device forgets the heads that were published some layers
    // ago. The host's lists may change on return. SL_ERR_EXHAUSTED.
    enum sl_status (*publish)(struct sl_stream *stream, struct sl_kv_heads *heads_inout, struct sl_error *err);
    // Writes k and v of every call's rows as the last m slots of its heads, in their working format, with positions[r]
    // if the layout has positions, and zero score state.
    void (*append)(struct sl_stream *stream, const struct sl_attend *calls, int n_calls);
    // Attends n_calls of different sessions at once: a decode step of a batch.
    void (*attend)(struct sl_stream *stream, const struct sl_attend *calls, int n_calls);
    // Adds the slots of args->heads (a head may have none) to *before_inout. All of them come before every row's own
    // slots; out, lse and before are not used. Calls over consecutive multiples of SL_ATTEND_SPLIT slots and then
    // attend() with args->before give the bits of one attend() over all slots. Not with window or rope.
    void (*attend_before)(struct sl_stream *stream, const struct sl_attend *args,
                          const struct sl_softmax *before_inout);
    // Adds column statistics of attention to the score state of every slot, for rows [first_row, m): see struct
    // sl_fold. It reads the keys a second time with the saved lse. `out` is not used.
    void (*fold)(struct sl_stream *stream, const struct sl_attend *args, int first_row, const struct sl_fold *what);
    // Does attend() of a call and then fold() of all its rows, with the same bits. NULL: nothing is faster than the
    // two.
    void (*attend_fold)(struct sl_stream *stream, const struct sl_attend *args, const struct sl_fold *what);
    // sums_out[h][j] = sum over rows r >= first_row of softmax_j(scale * q[r][h] . K_j), for query head h < H and the
    // n_slots of its KV head. A row does not see later slots: adds 0 there.
    void (*window_sums)(struct sl_stream *stream, const struct sl_attend *args, int first_row,
                        struct sl_vectors sums_out);
    // Quantizes groups: the first n_pages pages of every head, in the working layout (all full), go into the pages
    // to[h * n_pages + p] in the packed layout (int8..int1); NULL skips a page. Positions are copied, and so is the
    // state if packed has it. x^ = code * s + z, z = min, s = (max - min) / (2^b - 1), s and z rounded to f16 first,
    // code = round-half-even(clamp((x - z) / s, 0, 2^b - 1)), 0 where s = 0.
    void (*quantize)(struct sl_stream *stream, const struct sl_kv_heads *heads, uint32_t n_pages, void *const *to);
    // Copies the pieces, in order, into adjacent memory, so that they leave a device in one copy.
    void (*collect)(struct sl_stream *stream, const struct sl_byte_range *pieces, uint32_t n, void *to);
    // digests_out[i], in shared memory, is the last digest of pieces[i]. It verifies data that travels without passing
    // through the host.
    void (*digest)(struct sl_stream *stream, const struct sl_digest_piece *pieces, uint32_t n, uint64_t *digests_out);

    // --- scores of slots: j < kv[h].n_slots ------------------------------------------------------------------------
    // out[h][j] = state[plane][j]; 0 where a packed page has dropped it
    void (*read_state)(struct sl_stream *stream, const struct sl_kv_heads *heads, int plane, struct sl_vectors out);
    // Sets, for the last m slots, in working pages: state[plane] of slot n_slots - m + r of head h = values[r * n + h]
    void (*write_state)(struct sl_stream *stream, const struct sl_kv_heads *heads, int plane, int m,
                        const float *values);
    // out[h][r] = values[r * n + h], r < m
    void (*spread)(struct sl_stream *stream, const float *values, int n, int m, struct sl_vectors out);
    // With q_j = n_tokens - position of slot j, and the planes 0 (sums) and 1 (sums of squares), in f64:
    //     mean_out[h][j] = state[0][j] / q_j
    //     deviation_out[h][j] = sqrt(max(state[1][j] / q_j - (state[0][j] / q_j)^2, 0))
    // Either output may be empty (at NULL).
    void (*mean_state)(struct sl_stream *stream, const struct sl_kv_heads *heads, int64_t n_tokens,
                       struct sl_vectors mean_out, struct sl_vectors deviation_out);
    // Computes, for each of `group` query heads of a KV head: out[i][j] = mean (max: maximum) of x[i] over slots
    // [j - K / 2, j - K / 2 + K), K = kernel, among those before the last `window`. Beyond the edges there is 0 (max:
    // nothing). The last `window` slots are copied unchanged.
    void (*pool)(struct sl_stream *stream, const struct sl_kv_heads *heads, int group, struct sl_vectors x,
                 struct sl_pooling pooling, struct sl_vectors out);
    // out[h][j] = mean over its query heads, i in [h * group, (h + 1) * group), of x[i][j]
    void (*mean_group)(struct sl_stream *stream, const struct sl_kv_heads *heads, int group, struct sl_vectors x,
                       struct sl_vectors out);
    // out[h][j] = j
    void (*recency)(struct sl_stream *stream, const struct sl_kv_heads *heads, struct sl_vectors out);
    // out[h][j] = a number in [0, 1) that depends only on seed, layer, h and (position of slot j) + offset
    void (*chance)(struct sl_stream *stream, const struct sl_kv_heads *heads, uint64_t seed, int layer, int64_t offset,
                   struct sl_vectors out);
    // CAOTE (eq. 21), with a = w / sum(w) over all slots, for the weights w = weights[i] of each of `group` query
    // heads:
    //     change_i[j] = a_j / max(1 - a_j, 1e-6) * || c - V_j ||_2,  c = sum_k a_k V_k, or mean_k V_k if mean_center.
    //     out[h][j] = change_h[j], or with group > 1 the root of the sum of squares of the group's changes
    // Weights are >= 0; where they sum to 0 they count as equal.
    void (*value_change)(struct sl_stream *stream, const struct sl_kv_heads *heads, int group,
                         struct sl_vectors weights, bool mean_center, struct sl_vectors out);
    // x_inout[h][j] = mean over the heads, which have equally many slots, of x[.][j], in f64
    void (*share)(struct sl_stream *stream, const struct sl_kv_heads *heads, struct sl_vectors x_inout);
    // Writes to shared memory: out[h] = unbiased variance over the slots of state[plane], in f64; 0 for fewer than two
    // slots
    void (*variance)(struct sl_stream *stream, const struct sl_kv_heads *heads, int plane, double *out);

    // --- which slots stay ------------------------------------------------------------------------------------------
    // x_inout[h][j] = +inf for the slots in protections[h]
    void (*protect)(struct sl_stream *stream, const struct sl_kv_heads *heads, const struct sl_protection *protections,
                    struct sl_vectors x_inout);
    // x_inout[h][j] = +inf for the slots in listed[h]
    void (*spare)(struct sl_stream *stream, const struct sl_kv_heads *heads, struct sl_lists listed, struct sl_counts n,
                  struct sl_vectors x_inout);
    // AdaKV: computes how many slots each head keeps when the scores of all compete for n * budget slots. A head keeps
    // at least floor(0.2 * budget), and the slots whose score is +inf. Total order: that of select(), equals by head
    // and then by slot. kept_out.device[h] <= n_slots; their sum is min(n * budget, sum of n_slots). Overwrites `work`.
    void (*budgets)(struct sl_stream *stream, const struct sl_kv_heads *heads, struct sl_vectors scores,
                    uint32_t budget, struct sl_vectors work, struct sl_counts kept_out);
    // Selects the kept[h] slots (at most all) with the largest scores. Total order: score descending, then ties[h][j]
    // descending, then slot ascending; without ties (ties.at NULL) slot descending if `newest`. NaN is lowest. It reads
    // only n_slots of the heads: pages may be NULL.
    void (*select)(struct sl_stream *stream, const struct sl_kv_heads *heads, struct sl_vectors scores,
                   struct sl_vectors ties, bool newest, struct sl_counts kept, struct sl_lists keep_out);
    // Compacts in place: slot keep[h][i] becomes slot i < kept[h], with K, V, position and state. Requires n_packed ==
    // 0.
    void (*gather)(struct sl_stream *stream, const struct sl_kv_heads *heads, struct sl_lists keep,
                   struct sl_counts kept);
    /*
     * D2O. nearest: evicted[h] lists the slots that are not in keep[h]. For the i-th of them, into[h][i] is the slot in
     * keep[h] whose K is the most similar by cosine (a key of no length, or of NaN: cosine 0; ties: the first), and
     * cosine[h][i] is that cosine, within [-1, 1]; NaN: -1. Heads that keep nothing are skipped, here and in merge.
     * merge: with m the mean of cosine over all heads and slots, and t = *threshold.at,
     *     t becomes m where it is 0, else (1 - beta) t + beta m
     *     every evicted slot with cosine_i >= t is merged into its nearest one, both K and V, in f32:
     *         x_c = (e * x_c + sum_i exp(cosine_i) * x_i) / (e + sum_i exp(cosine_i))
     *     *threshold.n_merged counts them
     * Where no slot is evicted t stays. The lists are overwritten. Requires n_packed == 0.
     */
    void (*nearest)(struct sl_stream *stream, const struct sl_kv_heads *heads, struct sl_lists keep,
                    struct sl_counts kept, struct sl_nearest nearest_out);
    void (*merge)(struct sl_stream *stream, const struct sl_kv_heads *heads, struct sl_counts kept,
                  struct sl_nearest nearest, struct sl_merge_threshold threshold);

    // --- estimates of the error of eviction --------------------------------------------------------------------------
    // These operations write to shared memory.
    // *lost_inout += mean over the heads of lost_h, in f64. lost_h is the mean over the head's query heads of the sum
    // of mass.x[i] over the slots that are not in keep[h]; with mass.n_rows > 0 it is that sum's share in the sum over
    // all slots (0 of 0: 0), times n_rows
    void (*lost)(struct sl_stream *stream, const struct sl_kv_heads *heads, struct sl_mass mass, struct sl_lists keep,
                 struct sl_counts kept, double *lost_inout);
    // *error_inout += the error that quantize() makes with these arguments, page after page, and for each page head
    // after head
    void (*page_error)(struct sl_stream *stream, const struct sl_kv_heads *heads, uint32_t n_pages, void *const *to,
                       struct sl_page_error *error_inout);

    // --- retrieval (TailorKV) --------------------------------------------------------------------------------------
    // Writes to shared memory: means_out[h][c] = mean over the G query heads g of KV head h of q[0][g][c], c < d, m =
    // 1. Signs cancel, as in TailorKV's code. q: args->q or next_q, with adjacent heads
    void (*mean_query)(struct sl_stream *stream, const struct sl_attend *args, const float *q, float *means_out);
    // Attends with m = 1, but the query heads of KV head h see only slots[h][0 .. n[h]), in this order. The bits depend
    // on the order and on the contents of the slots, not on their location.
    void (*attend_slots)(struct sl_stream *stream, const struct sl_attend *args, struct sl_lists slots,
                         struct sl_counts n);
    // Writes rows[h], [n[h]][2][d] in the working format, as K and V of slots[h][0 .. n[h]), which must be in working
    // pages. Positions and state are unchanged.
    void (*put_rows)(struct sl_stream *stream, const struct sl_kv_heads *heads, struct sl_lists slots,
                     struct sl_counts n, const void *const *rows);
    // Scans every piece as host.scan, by all channels in ascending order. The bits are the same however slots are
    // divided into pieces.
    void (*scan)(struct sl_stream *stream, const struct sl_scan_call *args);
    struct sl_host_ops host;

    // --- for tests and inspection: one head ------------------------------------------------------------------------
    // K and V rows of slots [begin, end) as f32 [end - begin][d]; either output may be NULL
    void (*read_rows)(const struct sl_kv *kv, uint32_t begin, uint32_t end, float *k_out, float *v_out);
    // positions_out[j] for all slots (j itself when the layout has no positions)
    void (*read_positions)(const struct sl_kv *kv, int64_t *positions_out);
};
