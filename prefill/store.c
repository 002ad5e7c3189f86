// SPDX-License-Identifier: Apache-2.0
// Client of the kvstore. See store.h.
#include "prefill/store.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"

#define CALL_MS      2000
#define FETCH_MS     30000
#define MAX_CHANNELS 16
#define MAX_KEYS     4096

struct sl_store_client {
    struct sl_node *node;
    pthread_mutex_t mutex;
    struct {
        char address[128];
        struct sl_rpc_channel *channel;
    } channels[MAX_CHANNELS];
    int n_channels;
};

enum sl_status sl_store_client_create(struct sl_node *node, struct sl_store_client **client_out, struct sl_error *err) {
    struct sl_store_client *client = calloc(1, sizeof *client);
    if (!client) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "store client: out of memory");
    }
    client->node = node;
    pthread_mutex_init(&client->mutex, NULL);
    *client_out = client;
    return SL_OK;
}

void sl_store_client_destroy(struct sl_store_client **client_inout) {
    struct sl_store_client *client = *client_inout;
    if (!client) {
        return;
    }
    for (int i = 0; i < client->n_channels; i++) {
        sl_rpc_channel_destroy(&client->channels[i].channel);
    }
    pthread_mutex_destroy(&client->mutex);
    free(client);
    *client_inout = NULL;
}

enum sl_status sl_store_client_channel(struct sl_store_client *client, const char *address,
                                       struct sl_rpc_channel **channel_out, struct sl_error *err) {
    enum sl_status status = SL_OK;
    pthread_mutex_lock(&client->mutex);
    int i = 0;
    while (i < client->n_channels && strcmp(client->channels[i].address, address) != 0) {
        i++;
    }
    if (i == client->n_channels) {
        if (i == MAX_CHANNELS || strlen(address) >= sizeof client->channels[i].address) {
            status = sl_fail(err, SL_ERR_EXHAUSTED, "more than %d kvstores in the life of this worker", MAX_CHANNELS);
        } else {
            status = sl_rpc_channel_create(address, &client->channels[i].channel, err);
        }
        if (status == SL_OK) {
            snprintf(client->channels[i].address, sizeof client->channels[i].address, "%s", address);
            client->n_channels++;
        }
    }
    if (status == SL_OK) {
        *channel_out = client->channels[i].channel;
    }
    pthread_mutex_unlock(&client->mutex);
    return status;
}

static enum sl_status call(struct sl_store_client *client, const char *address, const char *path,
                           const ProtobufCMessage *request, const ProtobufCMessageDescriptor *reply_type,
                           int64_t deadline_ms, struct sl_rpc_call *parent, ProtobufCMessage **reply_out,
                           struct sl_error *err) {
    struct sl_rpc_channel *channel;
    enum sl_status status = sl_store_client_channel(client, address, &channel, err);
    return status != SL_OK ? status
                           : sl_rpc_unary(channel, path, request, reply_type, sl_deadline_in_ms(deadline_ms), parent,
                                          reply_out, err);
}

/*
 * The keys to ask for, longest prefix first: the whole, then boundaries of `step` tokens from the highest down.
 * Fills keys[MAX_KEYS] and returns how many.
 */
static size_t make_keys(const int32_t *tokens, int64_t n_tokens, int64_t step, Sluice__V1__PrefixKey *keys) {
    int64_t n_blocks = n_tokens / SL_PREFIX_BLOCK;
    uint64_t *hashes = malloc(sizeof *hashes * (size_t)(n_blocks + 1));
    if (!hashes) {
        return 0;
    }
    n_blocks = sl_prefix_keys(tokens, n_tokens, hashes, n_blocks);
    size_t n = 0;
    keys[n] = (Sluice__V1__PrefixKey)SLUICE__V1__PREFIX_KEY__INIT;
    keys[n].hash = sl_prefix_hash(tokens, n_tokens);
    keys[n++].n_tokens = n_tokens;
    for (int64_t at = (n_tokens - 1) / step * step; at > 0 && n < MAX_KEYS; at -= step) {
        keys[n] = (Sluice__V1__PrefixKey)SLUICE__V1__PREFIX_KEY__INIT;
        keys[n].hash = hashes[at / SL_PREFIX_BLOCK - 1];
        keys[n++].n_tokens = at;
    }
    free(hashes);
    return n;
}

enum sl_status sl_store_lookup(struct sl_store_client *client, const char *address, const struct sl_plan *plan,
                               const struct sl_capsule_id *id, const int32_t *tokens, struct sl_rpc_call *parent,
                               struct sl_store_match *match_out, struct sl_error *err) {
    Sluice__V1__PrefixKey *keys = malloc(sizeof *keys * MAX_KEYS);
    Sluice__V1__PrefixKey **pointers = malloc(sizeof *pointers * MAX_KEYS);
    enum sl_status status = SL_OK;
    ProtobufCMessage *message = NULL;
    if (!keys || !pointers) {
        status = sl_fail(err, SL_ERR_EXHAUSTED, "store lookup: out of memory");
    } else {
        int64_t step = sl_recipe_evicts(&plan->recipe) ? plan->recipe.chunk_tokens : SL_PREFIX_BLOCK;
        Sluice__V1__LookupRequest request = SLUICE__V1__LOOKUP_REQUEST__INIT;
        request.model_fingerprint = id->model_fingerprint;
        request.recipe_fingerprint = id->recipe_fingerprint;
        request.n_prefixes = make_keys(tokens, plan->n_prompt, step, keys);
        for (size_t i = 0; i < request.n_prefixes; i++) {
            pointers[i] = &keys[i];
        }
        request.prefixes = pointers;
        status = call(client, address, "/sluice.v1.Store/Lookup", &request.base, &sluice__v1__lookup_reply__descriptor,
                      CALL_MS, parent, &message, err);
    }
    if (status == SL_OK) {
        const Sluice__V1__LookupReply *reply = (Sluice__V1__LookupReply *)message;
        if (reply->n_tokens < 1 || reply->n_tokens > plan->n_prompt || reply->capsule_tokens < reply->n_tokens ||
            reply->capsule_bytes < 1 || strlen(reply->lease_id) >= sizeof match_out->lease_id) {
            status = sl_fail(err, SL_ERR_PEER_CORRUPT, "kvstore %s: a match that cannot be", address);
        } else {
            match_out->n_tokens = reply->n_tokens;
            match_out->capsule_tokens = reply->capsule_tokens;
            match_out->capsule_bytes = (size_t)reply->capsule_bytes;
            snprintf(match_out->lease_id, sizeof match_out->lease_id, "%s", reply->lease_id);
        }
        protobuf_c_message_free_unpacked(message, NULL);
    }
    free(pointers);
    free(keys);
    return status;
}

enum sl_status sl_store_fetch(struct sl_store_client *client, const char *address, const struct sl_store_match *match,
                              const Sluice__V1__Grant *destination, struct sl_rpc_call *parent, int64_t *bytes_out,
                              struct sl_error *err) {
    Sluice__V1__FetchRequest request = SLUICE__V1__FETCH_REQUEST__INIT;
    request.lease_id = (char *)match->lease_id;
    request.destination = (Sluice__V1__Grant *)destination;
    ProtobufCMessage *message;
    enum sl_status status = call(client, address, "/sluice.v1.Store/Fetch", &request.base,
                                 &sluice__v1__fetch_reply__descriptor, FETCH_MS, parent, &message, err);
    if (status == SL_OK) {
        *bytes_out = ((Sluice__V1__FetchReply *)message)->bytes;
        protobuf_c_message_free_unpacked(message, NULL);
    }
    return status;
}

void sl_store_release(struct sl_store_client *client, const char *address, const char *lease_id) {
    Sluice__V1__ReleaseRequest request = SLUICE__V1__RELEASE_REQUEST__INIT;
    request.lease_id = (char *)lease_id;
    // Best effort by design: a release that is lost is made up for by the lease's end.
    call(client, address, "/sluice.v1.Store/Release", &request.base, &sluice__v1__release_reply__descriptor, CALL_MS,
         NULL, NULL, NULL);
}

// Open what has landed; the body is freed here if it does not become the session's.
static enum sl_status open_landed(struct sl_node *node, const struct sl_landed *landed,
                                  const struct sl_store_match *match, const struct sl_plan *plan,
                                  const struct sl_capsule_id *id, struct sl_session **session_out,
                                  struct sl_error *err) {
    struct sl_capsule_id any_prefix = *id; // the capsule may hold more than our prefix
    any_prefix.prefix_hash = 0;
    struct sl_session *session;
    struct sl_capsule_info info;
    enum sl_status status = sl_capsule_read_header(landed->header, landed->header_bytes, &info, err);
    if (status == SL_OK) {
        status = sl_capsule_open(landed->header, landed->header_bytes, landed->body, info.body_bytes, node->arena,
                                 &plan->geometry, &any_prefix, plan->max_slots, &session, err);
    }
    if (status != SL_OK) {
        sl_arena_free(node->arena, landed->body);
        return status;
    }
    if (session->n_tokens != match->n_tokens) {
        status = sl_session_truncate(session, match->n_tokens, err);
    }
    if (status != SL_OK) {
        sl_session_destroy(&session);
        return status;
    }
    *session_out = session;
    return SL_OK;
}

enum sl_status sl_store_resume(struct sl_store_client *client, const char *address, const struct sl_store_match *match,
                               const struct sl_plan *plan, const struct sl_capsule_id *id, struct sl_rpc_call *parent,
                               struct sl_session **session_out, struct sl_error *err) {
    struct sl_node *node = client->node;
    struct sl_landing_ticket ticket;
    enum sl_status status = sl_landing_open(node->landings, "resume", match->capsule_bytes, 0, &ticket, err);
    if (status != SL_OK) {
        return status;
    }
    Sluice__V1__Grant grant = SLUICE__V1__GRANT__INIT;
    grant.ticket.data = ticket.ticket;
    grant.ticket.len = ticket.ticket_bytes;
    grant.capacity_bytes = (int64_t)match->capsule_bytes;
    grant.lease_id = ticket.id;
    grant.lease_ms = ticket.lease_ms;
    int64_t bytes;
    status = sl_store_fetch(client, address, match, &grant, parent, &bytes, err);
    free(ticket.ticket);
    struct sl_landed landed;
    size_t promised;
    if (status == SL_OK) {
        // The store has our fabric's acknowledgement, so it has landed already or failed.
        status = sl_landing_take(node->landings, ticket.id, sl_deadline_in_ms(CALL_MS), &landed, &promised, err);
        if (status == SL_AGAIN) {
            status = sl_fail(err, SL_ERR_DEADLINE, "kvstore %s: the capsule did not arrive", address);
        }
    }
    if (status != SL_OK) {
        sl_landing_release(node->landings, ticket.id);
        return status;
    }
    status = open_landed(node, &landed, match, plan, id, session_out, err);
    free(landed.header);
    return status;
}
