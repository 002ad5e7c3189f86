// SPDX-License-Identifier: Apache-2.0
#include "net/store/store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/lease_id.h"
#include "base/log.h"
#include "engine/job/job_recipe.h"
#include "engine/runner/reader.h"
#include "net/node/adopt.h"
#include "net/node/send.h"
#include "proto/methods.h"

#define CALL_MS       2000
#define FETCH_MS      4000 // plus the time for the bytes
#define STILL_MS      1000 // a store that has not answered a fetch in this time does not answer
#define LOOKUP_MS     250  // a job waits this long for a look-up, plus a part of what reading the prompt may take:
#define TOKENS_PER_MS 8
#define RELEASE_MS    500
#define TAKE_MS       500
#define ALIVE_MS      250
#define MAX_KEYS      4096

struct sl_store_client {
    struct sl_node *node;
    struct sl_store_channels *channels;
};

enum sl_status sl_store_client_create(struct sl_node *node, struct sl_store_client **client_out, struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_store_client, client, err, "store client: out of memory");
    SL_TRY_OR(sl_store_channels_create(node->credentials, &client->channels, err), free(client));
    client->node = node;
    *client_out = client;
    return SL_OK;
}

void sl_store_client_destroy(struct sl_store_client **client_inout) {
    SL_TAKE_OR_RETURN(client, client_inout);
    sl_store_channels_destroy(&client->channels);
    free(client);
}

struct sl_store_channels *sl_store_client_channels(struct sl_store_client *client) {
    return client->channels;
}

struct sl_hash128 sl_store_boundary_hash(const struct sl_plan *plan, int64_t n_tokens,
                                         const struct sl_hash128 *prefix_hash) {
    int64_t budgets[SL_MAX_LAYERS];
    for (int l = 0; l < plan->geometry.n_layers; l++) {
        // -1: this layer has not evicted anything
        budgets[l] = sl_plan_evicts_within(plan, l, n_tokens) ? plan->layer_budget[l] : -1;
    }
    return sl_salted_hash(prefix_hash, budgets, sizeof *budgets * (size_t)plan->geometry.n_layers);
}

static enum sl_status open_call(const struct sl_store_job *job, const struct sl_rpc_method *method,
                                const ProtobufCMessage *request, int64_t limit_ms, struct sl_rpc_call *parent,
                                struct sl_rpc_stream **call_out, struct sl_error *err) {
    struct sl_rpc_channel *channel;
    SL_TRY(sl_store_channels_take(job->client->channels, job->address, &channel, err));
    enum sl_status status =
        sl_rpc_stream_open(channel, method, request, sl_deadline_in_ms(limit_ms), parent, call_out, err);
    sl_store_channels_give(job->client->channels, channel); // the channel outlives the call
    return status;
}

/*
 * Waits for the reply of a unary call in steps, so that the job's own caller hears from this worker meanwhile. SL_AGAIN:
 * no reply by until_ns. inbound_id, if not NULL, is a transfer into this worker that must live as long as the
 * call.
 */
static enum sl_status await_reply(const struct sl_store_job *job, const char *path, struct sl_rpc_stream *call,
                                  int64_t until_ns, const char *inbound_id, ProtobufCMessage **reply_out,
                                  struct sl_error *err) {
    enum sl_status status;
    int64_t lease_ms, left_ms;
    do {
        left_ms = sl_deadline_left_ms(until_ns);
        status = sl_rpc_stream_next(call, left_ms < ALIVE_MS ? left_ms : ALIVE_MS, reply_out, err);
        SL_FAIL_IF(status == SL_AGAIN && !job->alive(job->arg), err, SL_ERR_CANCELLED,
                   "given up while waiting for kvstore %s", job->address);
        if (status == SL_AGAIN && inbound_id) {
            sl_inbound_renew(job->client->node->inbound, inbound_id, &lease_ms,
                             NULL); // if the job's call has ended, this call will end too
        }
    } while (status == SL_AGAIN && left_ms > 0);
    return status == SL_ERR_NOT_FOUND && err->status == SL_OK
               ? sl_fail(err, SL_ERR_PEER_LOST, "kvstore %s ended %s without a reply", job->address, path)
               : status;
}

static void put_key(Sluice__V1__PrefixKey *key, struct sl_hash128 *hash, int64_t n_tokens) {
    *key = (Sluice__V1__PrefixKey)SLUICE__V1__PREFIX_KEY__INIT;
    key->hash = (ProtobufCBinaryData){sizeof *hash, hash->bytes};
    key->n_tokens = n_tokens;
}

// Returns whether a prompt under this recipe can continue from the end of a capsule that is not a multiple of a block: from
// offloaded layers it continues at whole pages, and from evicted ones between chunks.
static bool continues_anywhere(const struct sl_recipe *recipe) {
    return !sl_recipe_evicts(recipe) && !sl_recipe_offloads(recipe);
}

/*
 * Lists the keys to ask for, longest prefix first: the whole prompt, then boundaries from the highest down, and among them
 * the capsule of whole_tokens. At most MAX_KEYS. They point to hashes_out.
 */
static size_t make_keys(const struct sl_store_job *job, Sluice__V1__PrefixKey *keys, struct sl_hash128 *hashes_out) {
    int64_t n_tokens = job->plan->n_prompt;
    bool evicts = sl_recipe_evicts(&job->plan->recipe);
    int64_t step = evicts ? job->plan->recipe.chunk_tokens : SL_PREFIX_BLOCK;
    int64_t n_blocks = n_tokens / SL_PREFIX_BLOCK;
    struct sl_hash128 *hashes = malloc(sizeof *hashes * (size_t)(n_blocks + 1));
    if (!hashes) {
        return 0;
    }
    sl_prefix_keys(job->salt, job->tokens, n_tokens, hashes, n_blocks);
    size_t n = 0;
    hashes_out[n] = sl_prefix_hash_after(job->salt, hashes, job->tokens, n_tokens);
    put_key(&keys[n], &hashes_out[n], n_tokens);
    n++;
    int64_t last = evicts ? sl_reader_shared_tokens(job->plan) : n_tokens - 1;
    int64_t whole = continues_anywhere(&job->plan->recipe) && job->whole_tokens <= last ? job->whole_tokens : 0;
    int64_t at = last / step * step;
    while ((at > 0 || whole > 0) && n < MAX_KEYS) {
        int64_t longest = whole > at ? whole : at;
        if (whole > at) {
            hashes_out[n] = sl_prefix_hash_after(job->salt, hashes, job->tokens, whole);
        } else {
            const struct sl_hash128 *hash = &hashes[at / SL_PREFIX_BLOCK - 1];
            hashes_out[n] = evicts ? sl_store_boundary_hash(job->plan, at, hash) : *hash;
            at -= step;
        }
        whole = whole < longest ? whole : 0;
        put_key(&keys[n], &hashes_out[n], longest);
        n++;
    }
    free(hashes);
    return n;
}

static enum sl_status read_match(const struct sl_store_job *job, const Sluice__V1__LookupReply *reply,
                                 struct sl_store_match *match_out, struct sl_error *err) {
    if (reply->n_tokens < 1 || reply->n_tokens > job->plan->n_prompt || reply->capsule_tokens < reply->n_tokens ||
        reply->capsule_bytes < 1 || strlen(reply->lease_id) >= sizeof match_out->lease_id) {
        return sl_fail(err, SL_ERR_PEER_CORRUPT, "kvstore %s: it describes an impossible match", job->address);
    }
    match_out->n_tokens = reply->n_tokens;
    match_out->capsule_tokens = reply->capsule_tokens;
    match_out->capsule_bytes = (size_t)reply->capsule_bytes;
    match_out->is_checkpoint = reply->checkpoint;
    match_out->capsule_hash = (struct sl_hash128){{0}}; // an older store does not send it
    if (reply->capsule_hash.len > 0 &&
        !sl_hash128_read(reply->capsule_hash.data, reply->capsule_hash.len, &match_out->capsule_hash)) {
        return sl_fail(err, SL_ERR_PEER_CORRUPT, "kvstore %s: a capsule_hash of %zu bytes", job->address,
                       reply->capsule_hash.len);
    }
    snprintf(match_out->lease_id, sizeof match_out->lease_id, "%s", reply->lease_id);
    return SL_OK;
}

// Takes all tokens of the matched capsule, instead of whole blocks, if they are the prompt's.
static void match_whole(const struct sl_store_job *job, struct sl_store_match *match) {
    int64_t n_tokens = match->capsule_tokens;
    if (n_tokens > match->n_tokens && n_tokens <= job->plan->n_prompt && continues_anywhere(&job->plan->recipe)) {
        struct sl_hash128 hash = sl_prefix_hash(job->salt, job->tokens, n_tokens);
        match->n_tokens = sl_hash128_equals(&hash, &match->capsule_hash) ? n_tokens : match->n_tokens;
    }
}

/*
 * Asks the store. The call is not the job's: a store that does not answer the job in time is avoided until it answers,
 * and what ends the job does not look like a failure of the store.
 */
static enum sl_status ask(const struct sl_store_job *job, const Sluice__V1__LookupRequest *request, bool waits,
                          ProtobufCMessage **reply_out, struct sl_error *err) {
    struct sl_store_channels *channels = job->client->channels;
    const int64_t wait_ms = waits ? LOOKUP_MS + job->plan->n_prompt / TOKENS_PER_MS : 0;
    struct sl_rpc_stream *call;
    SL_TRY(open_call(job, &sl_method_store_lookup, &request->base, CALL_MS, NULL, &call, err));
    enum sl_status status = SL_AGAIN;
    if (waits) {
        status = await_reply(job, sl_method_store_lookup.path, call, sl_deadline_in_ms(wait_ms), NULL, reply_out, err);
    }
    if (status == SL_AGAIN) {
        sl_store_channels_leave(channels, job->address, &call);
        return sl_fail(err, SL_ERR_DEADLINE, "it has %s within %lld ms",
                       waits ? "not answered" : "failed, and is not waited for", (long long)wait_ms);
    }
    sl_rpc_stream_close(&call);
    bool failed = status == SL_ERR_EXHAUSTED || status == SL_ERR_DEADLINE; // each further job would wait for it, too
    if (failed || status == SL_OK || status == SL_ERR_NOT_FOUND) {
        sl_store_channels_note(channels, job->address, failed);
    }
    return failed ? (err->status = SL_ERR_PEER_STALE)
                  : status; // it is the store that has failed, not this worker's memory
}

enum sl_status sl_store_lookup(const struct sl_store_job *job, struct sl_store_match *match_out, struct sl_error *err) {
    enum sl_store_standing standing = sl_store_channels_standing(job->client->channels, job->address);
    SL_FAIL_IF(standing == SL_STORE_AVOIDED, err, SL_ERR_PEER_STALE, "it has failed lately and is not asked");
    Sluice__V1__PrefixKey *keys = malloc(sizeof *keys * MAX_KEYS);
    Sluice__V1__PrefixKey **pointers = malloc(sizeof *pointers * MAX_KEYS);
    struct sl_hash128 *hashes = malloc(sizeof *hashes * MAX_KEYS);
    size_t n_keys = keys && pointers && hashes ? make_keys(job, keys, hashes) : 0;
    enum sl_status status = n_keys > 0 ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "store lookup: out of memory");
    ProtobufCMessage *reply = NULL;
    if (status == SL_OK) {
        for (size_t i = 0; i < n_keys; i++) {
            pointers[i] = &keys[i];
        }
        Sluice__V1__LookupRequest request = SLUICE__V1__LOOKUP_REQUEST__INIT;
        request.model_fingerprint = job->id->model_fingerprint;
        request.recipe_fingerprint = job->id->recipe_fingerprint;
        request.n_prefixes = n_keys;
        request.prefixes = pointers;
        status = ask(job, &request, standing == SL_STORE_GOOD, &reply, err);
    }
    if (status == SL_OK) {
        status = read_match(job, (Sluice__V1__LookupReply *)reply, match_out, err);
        protobuf_c_message_free_unpacked(reply, NULL);
    }
    if (status == SL_OK) {
        match_whole(job, match_out);
    }
    free(hashes);
    free(pointers);
    free(keys);
    return status;
}

bool sl_store_match_pays(const struct sl_store_job *job, const struct sl_store_match *match) {
    if (sl_store_match_is_whole(job, match)) {
        return true;
    }
    // A fetch must save at least a chunk, and use at least a quarter of the fetched bytes.
    return match->n_tokens >= job->plan->recipe.chunk_tokens && match->n_tokens >= match->capsule_tokens / 4;
}

static enum sl_status fetch(const struct sl_store_job *job, struct sl_store_match *match,
                            const Sluice__V1__Grant *destination, const char *inbound_id, int64_t *bytes_out,
                            struct sl_error *err) {
    Sluice__V1__FetchRequest request = SLUICE__V1__FETCH_REQUEST__INIT;
    request.lease_id = match->lease_id;
    request.destination = (Sluice__V1__Grant *)destination;
    request.release = true;
    ProtobufCMessage *reply;
    int64_t limit_ms = FETCH_MS + (int64_t)(match->capsule_bytes / SL_SLOW_BYTES_PER_MS);
    const int64_t still_ns = sl_deadline_in_ms(STILL_MS);
    struct sl_rpc_stream *call;
    SL_TRY(open_call(job, &sl_method_store_fetch, &request.base, limit_ms, job->parent, &call, err));
    enum sl_status status = await_reply(job, sl_method_store_fetch.path, call, SL_NO_DEADLINE, inbound_id, &reply, err);
    sl_rpc_stream_close(&call);
    if (status == SL_OK) {
        const Sluice__V1__FetchReply *shipped = (const Sluice__V1__FetchReply *)reply;
        *bytes_out = shipped->bytes;
        if (shipped->released) { // an older store does not
            match->lease_id[0] = '\0';
        }
        protobuf_c_message_free_unpacked(reply, NULL);
    } else if (status != SL_ERR_NOT_FOUND && status != SL_ERR_CANCELLED &&
               (status != SL_ERR_DEADLINE || sl_now_ns() >= still_ns)) { // not the job's own deadline
        sl_store_channels_note(job->client->channels, job->address, true);
    }
    return status;
}

enum sl_status sl_store_fetch(const struct sl_store_job *job, struct sl_store_match *match,
                              const Sluice__V1__Grant *destination, int64_t *bytes_out, struct sl_error *err) {
    return fetch(job, match, destination, NULL, bytes_out, err);
}

void sl_store_release(struct sl_store_client *client, const char *address, const char *lease_id) {
    if (lease_id[0] == '\0') {
        return;
    }
    Sluice__V1__ReleaseRequest request = SLUICE__V1__RELEASE_REQUEST__INIT;
    request.lease_id = (char *)lease_id;
    struct sl_rpc_channel *channel;
    struct sl_error err = {0};
    enum sl_status status = sl_store_channels_take(client->channels, address, &channel, &err);
    if (status == SL_OK) {
        status = sl_rpc_unary(channel, &sl_method_store_release, &request.base, sl_deadline_in_ms(RELEASE_MS), NULL,
                              NULL, &err);
        sl_store_channels_give(client->channels, channel);
    }
    if (status != SL_OK) {
        sl_log_debug("store", "lease=%s ends by itself: kvstore %s: %s", sl_lease_name(lease_id).text, address,
                     err.text);
    }
}

// Opens the capsule that has arrived, if it is the matched one.
static enum sl_status open_match(const struct sl_store_job *job, const struct sl_store_match *match,
                                 struct sl_capsule_bytes *capsule, size_t *promised_inout,
                                 struct sl_session **session_out, struct sl_error *err) {
    struct sl_capsule_id id = *job->id;
    id.prefix_hash = sl_prefix_hash(job->salt, job->tokens, match->n_tokens);
    if (match->capsule_tokens > match->n_tokens) {
        // The capsule's other tokens are unknown; the store vouches for its prefixes
        id.prefix_hash = match->capsule_hash;
    } else if (sl_recipe_evicts(&job->plan->recipe) && !sl_store_match_is_whole(job, match)) {
        id.prefix_hash = sl_store_boundary_hash(job->plan, match->n_tokens, &id.prefix_hash);
    }
    int64_t max_slots = job->max_slots > 0 ? job->max_slots : job->plan->max_slots;
    struct sl_expected_capsule expected = {&job->plan->geometry, &id, max_slots};
    struct sl_session *session;
    SL_TRY(sl_node_adopt(job->client->node, capsule, promised_inout, &expected, &session, err));
    enum sl_status status = sl_job_check_session(job->plan, session, err);
    SL_THEN_FAIL_IF(status, session->n_tokens != match->capsule_tokens, err, SL_ERR_PEER_CORRUPT,
                    "a capsule of %lld tokens came instead of one of %lld", (long long)session->n_tokens,
                    (long long)match->capsule_tokens);
    SL_TRY_OR(status, sl_session_destroy(&session));
    *session_out = session;
    return SL_OK;
}

enum sl_status sl_store_receive(const struct sl_store_job *job, struct sl_store_match *match,
                                struct sl_session **session_out, struct sl_error *err) {
    struct sl_inbound *inbound = job->client->node->inbound;
    struct sl_inbound_ticket ticket;
    SL_TRY(sl_inbound_open(inbound, "resume", match->capsule_bytes, 0, &ticket, err));
    Sluice__V1__Grant grant = SLUICE__V1__GRANT__INIT;
    grant.ticket.data = ticket.ticket;
    grant.ticket.len = ticket.ticket_bytes;
    grant.capacity_bytes = (int64_t)match->capsule_bytes;
    grant.lease_id = ticket.id;
    grant.lease_ms = ticket.lease_ms;
    int64_t bytes;
    enum sl_status status = fetch(job, match, &grant, ticket.id, &bytes, err);
    free(ticket.ticket);
    struct sl_capsule_bytes capsule;
    size_t promised;
    if (status == SL_OK) {
        // The store has our fabric's acknowledgement, so the capsule has arrived already, or has failed.
        status = sl_inbound_take(inbound, ticket.id, sl_deadline_in_ms(TAKE_MS), &capsule, &promised, err);
        if (status == SL_AGAIN) {
            status = sl_fail(err, SL_ERR_DEADLINE, "kvstore %s: the capsule did not arrive", job->address);
        }
    }
    SL_TRY_OR(status, sl_inbound_release(inbound, ticket.id));
    status = open_match(job, match, &capsule, &promised, session_out, err);
    sl_ledger_return(job->client->node->ledger, promised); // the session took what it needs
    return status;
}

enum sl_status sl_store_resume(const struct sl_store_job *job, struct sl_store_match *match,
                               struct sl_session **session_out, struct sl_error *err) {
    struct sl_session *session;
    SL_TRY(sl_store_receive(job, match, &session, err));
    SL_TRY_OR(match->capsule_tokens > match->n_tokens ? sl_session_truncate(session, match->n_tokens, err) : SL_OK,
              sl_session_destroy(&session));
    *session_out = session;
    return SL_OK;
}
