// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: attention of a step: divides it into blocks, assigns them to threads, and merges their results.
 *
 * Design: the calls of a step become items, the one with the costliest blocks first. Within an item the last rows come
 *         first, because they see the most slots. A team takes tasks in order, so that no long one is left for the end.
 *
 *         If there are fewer blocks than the team can use, each of their splits is a task. The results of such tasks are
 *         kept in the caller's memory, for as many splits at a time as fit there. Blocks get fewer vectors only if splits
 *         are too few as well: each block decodes the codes of all its pages again.
 */
#include "engine/tensor/cpu/attention/kv_blocks.h"

#include <assert.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/futex.h"
#include "base/spin_budget.h"
#include "engine/tensor/cpu/attention/heads.h"

#define MAX_ITEMS        128          // calls of one loop
#define WAITING_FLOATS   (256 * 1024) // of results of tasks that are one split each
#define TASKS_A_MEMBER   4            // a loop of fewer tasks may leave members without work
#define LEAST_OF_A_BLOCK 16           // vectors; smaller blocks would read the pages too often
#define KEPT_FLOATS      (768 * 1024) // scores that a task keeps: they are read again soon, from a cache
#define LEAST_KEPT       24           // vectors of a block whose scores are kept
#define STATS_FLOATS     (256 * 1024) // statistics of a call
#define MAX_FOLD_HEADS   256          // KV heads of a call
#define EIGHT            8            // head_dim is a multiple of it

struct item {
    const struct sl_attend *args;
    int group;
    int64_t n_vectors; // of one KV head
    int64_t cost;      // of its largest block
    int n_blocks;      // of one KV head
    int64_t first;     // index of the first block in the step
};

struct step {
    const struct sl_kv_kernel *kernel;
    const struct sl_slot_angles *angles;
    // output of blocks whose sums are not divided; NULL: blocks are divided and go to args->out
    const struct sl_softmax *unfinished;
    int block_vectors;
    int n_items;
    struct item items[MAX_ITEMS];
    int64_t n_blocks;
    // Only when a task is one split:
    uint32_t n_splits;    // of the longest head
    uint32_t split_begin; // the first split of this loop
    int n_places;         // results for each block: one for the earlier loops, and one for each split of this loop
    size_t d, n_most;     // largest head_dim, most vectors of a block
    float *waiting;       // [n_blocks][n_places] results of n_most * (d + 2) floats
};

// --- angles ----------------------------------------------------------------------------------------------------------

void sl_slot_angles_init(struct sl_slot_angles *angles, const struct sl_rope *rope) {
    angles->half = rope->rotary_dim / 2;
    angles->rope = rope;
    for (int i = 0; i < angles->half; i++) { // by steps of one slot; 63 steps lose less than 2^-45
        double step_cos = cos(rope->inv_freq[i]), step_sin = sin(rope->inv_freq[i]);
        angles->cosines[i][0] = 1.0;
        angles->sines[i][0] = 0.0;
        for (int j = 1; j < SL_PAGE_SLOTS; j++) {
            double c = angles->cosines[i][j - 1], s = angles->sines[i][j - 1];
            angles->cosines[i][j] = c * step_cos - s * step_sin;
            angles->sines[i][j] = s * step_cos + c * step_sin;
        }
    }
}

void sl_page_angles_turn(const struct sl_slot_angles *angles, struct sl_page_angles *of_page, int64_t page) {
    if (of_page->page == page) {
        return;
    }
    of_page->page = page;
    for (int i = 0; i < angles->half; i++) {
        double angle = (double)(page * SL_PAGE_SLOTS) * angles->rope->inv_freq[i];
        of_page->cosines[i] = cos(angle) * angles->rope->scale;
        of_page->sines[i] = sin(angle) * angles->rope->scale;
    }
}

// --- one block -------------------------------------------------------------------------------------------------------

static void find_block(const struct step *step, int64_t index, struct sl_kv_block *b) {
    int low = 0, high = step->n_items; // finds the last item that begins at or before the index
    while (high - low > 1) {
        int middle = (low + high) / 2;
        if (step->items[middle].first <= index) {
            low = middle;
        } else {
            high = middle;
        }
    }
    const struct item *item = &step->items[low];
    const struct sl_attend *args = item->args;
    int64_t of_call = index - item->first, nth = item->n_blocks - 1 - of_call / args->heads.n;
    b->args = args;
    b->angles = args->rope != NULL ? step->angles : NULL;
    b->head = (int)(of_call % args->heads.n);
    b->group = item->group;
    b->kept = NULL;
    b->begin = nth * step->block_vectors;
    int64_t left = item->n_vectors - b->begin;
    b->n = left < step->block_vectors ? (int)left : step->block_vectors;
    const struct sl_kv *kv = &args->heads.kv[b->head];
    for (int v = 0; v < b->n; v++) {
        int row = (int)((b->begin + v) / item->group);
        bool same = v > 0 && (b->begin + v) % item->group != 0;
        b->first[v] = same ? b->first[v - 1] : sl_attend_first(args, kv, row);
        bool all = step->unfinished != NULL; // all: every slot comes before the rows' own
        b->end[v] = all ? kv->n_slots : kv->n_slots - (uint32_t)args->m + (uint32_t)row + 1;
    }
}

// Computes the pages of a split that some vector of the block sees.
static void pages_of_split(const struct sl_kv_block *b, uint32_t split, uint32_t *begin, uint32_t *end) {
    uint32_t from = b->first[0] / SL_PAGE_SLOTS, to = sl_pages_for(b->end[b->n - 1]);
    *begin = split * SL_SPLIT_PAGES > from ? split * SL_SPLIT_PAGES : from;
    *end = (split + 1) * SL_SPLIT_PAGES < to ? (split + 1) * SL_SPLIT_PAGES : to;
}

static bool attend_split(const struct step *step, const struct sl_kv_block *b, uint32_t split,
                         const struct sl_kv_partial *partial) {
    uint32_t begin, end;
    pages_of_split(b, split, &begin, &end);
    if (begin >= end) {
        return false;
    }
    step->kernel->attend(b, begin, end, partial);
    return true;
}

// Merges b, which is of later slots, into a. An empty result holds no numbers.
static void merge(const struct sl_kv_partial *a, const struct sl_kv_partial *b, int n_vectors, size_t d) {
    for (int v = 0; v < n_vectors; v++) {
        float *restrict to = a->out + (size_t)v * d;
        const float *restrict from = b->out + (size_t)v * d;
        if (b->max[v] == -INFINITY) {
            continue;
        }
        if (a->max[v] == -INFINITY) {
            memcpy(to, from, d * sizeof *to);
            a->sum[v] = b->sum[v];
            a->max[v] = b->max[v];
            continue;
        }
        float max = fmaxf(a->max[v], b->max[v]);
        float c_a = expf(a->max[v] - max), c_b = expf(b->max[v] - max);
        for (size_t i = 0; i < d; i++) {
            to[i] = to[i] * c_a + from[i] * c_b;
        }
        a->sum[v] = a->sum[v] * c_a + b->sum[v] * c_b;
        a->max[v] = max;
    }
}

// The indexes of vector v of a block in the arrays of the calls.
struct place {
    size_t of_out; // in [m][H][d]
    size_t of_row; // in [H][m]
};

static struct place place_of(const struct sl_kv_block *b, int v) {
    size_t row = (size_t)((b->begin + v) / b->group);
    size_t head = (size_t)(b->head * b->group) + (size_t)((b->begin + v) % b->group);
    return (struct place){row * (size_t)sl_attend_out_stride(b->args) + head * (size_t)b->args->head_dim,
                          head * (size_t)b->args->m + row};
}

// Loads the results of earlier calls for the block's vectors; store_softmax() is the inverse.
static void load_softmax(const struct sl_kv_block *b, const struct sl_softmax *from, const struct sl_kv_partial *to) {
    size_t d = (size_t)b->args->head_dim;
    for (int v = 0; v < b->n; v++) {
        struct place at = place_of(b, v);
        to->max[v] = from->max[at.of_row];
        if (to->max[v] != -INFINITY) { // else the other fields are undefined
            to->sum[v] = from->sum[at.of_row];
            memcpy(to->out + (size_t)v * d, from->out + at.of_out, d * sizeof *to->out);
        }
    }
}

static void store_softmax(const struct sl_kv_block *b, const struct sl_kv_partial *from, const struct sl_softmax *to) {
    size_t d = (size_t)b->args->head_dim;
    for (int v = 0; v < b->n; v++) {
        struct place at = place_of(b, v);
        to->max[at.of_row] = from->max[v];
        if (from->max[v] != -INFINITY) {
            to->sum[at.of_row] = from->sum[v];
            memcpy(to->out + at.of_out, from->out + (size_t)v * d, d * sizeof *to->out);
        }
    }
}

static inline void divide_eight(const float *restrict sums, float by, float *restrict out) {
    for (int i = 0; i < EIGHT; i++) { // a constant: compilers make vectors of such loops
        out[i] = sums[i] / by;
    }
}

static void write_block(const struct step *step, const struct sl_kv_block *b, const struct sl_kv_partial *partial) {
    const struct sl_attend *args = b->args;
    size_t d = (size_t)args->head_dim;
    if (step->unfinished != NULL) {
        store_softmax(b, partial, step->unfinished);
        return;
    }
    for (int v = 0; v < b->n; v++) {
        struct place at = place_of(b, v);
        float *restrict out = args->out + at.of_out;
        const float *restrict sums = partial->out + (size_t)v * d;
        for (size_t i = 0; i < d; i += EIGHT) {
            divide_eight(sums + i, partial->sum[v], out + i);
        }
        if (args->lse != NULL) {
            args->lse[at.of_row] = partial->max[v] + logf(partial->sum[v]);
        }
    }
}

// --- tasks -----------------------------------------------------------------------------------------------------------

// Computes a block split by split.
static void attend_block(const struct step *step, const struct sl_kv_block *b) {
    _Alignas(64) float out[2][SL_BLOCK_FLOATS], max[2][SL_BLOCK_VECTORS], sum[2][SL_BLOCK_VECTORS];
    const struct sl_kv_partial all = {out[0], max[0], sum[0]}, one = {out[1], max[1], sum[1]};
    uint32_t split = b->first[0] / SL_PAGE_SLOTS / SL_SPLIT_PAGES;
    if (b->args->before != NULL) {
        load_softmax(b, b->args->before, &all);
    } else {
        attend_split(step, b, split++, &all); // the same as merging the split into an empty result
    }
    while (attend_split(step, b, split++, &one)) {
        merge(&all, &one, b->n, (size_t)b->args->head_dim);
    }
    write_block(step, b, &all);
}

// A task is a block.
static void block_tasks(void *arg, int64_t task_begin, int64_t task_end, int member) {
    (void)member;
    const struct step *step = arg;
    struct sl_kv_block b;
    for (int64_t task = task_begin; task < task_end; task++) {
        find_block(step, task, &b);
        attend_block(step, &b);
    }
}

static void set_empty(const struct sl_kv_partial *partial, int n_vectors) {
    for (int v = 0; v < n_vectors; v++) {
        partial->max[v] = -INFINITY;
    }
}

static size_t result_floats(const struct step *step) {
    return (step->n_most * (step->d + 2) + 15) / 16 * 16; // whole cache lines
}

// Returns the memory for the result of the i-th split of this loop; i = 0: the sum of earlier loops.
static struct sl_kv_partial waiting(const struct step *step, int64_t block, int i) {
    float *at = step->waiting + ((size_t)block * (size_t)step->n_places + (size_t)i) * result_floats(step);
    return (struct sl_kv_partial){at, at + step->n_most * step->d, at + step->n_most * (step->d + 1)};
}

// A task is a split of a block.
static void split_tasks(void *arg, int64_t task_begin, int64_t task_end, int member) {
    (void)member;
    const struct step *step = arg;
    struct sl_kv_block b;
    for (int64_t task = task_begin; task < task_end; task++) {
        int i = (int)(task % (step->n_places - 1));
        int64_t block = task / (step->n_places - 1);
        find_block(step, block, &b);
        const struct sl_kv_partial partial = waiting(step, block, i + 1);
        if (!attend_split(step, &b, step->split_begin + (uint32_t)i, &partial)) {
            set_empty(&partial, b.n);
        }
    }
}

static void run_splits(struct sl_stream *stream, struct step *step) {
    struct sl_kv_block b;
    for (step->split_begin = 0; step->split_begin < step->n_splits; step->split_begin += (uint32_t)step->n_places - 1) {
        sl_stream_run(stream, step->n_blocks * (step->n_places - 1), 1, split_tasks, step);
        for (int64_t block = 0; block < step->n_blocks; block++) {
            find_block(step, block, &b);
            const struct sl_kv_partial all = waiting(step, block, 0);
            if (step->split_begin == 0 && b.args->before != NULL) {
                load_softmax(&b, b.args->before, &all);
            } else if (step->split_begin == 0) {
                set_empty(&all, b.n);
            }
            for (int i = 1; i < step->n_places; i++) {
                const struct sl_kv_partial one = waiting(step, block, i);
                merge(&all, &one, b.n, (size_t)b.args->head_dim);
            }
            if (step->split_begin + (uint32_t)step->n_places - 1 >= step->n_splits) {
                write_block(step, &b, &all);
            }
        }
    }
}

// --- a step ----------------------------------------------------------------------------------------------------------

static int by_cost(const void *a, const void *b) {
    const struct item *x = a, *y = b;
    return (x->cost < y->cost) - (x->cost > y->cost);
}

static void list_blocks(struct step *step, int block_vectors) {
    step->block_vectors = block_vectors;
    step->n_blocks = 0;
    step->n_most = 0;
    for (int i = 0; i < step->n_items; i++) {
        struct item *item = &step->items[i];
        int64_t most = item->n_vectors < block_vectors ? item->n_vectors : block_vectors;
        item->n_blocks = (int)((item->n_vectors + block_vectors - 1) / block_vectors);
        item->first = step->n_blocks;
        step->n_blocks += (int64_t)item->n_blocks * item->args->heads.n;
        step->n_most = (size_t)most > step->n_most ? (size_t)most : step->n_most;
    }
}

static void add_call(struct step *step, const struct sl_attend *args, int block_vectors) {
    assert(args->before == NULL || (args->rope == NULL && args->window <= 0));
    struct item *item = &step->items[step->n_items++];
    uint32_t n_slots = 0;
    for (int h = 0; h < args->heads.n; h++) {
        n_slots = args->heads.kv[h].n_slots > n_slots ? args->heads.kv[h].n_slots : n_slots;
    }
    int group = args->n_heads / args->heads.n;
    *item = (struct item){.args = args, .group = group, .n_vectors = (int64_t)args->m * group};
    item->cost = (item->n_vectors < block_vectors ? item->n_vectors : block_vectors) * (int64_t)n_slots;
    uint32_t n_splits = (sl_pages_for(n_slots) + SL_SPLIT_PAGES - 1) / SL_SPLIT_PAGES;
    step->n_splits = n_splits > step->n_splits ? n_splits : step->n_splits;
    step->d = (size_t)args->head_dim > step->d ? (size_t)args->head_dim : step->d;
}

// Returns the most vectors of a block.
static int most_vectors(const struct step *step) {
    int n = step->kernel->block_vectors;
    while ((size_t)n * step->d > SL_BLOCK_FLOATS) {
        n /= 2;
    }
    return n;
}

// Returns how many splits of each block a loop takes as tasks; 1: each block is a task, because there is one split, or the
// results do not fit.
static uint32_t splits_at_once(const struct step *step) {
    size_t places = WAITING_FLOATS / ((size_t)step->n_blocks * result_floats(step));
    return places < 3 ? 1 : places > step->n_splits ? step->n_splits : (uint32_t)places - 1;
}

static void run_step(struct sl_stream *stream, struct step *step) {
    _Alignas(64) float results[WAITING_FLOATS];
    qsort(step->items, (size_t)step->n_items, sizeof step->items[0], by_cost);
    int64_t enough = sl_stream_threads(stream) > 1 ? (int64_t)sl_stream_threads(stream) * TASKS_A_MEMBER : 1;
    int block_vectors = most_vectors(step);
    list_blocks(step, block_vectors);
    while (step->n_blocks * splits_at_once(step) < enough && step->n_most > LEAST_OF_A_BLOCK) {
        block_vectors /= 2;
        list_blocks(step, block_vectors);
    }
    step->n_places = (int)splits_at_once(step) + 1;
    if (step->n_blocks >= enough || step->n_places == 2) {
        sl_stream_run(stream, step->n_blocks, 1, block_tasks, step);
        return;
    }
    step->waiting = results;
    run_splits(stream, step);
}

void sl_kv_attend(struct sl_stream *stream, const struct sl_attend *calls, int n_calls,
                  const struct sl_kv_kernel *kernel) {
    assert(kernel->block_vectors <= SL_BLOCK_VECTORS);
    struct sl_slot_angles angles;
    const struct sl_rope *rope = NULL; // the rope that `angles` belongs to
    for (int i = 0; i < n_calls;) {
        struct step step = {.kernel = kernel, .angles = &angles};
        for (; i < n_calls && step.n_items < MAX_ITEMS; i++) {
            if (calls[i].rope != NULL && calls[i].rope != rope) {
                if (rope != NULL && step.n_items > 0) {
                    break; // a call of another model has other angles, and is left for the next loop
                }
                rope = calls[i].rope;
                sl_slot_angles_init(&angles, rope);
            }
            add_call(&step, &calls[i], kernel->block_vectors);
        }
        run_step(stream, &step);
    }
}

void sl_kv_attend_before(struct sl_stream *stream, const struct sl_attend *args, const struct sl_softmax *before_inout,
                         const struct sl_kv_kernel *kernel) {
    assert(kernel->block_vectors <= SL_BLOCK_VECTORS);
    struct sl_attend call = *args;
    call.before = before_inout;
    struct step step = {.kernel = kernel, .unfinished = before_inout};
    add_call(&step, &call, kernel->block_vectors);
    run_step(stream, &step);
}

// --- statistics ------------------------------------------------------------------------------------------------------

void sl_kv_add_stats(const struct sl_attend *args, int head, uint32_t page, const struct sl_fold *what,
                     sl_kv_page_stats stats) {
    const struct sl_kv *kv = &args->heads.kv[head];
    const struct sl_page_layout *layout = sl_kv_page_layout(kv, page);
    float mean = (float)args->heads.n / (float)args->n_heads;
    const int planes[SL_KV_STATS] = {what->sum, what->square, what->above};
    const float factors[SL_KV_STATS] = {mean, mean * mean, 1.0f};
    int n = sl_attend_visible(args, kv, args->m - 1, page).end;
    for (int i = 0; i < SL_KV_STATS; i++) {
        if (sl_kv_has_plane(layout, planes[i])) {
            float *state = sl_page_state(layout, kv->pages[page], planes[i]);
            for (int j = 0; what->largest && j < n; j++) {
                state[j] = fmaxf(state[j], stats[i][j]);
            }
            for (int j = 0; !what->largest && j < n; j++) {
                state[j] += stats[i][j] * factors[i];
            }
        }
    }
}

struct fold_step {
    struct step step;
    const struct sl_fold *what;
    sl_kv_page_stats *stats; // [KV heads][n_pages]
    uint32_t n_pages;        // of the longest head
    _Atomic int64_t next;    // the next block that a task takes
    _Atomic int n_asleep;    // tasks that sleep until it is their turn
    // [KV heads] The block whose turn it is to add its statistics: the sums are one chain over the rows in order.
    _Atomic uint32_t turns[MAX_FOLD_HEADS];
};

struct turn {
    _Atomic uint32_t *word;
    uint32_t mine;
};

static bool is_my_turn(void *arg) {
    const struct turn *turn = arg;
    return atomic_load(turn->word) == turn->mine;
}

static void wait_for_turn(struct fold_step *f, struct turn *turn, struct sl_spin_budget *budget) {
    if (sl_spin_budget_poll(budget, is_my_turn, turn)) {
        return;
    }
    atomic_fetch_add(&f->n_asleep, 1);
    for (uint32_t seen; (seen = atomic_load(turn->word)) != turn->mine;) {
        sl_futex_sleep(turn->word, seen, -1);
    }
    atomic_fetch_sub(&f->n_asleep, 1);
}

// A task takes the next block, whichever range of tasks it was given: a block waits only for earlier ones of its KV
// head, and those have been taken by tasks that run.
static void fold_tasks(void *arg, int64_t task_begin, int64_t task_end, int member) {
    (void)member;
    struct fold_step *f = arg;
    const struct item *item = f->step.items;
    _Alignas(64) float kept[KEPT_FLOATS];
    struct sl_spin_budget budget = {0};
    struct sl_kv_block b;
    for (int64_t i = task_begin; i < task_end; i++) {
        int64_t taken = atomic_fetch_add(&f->next, 1), nth = taken / item->args->heads.n;
        int head = (int)(taken % item->args->heads.n);
        find_block(&f->step, (item->n_blocks - 1 - nth) * item->args->heads.n + head, &b); // it counts from the end
        b.kept = kept;
        attend_block(&f->step, &b);
        struct turn turn = {&f->turns[head], (uint32_t)nth};
        wait_for_turn(f, &turn, &budget);
        f->step.kernel->fold(&b, f->what, f->stats + (size_t)head * f->n_pages);
        atomic_store(turn.word, turn.mine + 1);
        if (atomic_load(&f->n_asleep) > 0) {
            sl_futex_wake(turn.word);
        }
    }
}

// Returns the vectors of a block of whole rows whose scores fit, and of which there are enough; 0: none.
static int kept_vectors(const struct step *step, uint32_t n_pages, int64_t enough) {
    const struct item *item = step->items;
    int64_t n = KEPT_FLOATS / ((int64_t)n_pages * SL_PAGE_SLOTS), all = item->n_vectors * item->args->heads.n;
    n = n < most_vectors(step) ? n : most_vectors(step);
    n = n < all / enough ? n : all / enough;
    n -= n % item->group;
    return n >= LEAST_KEPT ? (int)n : 0;
}

bool sl_kv_attend_fold(struct sl_stream *stream, const struct sl_attend *args, const struct sl_fold *what,
                       const struct sl_kv_kernel *kernel) {
    struct sl_slot_angles angles;
    struct fold_step f = {.step = {.kernel = kernel, .angles = &angles}, .what = what};
    _Alignas(64) float stats[STATS_FLOATS];
    add_call(&f.step, args, kernel->block_vectors);
    f.n_pages = sl_heads_pages(&args->heads);
    size_t n_stats = (size_t)args->heads.n * f.n_pages * SL_KV_STATS * SL_PAGE_SLOTS;
    int block_vectors = kept_vectors(&f.step, f.n_pages, sl_stream_threads(stream));
    if (args->before != NULL || block_vectors == 0 || n_stats > STATS_FLOATS || args->heads.n > MAX_FOLD_HEADS) {
        return false;
    }
    if (args->rope != NULL) {
        sl_slot_angles_init(&angles, args->rope);
    }
    list_blocks(&f.step, block_vectors);
    memset(stats, 0, n_stats * sizeof *stats);
    f.stats = (sl_kv_page_stats *)stats;
    sl_stream_run(stream, f.step.n_blocks, 1, fold_tasks, &f);
    for (int h = 0; h < args->heads.n; h++) {
        for (uint32_t page = 0; page < sl_pages_for(args->heads.kv[h].n_slots); page++) {
            sl_kv_add_stats(args, h, page, what, f.stats[(size_t)h * f.n_pages + page]);
        }
    }
    return true;
}
