// SPDX-License-Identifier: Apache-2.0
// How remote KVs grow: grants, and the thread that builds what has arrived. The states are in remote_kv_table.h.
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/lease_id.h"
#include "base/locked.h"
#include "base/log.h"
#include "engine/compress/plan/plan.h"
#include "kvstore/remote_kv/internal.h"

#define LOOK_MS 100

// Returns the bytes that a segment needs beside the arriving block until it is built.
static size_t built_bytes(const struct sl_kv_segment_config *config) {
    size_t block = sl_kv_segment_block_bytes(config), all = sl_kv_segment_bytes(config);
    if (config->rows != config->work.format) {
        return all; // pages as well; the block is freed after building
    }
    return all > block ? all - block : 0;
}

// Returns the bytes that a segment needs at most, from its grant until it is built.
static size_t granted_bytes(const struct sl_kv_segment_config *config) {
    return sl_kv_segment_block_bytes(config) + built_bytes(config);
}

enum sl_status sl_remote_kv_table_bytes_to_come(const struct sl_kv_family *family, int64_t begin, int64_t n_tokens,
                                                size_t *bytes_out, struct sl_error *err) {
    struct sl_kv_segment_config config;
    size_t bytes = 0, beside = 0; // of all built segments; of the one that is being built, in addition
    // The sizes into which prefill cuts (net/offload/prefill/offload.h): whole segments, then the full pages, then a
    // partial page.
    const int64_t cuts[] = {SL_KV_SEGMENT_TOKENS, SL_PAGE_SLOTS, 1};
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        int64_t n_slots = i == 0 ? SL_KV_SEGMENT_TOKENS : (n_tokens - begin) / cuts[i] * cuts[i];
        int64_t n_segments = n_slots > 0 ? (n_tokens - begin) / n_slots : 0;
        if (n_segments > 0) {
            SL_TRY(sl_kv_family_config(family, begin, begin + n_slots, &config, err));
            size_t built = sl_kv_segment_bytes(&config), more = granted_bytes(&config) - built;
            bytes += (size_t)n_segments * built;
            more *= n_segments < SL_KV_SEGMENTS_QUEUED ? (size_t)n_segments : SL_KV_SEGMENTS_QUEUED;
            beside = more > beside ? more : beside;
            begin += n_segments * n_slots;
        }
    }
    *bytes_out = bytes + beside;
    return SL_OK;
}

void sl_remote_kv_table_forget_from(struct sl_remote_kv_table *remote_kvs, struct sl_held_remote_kv *held,
                                    struct sl_growth **at) {
    while (*at) {
        struct sl_growth *growth = *at;
        *at = growth->next;
        // It will be shipped again. Its bytes count twice until the transfer or the builder has released them.
        held->promised_bytes += growth->covered_bytes;
        sl_ledger_promise_again(remote_kvs->config.room->ledger, growth->covered_bytes);
        if (growth->inbound_id[0]) {
            sl_inbound_release(remote_kvs->config.room->inbound, growth->inbound_id);
        }
        sl_kv_segment_unref(&growth->segment);
        free(growth);
    }
}

// Call with the lock held. A segment will never be part of the remote KV, so no later one will be either.
static void fail_from(struct sl_remote_kv_table *remote_kvs, struct sl_held_remote_kv *held, struct sl_growth **at,
                      const struct sl_error *failure) {
    sl_log_warn("remote_kv", "lease=%s segment at token %lld: %s", sl_lease_name(held->lease_id).text,
                (long long)(*at)->config.begin, failure->text);
    held->failure = *failure;
    sl_remote_kv_table_forget_from(remote_kvs, held, at);
    pthread_cond_broadcast(&remote_kvs->loop.changed);
}

// Call with the lock held. Appends every built segment that has no unbuilt one before it.
static void append_built(struct sl_remote_kv_table *remote_kvs, struct sl_held_remote_kv *held) {
    while (held->growing && held->growing->segment) {
        struct sl_growth *growth = held->growing;
        struct sl_error err = {0};
        if (sl_held_remote_kv_append(held, growth->segment, &err) != SL_OK) {
            fail_from(remote_kvs, held, &held->growing, &err);
            return;
        }
        held->growing = growth->next;
        sl_kv_segment_unref(&growth->segment);
        free(growth);
    }
    sl_held_remote_kv_pin(remote_kvs->config.pins, held);
    if (sl_remote_kv_n_tokens(held->remote_kv) == held->prompt.n_tokens) { // no more segments to come
        sl_ledger_set_promise(remote_kvs->config.room->ledger, &held->promised_bytes, 0);
    }
    pthread_cond_broadcast(&remote_kvs->loop.changed);
}

// ---- grants -------------------------------------------------------------------------------------------------------

static int64_t end_of(const struct sl_kv_segment_config *config) {
    return config->begin + config->n_slots;
}

// Call with the lock held. Returns where the next segment begins; *last_out is the end of the list.
static int64_t planned_end(struct sl_held_remote_kv *held, struct sl_growth ***last_out) {
    int64_t end = sl_remote_kv_n_tokens(held->remote_kv);
    struct sl_growth **at = &held->growing;
    for (; *at; at = &(*at)->next) {
        end = end_of(&(*at)->config);
    }
    *last_out = at;
    return end;
}

/*
 * Call with the lock held. Checks that [begin, end) may be granted. SL_ERR_EXISTS: it is stored, or has arrived. A
 * grant that was not used is replaced: its ship has failed, or the reply was lost.
 */
static enum sl_status check_place(struct sl_remote_kv_table *remote_kvs, struct sl_held_remote_kv *held, int64_t begin,
                                  int64_t end, struct sl_error *err) {
    SL_FAIL_IF(begin < 0 || begin % SL_PAGE_SLOTS != 0 || end <= begin || end > held->prompt.n_tokens ||
                   (end % SL_PAGE_SLOTS != 0 && end != held->prompt.n_tokens),
               err, SL_ERR_INVALID, "segment [%lld, %lld) of %lld tokens does not consist of whole pages",
               (long long)begin, (long long)end, (long long)held->prompt.n_tokens);
    SL_FAIL_IF(end <= sl_remote_kv_n_tokens(held->remote_kv), err, SL_ERR_EXISTS,
               "tokens [%lld, %lld) are part of the remote KV", (long long)begin, (long long)end);
    struct sl_growth **at = &held->growing;
    while (*at && (*at)->config.begin != begin) {
        at = &(*at)->next;
    }
    SL_FAIL_IF(*at && end_of(&(*at)->config) == end && ((*at)->building || (*at)->segment), err, SL_ERR_EXISTS,
               "tokens [%lld, %lld) have arrived", (long long)begin, (long long)end);
    sl_remote_kv_table_forget_from(remote_kvs, held, at);
    int64_t planned = planned_end(held, &at);
    SL_FAIL_IF(begin != planned, err, SL_ERR_INVALID, "segment [%lld, %lld): the next one begins at token %lld",
               (long long)begin, (long long)end, (long long)planned);
    return SL_OK;
}

// Call with the lock held. Takes a segment's part out of the remote KV's promise.
static size_t take_promise(struct sl_held_remote_kv *held, size_t bytes) {
    bytes = bytes < held->promised_bytes ? bytes : held->promised_bytes;
    held->promised_bytes -= bytes;
    return bytes;
}

// Call with the lock held. Appends growth to the list of the remote KV; false if another segment took its position.
static bool add_growth(struct sl_remote_kv_table *remote_kvs, struct sl_held_remote_kv *held,
                       struct sl_growth *growth) {
    struct sl_growth **last;
    if (!held->listed || planned_end(held, &last) != growth->config.begin) {
        return false;
    }
    growth->serial = ++remote_kvs->next_serial;
    *last = growth;
    held->failure = (struct sl_error){0};
    return true;
}

// Call with the lock held; releases it meanwhile, as making room may take long. `held` is in use.
static enum sl_status open_inbound(struct sl_remote_kv_table *remote_kvs, struct sl_held_remote_kv *held,
                                   struct sl_growth *growth, struct sl_inbound_ticket *ticket_out,
                                   struct sl_error *err) {
    size_t covered = take_promise(held, granted_bytes(&growth->config));
    pthread_mutex_unlock(&remote_kvs->loop.mutex);
    enum sl_status status =
        sl_room_open_inbound(remote_kvs->config.room, held->lease_id, sl_kv_segment_block_bytes(&growth->config),
                             built_bytes(&growth->config), covered, ticket_out, err);
    pthread_mutex_lock(&remote_kvs->loop.mutex);
    if (status != SL_OK) {
        if (held->listed) {
            held->promised_bytes += covered;
        } else {
            sl_ledger_return(remote_kvs->config.room->ledger, covered);
        }
        return status;
    }
    memcpy(growth->inbound_id, ticket_out->id, sizeof growth->inbound_id);
    growth->covered_bytes = covered;
    if (!add_growth(remote_kvs, held, growth)) {
        sl_inbound_release(remote_kvs->config.room->inbound, ticket_out->id);
        free(ticket_out->ticket);
        if (held->listed) { // the segment will be shipped again
            held->promised_bytes += covered;
            sl_ledger_promise_again(remote_kvs->config.room->ledger, covered);
        }
        return sl_fail(err, SL_ERR_PRECONDITION,
                       "the remote KV ended, or was granted another segment at the same time");
    }
    return SL_OK;
}

enum sl_status sl_remote_kv_table_grant(struct sl_remote_kv_table *remote_kvs, const char *lease_id, int64_t begin,
                                        int64_t n_tokens, struct sl_inbound_ticket *ticket_out, size_t *capacity_out,
                                        struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_growth, growth, err, "remote KVs: out of memory");
    int64_t end; // saturates on overflow; that is out of bounds and refused
    if (__builtin_add_overflow(begin, n_tokens, &end)) {
        end = begin < 0 ? INT64_MIN : INT64_MAX;
    }
    pthread_mutex_lock(&remote_kvs->loop.mutex);
    struct sl_held_remote_kv *held = sl_remote_kv_table_find(remote_kvs, lease_id);
    enum sl_status status =
        held ? check_place(remote_kvs, held, begin, end, err)
             : sl_fail(err, SL_ERR_NOT_FOUND, "lease %s is unknown or has ended", sl_lease_name(lease_id).text);
    SL_THEN(status, sl_kv_family_config(&held->family, begin, end, &growth->config, err));
    if (status == SL_OK) {
        growth->segment =
            sl_kv_segments_find(remote_kvs->config.room->segments, &held->family, &held->prompt, begin, end);
        if (growth->segment) {
            size_t covered = take_promise(held, sl_kv_segment_bytes(&growth->config));
            sl_ledger_return(remote_kvs->config.room->ledger, covered);
            growth->covered_bytes = covered;
            add_growth(remote_kvs, held, growth); // cannot fail: check_place() has checked the position
            growth = NULL;
            append_built(remote_kvs, held);
            status = sl_fail(err, SL_ERR_EXISTS, "tokens [%lld, %lld) have been stored meanwhile", (long long)begin,
                             (long long)end);
        } else {
            held->n_users++;
            size_t capacity = sl_kv_segment_block_bytes(&growth->config);
            status = open_inbound(remote_kvs, held, growth, ticket_out, err);
            if (status == SL_OK) {
                *capacity_out = capacity;
                growth = NULL;
            }
            sl_held_remote_kv_unuse(remote_kvs, held);
        }
    }
    pthread_mutex_unlock(&remote_kvs->loop.mutex);
    free(growth);
    return status;
}

// ---- building -----------------------------------------------------------------------------------------------------

// The segment that has arrived, and the remote KV it belongs to.
struct built {
    struct sl_held_remote_kv *held; // in use
    uint64_t serial;
    struct sl_kv_segment_config config;
    struct sl_capsule_bytes received;
    size_t promised_bytes;
};

// Call with the lock held. Checks one remote KV: returns true if one of its segments is to be built now.
static bool find_received_of(struct sl_remote_kv_table *remote_kvs, struct sl_held_remote_kv *held,
                             struct built *built_out) {
    for (struct sl_growth **at = &held->growing; *at; at = &(*at)->next) {
        struct sl_growth *growth = *at;
        if (growth->building || growth->segment) {
            continue;
        }
        struct sl_error err = {0};
        enum sl_status status = sl_inbound_take(remote_kvs->config.room->inbound, growth->inbound_id, 0,
                                                &built_out->received, &built_out->promised_bytes, &err);
        if (status == SL_AGAIN) {
            continue;
        }
        if (status != SL_OK) {
            fail_from(remote_kvs, held, at, &err);
            return false;
        }
        growth->building = true;
        growth->inbound_id[0] = '\0';
        built_out->held = held;
        built_out->serial = growth->serial;
        built_out->config = growth->config;
        held->n_users++;
        return true;
    }
    return false;
}

static enum sl_status build(struct sl_remote_kv_table *remote_kvs, const struct built *built,
                            struct sl_kv_segment **segment_out, struct sl_error *err) {
    struct sl_room *room = remote_kvs->config.room;
    size_t expected = sl_kv_segment_block_bytes(&built->config);
    enum sl_status status = SL_OK;
    if (built->received.body_bytes != expected) {
        status = sl_fail(err, SL_ERR_INVALID, "%zu bytes have arrived, the segment has %zu", built->received.body_bytes,
                         expected);
    }
    while (status == SL_OK) {
        status = sl_kv_segment_create(&built->config, remote_kvs->config.ops, remote_kvs->config.team, room->arena,
                                      built->received.body, segment_out, err);
        if (status == SL_OK) {
            break;
        }
        if (status == SL_ERR_EXHAUSTED && sl_room_evict_one(room)) { // it was promised, but the free memory is
                                                                     // fragmented
            status = SL_OK;
        }
    }
    if (status != SL_OK) {
        sl_arena_free(room->arena, built->received.body);
    }
    free(built->received.header);
    sl_ledger_return(room->ledger, built->promised_bytes);
    return status;
}

// Builds one segment that has arrived. False: there is none, or its remote KV does not need it any more.
static bool build_one(struct sl_remote_kv_table *remote_kvs) {
    struct built built = {0};
    pthread_mutex_lock(&remote_kvs->loop.mutex);
    struct sl_held_remote_kv *first = remote_kvs->loop.stopping ? NULL : remote_kvs->first;
    for (struct sl_held_remote_kv *held = first; held && !find_received_of(remote_kvs, held, &built);
         held = held->next) {
    }
    pthread_mutex_unlock(&remote_kvs->loop.mutex);
    if (!built.held) {
        return false;
    }
    struct sl_held_remote_kv *held = built.held;
    struct sl_kv_segment *segment = NULL;
    struct sl_error err = {0};
    enum sl_status status = build(remote_kvs, &built, &segment, &err);
    if (status == SL_OK) {
        struct sl_error why = {0};
        if (sl_kv_segments_put(remote_kvs->config.room->segments, &held->family,
                               sl_prompt_hash_at(&held->prompt, end_of(&built.config)), &segment, &why) != SL_OK) {
            sl_log_warn("remote_kv", "lease=%s a segment will not be found by others: %s",
                        sl_lease_name(held->lease_id).text, why.text);
        }
    }
    SL_LOCKED(&remote_kvs->loop.mutex);
    struct sl_growth **at = &held->growing;
    while (*at && (*at)->serial != built.serial) {
        at = &(*at)->next;
    }
    if (*at && status == SL_OK) {
        // Memory that was needed only while building is promised to the next segments.
        size_t kept = sl_kv_segment_bytes(&built.config), covered = (*at)->covered_bytes;
        size_t beside = covered > kept ? covered - kept : 0;
        held->promised_bytes += beside;
        (*at)->covered_bytes -= beside;
        sl_ledger_promise_again(remote_kvs->config.room->ledger, beside);
        (*at)->building = false;
        (*at)->segment = segment;
        segment = NULL;
        append_built(remote_kvs, held);
    } else if (*at) {
        fail_from(remote_kvs, held, at, &err);
    }
    sl_kv_segment_unref(&segment); // if the remote KV has ended, the segment stays as cache
    sl_held_remote_kv_unuse(remote_kvs, held);
    return true;
}

void *sl_remote_kv_table_builder_main(void *arg) {
    struct sl_remote_kv_table *remote_kvs = arg;
    uint64_t seen = 0;
    for (bool go_on = true; go_on;) {
        sl_inbound_wait_change(remote_kvs->config.room->inbound, &seen, sl_deadline_in_ms(LOOK_MS));
        do {
            if (remote_kvs->config.progress_counter) {
                sl_progress_counter_tick(remote_kvs->config.progress_counter);
            }
        } while (build_one(remote_kvs));
        SL_LOCKED(&remote_kvs->loop.mutex);
        go_on = !remote_kvs->loop.stopping;
    }
    return NULL;
}
