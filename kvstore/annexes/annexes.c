// SPDX-License-Identifier: Apache-2.0
// Annexes under leases. See annexes.h.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/clock.h"
#include "base/lease_id.h"
#include "base/log.h"
#include "base/thread.h"
#include "kvstore/annexes/internal.h"

#define ASK_MS 100 // between two checks that the caller still waits

enum sl_status sl_annexes_create(const struct sl_annexes_config *config, struct sl_annexes **annexes_out,
                                 struct sl_error *err) {
    struct sl_annexes *annexes = calloc(1, sizeof *annexes);
    if (!annexes) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "annexes: out of memory");
    }
    annexes->config = *config;
    pthread_mutex_init(&annexes->mutex, NULL);
    sl_cond_init(&annexes->changed);
    enum sl_status status = sl_thread_start("builder", sl_annexes_builder_main, annexes, &annexes->builder, err);
    if (status != SL_OK) {
        pthread_cond_destroy(&annexes->changed);
        pthread_mutex_destroy(&annexes->mutex);
        free(annexes);
        return status;
    }
    *annexes_out = annexes;
    return SL_OK;
}

// ---- opening and ending -------------------------------------------------------------------------------------------

// Appends the stored segments of the prompt to the annex.
static enum sl_status append_stored(struct sl_annexes *annexes, struct sl_held_annex *held, struct sl_error *err) {
    struct sl_kv_segment **chain;
    size_t n_chain;
    enum sl_status status =
        sl_kv_segments_chain(annexes->config.room->segments, &held->family, &held->prompt, &chain, &n_chain, err);
    if (status != SL_OK) {
        return status;
    }
    for (size_t i = 0; i < n_chain; i++) {
        if (status == SL_OK) {
            status = sl_held_annex_append(held, chain[i], err);
        }
        sl_kv_segment_unref(&chain[i]);
    }
    free(chain);
    return status;
}

static enum sl_status open_window(struct sl_annexes *annexes, struct sl_held_annex *held,
                                  struct sl_annex_lease *lease_out, struct sl_error *err) {
    struct sl_arena *arena = annexes->config.room->arena;
    struct sl_arena_stats stats;
    sl_arena_get_stats(arena, &stats);
    uint8_t *ticket = NULL;
    size_t ticket_bytes = 0;
    enum sl_status status = sl_window_open(annexes->config.fabric, sl_arena_base(arena), stats.capacity_bytes,
                                           &held->window, &ticket, &ticket_bytes, err);
    if (status == SL_OK) {
        memcpy(lease_out->window, ticket, ticket_bytes);
        lease_out->window_bytes = ticket_bytes;
    }
    free(ticket);
    return status;
}

enum sl_status sl_annexes_open(struct sl_annexes *annexes, const char *label, const struct sl_kv_family *family,
                               const struct sl_prompt_hashes *prompt, struct sl_annex_lease *lease_out,
                               struct sl_error *err) {
    if (prompt->n_tokens < 1 || prompt->n_tokens > INT32_MAX) {
        return sl_fail(err, SL_ERR_INVALID, "annex: %lld tokens are out of bounds", (long long)prompt->n_tokens);
    }
    struct sl_kv_segment_config any;
    enum sl_status status = sl_kv_family_config(family, 0, SL_PAGE_SLOTS, &any, err);
    struct sl_held_annex *held = NULL;
    if (status == SL_OK) {
        status = sl_held_annex_create(annexes->config.ops, family, prompt, &held, err);
    }
    struct sl_annex_lease lease = {.window_bytes = 0};
    if (status == SL_OK && annexes->config.fabric) {
        status = open_window(annexes, held, &lease, err);
    }
    if (status == SL_OK) {
        status = append_stored(annexes, held, err);
    }
    size_t promised = 0;
    if (status == SL_OK) {
        status = sl_annexes_bytes_to_come(family, sl_annex_n_tokens(held->annex), prompt->n_tokens, &promised, err);
    }
    if (status == SL_OK) {
        status = sl_lease_id_draw("annex-", held->lease_id, err);
    }
    if (status == SL_OK && promised > 0) {
        status = sl_room_promise(annexes->config.room, label, promised, err);
    }
    if (status != SL_OK) {
        sl_held_annex_destroy(&held);
        return status;
    }
    held->promised_bytes = promised;
    held->deadline_ns = sl_deadline_in_ms(annexes->config.lease_ms);
    held->listed = true;
    pthread_mutex_lock(&annexes->mutex);
    held->next = annexes->first;
    annexes->first = held;
    annexes->n_leases++;
    lease.annex_id = held->id;
    lease.n_tokens = sl_annex_n_tokens(held->annex);
    memcpy(lease.lease_id, held->lease_id, sizeof lease.lease_id);
    *lease_out = lease;
    pthread_mutex_unlock(&annexes->mutex);
    return SL_OK;
}

// Call with the lock held. Ends the lease at *at.
static void end_lease(struct sl_annexes *annexes, struct sl_held_annex **at) {
    struct sl_held_annex *held = *at;
    *at = held->next;
    held->listed = false;
    sl_window_close(&held->window);
    annexes->n_leases--;
    sl_annexes_forget_from(annexes, held, &held->growing);
    sl_ledger_settle(annexes->config.room->ledger, &held->promised_bytes, 0);
    pthread_cond_broadcast(&annexes->changed);
    sl_held_annex_free_if_over(annexes, held);
}

void sl_annexes_destroy(struct sl_annexes **annexes_inout) {
    struct sl_annexes *annexes = *annexes_inout;
    if (!annexes) {
        return;
    }
    pthread_mutex_lock(&annexes->mutex);
    annexes->stopping = true;
    pthread_mutex_unlock(&annexes->mutex);
    pthread_join(annexes->builder, NULL);
    pthread_mutex_lock(&annexes->mutex);
    while (annexes->first) {
        end_lease(annexes, &annexes->first);
    }
    pthread_mutex_unlock(&annexes->mutex);
    pthread_cond_destroy(&annexes->changed);
    pthread_mutex_destroy(&annexes->mutex);
    free(annexes);
    *annexes_inout = NULL;
}

// ---- leases -------------------------------------------------------------------------------------------------------

bool sl_annexes_renew(struct sl_annexes *annexes, const char *lease_id) {
    pthread_mutex_lock(&annexes->mutex);
    struct sl_held_annex *held = sl_annexes_find(annexes, lease_id);
    for (struct sl_growth *growth = held ? held->growing : NULL; growth; growth = growth->next) {
        int64_t lease_ms;
        if (growth->inbound_id[0]) { // it lives as long as its annex; the builder notices if it has ended meanwhile
            sl_inbound_renew(annexes->config.room->inbound, growth->inbound_id, &lease_ms, NULL);
        }
    }
    pthread_mutex_unlock(&annexes->mutex);
    return held != NULL;
}

void sl_annexes_release(struct sl_annexes *annexes, const char *lease_id) {
    pthread_mutex_lock(&annexes->mutex);
    struct sl_held_annex **at = sl_annexes_find_lease(annexes, lease_id);
    if (*at) {
        end_lease(annexes, at);
    }
    pthread_mutex_unlock(&annexes->mutex);
}

void sl_annexes_reap(struct sl_annexes *annexes, int64_t now_ns) {
    pthread_mutex_lock(&annexes->mutex);
    for (struct sl_held_annex **at = &annexes->first; *at;) {
        if ((*at)->deadline_ns <= now_ns) {
            sl_log_warn("annexes", "lease=%s expired: nobody renewed it or asked for %lld ms",
                        sl_lease_name((*at)->lease_id).text, (long long)annexes->config.lease_ms);
            end_lease(annexes, at);
        } else {
            at = &(*at)->next;
        }
    }
    pthread_mutex_unlock(&annexes->mutex);
}

int64_t sl_annexes_count(struct sl_annexes *annexes) {
    pthread_mutex_lock(&annexes->mutex);
    int64_t n_leases = annexes->n_leases;
    pthread_mutex_unlock(&annexes->mutex);
    return n_leases;
}

// ---- waiting ------------------------------------------------------------------------------------------------------

enum sl_status sl_annexes_await(struct sl_annexes *annexes, const struct sl_annex_wait *wait, int64_t *n_tokens_out,
                                struct sl_error *err) {
    enum sl_status status = SL_AGAIN;
    int64_t n_held = 0;
    pthread_mutex_lock(&annexes->mutex);
    while (status == SL_AGAIN) {
        struct sl_held_annex *held = sl_annexes_find(annexes, wait->lease_id);
        n_held = held ? sl_annex_n_tokens(held->annex) : 0;
        if (!held) {
            status =
                sl_fail(err, SL_ERR_NOT_FOUND, "lease %s is unknown or has ended", sl_lease_name(wait->lease_id).text);
        } else if (wait->n_tokens > held->prompt.n_tokens) {
            status = sl_fail(err, SL_ERR_INVALID, "n_tokens %lld: the annex is for %lld", (long long)wait->n_tokens,
                             (long long)held->prompt.n_tokens);
        } else if (n_held >= wait->n_tokens) {
            status = SL_OK;
        } else if (held->failure.status != SL_OK) {
            status = sl_fail(err, held->failure.status, "%s", held->failure.text);
        } else if (!wait->go_on(wait->arg)) {
            status = sl_fail(err, SL_ERR_CANCELLED, "nobody waits for the annex any more");
        } else if (sl_now_ns() >= wait->deadline_ns) {
            status = sl_fail(err, SL_ERR_DEADLINE, "the annex has %lld tokens of %lld", (long long)n_held,
                             (long long)wait->n_tokens);
        } else {
            int64_t look_ns = sl_deadline_in_ms(ASK_MS);
            sl_cond_wait_until(&annexes->changed, &annexes->mutex,
                               look_ns < wait->deadline_ns ? look_ns : wait->deadline_ns);
        }
    }
    pthread_mutex_unlock(&annexes->mutex);
    if (status == SL_OK) {
        *n_tokens_out = n_held;
    }
    return status;
}
