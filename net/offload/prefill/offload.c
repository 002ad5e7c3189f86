// SPDX-License-Identifier: Apache-2.0
#include "net/offload/prefill/offload.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/locked.h"
#include "base/thread.h"
#include "engine/runtime/transfer.h"
#include "net/offload/prefill/offload_internal.h"

#define LEAST_RESTORE_MS 1500 // a store that has just started may not know its documents yet
#define LOOK_MS          50   // between polls of the job's call while there is no room for a segment

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

// Return, for the prompt's first n_tokens: the slots of an offloaded head; and how many of them can no longer be
// evicted.
static int64_t slots_at(const struct sl_offload *offload, int64_t n_tokens) {
    return sl_plan_offloaded_slots(offload->plan, n_tokens);
}

static int64_t decided_at(const struct sl_offload *offload, int64_t n_tokens) {
    bool all = n_tokens == offload->plan->n_prompt;
    return slots_at(offload, n_tokens) - (all ? 0 : sl_plan_undecided_slots(offload->plan, n_tokens));
}

// ---- opening -------------------------------------------------------------------------------------------------------

// Checks that the shares of every replica, in ascending order, cover each offloaded head once.
static enum sl_status check_shares(const struct sl_offload_config *config, int n_offloaded_heads, int *n_replicas_out,
                                   struct sl_error *err) {
    size_t n_seen = 0;
    int replica = 0;
    for (; n_seen < config->n_stores; replica++) {
        int end = 0;
        for (bool found = true; found && end < n_offloaded_heads;) {
            found = false;
            for (size_t i = 0; !found && i < config->n_stores; i++) {
                const Sluice__V1__StoreShare *share = config->stores[i];
                if (share->replica == replica && share->first_lane == end && share->n_lanes > 0 &&
                    share->n_lanes <= n_offloaded_heads - end && share->address[0]) {
                    end += share->n_lanes;
                    n_seen++;
                    found = true;
                }
            }
        }
        SL_FAIL_IF(end != n_offloaded_heads, err, SL_ERR_INVALID,
                   "stores: replica %d has no store for offloaded head %d of %d", replica, end, n_offloaded_heads);
    }
    *n_replicas_out = replica;
    return SL_OK;
}

static enum sl_status open_links(struct sl_offload *offload, const struct sl_offload_config *config,
                                 struct sl_error *err) {
    const struct sl_plan *plan = config->plan;
    int64_t n_slots = offload->n_slots, n_keys = n_slots / SL_PREFIX_BLOCK;
    struct sl_hash128 *keys = malloc(sizeof *keys * (size_t)(n_keys + 1));
    SL_FAIL_IF(!keys, err, SL_ERR_EXHAUSTED, "offload: out of memory");
    Sluice__V1__OpenAnnexRequest request = SLUICE__V1__OPEN_ANNEX_REQUEST__INIT;
    request.job_id = (char *)config->job_id;
    request.model_fingerprint = sl_plan_segments_fingerprint(config->plan, config->capsule->model_fingerprint);
    request.head_dim = plan->geometry.head_dim;
    request.work_format = (int32_t)offload->work.format;
    request.rows_format = (int32_t)offload->kept.format;
    request.scan_format = (int32_t)sl_plan_scan_format(plan);
    // If slots are not tokens, the names of segments must be this prompt's alone: its own hash is their salt.
    struct sl_hash128 salt = *config->salt;
    if (sl_recipe_thins(&plan->recipe)) {
        salt = sl_prefix_hash(config->salt, config->tokens, plan->n_prompt);
    }
    struct sl_hash128 whole = sl_prefix_hash(&salt, config->tokens, n_slots);
    request.n_tokens = n_slots;
    request.prefixes.len = (size_t)sl_prefix_keys(&salt, config->tokens, n_slots, keys, n_keys) * sizeof *keys;
    request.prefixes.data = (uint8_t *)keys;
    request.prefix_hash = (ProtobufCBinaryData){sizeof whole, whole.bytes};
    struct sl_hash128 capsule_hash = config->capsule->prefix_hash;
    Sluice__V1__StoreKey capsule = SLUICE__V1__STORE_KEY__INIT;
    capsule.model_fingerprint = config->capsule->model_fingerprint;
    capsule.recipe_fingerprint = config->capsule->recipe_fingerprint;
    capsule.prefix_hash = (ProtobufCBinaryData){sizeof capsule_hash, capsule_hash.bytes};
    request.capsule = &capsule;
    enum sl_status status = SL_OK;
    offload->n_stored = n_slots;
    for (size_t i = 0; status == SL_OK && i < config->n_stores; i++) {
        struct sl_store_link *link = &offload->links[offload->n_links++];
        link->share = config->stores[i];
        status = sl_store_link_open(offload, link, &request, err);
        if (status == SL_OK) {
            offload->n_stored = smaller(offload->n_stored, link->n_tokens);
        }
    }
    free(keys);
    return status;
}

static enum sl_status create_ring(struct sl_offload *offload, struct sl_error *err) {
    size_t n_pages = (size_t)sl_offloaded_heads_count(&offload->offloaded_heads) * SL_KV_SEGMENT_PAGES;
    enum sl_status status = SL_OK;
    for (int i = 0; status == SL_OK && i < SL_RING; i++) {
        struct sl_shipment *shipment = &offload->ring[i];
        shipment->pages = malloc(n_pages * sizeof(void *));
        if (!shipment->pages) {
            status = sl_fail(err, SL_ERR_EXHAUSTED, "offload: out of memory");
        }
    }
    return status;
}

enum sl_status sl_offload_open(const struct sl_offload_config *config, struct sl_offload **offload_out,
                               struct sl_error *err) {
    SL_FAIL_IF(config->n_stores < 1 || config->n_stores > SL_MAX_LINKS, err, SL_ERR_INVALID,
               "stores: %zu shares; 1 to %d are possible", config->n_stores, SL_MAX_LINKS);
    SL_NEW_OR_FAIL(struct sl_offload, offload, err, "offload: out of memory");
    offload->node = config->node;
    offload->plan = config->plan;
    offload->job_id = config->job_id;
    offload->parent = config->parent;
    offload->restored_by_ns =
        sl_deadline_in_ms(config->restore_ms > LEAST_RESTORE_MS ? config->restore_ms : LEAST_RESTORE_MS);
    offload->alive = config->alive;
    offload->arg = config->arg;
    offload->n_slots = slots_at(offload, config->plan->n_prompt);
    pthread_mutex_init(&offload->mutex, NULL);
    sl_cond_init(&offload->changed);
    sl_offloaded_heads_init(&offload->offloaded_heads, &config->plan->recipe.offload, &config->plan->geometry);
    offload->work = config->plan->work[offload->offloaded_heads.layers[0]];
    enum sl_status status = sl_page_layout_init(&offload->kept, sl_plan_row_format(config->plan),
                                                config->plan->geometry.head_dim, 0, false);
    status = status == SL_OK
                 ? check_shares(config, sl_offloaded_heads_count(&offload->offloaded_heads), &offload->n_replicas, err)
                 : sl_fail(err, status, "recipe: stores cannot keep rows of this model as %s",
                           sl_kv_format_name(sl_plan_row_format(config->plan)));
    SL_THEN(status, create_ring(offload, err));
    SL_THEN(status, sl_read_back_create(offload, err));
    SL_THEN(status, open_links(offload, config, err));
    offload->n_handed = offload->n_stored;
    SL_THEN(status, offload->n_stored > 0 && offload->n_stored < offload->n_slots
                        ? sl_offload_map(offload, offload->n_stored, err)
                        : SL_OK);
    if (status == SL_OK) {
        status = sl_thread_start("offload", sl_offload_ship_main, offload, &offload->thread, err);
        offload->has_thread = status == SL_OK;
    }
    SL_TRY_OR(status, sl_offload_close(&offload));
    *offload_out = offload;
    return SL_OK;
}

void sl_offload_close(struct sl_offload **offload_inout) {
    struct sl_offload *offload = *offload_inout;
    if (!offload) {
        return;
    }
    if (offload->has_thread) {
        pthread_mutex_lock(&offload->mutex);
        atomic_store(&offload->stopping, true);
        pthread_cond_broadcast(&offload->changed);
        pthread_mutex_unlock(&offload->mutex);
        pthread_join(offload->thread, NULL);
    }
    sl_read_back_destroy(offload);
    for (int i = 0; i < offload->n_links; i++) {
        sl_store_link_close(offload, &offload->links[i]);
    }
    for (int i = 0; i < SL_RING; i++) {
        (void)sl_mark_wait(&offload->ring[i].down, NULL); // a failed device writes nothing any more
        free(offload->ring[i].pages);
    }
    sl_arena_free(offload->node->staging, offload->staging); // after those copies and after all reads back
    pthread_cond_destroy(&offload->changed);
    pthread_mutex_destroy(&offload->mutex);
    free(offload);
    *offload_inout = NULL;
}

// ---- staging memory ------------------------------------------------------------------------------------------------

static size_t shipment_bytes(const struct sl_offload *offload) {
    return (size_t)sl_offloaded_heads_count(&offload->offloaded_heads) * SL_KV_SEGMENT_PAGES * offload->work.bytes;
}

size_t sl_offload_staging_bytes(const struct sl_offload *offload) {
    return sl_node_stages(offload->node) ? sl_plan_travelling_bytes(offload->plan, offload->n_stored > 0) : 0;
}

// Takes one block: jobs that each hold a part could wait for each other forever.
enum sl_status sl_offload_stage(struct sl_offload *offload, struct sl_error *err) {
    size_t bytes = sl_offload_staging_bytes(offload);
    void *block = NULL;
    enum sl_status status =
        bytes > 0 ? sl_ledger_take_block(offload->node->staging_ledger, offload->job_id, bytes, 0, &block, err) : SL_OK;
    if (status != SL_OK || block == NULL) {
        return status;
    }
    char *at = offload->staging = block, *end = at + bytes;
    for (int i = 0; i < SL_RING; i++, at += shipment_bytes(offload)) {
        offload->ring[i].staged = at;
    }
    for (int t = 0; t < 2 && at < end; t++, at += sl_tile_bytes(offload)) {
        offload->tiles[t].staged = at;
    }
    return SL_OK;
}

// ---- what the stores have ------------------------------------------------------------------------------------------

int64_t sl_offload_n_stored(const struct sl_offload *offload) {
    return offload->n_stored;
}

bool sl_offload_is_stored(const struct sl_offload *offload) {
    return offload->n_stored == offload->n_slots;
}

int64_t sl_offload_begins_at(const struct sl_offload *offload, int64_t n_tokens) {
    if (sl_recipe_thins(&offload->plan->recipe)) {
        return 0;
    }
    int64_t unit = sl_plan_offloaded_unit(offload->plan);
    return smaller(n_tokens, offload->n_stored) / unit * unit;
}

// ---- what is held --------------------------------------------------------------------------------------------------

// Fetches, for a session that begins after `held`, the pages from `held` up to its tokens.
static enum sl_status fetch_held(struct sl_offload *offload, struct sl_session *session, int layer,
                                 struct sl_error *err) {
    uint32_t n_slots = (uint32_t)(session->n_tokens - offload->held);
    enum sl_status status = sl_session_reserve(session, layer, (int)n_slots);
    SL_FAIL_IF(status != SL_OK, err, status, "no room in the KV cache for %u stored tokens of layer %d", n_slots,
               layer);
    status = sl_read_back_session(offload, session, layer, n_slots, err);
    for (int h = 0; status == SL_OK && h < session->geometry.n_kv_heads; h++) {
        sl_session_set_slots(session, layer, h, n_slots);
    }
    return status;
}

enum sl_status sl_offload_begin(struct sl_offload *offload, struct sl_session *session, struct sl_error *err) {
    enum sl_status status = SL_OK;
    offload->n_tokens = session->n_tokens;
    assert(session->n_tokens == 0 || !sl_recipe_thins(&offload->plan->recipe)); // below, slots are tokens
    offload->held = session->n_tokens / SL_ATTEND_SPLIT * SL_ATTEND_SPLIT;
    if (offload->n_mapped < offload->n_stored) {
        status = sl_offload_map(offload, offload->n_stored, err);
    }
    for (int i = 0; status == SL_OK && i < offload->offloaded_heads.n_layers && session->n_tokens > offload->held;
         i++) {
        status = fetch_held(offload, session, offload->offloaded_heads.layers[i], err);
    }
    return status;
}

// Lists where the shipment's pages are in the session.
static void list_pages(struct sl_offload *offload, const struct sl_session *session, struct sl_shipment *shipment) {
    uint32_t first = (uint32_t)((shipment->begin - offload->held) / SL_PAGE_SLOTS);
    for (int offloaded_head = 0; offloaded_head < sl_offloaded_heads_count(&offload->offloaded_heads);
         offloaded_head++) {
        int layer = offload->offloaded_heads.layers[offloaded_head / offload->offloaded_heads.n_heads],
            h = offloaded_head % offload->offloaded_heads.n_heads;
        const struct sl_head *head = &session->layers[layer].heads[h];
        memcpy(shipment->pages + (size_t)offloaded_head * SL_KV_SEGMENT_PAGES, head->pages + first,
               sl_pages_for(shipment->n_slots) * sizeof(void *));
    }
}

// Copies the pages down from the device, offloaded head by offloaded head; they are shipped from there.
static enum sl_status stage(struct sl_offload *offload, struct sl_shipment *shipment, struct sl_error *err) {
    uint32_t n_pages = sl_pages_for(shipment->n_slots),
             n_offloaded_heads = (uint32_t)sl_offloaded_heads_count(&offload->offloaded_heads);
    size_t page_bytes = offload->work.bytes, n = 0;
    struct sl_byte_range *pieces = malloc((size_t)n_offloaded_heads * n_pages * sizeof *pieces);
    SL_FAIL_IF(!pieces, err, SL_ERR_EXHAUSTED, "offload: out of memory");
    for (uint32_t offloaded_head = 0; offloaded_head < n_offloaded_heads; offloaded_head++) {
        const void **pages = shipment->pages + (size_t)offloaded_head * SL_KV_SEGMENT_PAGES;
        for (uint32_t p = 0; p < n_pages; p++, n++) {
            pieces[n] = (struct sl_byte_range){pages[p], page_bytes};
            pages[p] = shipment->staged + n * page_bytes;
        }
    }
    enum sl_status status = sl_transfer_pieces_out(&offload->node->runtime, pieces, (uint32_t)n, n * page_bytes,
                                                   shipment->staged, &shipment->down, err);
    free(pieces);
    return status;
}

// Queues [n_handed, end) for the ships, which must have room. Call with the mutex held; releases it while the device
// copies pages.
static enum sl_status hand_over(struct sl_offload *offload, const struct sl_session *session, int64_t end,
                                struct sl_error *err) {
    assert(offload->n_queued < SL_RING && end - offload->n_handed <= SL_KV_SEGMENT_TOKENS);
    struct sl_shipment *shipment = &offload->ring[(offload->first + offload->n_queued) % SL_RING];
    shipment->begin = offload->n_handed;
    shipment->n_slots = (uint32_t)(end - offload->n_handed);
    list_pages(offload, session, shipment);
    if (sl_node_stages(offload->node)) {
        pthread_mutex_unlock(&offload->mutex);
        enum sl_status status = stage(offload, shipment, err);
        pthread_mutex_lock(&offload->mutex);
        SL_TRY(status);
    }
    offload->n_handed = end;
    offload->n_queued++;
    pthread_cond_broadcast(&offload->changed);
    return SL_OK;
}

// Call with the mutex held. Returns the failure of the ships, if there was one.
static enum sl_status wait_for(struct sl_offload *offload, bool (*there)(const struct sl_offload *),
                               struct sl_error *err) {
    while (offload->status == SL_OK && !there(offload)) {
        SL_FAIL_IF(offload->parent && sl_rpc_call_cancelled(offload->parent), err, SL_ERR_CANCELLED,
                   "job %s was cancelled while shipping to its stores", offload->job_id);
        sl_cond_wait_until(&offload->changed, &offload->mutex, sl_deadline_in_ms(LOOK_MS));
    }
    if (offload->status != SL_OK) {
        *err = offload->err;
    }
    return offload->status;
}

static bool has_room(const struct sl_offload *offload) {
    return offload->n_queued < SL_KV_SEGMENTS_QUEUED;
}

static bool is_mapped(const struct sl_offload *offload) {
    return offload->n_mapped >= decided_at(offload, offload->n_tokens) / SL_ATTEND_SPLIT * SL_ATTEND_SPLIT;
}

// Drops pages of splits that all stores have and have mapped.
static void release(struct sl_offload *offload, struct sl_session *session, int64_t n_mapped) {
    int64_t held = smaller(n_mapped, decided_at(offload, session->n_tokens)) / SL_ATTEND_SPLIT * SL_ATTEND_SPLIT;
    if (held <= offload->held) {
        return;
    }
    uint32_t n_pages = (uint32_t)((held - offload->held) / SL_PAGE_SLOTS);
    for (int i = 0; i < offload->offloaded_heads.n_layers; i++) {
        for (int h = 0; h < offload->offloaded_heads.n_heads; h++) {
            sl_session_drop_pages(session, offload->offloaded_heads.layers[i], h, n_pages);
        }
    }
    offload->held = held;
}

enum sl_status sl_offload_step(struct sl_offload *offload, struct sl_session *session, struct sl_error *err) {
    offload->n_tokens = session->n_tokens;
    pthread_mutex_lock(&offload->mutex);
    enum sl_status status = offload->status;
    int64_t end = (offload->n_handed / SL_KV_SEGMENT_TOKENS + 1) * SL_KV_SEGMENT_TOKENS;
    int64_t decided = decided_at(offload, session->n_tokens);
    for (; status == SL_OK && end <= decided; end += SL_KV_SEGMENT_TOKENS) {
        status = wait_for(offload, has_room, err);
        SL_THEN(status, hand_over(offload, session, end, err));
    }
    if (status == SL_OK && sl_kv_format_is_quantized(offload->kept.format) &&
        session->n_tokens < offload->plan->n_prompt) {
        // Pages that are read back differ from the held ones. So which tokens are read back must not depend on how fast
        // the stores are.
        status = wait_for(offload, is_mapped, err);
    }
    if (status != SL_OK && offload->status != SL_OK) {
        *err = offload->err;
    }
    int64_t n_mapped = offload->n_mapped;
    pthread_mutex_unlock(&offload->mutex);
    if (status == SL_OK) {
        release(offload, session, n_mapped);
    }
    return status;
}

// ---- the end -------------------------------------------------------------------------------------------------------

void sl_remote_kv_shares_free(Sluice__V1__AnnexShare ***shares, size_t n_shares) {
    for (size_t i = 0; *shares && i < n_shares; i++) {
        sluice__v1__annex_share__free_unpacked((*shares)[i], NULL);
    }
    free(*shares);
    *shares = NULL;
}

// Copies the message through its bytes, so that fields that are added later are copied too.
static Sluice__V1__AnnexShare *describe(const struct sl_store_link *link) {
    Sluice__V1__AnnexShare share = SLUICE__V1__ANNEX_SHARE__INIT;
    share.share = (Sluice__V1__StoreShare *)link->share;
    share.annex_id = link->remote_kv->annex_id;
    share.lease_id = link->remote_kv->lease_id;
    share.fabric_address = link->remote_kv->fabric_address;
    share.fabric_epoch = link->remote_kv->fabric_epoch;
    share.window = link->remote_kv->window;
    share.lease_ms = link->remote_kv->lease_ms;
    size_t bytes = sluice__v1__annex_share__get_packed_size(&share);
    uint8_t *packed = malloc(bytes);
    if (!packed) {
        return NULL;
    }
    sluice__v1__annex_share__pack(&share, packed);
    Sluice__V1__AnnexShare *copy = sluice__v1__annex_share__unpack(NULL, bytes, packed);
    free(packed);
    return copy;
}

static enum sl_status list_shares(const struct sl_offload *offload, Sluice__V1__AnnexShare ***shares_out,
                                  size_t *n_shares_out, struct sl_error *err) {
    size_t n = (size_t)offload->n_links;
    Sluice__V1__AnnexShare **shares = calloc(n, sizeof *shares);
    bool there = shares != NULL;
    for (size_t i = 0; there && i < n; i++) {
        shares[i] = describe(&offload->links[i]);
        there = shares[i] != NULL;
    }
    SL_FAIL_OR(!there, sl_remote_kv_shares_free(&shares, n), err, SL_ERR_EXHAUSTED, "offload: out of memory");
    *shares_out = shares;
    *n_shares_out = n;
    return SL_OK;
}

void sl_offload_pass_leases(struct sl_offload *offload) {
    offload->leases_passed = true;
}

// Queues full pages and the partial one separately: see offload.h. After a step, less than two segments are left.
static enum sl_status hand_over_rest(struct sl_offload *offload, const struct sl_session *session,
                                     struct sl_error *err) {
    enum sl_status status = SL_OK;
    int64_t n_slots = slots_at(offload, session->n_tokens), full = n_slots / SL_PAGE_SLOTS * SL_PAGE_SLOTS;
    offload->n_tokens = session->n_tokens;
    if (offload->n_handed < full) {
        status = hand_over(offload, session, full, err);
    }
    return status == SL_OK && offload->n_handed < n_slots ? hand_over(offload, session, n_slots, err) : status;
}

enum sl_status sl_offload_finish(struct sl_offload *offload, struct sl_session *session, int64_t until_ns,
                                 Sluice__V1__AnnexShare ***shares_out, size_t *n_shares_out, struct sl_error *err) {
    struct sl_error why = {0};
    pthread_mutex_lock(&offload->mutex);
    if (session && !offload->no_more && hand_over_rest(offload, session, &why) != SL_OK && offload->status == SL_OK) {
        offload->status = why.status;
        offload->err = why;
    }
    offload->no_more = true;
    pthread_cond_broadcast(&offload->changed);
    enum sl_status waited = SL_OK;
    while (offload->status == SL_OK && !offload->complete && waited == SL_OK) {
        waited = sl_cond_wait_until(&offload->changed, &offload->mutex, until_ns);
    }
    enum sl_status status = offload->status;
    if (status != SL_OK) {
        *err = offload->err;
    } else if (!offload->complete) {
        status = SL_AGAIN;
    }
    pthread_mutex_unlock(&offload->mutex);
    return status == SL_OK ? list_shares(offload, shares_out, n_shares_out, err) : status;
}

void sl_offload_get_stats(const struct sl_offload *offload, struct sl_offload_stats *stats_out) {
    struct sl_offload *o = (struct sl_offload *)offload; // writes to the mutex alone
    SL_LOCKED(&o->mutex);
    *stats_out = (struct sl_offload_stats){.shipped_bytes = o->shipped_bytes,
                                           .shipped_tokens = o->shipped_tokens,
                                           .stored_tokens = sl_offload_is_stored(o) ? o->plan->n_prompt : o->n_stored,
                                           .read_back_bytes = o->read_back_bytes,
                                           .read_back_wait_ns = o->read_back_wait_ns,
                                           .restore_ns = o->restore_ns};
}
