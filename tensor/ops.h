// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the table of operations behind which tensor memory is opaque. Only tensor/cpu (and, one day, tensor/cuda)
 *          dereference activations, weights and pages; the forward pass and compress/ are orchestration over this
 *          table.
 *
 * Design: the ref_*.c of tensor/cpu fill the whole table with plain C that reads like the formulas; a faster tier overwrites
 *         the entries it is better at (tensor/cpu/tiers.h). Callers never branch on the tier or the device. tests/kernels/
 *         checks and times every entry of every tier against the reference.
 *
 *         What differs between model families is data here: a matrix carries the bias and the activation that its
 *         product goes through, a norm its kind, a rope its dimensions, so that the forward pass is one for all.
 *
 * Reproducibility: the result of a row never depends on how many other rows are in the call. matmul sums over k in one
 *         fixed order per element and attend visits pages in slot order, so a prompt gives the same bits whatever the
 *         chunk size, and one process the same bits as the cluster (on processors of the same tier).
 *
 * Precision: sums are f32 everywhere. Weights and keys are used as they are stored; a tier may round the other side of
 *         a product (activations, queries, attention weights) to bf16 where the weights are bf16 or quantized, or the
 *         keys 16 bits or less: tier "amx" does, and "avx512bf16" for weights. With f32 weights and f32 pages no tier rounds anything.
 *
 * Shapes: m rows (tokens of one call), d = head_dim, H query heads, Hk KV heads, G = H / Hk query heads a KV head.
 *         Activations are f32, row-major; rows are packed unless a stride is given (in floats, from row to row), and
 *         the first one is aligned to 64 bytes.
 *
 * To add an op: an entry here with its formula, ref_<op> in a ref_*.c of tensor/cpu, tests/kernels/check_<op>.c; then tiers.
 */
#ifndef SL_TENSOR_OPS_H
#define SL_TENSOR_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/team.h"
#include "kvcache/key_index.h"
#include "kvcache/page.h"

// --- weights ---------------------------------------------------------------------------------------------------------

// Of a tensor in a file.
enum sl_dtype { SL_F32, SL_F16, SL_BF16 };

/*
 * What pack() makes of a matrix. The quantized ones: groups of SL_WEIGHT_GROUP weights of a row, adjacent in k (the
 * last one of a row may be shorter), share a scale s, an f16; x^ = s * code. With t the x of the largest |x|, the first
 * of equals:
 *   INT8  s = |t| / 127 rounded to f16
 *         code = round-half-even(clamp(x * (1 / s), -127, 127))
 *   INT4  s = that of t / -8, t / -8.5, t / -7.5, t / -7, rounded to f16, by which sum (x - s * code)^2 over the group is
 *         the least; the first of equals
 *         code = round-half-even(clamp(x * (1 / s), -8, 7))
 * in f32, and where s is 0, code is 0. Four scales in place of t / -8 alone make INT4's squared error 8% less.
 */
enum sl_weight_format { SL_WEIGHT_STORED, SL_WEIGHT_INT8, SL_WEIGHT_INT4 };
#define SL_WEIGHT_GROUP 32

// "stored", "int8", "int4": what every --weights takes. SL_ERR_INVALID.
enum sl_status sl_weight_format_parse(const char *name, enum sl_weight_format *format_out, struct sl_error *err);
const char *sl_weight_format_name(enum sl_weight_format format);

enum sl_activation {
    SL_ACT_NONE,
    SL_ACT_SILU,      // x / (1 + exp(-x))
    SL_ACT_GELU,      // x (1 + erf(x / sqrt 2)) / 2
    SL_ACT_GELU_TANH, // x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2
};

// Adjacent rows of a tensor as they lie in its file: [n][k], of any alignment.
struct sl_rows {
    const void *data; // not owned
    int64_t n;
};

#define SL_MAX_PARTS 3 // tensors of a file that are one matrix here: q, k, v; gate, up

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
    enum sl_dtype dtype;                // of all parts
    enum sl_weight_format format;       // asked of pack()
    struct sl_rows parts[SL_MAX_PARTS]; // W's rows, one part after the other; embed() reads rows of parts[0]
    const float *bias;                  // [n] or NULL; not owned
    enum sl_activation activation;
    bool gated;
    void *packed; // the tier's own layout, or NULL when it computes from the parts
    size_t packed_bytes;
};

// Columns of y.
static inline int64_t sl_matrix_outputs(const struct sl_matrix *w) {
    return w->gated ? w->n / 2 : w->n;
}

// One product.
struct sl_matmul {
    const float *x; // [m][k]
    int64_t x_stride;
    int64_t m;
    float *y; // [m][sl_matrix_outputs()]
    int64_t y_stride;
    int64_t n_columns; // compute only the first n_columns of y, not of a gated matrix; 0: all
    bool accumulate;   // y = act(y + x W^T + bias); not with a gated matrix
    void *scratch;     // ops->matmul_scratch() bytes, aligned to 64; not shared between calls at the same time
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

#define SL_MAX_HEAD_DIM 512 // the angles of one position, and one head's row, fit on the stack; models are checked

// Angles of RoPE: angle(pos, i) = pos * inv_freq[i], in f64; of a head of d channels the first rotary_dim are rotated,
// channel i < rotary_dim / 2 with channel i + rotary_dim / 2 (halves, not interleaved).
struct sl_rope {
    int head_dim;
    int rotary_dim;         // <= head_dim, a multiple of 8
    const double *inv_freq; // [rotary_dim / 2]
    double scale;           // multiplies cos and sin (1 but for long-context scalings)
};

// --- attention -------------------------------------------------------------------------------------------------------

/*
 * The softmax of rows over slots that came before those of a call, not yet divided by its sum. A row that has seen no
 * slot has max minus infinity, and nothing else of it is read.
 */
struct sl_softmax {
    float *out; // [m][H][d] sum_j exp(s_j - max) V_j
    float *max; // [H][m]    max_j s_j
    float *sum; // [H][m]    sum_j exp(s_j - max)
};
#define SL_ATTEND_SPLIT (64 * SL_PAGE_SLOTS) // slots; see attend_before

/*
 * m new rows of one session in one layer, and the slots of that session. The rows' own slots are counted in, as the last
 * m: append() writes them, and attention is causal: row r sees the slots of KV head h below kv[h].n_slots - m + r + 1.
 *
 * out[r][h] = sum_j softmax_j(scale * q[r][h] . K_j) V_j
 * lse[h][r] = log sum_j exp(scale * q . K_j)
 *
 * With a window (sliding-window attention), row r sees of those only the slots whose position is above
 * positions[r] - window. Slots ascend by position, so that is a range of slots: see sl_attend_first() in kv_page.h.
 */
struct sl_attend {
    const float *q;     // [m][H][d]; after RoPE, or before it when rope is set
    int64_t q_stride;   // 0: packed
    const float *k, *v; // of append: [m][Hk][d], as they are to be stored
    int64_t kv_stride;  // 0: packed
    int m, n_heads, head_dim;
    float scale;
    struct sl_kv_heads heads; // [Hk]
    // slot positions: rotate key j by j and query r by its slot; NULL: keys are rotated already
    const struct sl_rope *rope;
    int64_t window;           // 0: none. Not with rope
    const int64_t *positions; // [m] of the rows; needed with a window, and by append where pages keep positions
    float *out;               // [m][H][d]; of attend and attend_slots
    float *lse;               // [H][m]; may be NULL in attend and attend_slots, required by fold and window_sums
    // of attend: slots that are not in `heads` and come before them; NULL: none. Without rope and window
    const struct sl_softmax *before;
    // What the forward pass has at hand for a hook that asked for it (model/model.h); not used by any op.
    const float *importance; // [Hk][m]: the retaining heads' score of every new token
    const float *next_q;     // [m][H][d]: the next layer's query as predicted from this layer's input, after RoPE
};

static inline int64_t sl_attend_q_stride(const struct sl_attend *args) {
    return args->q_stride != 0 ? args->q_stride : (int64_t)args->n_heads * args->head_dim;
}

// What fold() adds up over rows, each into a score plane of its own (struct sl_page_layout.states); -1: not wanted.
// With abar[r][j] = mean over the G query heads of softmax_j(scale * q[r][g] . K_j):
struct sl_fold {
    int sum;    // += sum_r abar[r][j]
    int square; // += sum_r abar[r][j]^2
    int above;  // += number of rows r with abar[r][j] > 1 / (slots that r sees)
};

struct sl_ops {
    const char *name;

    // --- weights ---------------------------------------------------------------------------------------------------
    // Prepare matrix->packed from the parts. SL_ERR_EXHAUSTED. The inverse accepts a matrix that was never packed.
    enum sl_status (*pack)(struct sl_team *team, struct sl_matrix *matrix, struct sl_error *err);
    void (*unpack)(struct sl_matrix *matrix);

    // --- dense -----------------------------------------------------------------------------------------------------
    // Bytes of sl_matmul.scratch for up to m rows; 0: none is needed.
    size_t (*matmul_scratch)(const struct sl_matrix *w, int64_t m);
    // The product of struct sl_matrix.
    void (*matmul)(struct sl_team *team, const struct sl_matrix *w, const struct sl_matmul *args);
    // out[r] = table[ids[r]], r < m
    void (*embed)(struct sl_team *team, const struct sl_matrix *table, const int32_t *ids, int64_t m, float *out);
    // Each of n_groups adjacent vectors of norm->n, in m rows, on its own. out may be x.
    void (*norm)(struct sl_team *team, const struct sl_norm *norm, const float *x, int64_t x_stride, int64_t m,
                 int n_groups, float *out, int64_t out_stride);
    // cosines[r][i], sines[r][i] = scale * cos, sin of angle(positions[r], i), i < rotary_dim / 2: computed in f64,
    // rounded once. Made once for all layers.
    void (*angles)(struct sl_team *team, const struct sl_rope *rope, const int64_t *positions, int64_t m,
                   float *cosines, float *sines);
    // Rotate n_heads adjacent vectors of rope->head_dim in each of m rows by the row's angles.
    void (*rotate)(struct sl_team *team, const struct sl_rope *rope, const float *cosines, const float *sines, float *x,
                   int64_t stride, int64_t m, int n_heads);

    // --- KV pages --------------------------------------------------------------------------------------------------
    // Write k and v of every call's rows as the last m slots of its heads, in their working format, with positions[r]
    // if the layout has positions, and zero score state.
    void (*append)(struct sl_team *team, const struct sl_attend *calls, int n_calls);
    // n_calls of different sessions at once: a decode step of many.
    void (*attend)(struct sl_team *team, const struct sl_attend *calls, int n_calls);
    // Add the slots of args->heads (a head may have none), all of which come before every row's own, to *before_inout;
    // out, lse and before are not used. Calls over consecutive multiples of SL_ATTEND_SPLIT slots and then attend() with
    // args->before give the bits of one attend() over all slots. Without window and rope.
    void (*attend_before)(struct sl_team *team, const struct sl_attend *args, const struct sl_softmax *before_inout);
    // Column statistics of attention into the score state of every slot, rows [first_row, m), from a second pass over
    // the keys with the saved lse; no m-by-n matrix is stored. See struct sl_fold. `out` is not used.
    void (*fold)(struct sl_team *team, const struct sl_attend *args, int first_row, const struct sl_fold *what);
    // sums_out[h][j] = sum over rows r >= first_row of softmax_j(scale * q[r][h] . K_j), for query head h < H and the
    // n_slots of its KV head; rows of sums_out are `stride` floats apart. A row does not see later slots: adds 0 there.
    void (*window_sums)(struct sl_team *team, const struct sl_attend *args, int first_row, float *sums_out,
                        size_t stride);
    // scores[j] = state[plane][j] for all slots
    void (*read_state)(const struct sl_kv *kv, int plane, float *scores);
    // state[plane][j] = values[j - begin] for slots [begin, end), which must lie in working pages
    void (*write_state)(const struct sl_kv *kv, int plane, uint32_t begin, uint32_t end, const float *values);
    // positions_out[j] for all slots (j itself when the layout has no positions)
    void (*read_positions)(const struct sl_kv *kv, int64_t *positions_out);
    // Indices of the b largest of scores[n], ascending. Total order: score descending, then index ascending; NaN is
    // lowest.
    void (*select)(const float *scores, uint32_t n, uint32_t b, uint32_t *keep_out);
    // Compact in place: slot i becomes slot keep[i] (ascending), K, V, position and state alike. Needs n_packed == 0.
    void (*gather)(const struct sl_kv *kv, const uint32_t *keep, uint32_t n_keep);
    // Group-quantize one full page of layout `work` into a page of layout `packed` (int8..int1): positions are copied,
    // and state if packed has it. x^ = code * s + z, z = min, s = (max - min) / (2^b - 1), s and z rounded to f16
    // first, code = round-half-even(clamp((x - z) / s, 0, 2^b - 1)), 0 where s = 0.
    void (*quantize)(const struct sl_page_layout *work, const void *page, const struct sl_page_layout *packed,
                     void *packed_page);
    // CAOTE (eq. 21), with a = weights / sum(weights) over all slots:
    //     change_out[j] = a_j / max(1 - a_j, 1e-6) * || c - V_j ||_2,  c = sum_k a_k V_k, or mean_k V_k if mean_center.
    // Weights are >= 0; where they sum to 0 they count as equal.
    void (*value_change)(const struct sl_kv *kv, const float *weights, bool mean_center, float *change_out);
    // Of slot evicted[e]: the slot among kept[] whose K is the most similar by cosine (a zero key: cosine 0; ties: the
    // first), and that cosine.
    void (*nearest)(const struct sl_kv *kv, const uint32_t *evicted, uint32_t n_evicted, const uint32_t *kept,
                    uint32_t n_kept, uint32_t *nearest_out, float *cosine_out);
    // D2O's weighted merge, for each slot c in into[], over the i with into[i] == c (K and V alike, f32 sums):
    //     x_c = (e * x_c + sum_i exp(cosine[i]) * x_from[i]) / (e + sum_i exp(cosine[i]))
    // No slot is both in from[] and in into[]. Needs n_packed == 0.
    void (*merge)(const struct sl_kv *kv, const uint32_t *from, const uint32_t *into, const float *cosine, uint32_t n);

    // --- retrieval (TailorKV) --------------------------------------------------------------------------------------
    // As attend with m = 1, but the query heads of KV head h see only slots[h][0 .. n_slots[h]), in this order: the bits
    // depend on the order and on what the slots hold, not on where they lie.
    void (*attend_slots)(struct sl_team *team, const struct sl_attend *args, const uint32_t *const *slots,
                         const uint32_t *n_slots);
    // Make a key index (kvcache/key_index.h) of the keys of the first n_slots slots of kv, at most layout->capacity. Of
    // quantized pages: of what their codes stand for. Every tier makes the same bytes.
    void (*index_keys)(const struct sl_kv *kv, uint32_t n_slots, const struct sl_key_index_layout *layout,
                       void *index_out);
    // scores_out[j - begin] = sum_i q[channels[i]] * K^_j[channels[i]] for slots [begin, end), in f32, in ascending i:
    // the same bits however the slots are divided into calls.
    void (*scan)(const struct sl_key_index_layout *layout, const void *copy, const float *q, const int *channels,
                 int n_channels, uint32_t begin, uint32_t end, float *scores_out);
    // K and V rows of the listed slots, [n][2][d] in the format of kv->work (of quantized pages: what they stand for,
    // rounded to it).
    void (*copy_rows)(const struct sl_kv *kv, const uint32_t *slots, uint32_t n, void *rows_out);
    // The inverse: rows [n][2][d] in the format of kv->work become K and V of the listed slots, which lie in working
    // pages. Positions and state stay as they are.
    void (*put_rows)(const struct sl_kv *kv, const uint32_t *slots, uint32_t n, const void *rows);
    // K and V rows of slots [begin, end) as f32 [end - begin][d]; either output may be NULL. For tests and inspection.
    void (*read_rows)(const struct sl_kv *kv, uint32_t begin, uint32_t end, float *k_out, float *v_out);
};

#endif
