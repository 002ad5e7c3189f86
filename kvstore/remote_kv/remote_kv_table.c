// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/lease_id.h"
#include "base/locked.h"
#include "base/log.h"
#include "base/loop.h"
#include "kvstore/remote_kv/internal.h"

#define ASK_MS 100 // between two checks that the caller still waits

enum sl_status sl_remote_kv_table_create(const struct sl_remote_kv_table_config *config,
                                         struct sl_remote_kv_table **remote_kvs_out, struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_remote_kv_table, remote_kvs, err, "remote KVs: out of memory");
    remote_kvs->config = *config;
    sl_loop_init(&remote_kvs->loop);
    SL_TRY_OR(sl_loop_start(&remote_kvs->loop, "builder", sl_remote_kv_table_builder_main, remote_kvs, err),
              sl_remote_kv_table_destroy(&remote_kvs));
    *remote_kvs_out = remote_kvs;
    return SL_OK;
}

// ---- opening and ending -------------------------------------------------------------------------------------------

// Appends the stored segments of the prompt to the remote KV.
static enum sl_status append_stored(struct sl_remote_kv_table *remote_kvs, struct sl_held_remote_kv *held,
                                    struct sl_error *err) {
    struct sl_kv_segment **chain;
    size_t n_chain;
    enum sl_status status =
        sl_kv_segments_chain(remote_kvs->config.room->segments, &held->family, &held->prompt, &chain, &n_chain, err);
    SL_TRY(status);
    for (size_t i = 0; i < n_chain; i++) {
        SL_THEN(status, sl_held_remote_kv_append(held, chain[i], err));
        sl_kv_segment_unref(&chain[i]);
    }
    free(chain);
    return status;
}

static enum sl_status open_window(struct sl_remote_kv_table *remote_kvs, struct sl_held_remote_kv *held,
                                  struct sl_remote_kv_lease *lease_out, struct sl_error *err) {
    struct sl_arena *arena = remote_kvs->config.room->arena;
    struct sl_arena_stats stats;
    sl_arena_get_stats(arena, &stats);
    uint8_t *ticket = NULL;
    size_t ticket_bytes = 0;
    enum sl_status status = sl_window_open(remote_kvs->config.fabric, sl_arena_base(arena), stats.capacity_bytes,
                                           &held->window, &ticket, &ticket_bytes, err);
    if (status == SL_OK) {
        memcpy(lease_out->window, ticket, ticket_bytes);
        lease_out->window_bytes = ticket_bytes;
    }
    free(ticket);
    return status;
}

enum sl_status sl_remote_kv_table_open(struct sl_remote_kv_table *remote_kvs, const char *label,
                                       const struct sl_kv_family *family, const struct sl_prompt_hashes *prompt,
                                       const struct sl_capsule_id *capsule, struct sl_remote_kv_lease *lease_out,
                                       struct sl_error *err) {
    SL_FAIL_IF(prompt->n_tokens < 1 || prompt->n_tokens > INT32_MAX, err, SL_ERR_INVALID,
               "remote KV: %lld tokens are out of bounds", (long long)prompt->n_tokens);
    struct sl_kv_segment_config any;
    enum sl_status status = sl_kv_family_config(family, 0, SL_PAGE_SLOTS, &any, err);
    struct sl_held_remote_kv *held = NULL;
    SL_THEN(status, sl_held_remote_kv_create(remote_kvs->config.ops, family, prompt, &held, err));
    struct sl_remote_kv_lease lease = {.window_bytes = 0};
    SL_THEN_IF(status, remote_kvs->config.fabric, open_window(remote_kvs, held, &lease, err));
    SL_THEN(status, append_stored(remote_kvs, held, err));
    size_t promised = 0;
    SL_THEN(status, sl_remote_kv_table_bytes_to_come(family, sl_remote_kv_n_tokens(held->remote_kv), prompt->n_tokens,
                                                     &promised, err));
    SL_THEN(status, sl_lease_id_draw("annex-", held->lease_id, err));
    SL_THEN_IF(status, promised > 0, sl_room_promise(remote_kvs->config.room, label, promised, err));
    SL_TRY_OR(status, sl_held_remote_kv_destroy(&held));
    held->promised_bytes = promised;
    held->capsule = *capsule;
    sl_held_remote_kv_pin(remote_kvs->config.pins, held);
    held->deadline_ns = sl_deadline_in_ms(remote_kvs->config.lease_ms);
    held->listed = true;
    SL_LOCKED(&remote_kvs->loop.mutex);
    held->next = remote_kvs->first;
    remote_kvs->first = held;
    remote_kvs->n_leases++;
    lease.remote_kv_id = held->id;
    lease.n_tokens = sl_remote_kv_n_tokens(held->remote_kv);
    memcpy(lease.lease_id, held->lease_id, sizeof lease.lease_id);
    *lease_out = lease;
    return SL_OK;
}

// Call with the lock held. Ends the lease at *at.
static void end_lease(struct sl_remote_kv_table *remote_kvs, struct sl_held_remote_kv **at) {
    struct sl_held_remote_kv *held = *at;
    *at = held->next;
    held->listed = false;
    sl_window_close(&held->window);
    remote_kvs->n_leases--;
    sl_remote_kv_table_forget_from(remote_kvs, held, &held->growing);
    sl_ledger_set_promise(remote_kvs->config.room->ledger, &held->promised_bytes, 0);
    pthread_cond_broadcast(&remote_kvs->loop.changed);
    sl_held_remote_kv_free_if_over(remote_kvs, held);
}

void sl_remote_kv_table_destroy(struct sl_remote_kv_table **remote_kvs_inout) {
    SL_TAKE_OR_RETURN(remote_kvs, remote_kvs_inout);
    sl_loop_stop(&remote_kvs->loop);
    pthread_mutex_lock(&remote_kvs->loop.mutex);
    while (remote_kvs->first) {
        end_lease(remote_kvs, &remote_kvs->first);
    }
    pthread_mutex_unlock(&remote_kvs->loop.mutex);
    sl_loop_cleanup(&remote_kvs->loop);
    free(remote_kvs);
}

// ---- leases -------------------------------------------------------------------------------------------------------

bool sl_remote_kv_table_renew(struct sl_remote_kv_table *remote_kvs, const char *lease_id) {
    SL_LOCKED(&remote_kvs->loop.mutex);
    struct sl_held_remote_kv *held = sl_remote_kv_table_find(remote_kvs, lease_id);
    for (struct sl_growth *growth = held ? held->growing : NULL; growth; growth = growth->next) {
        int64_t lease_ms;
        if (growth->inbound_id[0]) { // it lives as long as its remote KV; the builder notices if it has ended meanwhile
            sl_inbound_renew(remote_kvs->config.room->inbound, growth->inbound_id, &lease_ms, NULL);
        }
    }
    return held != NULL;
}

void sl_remote_kv_table_release(struct sl_remote_kv_table *remote_kvs, const char *lease_id) {
    SL_LOCKED(&remote_kvs->loop.mutex);
    struct sl_held_remote_kv **at = sl_remote_kv_table_find_lease(remote_kvs, lease_id);
    if (*at) {
        end_lease(remote_kvs, at);
    }
}

void sl_remote_kv_table_reap(struct sl_remote_kv_table *remote_kvs, int64_t now_ns) {
    SL_LOCKED(&remote_kvs->loop.mutex);
    for (struct sl_held_remote_kv **at = &remote_kvs->first; *at;) {
        if ((*at)->deadline_ns <= now_ns) {
            sl_log_warn("remote_kv", "lease=%s expired: no client renewed it or asked for %lld ms",
                        sl_lease_name((*at)->lease_id).text, (long long)remote_kvs->config.lease_ms);
            end_lease(remote_kvs, at);
        } else {
            at = &(*at)->next;
        }
    }
}

int64_t sl_remote_kv_table_count(struct sl_remote_kv_table *remote_kvs) {
    SL_LOCKED(&remote_kvs->loop.mutex);
    return remote_kvs->n_leases;
}

// ---- waiting ------------------------------------------------------------------------------------------------------

enum sl_status sl_remote_kv_table_await(struct sl_remote_kv_table *remote_kvs, const struct sl_remote_kv_wait *wait,
                                        int64_t *n_tokens_out, struct sl_error *err) {
    enum sl_status status = SL_AGAIN;
    int64_t n_held = 0;
    pthread_mutex_lock(&remote_kvs->loop.mutex);
    while (status == SL_AGAIN) {
        struct sl_held_remote_kv *held = sl_remote_kv_table_find(remote_kvs, wait->lease_id);
        n_held = held ? sl_remote_kv_n_tokens(held->remote_kv) : 0;
        if (!held) {
            status =
                sl_fail(err, SL_ERR_NOT_FOUND, "lease %s is unknown or has ended", sl_lease_name(wait->lease_id).text);
        } else if (wait->n_tokens > held->prompt.n_tokens) {
            status = sl_fail(err, SL_ERR_INVALID, "n_tokens %lld: the remote KV is for %lld", (long long)wait->n_tokens,
                             (long long)held->prompt.n_tokens);
        } else if (n_held >= wait->n_tokens) {
            status = SL_OK;
        } else if (held->failure.status != SL_OK) {
            status = sl_fail(err, held->failure.status, "%s", held->failure.text);
        } else if (!wait->go_on(wait->arg)) {
            status = sl_fail(err, SL_ERR_CANCELLED, "no client waits for the remote KV any more");
        } else if (sl_now_ns() >= wait->deadline_ns) {
            status = sl_fail(err, SL_ERR_DEADLINE, "the remote KV has %lld tokens of %lld", (long long)n_held,
                             (long long)wait->n_tokens);
        } else {
            int64_t look_ns = sl_deadline_in_ms(ASK_MS);
            sl_loop_wait(&remote_kvs->loop, look_ns < wait->deadline_ns ? look_ns : wait->deadline_ns);
        }
    }
    pthread_mutex_unlock(&remote_kvs->loop.mutex);
    if (status == SL_OK) {
        *n_tokens_out = n_held;
    }
    return status;
}
