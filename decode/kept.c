// SPDX-License-Identifier: Apache-2.0
#include "decode/kept.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/locked.h"
#include "base/thread.h"

#define HANDED_MS 10000  // how long a session waits for the call of the job that it was read for
#define BASE_MS   600000 // how long a base stays after its last use, unless its memory is needed

void sl_kept_init(struct sl_kept *kept) {
    kept->first = NULL;
    kept->fetches = NULL;
    pthread_mutex_init(&kept->mutex, NULL);
    sl_cond_init(&kept->returned);
}

void sl_kept_free(struct sl_kept_session *one) {
    if (one) {
        sl_session_destroy(&one->session);
        if (one->ledger) {
            sl_ledger_return(one->ledger, one->promised_bytes);
        }
        free(one);
    }
}

// Appends a session, as the most recently used one. Lock held.
static void append(struct sl_kept *kept, struct sl_kept_session *one) {
    struct sl_kept_session **end = &kept->first;
    while (*end) {
        end = &(*end)->next;
    }
    *end = one;
    one->next = NULL;
}

void sl_kept_put_back(struct sl_kept *kept, struct sl_kept_session *one) {
    SL_LOCKED(&kept->mutex);
    append(kept, one);
}

// Puts the session under a new lease, with what else `what` says of it.
static enum sl_status put(struct sl_kept *kept, const struct sl_kept_session *what, struct sl_session **session_inout,
                          char lease_id_out[SL_LEASE_ID_BYTES], struct sl_error *err) {
    struct sl_kept_session *one = malloc(sizeof *one);
    SL_FAIL_IF(!one, err, SL_ERR_EXHAUSTED, "kept: out of memory");
    *one = *what;
    SL_TRY_OR(sl_lease_id_draw("kept", one->lease_id, err), free(one));
    one->session = *session_inout;
    *session_inout = NULL;
    memcpy(lease_id_out, one->lease_id, sizeof one->lease_id);
    sl_kept_put_back(kept, one);
    return SL_OK;
}

enum sl_status sl_kept_hand_over(struct sl_kept *kept, struct sl_ledger *ledger, const struct sl_capsule_id *id,
                                 struct sl_session **session_inout, size_t promised_bytes,
                                 char lease_id_out[SL_LEASE_ID_BYTES], struct sl_error *err) {
    const struct sl_kept_session what = {
        .id = *id, .deadline_ns = sl_deadline_in_ms(HANDED_MS), .ledger = ledger, .promised_bytes = promised_bytes};
    return put(kept, &what, session_inout, lease_id_out, err);
}

enum sl_status sl_kept_put(struct sl_kept *kept, const struct sl_capsule_id *id, struct sl_session **session_inout,
                           int64_t keep_ms, char lease_id_out[SL_LEASE_ID_BYTES], struct sl_error *err) {
    const struct sl_kept_session what = {.id = *id, .deadline_ns = sl_deadline_in_ms(keep_ms)};
    return put(kept, &what, session_inout, lease_id_out, err);
}

// Returns the link to the session of a lease. Lock held.
static struct sl_kept_session **find(struct sl_kept *kept, const char *lease_id) {
    struct sl_kept_session **at = &kept->first;
    while (*at && ((*at)->is_base || !sl_lease_id_equals((*at)->lease_id, lease_id))) {
        at = &(*at)->next;
    }
    return at;
}

// Unlinks a session; returns NULL at the end of the list. Lock held.
static struct sl_kept_session *unlink_at(struct sl_kept_session **at) {
    struct sl_kept_session *one = *at;
    if (one) {
        *at = one->next;
    }
    return one;
}

// Unlinks the first session that has expired by then; `spares`: none that a job waits for.
static struct sl_kept_session *take_over(struct sl_kept *kept, int64_t over_ns, bool spares) {
    SL_LOCKED(&kept->mutex);
    struct sl_kept_session **at = &kept->first;
    while (*at && ((*at)->is_lent || (*at)->deadline_ns > over_ns || (spares && (*at)->ledger) ||
                   ((*at)->is_base && sl_session_is_shared((*at)->session)))) {
        at = &(*at)->next;
    }
    return unlink_at(at);
}

void sl_kept_cleanup(struct sl_kept *kept) {
    for (struct sl_kept_session *one; (one = take_over(kept, INT64_MAX, false)) != NULL;) {
        sl_kept_free(one);
    }
    pthread_cond_destroy(&kept->returned);
    pthread_mutex_destroy(&kept->mutex);
}

struct sl_kept_session *sl_kept_take(struct sl_kept *kept, const char *lease_id, int64_t deadline_ns) {
    struct sl_kept_session **at;
    enum sl_status status = SL_OK;
    SL_LOCKED(&kept->mutex);
    while (*(at = find(kept, lease_id)) && (*at)->is_lent && status == SL_OK) {
        status = sl_cond_wait_until(&kept->returned, &kept->mutex, deadline_ns);
    }
    return *at && !(*at)->is_lent ? unlink_at(at) : NULL;
}

struct sl_kept_session *sl_kept_lend(struct sl_kept *kept, const char *lease_id) {
    SL_LOCKED(&kept->mutex);
    struct sl_kept_session *one = *find(kept, lease_id);
    one = one && !one->is_lent ? one : NULL;
    if (one) {
        one->is_lent = true;
    }
    return one;
}

void sl_kept_return(struct sl_kept *kept, struct sl_kept_session *one) {
    pthread_mutex_lock(&kept->mutex);
    one->is_lent = false;
    bool is_over = one->is_over;
    if (is_over) {
        (void)unlink_at(find(kept, one->lease_id));
    }
    pthread_cond_broadcast(&kept->returned);
    pthread_mutex_unlock(&kept->mutex);
    if (is_over) {
        sl_kept_free(one);
    }
}

void sl_kept_release(struct sl_kept *kept, const char *lease_id) {
    pthread_mutex_lock(&kept->mutex);
    struct sl_kept_session **at = find(kept, lease_id), *one = NULL;
    if (*at && (*at)->is_lent) {
        (*at)->is_over = true;
    } else {
        one = unlink_at(at);
    }
    pthread_mutex_unlock(&kept->mutex);
    sl_kept_free(one);
}

bool sl_kept_drop_oldest(struct sl_kept *kept) {
    struct sl_kept_session *one = take_over(kept, INT64_MAX, true);
    bool any = one != NULL;
    sl_kept_free(one);
    return any;
}

// Returns whether the session shares the pages of a base in the list. Lock held.
static bool is_on_base(const struct sl_kept *kept, const struct sl_session *session) {
    const struct sl_kept_session *one = session->base ? kept->first : NULL;
    while (one && one->session != session->base) {
        one = one->next;
    }
    return one != NULL;
}

// Returns how many bytes of the arena destroying the session frees, or some more: each page may be rounded up. Those that it shares with a
// base in the list count there. Lock held.
static size_t most_bytes(const struct sl_kept *kept, const struct sl_session *session) {
    size_t bytes = session->taken_bytes;
    int n_spans = is_on_base(kept, session) ? 0 : session->n_spans;
    for (int i = 0; i < n_spans; i++) {
        bytes += sl_arena_rounded(session->spans[i].bytes);
    }
    for (int l = 0; l < session->geometry.n_layers; l++) {
        for (int h = 0; h < session->geometry.n_kv_heads; h++) {
            bytes += (size_t)SL_ARENA_UNIT * session->layers[l].heads[h].n_pages;
        }
    }
    return bytes;
}

bool sl_kept_make_room(struct sl_kept *kept, struct sl_ledger *ledger, size_t bytes) {
    size_t idle_bytes = 0;
    pthread_mutex_lock(&kept->mutex);
    for (const struct sl_kept_session *one = kept->first; one; one = one->next) {
        idle_bytes += one->session && !one->ledger ? most_bytes(kept, one->session) : 0;
    }
    pthread_mutex_unlock(&kept->mutex);
    struct sl_arena_stats arena;
    sl_arena_get_stats(sl_ledger_arena(ledger), &arena);
    size_t taken = arena.used_bytes + sl_ledger_promised_bytes(ledger);
    size_t held = taken > idle_bytes ? taken - idle_bytes : 0;
    return bytes <= arena.capacity_bytes && held <= arena.capacity_bytes - bytes && sl_kept_drop_oldest(kept);
}

void sl_kept_reap(struct sl_kept *kept) {
    struct sl_kept_session *one;
    while ((one = take_over(kept, sl_now_ns(), false)) != NULL) {
        sl_kept_free(one);
    }
}

int64_t sl_kept_count(struct sl_kept *kept) {
    int64_t n = 0;
    SL_LOCKED(&kept->mutex);
    for (const struct sl_kept_session *one = kept->first; one; one = one->next) {
        n += !one->is_base;
    }
    return n;
}

// ---- bases ----------------------------------------------------------------------------------------------------------

static struct sl_kept_session **find_base(struct sl_kept *kept, const struct sl_capsule_id *id) {
    struct sl_kept_session **at = &kept->first;
    while (*at && !((*at)->is_base && memcmp(&(*at)->id, id, sizeof *id) == 0)) {
        at = &(*at)->next;
    }
    return at;
}

// Returns the link to a fetch of this base. Lock held.
static struct sl_kept_fetch **find_fetch(struct sl_kept *kept, const struct sl_capsule_id *id) {
    struct sl_kept_fetch **at = &kept->fetches;
    while (*at && memcmp(&(*at)->id, id, sizeof *id) != 0) {
        at = &(*at)->next;
    }
    return at;
}

enum sl_status sl_kept_begin_fetch(struct sl_kept *kept, struct sl_kept_fetch *fetch, int64_t deadline_ns) {
    enum sl_status status = SL_OK;
    SL_LOCKED(&kept->mutex);
    while (*find_fetch(kept, &fetch->id) && status == SL_OK) {
        status = sl_cond_wait_until(&kept->returned, &kept->mutex, deadline_ns);
    }
    if (status == SL_OK) {
        fetch->next = kept->fetches;
        kept->fetches = fetch;
    }
    return status;
}

void sl_kept_end_fetch(struct sl_kept *kept, struct sl_kept_fetch *fetch) {
    SL_LOCKED(&kept->mutex);
    *find_fetch(kept, &fetch->id) = fetch->next;
    pthread_cond_broadcast(&kept->returned);
}

// Notes a use of a base. n_tokens: at least a block, that the prompt has in common with it. A later prompt is compared by
// whole blocks.
static void note_use(struct sl_kept_session *base, const struct sl_kept_prompt *prompt, int64_t n_tokens) {
    base->deadline_ns = sl_deadline_in_ms(BASE_MS);
    base->n_matched = n_tokens / SL_PREFIX_BLOCK * SL_PREFIX_BLOCK;
    base->matched = prompt->keys[n_tokens / SL_PREFIX_BLOCK - 1];
}

void sl_kept_put_base(struct sl_kept *kept, const struct sl_kept_prompt *prompt, int64_t n_tokens,
                      struct sl_session **session_inout) {
    struct sl_kept_session *one = calloc(1, sizeof *one);
    if (!one) {
        sl_session_destroy(session_inout); // answers that share it keep its pages
        return;
    }
    one->is_base = true;
    one->id = prompt->id;
    one->session = *session_inout;
    *session_inout = NULL;
    note_use(one, prompt, n_tokens);
    struct sl_kept_session *older;
    SL_WITH_LOCK(&kept->mutex, older = unlink_at(find_base(kept, &prompt->id)));
    sl_kept_free(older);
    sl_kept_put_back(kept, one);
}

// Returns a reference to a base, which becomes the most recently used. Lock held.
static struct sl_session *use(struct sl_kept *kept, struct sl_kept_session **at, const struct sl_kept_prompt *prompt,
                              int64_t n_tokens) {
    struct sl_kept_session *one = unlink_at(at);
    append(kept, one);
    note_use(one, prompt, n_tokens);
    return sl_session_ref(one->session);
}

static struct sl_session *use_base(struct sl_kept *kept, const struct sl_kept_prompt *prompt, int64_t n_tokens) {
    SL_LOCKED(&kept->mutex);
    struct sl_kept_session **at = find_base(kept, &prompt->id);
    return *at ? use(kept, at, prompt, n_tokens) : NULL;
}

static struct sl_session *use_longest(struct sl_kept *kept, const struct sl_kept_prompt *prompt,
                                      int64_t *n_tokens_out) {
    struct sl_kept_session **best = NULL;
    SL_LOCKED(&kept->mutex);
    for (struct sl_kept_session **at = &kept->first; *at; at = &(*at)->next) {
        const struct sl_kept_session *one = *at;
        int64_t n_blocks = one->n_matched / SL_PREFIX_BLOCK;
        if (one->is_base && one->id.model_fingerprint == prompt->id.model_fingerprint &&
            one->id.recipe_fingerprint == prompt->id.recipe_fingerprint && n_blocks > 0 && n_blocks <= prompt->n_keys &&
            sl_hash128_equals(&one->matched, &prompt->keys[n_blocks - 1]) &&
            (!best || one->n_matched > (*best)->n_matched)) {
            best = at;
        }
    }
    *n_tokens_out = best ? (*best)->n_matched : 0;
    return best ? use(kept, best, prompt, *n_tokens_out) : NULL;
}

// Shares a base and drops the reference to it. Not under the lock, which the engine's thread takes before every step: the last page of each
// head is copied.
static enum sl_status share(struct sl_session *base, const struct sl_kept_prompt *prompt, int64_t n_tokens,
                            struct sl_session **session_out, struct sl_error *err) {
    enum sl_status status =
        sl_session_share(base, n_tokens, prompt->max_slots, prompt->copy, prompt->copy_arg, session_out, err);
    sl_session_destroy(&base);
    return status;
}

enum sl_status sl_kept_share(struct sl_kept *kept, const struct sl_kept_prompt *prompt, int64_t n_tokens,
                             struct sl_session **session_out, struct sl_error *err) {
    SL_FAIL_IF(n_tokens < SL_PREFIX_BLOCK || n_tokens / SL_PREFIX_BLOCK > prompt->n_keys, err, SL_ERR_INVALID,
               "a prompt of %lld blocks does not begin with %lld tokens", (long long)prompt->n_keys,
               (long long)n_tokens);
    struct sl_session *base = use_base(kept, prompt, n_tokens);
    return base ? share(base, prompt, n_tokens, session_out, err)
                : sl_fail(err, SL_ERR_NOT_FOUND, "this worker does not hold the capsule");
}

enum sl_status sl_kept_share_longest(struct sl_kept *kept, const struct sl_kept_prompt *prompt,
                                     struct sl_session **session_out, struct sl_error *err) {
    int64_t n_tokens;
    struct sl_session *base = use_longest(kept, prompt, &n_tokens);
    return base ? share(base, prompt, n_tokens, session_out, err)
                : sl_fail(err, SL_ERR_NOT_FOUND, "this worker holds no beginning of the prompt");
}

int64_t sl_kept_base_bytes(struct sl_kept *kept) {
    int64_t bytes = 0;
    SL_LOCKED(&kept->mutex);
    for (const struct sl_kept_session *one = kept->first; one; one = one->next) {
        for (int i = 0; one->is_base && i < one->session->n_spans; i++) {
            bytes += (int64_t)sl_arena_rounded(one->session->spans[i].bytes);
        }
    }
    return bytes;
}
