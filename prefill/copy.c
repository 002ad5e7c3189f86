// SPDX-License-Identifier: Apache-2.0
#include "prefill/copy.h"

#include <stdio.h>

#include "base/array.h"
#include "base/clock.h"
#include "net/node/send.h"
#include "proto/methods.h"

#define MAX_PREFIXES    1024
#define MAX_PIECE_BYTES ((size_t)4 << 20)
#define PUT_MS          15000 // plus the time for the bytes on a slow network:
#define CALL_MS         2000

void sl_copy_release_body(struct sl_copy *copy) {
    if (copy->staging) {
        sl_arena_free(copy->staging, copy->body);
    } else {
        free(copy->body);
    }
    copy->staging = NULL;
    copy->body = NULL;
    sl_session_destroy(&copy->session);
    free(copy->pieces);
    copy->pieces = NULL;
    copy->n_pieces = copy->max_pieces = 0;
}

void sl_copy_destroy(struct sl_copy **copy_inout) {
    SL_TAKE_OR_RETURN(copy, copy_inout);
    sl_copy_release_body(copy);
    free(copy->header);
    free(copy->prefixes);
    free(copy);
}

// ---- keys -----------------------------------------------------------------------------------------------------------

static struct sl_hash128 hash_at(const struct sl_prefill_job *job, bool boundary, int64_t n_tokens,
                                 const struct sl_hash128 *prefix) {
    return boundary ? sl_store_boundary_hash(&job->plan, n_tokens, prefix) : *prefix;
}

/*
 * Lists the prefixes under which stores find a copy that can be truncated: every block, or every chunk of a recipe that
 * evicts, whose chunks begin at multiples of their size. A long copy gets fewer.
 */
static enum sl_status list_prefixes(struct sl_copy *copy, const struct sl_prefill_job *job, bool boundary) {
    int64_t n_blocks = copy->n_tokens / SL_PREFIX_BLOCK;
    int64_t unit = boundary ? job->plan.recipe.chunk_tokens / SL_PREFIX_BLOCK : 1, n_units = n_blocks / unit;
    int64_t stride = (n_units + MAX_PREFIXES - 1) / MAX_PREFIXES * unit;
    if (n_units == 0) {
        return SL_OK;
    }
    copy->prefixes = malloc(sizeof *copy->prefixes * (size_t)n_blocks);
    if (!copy->prefixes) {
        return SL_ERR_EXHAUSTED;
    }
    n_blocks = sl_prefix_keys(&job->salt, job->tokens, copy->n_tokens, copy->prefixes, n_blocks);
    for (int64_t i = stride - 1; i < n_blocks; i += stride) {
        copy->prefixes[copy->n_prefixes++] = hash_at(job, boundary, (i + 1) * SL_PREFIX_BLOCK, &copy->prefixes[i]);
    }
    copy->prefix_tokens = stride * SL_PREFIX_BLOCK;
    return SL_OK;
}

enum kind { FINISHED, BOUNDARY, CHECKPOINT };

// Says for the store's eviction policy whose capsule this is and how long its tokens took.
static void describe_reading(struct sl_copy *copy, const struct sl_prefill_job *job) {
    static const char label[] = "tenant";
    struct sl_hash128 hash = sl_salted_hash(&job->salt, label, sizeof label);
    int64_t ended_ns = job->ended_ns > job->started_ns ? job->ended_ns : sl_now_ns();
    copy->tenant = sl_hash128_is_zero(&job->salt) ? 0 : sl_hash128_short(&hash);
    if (job->started_ns > 0 && copy->n_tokens > job->n_reused) {
        copy->read_ms = (double)(ended_ns - job->started_ns) / SL_NS_PER_MS;
        copy->read_tokens = copy->n_tokens - job->n_reused;
    }
}

// Creates a copy. The session must already be in the state that will be sent. A checkpoint is found under the same
// prefixes as a finished capsule. It is not quantized, so the key of the whole is another.
static enum sl_status create(const struct sl_prefill_job *job, const struct sl_session *session, enum kind kind,
                             struct sl_copy **copy_out) {
    bool boundary = kind == BOUNDARY;
    struct sl_copy *copy = calloc(1, sizeof *copy);
    if (!copy) {
        return SL_ERR_EXHAUSTED;
    }
    snprintf(copy->store_address, sizeof copy->store_address, "%s", job->store_address);
    copy->id = job->capsule;
    copy->n_tokens = session->n_tokens;
    copy->body_bytes = sl_capsule_body_bytes(session);
    struct sl_hash128 hash = sl_prefix_hash(&job->salt, job->tokens, session->n_tokens);
    copy->id.prefix_hash = hash_at(job, kind != FINISHED, session->n_tokens, &hash);
    copy->is_checkpoint = kind == CHECKPOINT;
    describe_reading(copy, job);
    enum sl_status status = sl_capsule_write_header(session, &copy->id, &copy->header, &copy->header_bytes, NULL);
    bool can_truncate =
        boundary ? sl_plan_can_truncate(&job->plan, session->n_tokens) : !sl_recipe_evicts(&job->plan.recipe);
    SL_THEN_IF(status, can_truncate, list_prefixes(copy, job, boundary));
    SL_TRY_OR(status, sl_copy_destroy(&copy));
    *copy_out = copy;
    return SL_OK;
}

// ---- body -----------------------------------------------------------------------------------------------------------

enum sl_status sl_copy_take_session(struct sl_copy *copy, struct sl_prefill_job *job) {
    struct sl_node *node = job->prefill->node;
    if (copy->body) {
        return SL_OK;
    }
    if (!sl_node_stages(node)) {
        copy->session = job->session;
        job->session = NULL;
        return SL_OK;
    }
    copy->body = sl_outbound_take_body(&job->outbound, &node->runtime);
    copy->staging = node->staging;
    if (copy->body) { // sl_pack_layer() does not clear pages in a device's memory
        sl_capsule_clear_body(job->session, copy->body);
    }
    return copy->body || copy->body_bytes == 0 ? SL_OK : SL_ERR_INTERNAL;
}

static enum sl_status take_block(struct sl_copy *copy, struct sl_node *node) {
    if (!sl_node_stages(node)) {
        copy->body = malloc(copy->body_bytes);
        return copy->body ? SL_OK : SL_ERR_EXHAUSTED;
    }
    enum sl_status status =
        sl_ledger_take_block(node->staging_ledger, "archive", copy->body_bytes, 0, &copy->body, NULL);
    copy->staging = status == SL_OK ? node->staging : NULL;
    return status;
}

static enum sl_status fill_block(struct sl_copy *copy, struct sl_node *node, const struct sl_session *session) {
    SL_TRY(take_block(copy, node));
    SL_TRY(sl_transfer_body_out(&node->runtime, session, copy->body, NULL));
    sl_capsule_clear_body(session, copy->body);
    return SL_OK;
}

enum sl_status sl_copy_of_finished(const struct sl_prefill_job *job, struct sl_copy **copy_out) {
    struct sl_copy *copy = NULL;
    enum sl_status status = create(job, job->session, FINISHED, &copy);
    SL_THEN_IF(status, job->here, fill_block(copy, job->prefill->node, job->session));
    SL_TRY_OR(status, sl_copy_destroy(&copy));
    *copy_out = copy;
    return SL_OK;
}

static enum sl_status add_piece(void *arg, const struct sl_capsule_piece *piece) {
    struct sl_copy *copy = arg;
    if (!sl_array_reserve(&copy->pieces, &copy->max_pieces, copy->n_pieces + 1, sizeof *copy->pieces)) {
        return SL_ERR_EXHAUSTED;
    }
    copy->pieces[copy->n_pieces++] = *piece;
    return SL_OK;
}

// Lists the pieces before reading continues, because the engine's thread then changes the session's page tables.
static enum sl_status list_pieces(struct sl_copy *copy, const struct sl_session *session) {
    enum sl_status status = SL_OK;
    size_t offset = 0;
    for (int l = 0; status == SL_OK && l < session->geometry.n_layers; l++) {
        status = sl_capsule_layer_pieces(session, l, offset, MAX_PIECE_BYTES, add_piece, copy);
        offset += sl_capsule_layer_bytes(session, l);
    }
    return status;
}

enum sl_status sl_copy_of_pages(const struct sl_prefill_job *job, struct sl_copy **copy_out) {
    struct sl_copy *copy = NULL;
    enum sl_status status = create(job, job->session, FINISHED, &copy);
    SL_THEN(status, list_pieces(copy, job->session));
    SL_TRY_OR(status, sl_copy_destroy(&copy));
    *copy_out = copy;
    return SL_OK;
}

static enum sl_status copy_state(const struct sl_prefill_job *job, const struct sl_session *session, enum kind kind,
                                 enum sl_copy_from from, struct sl_copy **copy_out) {
    struct sl_node *node = job->prefill->node;
    struct sl_copy *copy;
    SL_TRY(create(job, session, kind, &copy));
    enum sl_status status = SL_OK;
    if (from == SL_COPY_FROM_PAGES && !sl_node_stages(node)) {
        status = sl_stream_wait(node->runtime.stream, NULL); // another thread reads these pages directly
        for (int l = 0; l < session->geometry.n_layers; l++) {
            sl_session_clear_unused(session, l); // it is not final: heads that differ in length may end within a page
        }
        SL_THEN(status, list_pieces(copy, session));
    } else {
        status = fill_block(copy, node, session);
    }
    SL_TRY_OR(status, sl_copy_destroy(&copy));
    *copy_out = copy;
    return SL_OK;
}

enum sl_status sl_copy_of_boundary(const struct sl_prefill_job *job, const struct sl_session *session,
                                   enum sl_copy_from from, struct sl_copy **copy_out) {
    return copy_state(job, session, BOUNDARY, from, copy_out);
}

enum sl_status sl_copy_of_checkpoint(const struct sl_prefill_job *job, const struct sl_session *session,
                                     struct sl_copy **copy_out) {
    return copy_state(job, session, CHECKPOINT, SL_COPY_FROM_PAGES, copy_out);
}

// ---- sending -------------------------------------------------------------------------------------------------------

static enum sl_status reserve(struct sl_rpc_channel *channel, const struct sl_copy *copy, Sluice__V1__Grant **grant_out,
                              struct sl_error *err) {
    Sluice__V1__StoreKey key = SLUICE__V1__STORE_KEY__INIT;
    key.model_fingerprint = copy->id.model_fingerprint;
    key.recipe_fingerprint = copy->id.recipe_fingerprint;
    struct sl_hash128 hash = copy->id.prefix_hash;
    key.prefix_hash = (ProtobufCBinaryData){sizeof hash, hash.bytes};
    key.n_tokens = copy->n_tokens;
    Sluice__V1__StoreReserveRequest request = SLUICE__V1__STORE_RESERVE_REQUEST__INIT;
    request.key = &key;
    request.capsule_bytes = (int64_t)copy->body_bytes;
    request.prefixes.data = (uint8_t *)copy->prefixes;
    request.prefixes.len = copy->n_prefixes * sizeof *copy->prefixes;
    request.prefix_tokens = copy->prefix_tokens;
    request.checkpoint = copy->is_checkpoint;
    request.tenant = copy->tenant;
    request.read_ms = copy->read_ms;
    request.read_tokens = copy->read_tokens;
    return sl_rpc_unary(channel, &sl_method_store_reserve, &request.base, sl_deadline_in_ms(CALL_MS), NULL,
                        (ProtobufCMessage **)grant_out, err);
}

// Keeps the store's lease alive while sl_copy_send() runs.
struct renewal {
    const struct sl_copy_watch *watch;
    struct sl_rpc_channel *channel;
    const Sluice__V1__Grant *grant;
    int64_t renew_ns;
};

static bool keep_putting(void *arg) {
    struct renewal *renewal = arg;
    if (sl_now_ns() >= renewal->renew_ns) {
        Sluice__V1__RenewRequest request = SLUICE__V1__RENEW_REQUEST__INIT;
        request.lease_id = renewal->grant->lease_id;
        // If a renewal fails, the ship fails too and reports it.
        sl_rpc_unary(renewal->channel, &sl_method_store_renew, &request.base, sl_deadline_in_ms(CALL_MS), NULL, NULL,
                     NULL);
        renewal->renew_ns = sl_deadline_in_ms(renewal->grant->lease_ms / 3);
    }
    return renewal->watch->go_on(renewal->watch->arg);
}

static enum sl_status queue_piece(void *arg, const struct sl_capsule_piece *piece) {
    return sl_ship_piece(arg, piece->offset, piece->data, piece->bytes);
}

static enum sl_status queue_body(const struct sl_copy *copy, struct sl_ship *ship) {
    enum sl_status status = SL_OK;
    size_t offset = 0;
    for (int l = 0; copy->session && status == SL_OK && l < copy->session->geometry.n_layers; l++) {
        status = sl_capsule_layer_pieces(copy->session, l, offset, MAX_PIECE_BYTES, queue_piece, ship);
        offset += sl_capsule_layer_bytes(copy->session, l);
    }
    for (size_t i = 0; status == SL_OK && i < copy->n_pieces; i++) {
        status = queue_piece(ship, &copy->pieces[i]);
    }
    return status == SL_OK && copy->body ? sl_ship_piece(ship, 0, copy->body, copy->body_bytes) : status;
}

static enum sl_status ship(const struct sl_copy *copy, struct sl_fabric *fabric, struct renewal *renewal,
                           struct sl_error *err) {
    struct sl_send send = {
        .header = copy->header, .header_bytes = copy->header_bytes, .go_on = keep_putting, .arg = renewal};
    int64_t deadline_ns = sl_deadline_in_ms(PUT_MS + (int64_t)(copy->body_bytes / SL_SLOW_BYTES_PER_MS));
    struct sl_ship *ship;
    SL_TRY(sl_ship_open(fabric, renewal->grant->ticket.data, renewal->grant->ticket.len, deadline_ns, &ship, err));
    enum sl_status status = queue_body(copy, ship);
    if (status != SL_OK) {
        sl_ship_close(&ship);
        return sl_fail(err, status, "the store does not take a capsule of %zu bytes: %s", copy->body_bytes,
                       sl_status_text(status));
    }
    return sl_send_finish(&ship, &send, err);
}

static enum sl_status put_over(const struct sl_copy *copy, struct sl_prefill *prefill, struct sl_rpc_channel *channel,
                               const struct sl_copy_watch *watch, struct sl_error *err) {
    Sluice__V1__Grant *grant = NULL;
    SL_TRY(reserve(channel, copy, &grant, err));
    enum sl_status status = SL_OK;
    if (watch->on_grant(watch->arg)) {
        struct renewal renewal = {watch, channel, grant, sl_deadline_in_ms(grant->lease_ms / 3)};
        status = ship(copy, prefill->node->fabric, &renewal, err);
    } else {
        status = sl_fail(err, SL_ERR_CANCELLED, "given up while the store made room");
    }
    if (status != SL_OK) {
        sl_store_release(prefill->store, copy->store_address, grant->lease_id);
    }
    protobuf_c_message_free_unpacked(&grant->base, NULL);
    return status;
}

enum sl_status sl_copy_send(const struct sl_copy *copy, struct sl_prefill *prefill, const struct sl_copy_watch *watch,
                            struct sl_error *err) {
    struct sl_store_channels *channels = sl_store_client_channels(prefill->store);
    struct sl_rpc_channel *channel;
    SL_TRY(sl_store_channels_take(channels, copy->store_address, &channel, err));
    enum sl_status status = put_over(copy, prefill, channel, watch, err);
    sl_store_channels_give(channels, channel);
    return status;
}
