// SPDX-License-Identifier: Apache-2.0
#include "engine/runner/shared_prefix.h"

#include <stdlib.h>
#include <string.h>

#include "engine/runner/reader.h"

#define MAX_SHARED_PREFIXES 8

struct shared_prefix {
    struct sl_plan plan; // the plan under which it was read
    int32_t *tokens;     // [n_tokens]
    int64_t n_tokens;
    char *pages; // layer by layer, head by head
    size_t n_bytes;
};

struct sl_shared_prefixes {
    size_t most_bytes, used_bytes;
    struct shared_prefix shared_prefixes[MAX_SHARED_PREFIXES]; // [n], the oldest first
    int n;
};

enum sl_status sl_shared_prefixes_create(size_t most_bytes, struct sl_shared_prefixes **shared_prefixes_out,
                                         struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_shared_prefixes, shared_prefixes, err, "no memory for shared prefixes");
    shared_prefixes->most_bytes = most_bytes;
    *shared_prefixes_out = shared_prefixes;
    return SL_OK;
}

static void drop(struct sl_shared_prefixes *shared_prefixes, int index) {
    struct shared_prefix *shared_prefix = &shared_prefixes->shared_prefixes[index];
    shared_prefixes->used_bytes -= shared_prefix->n_bytes;
    free(shared_prefix->tokens);
    free(shared_prefix->pages);
    shared_prefixes->n--;
    memmove(shared_prefix, shared_prefix + 1, (size_t)(shared_prefixes->n - index) * sizeof *shared_prefix);
}

void sl_shared_prefixes_destroy(struct sl_shared_prefixes **shared_prefixes) {
    while (*shared_prefixes && (*shared_prefixes)->n > 0) {
        drop(*shared_prefixes, 0);
    }
    free(*shared_prefixes);
    *shared_prefixes = NULL;
}

// --- what is alike -----------------------------------------------------------------------------------------------

bool sl_plan_reads_whole(const struct sl_plan *plan) {
    return !sl_recipe_evicts(&plan->recipe) || !(plan->recipe.when & SL_WHEN_CHUNK);
}

// Returns whether reading writes score planes. Those of attention to the repeated prompt are zero until it is repeated.
static bool fills_planes(const struct sl_plan *plan, int layer) {
    return plan->work[layer].n_states > 0 && !sl_recipe_repeats(&plan->recipe);
}

// Returns whether pages read under plan `from` have, bit for bit, the keys and values that reading under `to` leaves, and
// the score planes that it fills. These are summed chunk by chunk, so the chunks must match.
static bool serves(const struct sl_plan *from, const struct sl_plan *to) {
    const struct sl_recipe *x = &from->recipe, *y = &to->recipe;
    bool same_scores = x->score == y->score && x->chunk_tokens == y->chunk_tokens;
    for (int l = 0; l < to->geometry.n_layers; l++) {
        const struct sl_page_layout *a = &from->work[l], *b = &to->work[l];
        if (a->format != b->format || (fills_planes(to, l) && (!same_scores || a->n_states != b->n_states))) {
            return false;
        }
    }
    return x->positions == y->positions && from->rope_set == to->rope_set;
}

static bool is_prefix(const struct shared_prefix *shared_prefix, const int32_t *tokens, int64_t n_tokens) {
    return shared_prefix->n_tokens <= n_tokens &&
           memcmp(shared_prefix->tokens, tokens, (size_t)shared_prefix->n_tokens * sizeof *tokens) == 0;
}

// --- keeping -----------------------------------------------------------------------------------------------------

static size_t head_bytes(const struct sl_plan *plan, int layer, int64_t n_tokens) {
    return (size_t)sl_pages_for(n_tokens) * plan->work[layer].bytes;
}

static size_t pages_bytes(const struct sl_plan *plan, int64_t n_tokens) {
    size_t n = 0;
    for (int l = 0; l < plan->geometry.n_layers; l++) {
        n += (size_t)plan->geometry.n_kv_heads * head_bytes(plan, l, n_tokens);
    }
    return n;
}

// Makes the page of layout `to` whose slots begin at `position` from a kept one: both begin with keys and values.
static void restore_page(const struct sl_page_layout *from, const char *kept, const struct sl_page_layout *to,
                         int32_t position, bool planes, char *page) {
    memcpy(page, kept, to->positions);
    for (int32_t j = 0; to->has_positions && j < SL_PAGE_SLOTS; j++, position++) {
        memcpy(page + to->positions + (size_t)j * sizeof position, &position, sizeof position);
    }
    if (planes) {
        memcpy(page + to->states, kept + from->states, to->bytes - to->states);
    } else {
        memset(page + to->states, 0, to->bytes - to->states);
    }
}

// Copies the pages of n_tokens between a session of `plan` and a shared prefix, in the direction of `keep`.
static void copy_pages(const struct shared_prefix *shared_prefix, const struct sl_plan *plan,
                       const struct sl_session *session, int64_t n_tokens, bool keep) {
    char *of_head = shared_prefix->pages;
    for (int l = 0; l < plan->geometry.n_layers; l++) {
        const struct sl_page_layout *kept = &shared_prefix->plan.work[l], *layout = &plan->work[l];
        for (int h = 0; h < plan->geometry.n_kv_heads; h++) {
            for (uint32_t p = 0; p < sl_pages_for(n_tokens); p++) {
                void *page = session->layers[l].heads[h].pages[p];
                char *at = of_head + p * kept->bytes;
                if (keep) {
                    memcpy(at, page, kept->bytes);
                } else {
                    restore_page(kept, at, layout, (int32_t)(p * SL_PAGE_SLOTS), fills_planes(plan, l), page);
                }
            }
            of_head += head_bytes(&shared_prefix->plan, l, shared_prefix->n_tokens);
        }
    }
}

// Frees prefixes of other prompts, then the ones that the new one replaces, and then the oldest.
static void make_room(struct sl_shared_prefixes *shared_prefixes, const struct sl_plan *plan, const int32_t *tokens,
                      int64_t n_tokens, size_t n_bytes) {
    for (int i = shared_prefixes->n - 1; i >= 0; i--) {
        const struct shared_prefix *shared_prefix = &shared_prefixes->shared_prefixes[i];
        bool replaced = shared_prefix->n_tokens <= n_tokens && serves(plan, &shared_prefix->plan);
        if (!is_prefix(shared_prefix, tokens, plan->n_prompt) || replaced) {
            drop(shared_prefixes, i);
        }
    }
    while (shared_prefixes->n > 0 && (shared_prefixes->n == MAX_SHARED_PREFIXES ||
                                      shared_prefixes->used_bytes + n_bytes > shared_prefixes->most_bytes)) {
        drop(shared_prefixes, 0);
    }
}

static bool is_kept(const struct sl_shared_prefixes *shared_prefixes, const struct sl_plan *plan, const int32_t *tokens,
                    int64_t n_tokens) {
    for (int i = 0; i < shared_prefixes->n; i++) {
        const struct shared_prefix *shared_prefix = &shared_prefixes->shared_prefixes[i];
        if (shared_prefix->n_tokens == n_tokens && is_prefix(shared_prefix, tokens, n_tokens) &&
            serves(&shared_prefix->plan, plan)) {
            return true;
        }
    }
    return false;
}

// Returns whether nothing has been evicted from the session or quantized.
static bool is_whole(const struct sl_session *session) {
    for (int l = 0; l < session->geometry.n_layers; l++) {
        for (int h = 0; h < session->geometry.n_kv_heads; h++) {
            const struct sl_head *head = &session->layers[l].heads[h];
            if (head->n_slots != session->n_tokens || head->n_packed > 0) {
                return false;
            }
        }
    }
    return session->n_tokens > 0;
}

void sl_shared_prefixes_keep(struct sl_shared_prefixes *shared_prefixes, const struct sl_plan *plan,
                             const int32_t *tokens, const struct sl_session *session) {
    int64_t n_tokens = session->n_tokens;
    size_t n_bytes = pages_bytes(plan, n_tokens);
    if (!is_whole(session) || n_bytes > shared_prefixes->most_bytes ||
        is_kept(shared_prefixes, plan, tokens, n_tokens)) {
        return;
    }
    make_room(shared_prefixes, plan, tokens, n_tokens, n_bytes);
    struct shared_prefix *shared_prefix = &shared_prefixes->shared_prefixes[shared_prefixes->n];
    shared_prefix->tokens = malloc((size_t)n_tokens * sizeof *tokens);
    shared_prefix->pages = malloc(n_bytes);
    if (!shared_prefix->tokens || !shared_prefix->pages) { // without memory, everything is read again later
        free(shared_prefix->tokens);
        free(shared_prefix->pages);
        return;
    }
    shared_prefix->plan = *plan;
    shared_prefix->n_tokens = n_tokens;
    shared_prefix->n_bytes = n_bytes;
    memcpy(shared_prefix->tokens, tokens, (size_t)n_tokens * sizeof *tokens);
    copy_pages(shared_prefix, plan, session, n_tokens, true);
    shared_prefixes->n++;
    shared_prefixes->used_bytes += n_bytes;
}

// --- going on ----------------------------------------------------------------------------------------------------

// Returns how many tokens of a shared prefix the plan can continue from: those that the prompts have in common, up to
// the end of one of the recipe's own chunks. Score planes are sums over all tokens of the prefix: with them, it is all
// tokens or none.
static int64_t usable_tokens(const struct shared_prefix *shared_prefix, const struct sl_plan *plan,
                             const int32_t *tokens) {
    int64_t most = sl_reader_shared_tokens(plan), n = 0;
    if (!serves(&shared_prefix->plan, plan)) {
        return 0;
    }
    while (n < shared_prefix->n_tokens && n < most && shared_prefix->tokens[n] == tokens[n]) {
        n++;
    }
    n -= n % plan->recipe.chunk_tokens;
    for (int l = 0; n < shared_prefix->n_tokens && l < plan->geometry.n_layers; l++) {
        n = fills_planes(plan, l) ? 0 : n;
    }
    return n;
}

static const struct shared_prefix *find(const struct sl_shared_prefixes *shared_prefixes, const struct sl_plan *plan,
                                        const int32_t *tokens, int64_t *n_out) {
    const struct shared_prefix *longest = NULL;
    *n_out = 0;
    for (int i = 0; i < shared_prefixes->n; i++) {
        int64_t n = usable_tokens(&shared_prefixes->shared_prefixes[i], plan, tokens);
        if (n > *n_out) {
            *n_out = n;
            longest = &shared_prefixes->shared_prefixes[i];
        }
    }
    return longest;
}

enum sl_status sl_shared_prefixes_resume(const struct sl_shared_prefixes *shared_prefixes, const struct sl_plan *plan,
                                         const int32_t *tokens, int64_t extra_slots, struct sl_arena *arena,
                                         struct sl_session **session_out, struct sl_error *err) {
    int64_t n = 0;
    const struct shared_prefix *shared_prefix =
        sl_plan_reads_whole(plan) ? find(shared_prefixes, plan, tokens, &n) : NULL;
    struct sl_session *session = NULL;
    enum sl_status status = shared_prefix ? sl_plan_create_session(plan, extra_slots, arena, &session, err) : SL_OK;
    for (int l = 0; shared_prefix && status == SL_OK && l < plan->geometry.n_layers; l++) {
        status = sl_session_reserve(session, l, (int)n);
        for (int h = 0; status == SL_OK && h < plan->geometry.n_kv_heads; h++) {
            sl_session_set_slots(session, l, h, (uint32_t)n);
        }
    }
    if (status != SL_OK) {
        sl_session_destroy(&session);
        return sl_fail(err, status, "no memory in the arena for %lld tokens", (long long)n);
    }
    if (shared_prefix) {
        copy_pages(shared_prefix, plan, session, n, false);
        session->n_tokens = n;
    }
    *session_out = session;
    return SL_OK;
}
