// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: one eviction of one layer.
 *
 *     rank      per head: scores; value=...: the change of the attention output in their place; heads=layer: their mean
 *     protect   per head: +inf for what scope protects. After ranking, so that it never enters a normalization, and in
 *               scratch, so that it ends with the eviction
 *     count     how many slots each head keeps
 *     select    the best of each head, ascending; merge.c sees what is evicted; pages are compacted
 *
 * Design: only ops touch pages. Heads are ranked, selected and compacted in parallel, in scratch of their own; what
 *         compares heads (budgets, the merge threshold) and what changes page tables is done by the calling thread
 *         alone, in the order of heads. So nothing depends on the number of threads.
 */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "compress/evict/internal.h"
#include "compress/plan/budget.h"

struct task {
    struct sl_compressor *c;
    const struct sl_eviction *e;
    bool rows; // the scores look at rows at hand
};

// --- scratch -------------------------------------------------------------------------------------------------------

static void *take(bool wanted, size_t n, size_t bytes, bool *failed_inout) {
    void *memory = wanted ? calloc(n, bytes) : NULL;
    *failed_inout = *failed_inout || (wanted && memory == NULL);
    return memory;
}

enum sl_status sl_scratch_create(struct sl_compressor *c, size_t n_slots, struct sl_error *err) {
    const struct sl_recipe *recipe = &c->plan.recipe;
    size_t n_heads = (size_t)c->plan.geometry.n_kv_heads, n = n_heads * n_slots;
    bool value = recipe->value != SL_VALUE_OFF, merges = recipe->evicted == SL_EVICTED_MERGE, failed = false;
    struct sl_scratch s = {.stride = n_slots};
    s.scores = take(true, n, sizeof *s.scores, &failed);
    s.base = take(value, n, sizeof *s.base, &failed);
    s.deviations = take(recipe->std > 0, n, sizeof *s.deviations, &failed);
    s.weights = take(sl_value_per_query_head(recipe), n, sizeof *s.weights, &failed);
    s.work = take(true, n, sizeof *s.work, &failed);
    s.cosine = take(merges, n, sizeof *s.cosine, &failed);
    s.positions = take(c->score->wants_positions || recipe->std > 0, n, sizeof *s.positions, &failed);
    s.keep = take(true, n, sizeof *s.keep, &failed);
    s.evicted = take(merges, n, sizeof *s.evicted, &failed);
    s.nearest = take(merges, n, sizeof *s.nearest, &failed);
    s.kept = take(true, n_heads, sizeof *s.kept, &failed);
    s.merged = take(merges, n_heads, sizeof *s.merged, &failed);
    s.heads = take(true, n_heads, sizeof *s.heads, &failed);
    s.n_slots = take(true, n_heads, sizeof *s.n_slots, &failed);
    if (failed) {
        sl_scratch_destroy(&s);
        return sl_fail(err, SL_ERR_EXHAUSTED, "compressor: no memory to rank %zu slots", n_slots);
    }
    sl_scratch_destroy(&c->scratch);
    c->scratch = s;
    return SL_OK;
}

void sl_scratch_destroy(struct sl_scratch *scratch) {
    free(scratch->scores);
    free(scratch->base);
    free(scratch->deviations);
    free(scratch->weights);
    free(scratch->work);
    free(scratch->cosine);
    free(scratch->positions);
    free(scratch->keep);
    free(scratch->evicted);
    free(scratch->nearest);
    free(scratch->kept);
    free(scratch->merged);
    free(scratch->heads);
    free(scratch->n_slots);
    free(scratch->sums);
    *scratch = (struct sl_scratch){0};
}

// Rows at hand that the score looks at. A score without rows has them only for value=...-heads: all.
static int n_rows(const struct sl_compressor *c, const struct sl_attend *attend) {
    switch (c->score->rows) {
    case SL_ROWS_LAST:
        return 1;
    case SL_ROWS_WINDOW:
        return c->plan.recipe.window < attend->m ? c->plan.recipe.window : attend->m;
    default:
        return attend->m;
    }
}

enum sl_status sl_take_sums(struct sl_compressor *c, const struct sl_attend *attend, int first_row,
                            struct sl_error *err) {
    struct sl_scratch *s = &c->scratch;
    if (s->n_heads < attend->n_heads) {
        size_t stride = (s->stride + 15) / 16 * 16; // rows begin at multiples of 64 bytes
        float *sums = aligned_alloc(64, (size_t)attend->n_heads * stride * sizeof *sums);
        if (sums == NULL) {
            return sl_fail(err, SL_ERR_EXHAUSTED, "compressor: no memory for the attention of %d heads to %zu slots",
                           attend->n_heads, s->stride);
        }
        free(s->sums);
        s->sums = sums;
        s->sums_stride = stride;
        s->n_heads = attend->n_heads;
    }
    c->ops->window_sums(c->team, attend, first_row, s->sums, s->sums_stride);
    return SL_OK;
}

// --- rank ------------------------------------------------------------------------------------------------------------

// value=...: in place of the scores, how much the output changes without slot j when attention is as the scores are.
static void rank_by_change(const struct sl_score_input *in, float *scores, float *base, float *weights) {
    const struct sl_recipe *recipe = in->recipe;
    bool mean = recipe->value == SL_VALUE_FASTCAOTE || recipe->value == SL_VALUE_FASTCAOTE_HEADS;
    uint32_t n = in->kv->n_slots;
    memcpy(base, scores, n * sizeof *base);
    if (!sl_value_per_query_head(recipe)) {
        in->ops->value_change(in->kv, base, mean, scores);
        return;
    }
    // The outputs of the group's heads lie side by side, so the square of their change is the sum of their squares.
    memset(scores, 0, n * sizeof *scores);
    for (int g = 0; g < in->group; g++) {
        sl_score_query_head(in, g, weights);
        in->ops->value_change(in->kv, weights, mean, in->work);
        for (uint32_t j = 0; j < n; j++) {
            scores[j] += in->work[j] * in->work[j];
        }
    }
    for (uint32_t j = 0; j < n; j++) {
        scores[j] = sqrtf(scores[j]);
    }
}

static void rank_heads(void *arg, int64_t begin, int64_t end, int member) {
    (void)member;
    const struct task *task = arg;
    struct sl_compressor *c = task->c;
    struct sl_scratch *s = &c->scratch;
    for (int64_t h = begin; h < end; h++) {
        size_t at = (size_t)h * s->stride;
        struct sl_kv kv = sl_session_kv(task->e->session, task->e->layer, (int)h);
        struct sl_score_input in = {
            .ops = c->ops,
            .recipe = &c->plan.recipe,
            .kv = &kv,
            .layer = task->e->layer,
            .head = (int)h,
            .n_tokens = task->e->n_tokens,
            .positions = s->positions != NULL ? s->positions + at : NULL,
            .work = s->work + at,
        };
        if (s->positions != NULL) {
            c->ops->read_positions(&kv, s->positions + at);
        }
        if (task->rows) {
            in.group = task->e->attend->n_heads / task->e->attend->heads.n;
            in.sums = s->sums + (size_t)h * (size_t)in.group * s->sums_stride;
            in.stride = s->sums_stride;
        }
        c->method->read(&in, s->scores + at);
        if (s->base != NULL) {
            rank_by_change(&in, s->scores + at, s->base + at, s->weights != NULL ? s->weights + at : NULL);
        }
        if (s->deviations != NULL) {
            sl_score_deviation(&in, s->deviations + at);
        }
    }
}

// heads=layer: every head gets the mean over heads, so that all choose alike.
static void share_mean(const struct sl_scratch *s, float *values, int n_heads, uint32_t n) {
    for (uint32_t j = 0; values != NULL && j < n; j++) {
        double sum = 0;
        for (int h = 0; h < n_heads; h++) {
            sum += (double)values[(size_t)h * s->stride + j];
        }
        for (int h = 0; h < n_heads; h++) {
            values[(size_t)h * s->stride + j] = (float)(sum / n_heads);
        }
    }
}

// --- protect ---------------------------------------------------------------------------------------------------------

static int64_t head_budget(const struct sl_eviction *e, int64_t head) {
    return e->head_budgets != NULL ? e->head_budgets[head] : e->budget;
}

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

// The first n_first and the newest n_newest of n.
static void set_infinite(float *values, int64_t n, int64_t n_first, int64_t n_newest) {
    for (int64_t j = 0; j < least(n_first, n); j++) {
        values[j] = INFINITY;
    }
    for (int64_t j = n - least(n_newest, n); j < n; j++) {
        values[j] = INFINITY;
    }
}

// RoCo: of n slots the k = max(n - r - sinks, n - budget) with the smallest deviation may be evicted, r = std * budget.
// Sinks and recent count as the largest deviations.
static void spare_deviants(const struct task *task, int64_t head, int64_t n, int64_t recent) {
    const struct sl_scratch *s = &task->c->scratch;
    const struct sl_recipe *recipe = &task->c->plan.recipe;
    size_t at = (size_t)head * s->stride;
    float *deviations = s->deviations + at;
    int64_t budget = head_budget(task->e, head), r = sl_recipe_std_slots(recipe, budget);
    int64_t n_spared = least(least(r + recipe->sinks, budget) + task->e->tail, n);
    set_infinite(deviations, n, recipe->sinks, recent + task->e->tail);
    task->c->ops->select(deviations, (uint32_t)n, (uint32_t)n_spared, s->keep + at);
    for (int64_t i = 0; i < n_spared; i++) {
        s->scores[at + s->keep[at + (size_t)i]] = INFINITY;
    }
}

static void protect_heads(void *arg, int64_t begin, int64_t end, int member) {
    (void)member;
    const struct task *task = arg;
    const struct sl_scratch *s = &task->c->scratch;
    const struct sl_recipe *recipe = &task->c->plan.recipe;
    const struct sl_eviction *e = task->e;
    for (int64_t h = begin; h < end; h++) {
        int64_t n = s->n_slots[h], budget = head_budget(e, h), sinks = least(recipe->sinks, budget);
        int64_t recent = sl_recipe_recent_slots(recipe, budget);
        int64_t newest = recent > e->stabilizers ? recent : e->stabilizers;
        if (s->deviations != NULL) {
            spare_deviants(task, h, n, recent);
        }
        // Never more than stays, or the newest of the protected would be the ones to go.
        set_infinite(s->scores + (size_t)h * s->stride, n, sinks, least(newest, budget - sinks) + e->tail);
    }
}

// --- count and select ------------------------------------------------------------------------------------------------

static void count_kept(const struct task *task, int n_heads) {
    const struct sl_scratch *s = &task->c->scratch;
    const struct sl_eviction *e = task->e;
    for (int h = 0; h < n_heads; h++) {
        s->kept[h] = (uint32_t)least(s->n_slots[h], head_budget(e, h) + e->tail);
        s->heads[h] = s->scores + (size_t)h * s->stride;
    }
    if (task->c->plan.recipe.heads == SL_HEADS_ADAPTIVE && e->head_budgets == NULL) {
        sl_budget_adaptive(s->heads, s->n_slots, n_heads, (uint32_t)(e->budget + e->tail), s->work, s->kept);
    }
}

static bool is_below(float a, float b) { // NaN is lowest
    return isnan(a) ? !isnan(b) : a < b;
}

/*
 * ops->select() keeps the first of equal scores. Where scores at the edge are equal and only some of them can stay, the
 * larger of ties[] stay (NULL: of slot numbers).
 */
static void select_slots(const struct sl_ops *ops, const float *scores, const float *ties, bool newest, uint32_t n,
                         uint32_t n_keep, float *work, uint32_t *keep) {
    ops->select(scores, n, n_keep, keep);
    if ((ties == NULL && !newest) || n_keep == 0 || n_keep == n) {
        return;
    }
    float edge = scores[keep[0]];
    for (uint32_t i = 1; i < n_keep; i++) {
        edge = is_below(scores[keep[i]], edge) ? scores[keep[i]] : edge;
    }
    for (uint32_t j = 0; j < n; j++) {
        work[j] = is_below(edge, scores[j])   ? INFINITY
                  : is_below(scores[j], edge) ? -INFINITY
                  : ties != NULL              ? ties[j]
                                              : (float)j;
    }
    ops->select(work, n, n_keep, keep);
}

static void select_heads(void *arg, int64_t begin, int64_t end, int member) {
    (void)member;
    const struct task *task = arg;
    const struct sl_scratch *s = &task->c->scratch;
    for (int64_t h = begin; h < end; h++) {
        size_t at = (size_t)h * s->stride;
        if (s->kept[h] < s->n_slots[h]) {
            select_slots(task->c->ops, s->scores + at, s->base != NULL ? s->base + at : NULL,
                         task->c->score->newest_of_ties, s->n_slots[h], s->kept[h], s->work + at, s->keep + at);
        }
    }
}

static void gather_heads(void *arg, int64_t begin, int64_t end, int member) {
    (void)member;
    const struct task *task = arg;
    const struct sl_scratch *s = &task->c->scratch;
    for (int64_t h = begin; h < end; h++) {
        if (s->kept[h] < s->n_slots[h]) {
            struct sl_kv kv = sl_session_kv(task->e->session, task->e->layer, (int)h);
            task->c->ops->gather(&kv, s->keep + (size_t)h * s->stride, s->kept[h]);
        }
    }
}

// --- the eviction ----------------------------------------------------------------------------------------------------

// Is any head above its budget, and can it be worked on?
static enum sl_status check_heads(struct sl_compressor *c, const struct sl_eviction *e, bool *over_out,
                                  struct sl_error *err) {
    const struct sl_layer *l = &e->session->layers[e->layer];
    bool adaptive = c->plan.recipe.heads == SL_HEADS_ADAPTIVE && e->head_budgets == NULL, over = false;
    int n_heads = e->session->geometry.n_kv_heads;
    int64_t room = 0;
    for (int h = 0; h < n_heads; h++) {
        uint32_t n = l->heads[h].n_slots;
        if (n > c->scratch.stride) {
            return sl_fail(err, SL_ERR_PRECONDITION,
                           "compressor: layer %d head %d holds %" PRIu32 " slots, the plan foresees at most %zu",
                           e->layer, h, n, c->scratch.stride);
        }
        if (c->plan.recipe.heads == SL_HEADS_LAYER && n != l->heads[0].n_slots) {
            return sl_fail(err, SL_ERR_PRECONDITION,
                           "compressor: heads=layer, but heads 0 and %d of layer %d hold %" PRIu32 " and %" PRIu32
                           " slots: this session was made under another recipe",
                           h, e->layer, l->heads[0].n_slots, n);
        }
        int64_t budget = head_budget(e, h) + e->tail;
        over = over || (!adaptive && n > budget);
        room += budget - n;
        c->scratch.n_slots[h] = n;
    }
    over = over || (adaptive && room < 0);
    for (int h = 0; over && h < n_heads; h++) {
        if (l->heads[h].n_packed > 0) {
            return sl_fail(err, SL_ERR_PRECONDITION,
                           "compressor: layer %d is quantized already; nothing can be evicted from it", e->layer);
        }
    }
    *over_out = over;
    return SL_OK;
}

enum sl_status sl_evict_layer(struct sl_compressor *c, const struct sl_eviction *e, struct sl_error *err) {
    struct sl_scratch *s = &c->scratch;
    int n_heads = e->session->geometry.n_kv_heads;
    bool over = false;
    enum sl_status status = check_heads(c, e, &over, err);
    if (status != SL_OK || !over) {
        return status;
    }
    struct task task = {c, e, sl_score_is_of_rows(c->score) || sl_value_per_query_head(&c->plan.recipe)};
    if (task.rows) {
        assert(e->attend != NULL); // sl_compressor_create() refuses recipes that would come here without
        status = sl_take_sums(c, e->attend, e->attend->m - n_rows(c, e->attend), err);
        if (status != SL_OK) {
            return status;
        }
    }
    sl_team_run(c->team, n_heads, 1, rank_heads, &task);
    if (c->plan.recipe.heads == SL_HEADS_LAYER) {
        share_mean(s, s->scores, n_heads, s->n_slots[0]);
        share_mean(s, s->base, n_heads, s->n_slots[0]);
        share_mean(s, s->deviations, n_heads, s->n_slots[0]);
    }
    sl_team_run(c->team, n_heads, 1, protect_heads, &task);
    count_kept(&task, n_heads);
    sl_team_run(c->team, n_heads, 1, select_heads, &task);
    status = sl_estimate_eviction(c, e, err);
    if (status != SL_OK) {
        return status;
    }
    if (c->plan.recipe.evicted == SL_EVICTED_MERGE) {
        sl_merge_evicted(c, e);
    }
    sl_team_run(c->team, n_heads, 1, gather_heads, &task);
    for (int h = 0; h < n_heads; h++) {
        if (s->kept[h] < s->n_slots[h]) {
            sl_session_set_slots(e->session, e->layer, h, s->kept[h]);
            c->stats.slots_evicted += s->n_slots[h] - s->kept[h];
        }
    }
    return SL_OK;
}
