// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: column statistics of attention with AVX2: fold, window_sums, and those that attention makes of the scores
 *          that it kept. The formulas are those of ref_stats.c.
 *
 * Design: a task takes a run of pages of one KV head. It makes their K^T tiles once and keeps them for all rows. It
 *         takes the rows in order, a block of whole rows (all query heads of the KV head) at a time: the kernel of
 *         attention computes the block's scores, then exp(score - lse) is added up strip by strip, with the sums in
 *         registers. So beyond the scores, a square or a comparison costs one or two instructions per row and eight
 *         slots.
 *
 *         The mean over the G query heads is left undone until the end: a = G abar, a > G / v_r, and the state gets
 *         sum a / G and sum a^2 / G^2.
 *
 * Invariants: a statistic is one chain of additions over the rows in order, for any blocks, team and other statistics.
 *             Each task adds to the state once.
 */
#include <assert.h>
#include <math.h>
#include <string.h>

#include "engine/tensor/cpu/attention/avx2_kv.h"
#include "engine/tensor/cpu/attention/fills.h"
#include "engine/tensor/cpu/attention/heads.h"
#include "engine/tensor/cpu/attention/ref_kv.h"

#define BLOCK SL_STATS_BLOCK
#define RUN   4 // pages of one task; their tiles stay in the second-level cache

struct stats_call {
    struct sl_avx2_call call; // group <= BLOCK
    const struct sl_avx2_scorer *scorer;
    int first_row;
    struct sl_fold what;        // of fold
    struct sl_vectors sums_out; // of window_sums
};

// Rows [begin, begin + n_rows) of the call, and what their statistics need: BLOCK vectors, or a block of attention.
struct block {
    int begin, n_rows, group;
    float lse[SL_ATTEND_BLOCK];                            // of the vectors
    float even[SL_ATTEND_BLOCK];                           // of the rows: G / v_r, infinity where v_r is 1
    uint32_t first[SL_ATTEND_BLOCK], end[SL_ATTEND_BLOCK]; // slots that the rows see
};

// The working memory of one task.
struct scratch {
    _Alignas(64) float q[BLOCK * SL_MAX_HEAD_DIM];  // [n_vectors][d]
    float k[RUN * SL_PAGE_SLOTS * SL_MAX_HEAD_DIM]; // the tiles of the pages, in order
    float scores[BLOCK * SL_PAGE_SLOTS];            // [n_vectors][SL_PAGE_SLOTS]
    sl_kv_page_stats stats[RUN];                    // of fold
    struct block block;
    struct sl_page_angles of_keys, of_queries;
};

// --- a block of rows -------------------------------------------------------------------------------------------------

// Returns the first row that sees a slot of the page.
static int first_to_see(const struct sl_attend *args, const struct sl_kv *kv, uint32_t page) {
    int64_t row = (int64_t)page * SL_PAGE_SLOTS - ((int64_t)kv->n_slots - args->m);
    return row > 0 ? (int)row : 0;
}

// Returns true where no row sees anything before the page; the first row's window begins first.
static bool is_before_windows(const struct stats_call *stats, const struct sl_kv *kv, uint32_t page) {
    const struct sl_attend *args = &stats->call.args;
    return stats->first_row >= args->m || page * SL_PAGE_SLOTS <= sl_attend_first(args, kv, stats->first_row);
}

// Describes rows [begin, begin + n_rows) of a KV head.
static void describe_block(const struct sl_attend *args, int head, int begin, int n_rows, struct block *b) {
    int group = args->n_heads / args->heads.n;
    b->begin = begin;
    b->n_rows = n_rows;
    b->group = group;
    for (int r = 0; r < n_rows; r++) {
        size_t row = (size_t)begin + (size_t)r;
        b->first[r] = sl_attend_first(args, &args->heads.kv[head], (int)row);
        b->end[r] = args->heads.kv[head].n_slots - (uint32_t)args->m + (uint32_t)row + 1;
        uint32_t visible = b->end[r] - b->first[r];
        // a row that sees one slot never exceeds the mean, not even by rounding
        b->even[r] = visible > 1 ? (float)group / (float)visible : INFINITY;
        for (int g = 0; g < group; g++) {
            b->lse[r * group + g] = args->lse[(size_t)(head * group + g) * (size_t)args->m + row];
        }
    }
}

// Loads the block that begins at a row.
static void load_block(const struct stats_call *stats, int head, int row, struct scratch *s) {
    const struct sl_avx2_call *call = &stats->call;
    int most = BLOCK / call->group, left = call->args.m - row, n_rows = left < most ? left : most;
    stats->scorer->load_queries(call, head, (int64_t)row * call->group, n_rows * call->group, &s->of_queries, s->q);
    describe_block(&call->args, head, row, n_rows, &s->block);
}

// Returns the block's rows that see any slot of the page.
static struct sl_range rows_that_see(const struct block *b, uint32_t page) {
    struct sl_range rows = {0, b->n_rows};
    while (rows.begin < rows.end && b->end[rows.begin] <= page * SL_PAGE_SLOTS) {
        rows.begin++;
    }
    while (rows.begin < rows.end && b->first[rows.end - 1] >= (page + 1) * SL_PAGE_SLOTS) {
        rows.end--;
    }
    return rows;
}

// Returns whether all rows see the whole page: the slots where they begin and end ascend.
static bool see_all(const struct block *b, struct sl_range rows, uint32_t page) {
    return rows.begin == rows.end ||
           (b->first[rows.end - 1] <= page * SL_PAGE_SLOTS && b->end[rows.begin] >= (page + 1) * SL_PAGE_SLOTS);
}

// Writes minus infinity where a row does not see the slot.
static void mask_rows(const struct block *b, struct sl_range rows, uint32_t page, float *scores) {
    if (see_all(b, rows, page)) { // most pages
        return;
    }
    for (int r = rows.begin; r < rows.end; r++) {
        struct sl_range seen = sl_slots_in_page(b->first[r], b->end[r], page);
        for (int g = 0; seen.end - seen.begin < SL_PAGE_SLOTS && g < b->group; g++) {
            sl_avx2_mask(scores + (size_t)(r * b->group + g) * SL_PAGE_SLOTS, seen);
        }
    }
}

// Computes the scores of the block and the tile's page, masked. Returns the rows that see any slot; the scores of the
// other rows are not written.
static struct sl_range score_block(const struct stats_call *stats, int head, uint32_t page, const float *tile,
                                   struct scratch *s) {
    const struct block *b = &s->block;
    struct sl_range rows = rows_that_see(b, page);
    if (rows.begin < rows.end) {
        int n_page = sl_slots_in_page(0, b->end[rows.end - 1], page).end; // the last row sees the most slots
        stats->scorer->score(s->q, tile, sl_kv_page_layout(&stats->call.args.heads.kv[head], page),
                             rows.begin * b->group, rows.end * b->group, n_page, s->scores);
        mask_rows(b, rows, page, s->scores);
    }
    return rows;
}

static inline __m256 weight(const float *scores, const float *lse) {
    return sl_avx2_exp_weight(_mm256_sub_ps(_mm256_load_ps(scores), _mm256_broadcast_ss(lse)));
}

// --- fold ------------------------------------------------------------------------------------------------------------

// Adds rows to the statistics of a page's slots. square and above are constants in every call.
static inline __attribute__((always_inline)) void add_rows(const struct sl_stats_rows *rows, bool square, bool above,
                                                           sl_kv_page_stats stats) {
    int group = rows->group;
    for (int x = 0; x < SL_PAGE_SLOTS; x += SL_STRIP) {
        __m256 sums[2], squares[2], counts[2];
        SL_UNROLL
        for (int i = 0; i < 2; i++) {
            sums[i] = _mm256_load_ps(stats[SL_KV_SUM] + x + 8 * i);
            squares[i] = _mm256_load_ps(stats[SL_KV_SQUARE] + x + 8 * i);
            counts[i] = _mm256_load_ps(stats[SL_KV_ABOVE] + x + 8 * i);
        }
        const float *lse = rows->lse, *scores = rows->scores + x;
        for (int r = 0; r < rows->n; r++) {
            __m256 a[2] = {weight(scores, lse), weight(scores + 8, lse)};
            _mm_prefetch((const char *)(scores + rows->next), _MM_HINT_T1);
            lse++;
            scores += SL_PAGE_SLOTS;
            for (int g = 1; g < group; g++, lse++, scores += SL_PAGE_SLOTS) {
                a[0] = _mm256_add_ps(a[0], weight(scores, lse));
                _mm_prefetch((const char *)(scores + rows->next), _MM_HINT_T1);
                a[1] = _mm256_add_ps(a[1], weight(scores + 8, lse));
            }
            SL_UNROLL
            for (int i = 0; i < 2; i++) {
                sums[i] = _mm256_add_ps(sums[i], a[i]);
                if (square) {
                    squares[i] = _mm256_fmadd_ps(a[i], a[i], squares[i]);
                }
                if (above) {
                    __m256 is_above = _mm256_cmp_ps(a[i], _mm256_broadcast_ss(rows->even + r), _CMP_GT_OQ);
                    counts[i] = _mm256_add_ps(counts[i], _mm256_and_ps(is_above, _mm256_set1_ps(1.0f)));
                }
            }
        }
        SL_UNROLL
        for (int i = 0; i < 2; i++) {
            _mm256_store_ps(stats[SL_KV_SUM] + x + 8 * i, sums[i]);
            _mm256_store_ps(stats[SL_KV_SQUARE] + x + 8 * i, squares[i]);
            _mm256_store_ps(stats[SL_KV_ABOVE] + x + 8 * i, counts[i]);
        }
    }
}

static void add_any_rows(const struct sl_stats_rows *rows, bool square, bool above, sl_kv_page_stats stats) {
    if (square) { // each way is a loop of its own
        above ? add_rows(rows, true, true, stats) : add_rows(rows, true, false, stats);
    } else {
        above ? add_rows(rows, false, true, stats) : add_rows(rows, false, false, stats);
    }
}

// Raises the sums of a page's slots to the largest weight of any row and query head.
static void raise_to_rows(const struct sl_stats_rows *rows, sl_kv_page_stats stats) {
    for (int x = 0; x < SL_PAGE_SLOTS; x += 8) {
        __m256 most = _mm256_set1_ps(-INFINITY); // of score - lse
        for (int i = 0; i < rows->n * rows->group; i++) {
            __m256 scores = _mm256_load_ps(rows->scores + (size_t)i * SL_PAGE_SLOTS + x);
            most = _mm256_max_ps(most, _mm256_sub_ps(scores, _mm256_broadcast_ss(rows->lse + i)));
        }
        __m256 before = _mm256_load_ps(stats[SL_KV_SUM] + x);
        _mm256_store_ps(stats[SL_KV_SUM] + x, _mm256_max_ps(before, sl_avx2_exp_weight(most)));
    }
}

// Adds rows of a block to the statistics of a page, by a tier's function.
static void fold_rows(sl_add_rows_fn *add, const struct block *b, struct sl_range rows, const float *scores,
                      const struct sl_fold *what, sl_kv_page_stats stats) {
    size_t first = (size_t)rows.begin * (size_t)b->group;
    const struct sl_stats_rows added = {
        .scores = scores + first * SL_PAGE_SLOTS,
        .lse = b->lse + first,
        .even = b->even + rows.begin,
        .n = rows.end - rows.begin,
        .group = b->group,
        .next = (size_t)b->n_rows * (size_t)b->group * SL_PAGE_SLOTS,
    };
    if (what->largest) {
        raise_to_rows(&added, stats);
    } else {
        add(&added, what->square >= 0, what->above >= 0, stats);
    }
}

static bool is_folded(const struct sl_page_layout *layout, const struct sl_fold *what) {
    return sl_kv_has_plane(layout, what->sum) || sl_kv_has_plane(layout, what->square) ||
           sl_kv_has_plane(layout, what->above);
}

void sl_avx2_fold_kept_by(sl_add_rows_fn *add, const struct sl_kv_block *b, const struct sl_fold *what,
                          sl_kv_page_stats *stats) {
    const struct sl_kv *kv = &b->args->heads.kv[b->head];
    struct block block;
    describe_block(b->args, b->head, (int)(b->begin / b->group), b->n / b->group, &block);
    for (uint32_t page = b->first[0] / SL_PAGE_SLOTS; page < sl_pages_for(b->end[b->n - 1]); page++) {
        if (is_folded(sl_kv_page_layout(kv, page), what)) {
            struct sl_range rows = rows_that_see(&block, page);
            mask_rows(&block, rows, page, sl_kv_kept(b, page));
            fold_rows(add, &block, rows, sl_kv_kept(b, page), what, stats[page]);
        }
    }
}

// --- window sums -----------------------------------------------------------------------------------------------------

// Adds to out[j] the sum over rows of query head g's weights, j < n.
static void add_head(const struct scratch *s, struct sl_range rows, int g, int n, float *out) {
    int group = s->block.group;
    _Alignas(32) float sums[SL_PAGE_SLOTS] = {0};
    memcpy(sums, out, (size_t)n * sizeof *out);
    for (int x = 0; x < SL_PAGE_SLOTS; x += SL_STRIP) {
        __m256 low = _mm256_load_ps(sums + x), high = _mm256_load_ps(sums + x + 8);
        for (int r = rows.begin; r < rows.end; r++) {
            const float *scores = s->scores + (size_t)(r * group + g) * SL_PAGE_SLOTS + x;
            const float *lse = s->block.lse + r * group + g;
            low = _mm256_add_ps(low, weight(scores, lse));
            high = _mm256_add_ps(high, weight(scores + 8, lse));
        }
        _mm256_store_ps(sums + x, low);
        _mm256_store_ps(sums + x + 8, high);
    }
    memcpy(out, sums, (size_t)n * sizeof *out);
}

// Sets the window sums of a run of pages to zero.
static void clear_sums(const struct sl_kv *kv, struct sl_vectors sums, int group, uint32_t page_begin,
                       uint32_t page_end) {
    size_t begin = (size_t)page_begin * SL_PAGE_SLOTS, end = (size_t)page_end * SL_PAGE_SLOTS;
    size_t n = (kv->n_slots < end ? kv->n_slots : end) - begin;
    for (int g = 0; g < group; g++) {
        memset(sl_vector(sums, g) + begin, 0, n * sizeof *sums.at);
    }
}

static void run_pages(const struct stats_call *stats, int head, uint32_t page_begin, uint32_t page_end) {
    const struct sl_avx2_call *call = &stats->call;
    const struct sl_attend *args = &call->args;
    const struct sl_kv *kv = &args->heads.kv[head];
    size_t tile = (size_t)args->head_dim * SL_PAGE_SLOTS;
    bool of_windows = stats->sums_out.at != NULL, wanted[RUN] = {false}, any = false;
    struct sl_vectors sums = stats->sums_out; // of the KV head
    struct scratch s;
    s.of_keys.page = s.of_queries.page = -1;
    memset(s.stats, 0, sizeof s.stats);
    if (of_windows) {
        sums.at = sl_vector(sums, head * call->group);
        clear_sums(kv, sums, call->group, page_begin, page_end);
    }
    if (is_before_windows(stats, kv, page_end)) {
        return;
    }
    for (uint32_t page = page_begin; page < page_end; page++) {
        uint32_t i = page - page_begin;
        wanted[i] = of_windows || is_folded(sl_kv_page_layout(kv, page), &stats->what);
        any |= wanted[i];
        if (wanted[i]) {
            stats->scorer->load_keys(call, head, page, &s.of_keys, s.k + i * tile);
        }
    }
    int row = first_to_see(args, kv, page_begin);
    for (row = row > stats->first_row ? row : stats->first_row; any && row < args->m; row += s.block.n_rows) {
        load_block(stats, head, row, &s);
        if (s.block.first[0] >= page_end * SL_PAGE_SLOTS) {
            break; // the windows of this row and of all later ones begin after the run
        }
        for (uint32_t i = 0; i < page_end - page_begin; i++) {
            if (!wanted[i]) {
                continue;
            }
            struct sl_range rows = score_block(stats, head, page_begin + i, s.k + i * tile, &s);
            if (!of_windows) {
                fold_rows(stats->scorer->add_rows, &s.block, rows, s.scores, &stats->what, s.stats[i]);
            }
            int n = sl_attend_visible(args, kv, args->m - 1, page_begin + i).end;
            for (int g = 0; of_windows && g < call->group; g++) {
                add_head(&s, rows, g, n, sl_vector(sums, g) + (size_t)(page_begin + i) * SL_PAGE_SLOTS);
            }
        }
    }
    for (uint32_t page = page_begin; !of_windows && page < page_end; page++) {
        sl_kv_add_stats(args, head, page, &stats->what, s.stats[page - page_begin]);
    }
}

// --- the entries -----------------------------------------------------------------------------------------------------

// A task is a run of pages of one KV head. The heads differ in length, so a run may be past the end of its head.
static void run_tasks(void *arg, int64_t begin, int64_t end, int member) {
    (void)member;
    const struct stats_call *stats = arg;
    const struct sl_attend *args = &stats->call.args;
    for (int64_t task = begin; task < end; task++) {
        int head = (int)(task % args->heads.n);
        uint32_t page = (uint32_t)(task / args->heads.n) * RUN, n_pages = sl_pages_for(args->heads.kv[head].n_slots);
        if (page < n_pages) {
            run_pages(stats, head, page, page + RUN < n_pages ? page + RUN : n_pages);
        }
    }
}

static void run(struct sl_stream *stream, struct stats_call *stats, const struct sl_attend *args) {
    assert(args->lse != NULL && stats->first_row >= 0);
    struct sl_slot_angles angles;
    sl_avx2_call_init(&stats->call, args, &angles);
    uint32_t n_pages = sl_heads_pages(&args->heads);
    sl_stream_run(stream, (int64_t)((n_pages + RUN - 1) / RUN) * args->heads.n, 1, run_tasks, stats);
}

void sl_avx2_fold_by(const struct sl_avx2_scorer *by, struct sl_stream *stream, const struct sl_attend *args,
                     int first_row, const struct sl_fold *what) {
    if (args->n_heads / args->heads.n > BLOCK) { // a row does not fit a block
        sl_ref_fold(stream, args, first_row, what);
        return;
    }
    struct stats_call stats = {.scorer = by, .first_row = first_row, .what = *what};
    run(stream, &stats, args);
}

void sl_avx2_window_sums_by(const struct sl_avx2_scorer *by, struct sl_stream *stream, const struct sl_attend *args,
                            int first_row, struct sl_vectors sums_out) {
    if (args->n_heads / args->heads.n > BLOCK) {
        sl_ref_window_sums(stream, args, first_row, sums_out);
        return;
    }
    struct stats_call stats = {.scorer = by, .first_row = first_row, .sums_out = sums_out};
    run(stream, &stats, args);
}

static void score(const float *q, const float *tile, const struct sl_page_layout *layout, int v_begin, int v_end,
                  int n_slots, float *scores) {
    const size_t d = (size_t)layout->head_dim;
    const struct sl_avx2_product qk = {q, d, tile, d, scores, SL_PAGE_SLOTS, NULL};
    sl_avx2_multiply(&qk, v_begin, v_end, (n_slots + SL_STRIP - 1) / SL_STRIP, 0, d);
}

static const struct sl_avx2_scorer scorer = {sl_avx2_load_queries, sl_avx2_load_keys, score, add_any_rows};

static const struct sl_avx2_scorer *scorer_for(const struct sl_attend *args) {
    (void)args;
    return &scorer;
}

static void fold_kept(const struct sl_kv_block *b, const struct sl_fold *what, sl_kv_page_stats *stats) {
    sl_avx2_fold_kept_by(add_any_rows, b, what, stats);
}

static const struct sl_kv_kernel attention = {sl_avx2_attend_block, SL_ATTEND_BLOCK, fold_kept};

#include "engine/tensor/cpu/attention/kv_entries.h"

void sl_avx2_kv_fill(struct sl_ops *ops) {
    fill_entries(ops);
    ops->append = sl_avx2_append;
}
