// SPDX-License-Identifier: Apache-2.0
/*
 * Copies of capsules on their way to the kvstore, in the background, so that neither the engine nor the client waits for a
 * store. The copies are outside the arena: jobs were admitted to all of that. (Those from a device with memory of its own
 * are in staging memory, and a finished capsule is there already.) They are bounded by number and by bytes, and a store that is
 * slow or gone costs the copy, not the job.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/queue.h"
#include "base/thread.h"
#include "node/send.h"
#include "prefill/internal.h"
#include "proto/methods.h"

#define MAX_QUEUED   32
#define MAX_SHARE    4 // a quarter of the arena's size, or of staging memory's where copies lie there
#define MAX_PREFIXES 1024
#define PUT_MS       15000
#define CALL_MS      2000

struct sl_archive {
    struct sl_prefill *prefill;
    struct sl_queue *queue;
    pthread_t thread;
    atomic_bool stopping;
    _Atomic int64_t n_bytes; // queued or being sent
};

struct entry {
    char store_address[128];
    struct sl_capsule_id id;
    int64_t n_tokens;
    uint8_t *header;
    size_t header_bytes;
    void *body;
    size_t body_bytes;
    struct sl_arena *staging;    // whose block the body is; NULL: malloc's
    struct sl_hash128 *prefixes; // of capsules that can be truncated
    size_t n_prefixes;
    int64_t prefix_tokens;
};

static void entry_free(struct sl_archive *archive, struct entry *entry) {
    atomic_fetch_sub(&archive->n_bytes, (int64_t)entry->body_bytes);
    if (entry->staging) {
        sl_arena_free(entry->staging, entry->body);
    } else {
        free(entry->body);
    }
    free(entry->header);
    free(entry->prefixes);
    free(entry);
}

// ---- copying (engine's or handler's thread) -----------------------------------------------------------------------

// Every block boundary of a capsule that can be truncated is a prefix under which it can be found; long ones get fewer.
static enum sl_status list_prefixes(struct entry *entry, const struct sl_prefill_job *job) {
    int64_t n_blocks = entry->n_tokens / SL_PREFIX_BLOCK;
    int64_t stride = (n_blocks + MAX_PREFIXES - 1) / MAX_PREFIXES;
    if (n_blocks == 0) {
        return SL_OK;
    }
    entry->prefixes = malloc(sizeof *entry->prefixes * (size_t)n_blocks);
    if (!entry->prefixes) {
        return SL_ERR_EXHAUSTED;
    }
    n_blocks = sl_prefix_keys(&job->salt, job->tokens, entry->n_tokens, entry->prefixes, n_blocks);
    for (int64_t i = stride - 1; i < n_blocks; i += stride) {
        entry->prefixes[entry->n_prefixes++] = entry->prefixes[i];
    }
    entry->prefix_tokens = stride * SL_PREFIX_BLOCK;
    return SL_OK;
}

// Memory for the body. Of a finished capsule from a device it is what was shipped.
static enum sl_status take_body(struct sl_node *node, struct entry *entry, struct sl_outbound *outbound,
                                bool boundary) {
    if (!sl_node_stages(node)) {
        entry->body = malloc(entry->body_bytes);
        return entry->body ? SL_OK : SL_ERR_EXHAUSTED;
    }
    entry->staging = node->staging;
    if (boundary) {
        return sl_ledger_take_block(node->staging_ledger, "archive", entry->body_bytes, 0, &entry->body, NULL);
    }
    entry->body = sl_outbound_take_body(outbound, &node->runtime);
    return entry->body || entry->body_bytes == 0 ? SL_OK : SL_ERR_INTERNAL;
}

// The session's pages and header into the entry.
static enum sl_status copy_session(struct sl_archive *archive, struct entry *entry, struct sl_outbound *outbound,
                                   const struct sl_session *session, bool boundary) {
    struct sl_node *node = &archive->prefill->node;
    entry->body_bytes = sl_capsule_body_bytes(session);
    int64_t n_bytes = atomic_fetch_add(&archive->n_bytes, (int64_t)entry->body_bytes) + (int64_t)entry->body_bytes;
    bool staged = sl_node_stages(node);
    if (n_bytes > (staged ? node->config.staging_bytes : node->config.arena_bytes) / MAX_SHARE) {
        return SL_AGAIN;
    }
    enum sl_status status = take_body(node, entry, outbound, boundary);
    if (status == SL_OK && (boundary || !entry->staging)) {
        status = sl_transfer_body_out(&node->runtime, session, entry->body, NULL);
    }
    return status == SL_OK ? sl_capsule_write_header(session, &entry->id, &entry->header, &entry->header_bytes, NULL)
                           : status;
}

void sl_archive_put(struct sl_archive *archive, struct sl_prefill_job *job, const struct sl_session *session,
                    bool boundary) {
    if (!job->store_address[0] || session->n_tokens == 0) {
        return;
    }
    struct entry *entry = calloc(1, sizeof *entry);
    if (!entry) {
        return;
    }
    snprintf(entry->store_address, sizeof entry->store_address, "%s", job->store_address);
    entry->id = job->capsule;
    entry->n_tokens = session->n_tokens;
    struct sl_hash128 hash = sl_prefix_hash(&job->salt, job->tokens, session->n_tokens);
    entry->id.prefix_hash = boundary ? sl_store_boundary_hash(&job->plan, &hash) : hash;
    enum sl_status status = copy_session(archive, entry, &job->outbound, session, boundary);
    if (status == SL_OK && !sl_recipe_evicts(&job->plan.recipe)) {
        status = list_prefixes(entry, job);
    }
    if (status == SL_OK) {
        status = sl_queue_try_push(archive->queue, entry);
    }
    if (status != SL_OK) {
        sl_log_debug("archive", "job=%s tokens=%lld not kept: %s", job->id, (long long)session->n_tokens,
                     sl_status_text(status));
        entry_free(archive, entry);
    }
}

// ---- shipping (own thread) ----------------------------------------------------------------------------------------

static enum sl_status reserve(struct sl_rpc_channel *channel, const struct entry *entry, Sluice__V1__Grant **grant_out,
                              struct sl_error *err) {
    Sluice__V1__StoreKey key = SLUICE__V1__STORE_KEY__INIT;
    key.model_fingerprint = entry->id.model_fingerprint;
    key.recipe_fingerprint = entry->id.recipe_fingerprint;
    struct sl_hash128 hash = entry->id.prefix_hash;
    key.prefix_hash = (ProtobufCBinaryData){sizeof hash, hash.bytes};
    key.n_tokens = entry->n_tokens;
    Sluice__V1__StoreReserveRequest request = SLUICE__V1__STORE_RESERVE_REQUEST__INIT;
    request.key = &key;
    request.capsule_bytes = (int64_t)entry->body_bytes;
    request.prefixes.data = (uint8_t *)entry->prefixes;
    request.prefixes.len = entry->n_prefixes * sizeof *entry->prefixes;
    request.prefix_tokens = entry->prefix_tokens;
    return sl_rpc_unary(channel, &sl_method_store_reserve, &request.base, sl_deadline_in_ms(CALL_MS), NULL,
                        (ProtobufCMessage **)grant_out, err);
}

// What keeps a put going: the worker is not stopping, and the store's lease is renewed in time.
struct put_watch {
    struct sl_archive *archive;
    struct sl_rpc_channel *channel;
    const Sluice__V1__Grant *grant;
    int64_t renew_ns;
};

static bool keep_putting(void *arg) {
    struct put_watch *watch = arg;
    if (sl_now_ns() >= watch->renew_ns) {
        Sluice__V1__RenewRequest request = SLUICE__V1__RENEW_REQUEST__INIT;
        request.lease_id = watch->grant->lease_id;
        // A renewal that fails is seen as the end of the ship.
        sl_rpc_unary(watch->channel, &sl_method_store_renew, &request.base, sl_deadline_in_ms(CALL_MS), NULL, NULL,
                     NULL);
        watch->renew_ns = sl_deadline_in_ms(watch->grant->lease_ms / 3);
    }
    return !atomic_load(&watch->archive->stopping);
}

static enum sl_status put_over(struct sl_archive *archive, const struct entry *entry, struct sl_rpc_channel *channel,
                               struct sl_error *err) {
    Sluice__V1__Grant *grant = NULL;
    enum sl_status status = reserve(channel, entry, &grant, err);
    if (status == SL_ERR_EXISTS) {
        return SL_OK; // somebody else has stored it
    }
    if (status != SL_OK) {
        return status;
    }
    struct put_watch watch = {archive, channel, grant, sl_deadline_in_ms(grant->lease_ms / 3)};
    struct sl_send send = {.destination = grant,
                           .body = entry->body,
                           .body_bytes = entry->body_bytes,
                           .header = entry->header,
                           .header_bytes = entry->header_bytes,
                           .deadline_ns = sl_deadline_in_ms(PUT_MS),
                           .go_on = keep_putting,
                           .arg = &watch};
    status = sl_send_capsule(archive->prefill->node.fabric, &send, err);
    if (status != SL_OK) {
        sl_store_release(archive->prefill->store, entry->store_address, grant->lease_id);
    }
    protobuf_c_message_free_unpacked(&grant->base, NULL);
    return status;
}

static enum sl_status put(struct sl_archive *archive, const struct entry *entry, struct sl_error *err) {
    struct sl_store_channels *channels = sl_store_client_channels(archive->prefill->store);
    struct sl_rpc_channel *channel;
    enum sl_status status = sl_store_channels_take(channels, entry->store_address, &channel, err);
    if (status == SL_OK) {
        status = put_over(archive, entry, channel, err);
        sl_store_channels_give(channels, channel);
    }
    return status;
}

static void *archive_main(void *arg) {
    struct sl_archive *archive = arg;
    void *item;
    while (sl_queue_pop(archive->queue, SL_NO_DEADLINE, &item) == SL_OK) {
        struct entry *entry = item;
        struct sl_error err = {0};
        enum sl_status status = atomic_load(&archive->stopping) ? SL_ERR_CANCELLED : put(archive, entry, &err);
        if (status != SL_OK) {
            sl_log_debug("archive", "tokens=%lld not stored: %s", (long long)entry->n_tokens, err.text);
        }
        entry_free(archive, entry);
    }
    return NULL;
}

enum sl_status sl_archive_create(struct sl_prefill *prefill, struct sl_archive **archive_out, struct sl_error *err) {
    struct sl_archive *archive = calloc(1, sizeof *archive);
    if (!archive) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "archive: out of memory");
    }
    archive->prefill = prefill;
    enum sl_status status = sl_queue_create(MAX_QUEUED, &archive->queue, err);
    if (status == SL_OK) {
        status = sl_thread_start("archive", archive_main, archive, &archive->thread, err);
    }
    if (status != SL_OK) {
        sl_queue_destroy(&archive->queue);
        free(archive);
        return status;
    }
    *archive_out = archive;
    return SL_OK;
}

void sl_archive_destroy(struct sl_archive **archive) {
    if (!*archive) {
        return;
    }
    atomic_store(&(*archive)->stopping, true);
    sl_queue_close((*archive)->queue);
    pthread_join((*archive)->thread, NULL); // bounded: at most the put that runs
    sl_queue_destroy(&(*archive)->queue);
    free(*archive);
    *archive = NULL;
}
