// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: finds the topk tokens of every query, in one pass over the key indexes. remote_kv.h defines the result.
 *
 * Design: the outer loop goes over blocks of slots, the inner one over queries, so that shared bytes are read from
 *         memory once. A query keeps the best topk tokens so far, in ascending order, followed by the scores of the
 *         next tokens. When these fill their room, ops->host.select keeps the best topk of both. It prefers the lower
 *         index among equals, which is the lower token, so selecting in parts gives the same result as ops->host.select
 *         over all scores at once, and scores are read again while they are in the cache. A team's members take
 *         queries, each with its own blocks: no result depends on which member computed it.
 */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/offload/remote_kv/remote_kv_internal.h"

#define BLOCK_SLOTS 4096       // scanned at a time: their codes stay in the cache for the next query
#define LEAST_ROOM  (1u << 15) // for the next scores; at least 8 times topk, so that selecting does not dominate

// --- scratch -------------------------------------------------------------------------------------------------------

void *sl_buffer_reserve(struct sl_buffer *buffer, size_t bytes) {
    if (bytes > buffer->bytes) {
        free(buffer->memory);
        buffer->bytes = bytes + bytes / 4;
        buffer->memory = aligned_alloc(64, (buffer->bytes + 63) / 64 * 64);
        if (buffer->memory == NULL) {
            buffer->bytes = 0;
        }
    }
    return buffer->memory;
}

struct sl_remote_kv_scratch *sl_remote_kv_scratch_create(struct sl_team *team) {
    struct sl_remote_kv_scratch *scratch = calloc(1, sizeof *scratch);
    if (scratch != NULL) {
        scratch->team = team;
    }
    return scratch;
}

void sl_remote_kv_scratch_destroy(struct sl_remote_kv_scratch **scratch) {
    if (*scratch != NULL) {
        free((*scratch)->searches.memory);
        free((*scratch)->answer.memory);
        free(*scratch);
        *scratch = NULL;
    }
}

// --- the best so far -----------------------------------------------------------------------------------------------

struct ranking {
    float *scores;    // [capacity] of the best so far, then of tokens next .. next + n_new - 1
    uint32_t *tokens; // [k] of the best so far, ascending
    uint32_t k, capacity, n_best, n_new;
    uint32_t next;
};

// Keeps the k best of all. keep: [k].
static void settle(struct ranking *r, const struct sl_ops *ops, uint32_t *keep) {
    ops->host.select(r->scores, r->n_best + r->n_new, r->k, keep);
    for (uint32_t i = 0; i < r->k; i++) { // keep[i] >= i
        uint32_t j = keep[i];
        r->scores[i] = r->scores[j];
        r->tokens[i] = j < r->n_best ? r->tokens[j] : r->next + (j - r->n_best);
    }
    r->next += r->n_new;
    r->n_best = r->k;
    r->n_new = 0;
}

// --- one search ----------------------------------------------------------------------------------------------------

struct state {
    struct sl_remote_kv_search *search;
    uint32_t n_segments; // at the start of the search
    int offloaded_head;  // within the share
    int *channels;       // [n_channels]
    struct ranking ranking;
};

static uint32_t n_choosable(const struct sl_remote_kv_query *q) {
    return (uint32_t)(q->last - q->first);
}

static uint32_t n_wanted(const struct sl_remote_kv_query *q) {
    return q->topk < n_choosable(q) ? q->topk : n_choosable(q);
}

// Returns true if there are at most topk candidates: all are selected without a search.
static bool is_trivial(const struct sl_remote_kv_query *q) {
    return q->topk == 0 || q->topk >= n_choosable(q);
}

static uint32_t ranking_capacity(const struct sl_remote_kv_query *q) {
    uint64_t room = 8 * (uint64_t)q->topk > LEAST_ROOM ? 8 * (uint64_t)q->topk : LEAST_ROOM;
    return q->topk + room < n_choosable(q) ? (uint32_t)(q->topk + room) : n_choosable(q);
}

static enum sl_status check(const struct sl_remote_kv_search *search, struct sl_error *err) {
    const struct sl_remote_kv *a = search->remote_kv;
    const struct sl_remote_kv_query *q = &search->query;
    SL_FAIL_IF(q->offloaded_head < a->first_offloaded_head ||
                   q->offloaded_head - a->first_offloaded_head >= a->n_offloaded_heads,
               err, SL_ERR_INVALID, "search in offloaded head %d: the remote KV has offloaded heads %d to %d",
               q->offloaded_head, a->first_offloaded_head, a->first_offloaded_head + a->n_offloaded_heads - 1);
    SL_FAIL_IF(q->first < 0 || q->last < q->first || q->last > sl_remote_kv_n_tokens(a), err, SL_ERR_INVALID,
               "search in tokens [%lld, %lld): the remote KV has %lld", (long long)q->first, (long long)q->last,
               (long long)sl_remote_kv_n_tokens(a));
    SL_FAIL_IF(q->n_channels < 1 || q->n_channels > a->head_dim, err, SL_ERR_INVALID, "search by %d channels of %d",
               q->n_channels, a->head_dim);
    for (int i = 0; q->given != NULL && i < q->n_channels; i++) {
        SL_FAIL_IF(q->given[i] < (i > 0 ? q->given[i - 1] + 1 : 0) || q->given[i] >= a->head_dim, err, SL_ERR_INVALID,
                   "search by channel %d of %d: expected them ascending", q->given[i], a->head_dim);
    }
    return SL_OK;
}

// Scratch of one member: scores of channels, and the result of select.
struct member {
    float *scores;  // [of the largest head_dim]
    uint32_t *keep; // [of the largest topk or n_channels]
};

static void choose_channels(struct state *s, struct member *m) {
    const struct sl_remote_kv *a = s->search->remote_kv;
    const struct sl_remote_kv_query *q = &s->search->query;
    if (q->given != NULL) {
        memcpy(s->channels, q->given, (size_t)q->n_channels * sizeof *s->channels);
        return;
    }
    sl_remote_kv_absmax_of(a, s->n_segments, s->offloaded_head, m->scores);
    for (int c = 0; c < a->head_dim; c++) {
        m->scores[c] *= fabsf(q->q[c]);
    }
    a->ops->host.select(m->scores, (uint32_t)a->head_dim, (uint32_t)q->n_channels, m->keep);
    for (int i = 0; i < q->n_channels; i++) {
        s->channels[i] = (int)m->keep[i];
    }
}

// Scans slots [begin, end) of segment `index`, begin a multiple of SL_PAGE_SLOTS; skips slots that are not candidates.
static void scan_block(struct state *s, uint32_t index, uint32_t begin, uint32_t end, struct member *m) {
    const struct sl_remote_kv *a = s->search->remote_kv;
    const struct sl_remote_kv_query *q = &s->search->query;
    const struct sl_kv_segment *segment = a->segments[index];
    int64_t origin = segment->config.begin, first = q->first - origin, last = q->last - origin;
    end = end < segment->config.n_slots ? end : segment->config.n_slots;
    end = last < end ? (uint32_t)(last > 0 ? last : 0) : end;
    if (first > begin) {
        begin = first < end ? (uint32_t)first / SL_PAGE_SLOTS * SL_PAGE_SLOTS : end;
    }
    if (begin >= end) {
        return;
    }
    // ops->host.scan needs whole bytes of codes. Scores before `first` go where no code reads them; only the first
    // block of a query has any.
    uint32_t skip = first > begin ? (uint32_t)first - begin : 0, n = end - begin - skip;
    struct ranking *r = &s->ranking;
    if (r->n_best + r->n_new + n > r->capacity) {
        settle(r, a->ops, m->keep);
    }
    assert(r->next + r->n_new == origin + begin + skip);
    const struct sl_scan_piece piece = {.layout = segment->scan,
                                        .index = segment->indexes + (size_t)s->offloaded_head * segment->scan.bytes,
                                        .begin = begin,
                                        .end = end};
    a->ops->host.scan(&piece, q->q, s->channels, q->n_channels, r->scores + r->n_best + r->n_new - skip);
    r->n_new += n;
    size_t codes = (size_t)(end - begin) * (size_t)sl_kv_format_bits(segment->scan.format);
    s->search->scanned_bytes += (size_t)q->n_channels * ((codes + 7) / 8);
}

static void finish(struct state *s, struct member *m) {
    struct sl_remote_kv_search *search = s->search;
    const struct sl_remote_kv_query *q = &search->query;
    search->n_out = n_wanted(q);
    if (is_trivial(q)) {
        for (uint32_t i = 0; i < search->n_out; i++) {
            search->tokens_out[i] = (uint32_t)q->first + i;
        }
        return;
    }
    settle(&s->ranking, search->remote_kv->ops, m->keep);
    memcpy(search->tokens_out, s->ranking.tokens, search->n_out * sizeof *search->tokens_out);
}

// --- all searches --------------------------------------------------------------------------------------------------

struct pass {
    struct state *states;
    struct member *members;
};

// Returns the slots of the longest segment number `index` of the searches [begin, end); 0: there is none.
static uint32_t longest(const struct pass *pass, int64_t begin, int64_t end, uint32_t index) {
    uint32_t n_slots = 0;
    for (int64_t i = begin; i < end; i++) {
        const struct state *s = &pass->states[i];
        if (index < s->n_segments && s->search->remote_kv->segments[index]->config.n_slots > n_slots) {
            n_slots = s->search->remote_kv->segments[index]->config.n_slots;
        }
    }
    return n_slots;
}

static void search_range(void *arg, int64_t begin, int64_t end, int member) {
    const struct pass *pass = arg;
    struct member *m = &pass->members[member];
    for (int64_t i = begin; i < end; i++) {
        if (!is_trivial(&pass->states[i].search->query)) {
            choose_channels(&pass->states[i], m);
        }
    }
    uint32_t n_slots;
    for (uint32_t index = 0; (n_slots = longest(pass, begin, end, index)) > 0; index++) {
        for (uint32_t block = 0; block < n_slots; block += BLOCK_SLOTS) {
            for (int64_t i = begin; i < end; i++) {
                struct state *s = &pass->states[i];
                if (index < s->n_segments && !is_trivial(&s->search->query)) {
                    scan_block(s, index, block, block + BLOCK_SLOTS, m);
                }
            }
        }
    }
    for (int64_t i = begin; i < end; i++) {
        finish(&pass->states[i], m);
    }
}

// Cuts one block of memory into parts, each aligned to 64 bytes; without memory it only counts.
struct cutter {
    char *memory;
    size_t used;
};

static void *cut(struct cutter *cutter, size_t n, size_t bytes) {
    void *part = cutter->memory != NULL ? cutter->memory + cutter->used : NULL;
    cutter->used += (n * bytes + 63) / 64 * 64;
    return part;
}

static void lay_out(struct cutter *cutter, struct sl_remote_kv_search *searches, int n_searches, int n_members,
                    struct pass *pass) {
    struct state *states = cut(cutter, (size_t)n_searches, sizeof *states);
    struct member *members = cut(cutter, (size_t)n_members, sizeof *members);
    uint32_t most = 0;
    int most_channels = 0;
    for (int i = 0; i < n_searches; i++) {
        struct sl_remote_kv_search *search = &searches[i];
        const struct sl_remote_kv_query *q = &search->query;
        uint32_t capacity = is_trivial(q) ? 0 : ranking_capacity(q), k = is_trivial(q) ? 0 : q->topk;
        float *scores = cut(cutter, SL_PAGE_SLOTS + (size_t)capacity, sizeof *scores); // see scan_block()
        struct state s = {.search = search,
                          .n_segments = sl_remote_kv_n_segments(search->remote_kv),
                          .offloaded_head = q->offloaded_head - search->remote_kv->first_offloaded_head,
                          .channels = cut(cutter, (size_t)q->n_channels, sizeof *s.channels),
                          .ranking = {.scores = scores != NULL ? scores + SL_PAGE_SLOTS : NULL,
                                      .tokens = cut(cutter, k, sizeof *s.ranking.tokens),
                                      .capacity = capacity,
                                      .k = k,
                                      .next = (uint32_t)q->first}};
        if (states != NULL) {
            states[i] = s;
        }
        uint32_t kept = k > (uint32_t)q->n_channels ? k : (uint32_t)q->n_channels;
        most = kept > most ? kept : most;
        most_channels = search->remote_kv->head_dim > most_channels ? search->remote_kv->head_dim : most_channels;
    }
    for (int i = 0; i < n_members; i++) {
        struct member m = {cut(cutter, (size_t)most_channels, sizeof *m.scores), cut(cutter, most, sizeof *m.keep)};
        if (members != NULL) {
            members[i] = m;
        }
    }
    *pass = (struct pass){states, members};
}

enum sl_status sl_remote_kv_search(struct sl_remote_kv_search *searches, int n_searches,
                                   struct sl_remote_kv_scratch *scratch, struct sl_error *err) {
    for (int i = 0; i < n_searches; i++) {
        SL_TRY(check(&searches[i], err));
        searches[i].scanned_bytes = 0;
    }
    if (n_searches < 1) {
        return SL_OK;
    }
    int n_members = scratch->team != NULL ? sl_team_size(scratch->team) : 1;
    struct pass pass;
    struct cutter cutter = {NULL, 0};
    lay_out(&cutter, searches, n_searches, n_members, &pass);
    cutter = (struct cutter){sl_buffer_reserve(&scratch->searches, cutter.used), 0};
    SL_FAIL_IF(cutter.memory == NULL, err, SL_ERR_EXHAUSTED, "search: out of memory for the scores of %d queries",
               n_searches);
    lay_out(&cutter, searches, n_searches, n_members, &pass);
    sl_team_run(scratch->team, n_searches, (n_searches + n_members - 1) / n_members, search_range, &pass);
    return SL_OK;
}
