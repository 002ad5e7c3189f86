// SPDX-License-Identifier: Apache-2.0
// Purpose: the prefix of a prompt that recipes share. See trunk.h.
#include "engine/runner/trunk.h"

#include <stdlib.h>
#include <string.h>

#include "engine/runner/reader.h"

#define MAX_TRUNKS 8

struct trunk {
    struct sl_plan plan; // the plan under which it was read
    int32_t *tokens;     // [n_tokens]
    int64_t n_tokens;
    char *pages; // layer by layer, head by head
    size_t n_bytes;
};

struct sl_trunks {
    size_t most_bytes, used_bytes;
    struct trunk trunks[MAX_TRUNKS]; // [n], the oldest first
    int n;
};

enum sl_status sl_trunks_create(size_t most_bytes, struct sl_trunks **trunks_out, struct sl_error *err) {
    struct sl_trunks *trunks = calloc(1, sizeof *trunks);
    if (!trunks) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for trunks");
    }
    trunks->most_bytes = most_bytes;
    *trunks_out = trunks;
    return SL_OK;
}

static void drop(struct sl_trunks *trunks, int index) {
    struct trunk *trunk = &trunks->trunks[index];
    trunks->used_bytes -= trunk->n_bytes;
    free(trunk->tokens);
    free(trunk->pages);
    trunks->n--;
    memmove(trunk, trunk + 1, (size_t)(trunks->n - index) * sizeof *trunk);
}

void sl_trunks_destroy(struct sl_trunks **trunks) {
    while (*trunks && (*trunks)->n > 0) {
        drop(*trunks, 0);
    }
    free(*trunks);
    *trunks = NULL;
}

// --- what is alike -----------------------------------------------------------------------------------------------

bool sl_plan_reads_whole(const struct sl_plan *plan) {
    return !sl_recipe_evicts(&plan->recipe) || !(plan->recipe.when & SL_WHEN_CHUNK);
}

static bool same_layout(const struct sl_page_layout *a, const struct sl_page_layout *b) {
    return a->format == b->format && a->n_states == b->n_states && a->has_positions == b->has_positions;
}

// Returns whether reading the same tokens under either plan leaves the same bits. Scores in pages are summed chunk by
// chunk, so the chunks must match.
static bool reads_alike(const struct sl_plan *a, const struct sl_plan *b) {
    bool scores = false;
    for (int l = 0; l < a->geometry.n_layers; l++) {
        scores = scores || a->work[l].n_states > 0;
        if (!same_layout(&a->work[l], &b->work[l])) {
            return false;
        }
    }
    const struct sl_recipe *x = &a->recipe, *y = &b->recipe;
    bool same_scores = x->score == y->score && x->chunk_tokens == y->chunk_tokens;
    return x->positions == y->positions && a->rope_set == b->rope_set && (!scores || same_scores);
}

static bool is_prefix(const struct trunk *trunk, const int32_t *tokens, int64_t n_tokens) {
    return trunk->n_tokens <= n_tokens && memcmp(trunk->tokens, tokens, (size_t)trunk->n_tokens * sizeof *tokens) == 0;
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

// Copies pages between a session and a shared prefix, in the direction of `keep`.
static void copy_pages(const struct trunk *trunk, const struct sl_plan *plan, const struct sl_session *session,
                       bool keep) {
    char *at = trunk->pages;
    for (int l = 0; l < plan->geometry.n_layers; l++) {
        for (int h = 0; h < plan->geometry.n_kv_heads; h++) {
            size_t bytes = plan->work[l].bytes;
            for (uint32_t p = 0; p < sl_pages_for(trunk->n_tokens); p++, at += bytes) {
                void *page = session->layers[l].heads[h].pages[p];
                memcpy(keep ? at : page, keep ? page : at, bytes);
            }
        }
    }
}

// Frees prefixes of other prompts, then the ones that the new one replaces, and then the oldest.
static void make_room(struct sl_trunks *trunks, const struct sl_plan *plan, const int32_t *tokens, size_t n_bytes) {
    for (int i = trunks->n - 1; i >= 0; i--) {
        const struct trunk *trunk = &trunks->trunks[i];
        if (!is_prefix(trunk, tokens, plan->n_prompt) || reads_alike(&trunk->plan, plan)) {
            drop(trunks, i);
        }
    }
    while (trunks->n > 0 && (trunks->n == MAX_TRUNKS || trunks->used_bytes + n_bytes > trunks->most_bytes)) {
        drop(trunks, 0);
    }
}

static bool is_kept(const struct sl_trunks *trunks, const struct sl_plan *plan, const int32_t *tokens,
                    int64_t n_tokens) {
    for (int i = 0; i < trunks->n; i++) {
        const struct trunk *trunk = &trunks->trunks[i];
        if (trunk->n_tokens == n_tokens && is_prefix(trunk, tokens, n_tokens) && reads_alike(&trunk->plan, plan)) {
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

void sl_trunks_keep(struct sl_trunks *trunks, const struct sl_plan *plan, const int32_t *tokens,
                    const struct sl_session *session) {
    int64_t n_tokens = session->n_tokens;
    size_t n_bytes = pages_bytes(plan, n_tokens);
    if (!is_whole(session) || n_bytes > trunks->most_bytes || is_kept(trunks, plan, tokens, n_tokens)) {
        return;
    }
    make_room(trunks, plan, tokens, n_bytes);
    struct trunk *trunk = &trunks->trunks[trunks->n];
    trunk->tokens = malloc((size_t)n_tokens * sizeof *tokens);
    trunk->pages = malloc(n_bytes);
    if (!trunk->tokens || !trunk->pages) { // without memory, everything is read again later
        free(trunk->tokens);
        free(trunk->pages);
        return;
    }
    trunk->plan = *plan;
    trunk->n_tokens = n_tokens;
    trunk->n_bytes = n_bytes;
    memcpy(trunk->tokens, tokens, (size_t)n_tokens * sizeof *tokens);
    copy_pages(trunk, plan, session, true);
    trunks->n++;
    trunks->used_bytes += n_bytes;
}

// --- going on ----------------------------------------------------------------------------------------------------

// Finds a prefix that ends where the recipe's own chunks end, so that reading continues with the same chunks.
static const struct trunk *find(const struct sl_trunks *trunks, const struct sl_plan *plan, const int32_t *tokens) {
    const struct trunk *longest = NULL;
    int64_t most = sl_reader_shared_tokens(plan);
    for (int i = 0; i < trunks->n; i++) {
        const struct trunk *trunk = &trunks->trunks[i];
        if (is_prefix(trunk, tokens, most) && reads_alike(&trunk->plan, plan) &&
            trunk->n_tokens % plan->recipe.chunk_tokens == 0 && (!longest || trunk->n_tokens > longest->n_tokens)) {
            longest = trunk;
        }
    }
    return longest;
}

enum sl_status sl_trunks_resume(const struct sl_trunks *trunks, const struct sl_plan *plan, const int32_t *tokens,
                                int64_t extra_slots, struct sl_arena *arena, struct sl_session **session_out,
                                struct sl_error *err) {
    const struct trunk *trunk = sl_plan_reads_whole(plan) ? find(trunks, plan, tokens) : NULL;
    struct sl_session *session = NULL;
    enum sl_status status = trunk ? sl_plan_create_session(plan, extra_slots, arena, &session, err) : SL_OK;
    for (int l = 0; trunk && status == SL_OK && l < plan->geometry.n_layers; l++) {
        status = sl_session_reserve(session, l, (int)trunk->n_tokens);
        for (int h = 0; status == SL_OK && h < plan->geometry.n_kv_heads; h++) {
            sl_session_set_slots(session, l, h, (uint32_t)trunk->n_tokens);
        }
    }
    if (status != SL_OK) {
        sl_session_destroy(&session);
        return sl_fail(err, status, "no memory in the arena for %lld tokens", (long long)trunk->n_tokens);
    }
    if (trunk) {
        copy_pages(trunk, plan, session, false);
        session->n_tokens = trunk->n_tokens;
    }
    *session_out = session;
    return SL_OK;
}
