// SPDX-License-Identifier: Apache-2.0
// Replies of kvstores to workers that are fuzzed: the truth, or what the input says. See fuzz_peers.h.
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "net/fabric/fabric.h"
#include "proto/methods.h"
#include "proto/sluice/v1/worker.pb-c.h"
#include "tests/fuzz/fuzz_peers.h"
#include "tests/fuzz/fuzz_turns.h"

#define STORED_MAX ((size_t)1 << 20) // bytes of a capsule that a store keeps
#define LEASE      "0123456789abcdef0123456789abcdef"

struct sl_rpc_stream {
    enum sl_status status;
    ProtobufCMessage *reply;
    struct sl_rpc_call *parent;
    int64_t deadline_ns;
    int n_waits;
    struct sl_error err;
};

struct fuzz_stored fuzz_stored[FUZZ_N_STORED];

static ProtobufCMessage *grant_of(char kind, uint16_t number, int64_t capacity) {
    Sluice__V1__Grant grant = SLUICE__V1__GRANT__INIT;
    grant.ticket.data = fuzz_new_ticket(kind, number);
    grant.ticket.len = FUZZ_TICKET_BYTES;
    grant.capacity_bytes = capacity;
    grant.lease_id = (char *)LEASE;
    grant.lease_ms = 1000;
    ProtobufCMessage *message = fuzz_as_received(&grant.base);
    free(grant.ticket.data);
    return message;
}

// ---- capsules --------------------------------------------------------------------------------------------------------

static void add_hash(struct fuzz_stored *capsule, const uint8_t *hash, size_t bytes, int64_t n_tokens) {
    if (capsule->n_hashes < FUZZ_N_HASHES && bytes == sizeof *capsule->hashes) {
        memcpy(&capsule->hashes[capsule->n_hashes], hash, bytes);
        capsule->n_tokens[capsule->n_hashes++] = n_tokens;
    }
}

static enum sl_status reserve(const Sluice__V1__StoreReserveRequest *request, ProtobufCMessage **reply_out,
                              struct sl_error *err) {
    static unsigned next;
    struct fuzz_stored *capsule = &fuzz_stored[next % FUZZ_N_STORED];
    fuzz_require(request->capsule_bytes > 0 && request->key && request->key->n_tokens > 0);
    if ((size_t)request->capsule_bytes > STORED_MAX) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no room; retry in 500 ms");
    }
    free(capsule->header);
    free(capsule->body);
    *capsule = (struct fuzz_stored){.room_bytes = (size_t)request->capsule_bytes};
    capsule->body = calloc(1, capsule->room_bytes);
    fuzz_require(capsule->body != NULL);
    add_hash(capsule, request->key->prefix_hash.data, request->key->prefix_hash.len, request->key->n_tokens);
    for (size_t i = 0; i < request->prefixes.len / sizeof *capsule->hashes; i++) {
        add_hash(capsule, request->prefixes.data + i * sizeof *capsule->hashes, sizeof *capsule->hashes,
                 (int64_t)(i + 1) * request->prefix_tokens);
    }
    *reply_out = grant_of('s', (uint16_t)(next++ % FUZZ_N_STORED), request->capsule_bytes);
    return SL_OK;
}

// The longest prefix of the request that is there, or -1.
static int find_stored(const Sluice__V1__LookupRequest *request, Sluice__V1__LookupReply *reply) {
    for (size_t p = 0; p < request->n_prefixes; p++) {
        const ProtobufCBinaryData *wanted = &request->prefixes[p]->hash;
        for (int i = 0; i < FUZZ_N_STORED; i++) {
            for (size_t h = 0; fuzz_stored[i].whole && h < fuzz_stored[i].n_hashes; h++) {
                if (wanted->len == sizeof *fuzz_stored[i].hashes &&
                    memcmp(wanted->data, &fuzz_stored[i].hashes[h], wanted->len) == 0) {
                    reply->n_tokens = request->prefixes[p]->n_tokens;
                    reply->capsule_tokens = fuzz_stored[i].n_tokens[0];
                    reply->capsule_bytes = (int64_t)fuzz_stored[i].body_bytes;
                    reply->capsule_hash =
                        (ProtobufCBinaryData){sizeof *fuzz_stored[i].hashes, fuzz_stored[i].hashes[0].bytes};
                    return i;
                }
            }
        }
    }
    return -1;
}

static enum sl_status lookup(const Sluice__V1__LookupRequest *request, ProtobufCMessage **reply_out,
                             struct sl_error *err) {
    Sluice__V1__LookupReply reply = SLUICE__V1__LOOKUP_REPLY__INIT;
    char lease[] = LEASE;
    uint8_t lies = fuzz_peer_draw();
    int at = find_stored(request, &reply);
    if (at < 0 && lies < 224) {
        return sl_fail(err, SL_ERR_NOT_FOUND, "it is not there");
    }
    lease[0] = (char)('0' + (at < 0 ? fuzz_peer_draw() % FUZZ_N_STORED : at));
    reply.n_tokens = lies & 32 && lies >= 128 ? fuzz_peer_number() : reply.n_tokens;
    reply.capsule_tokens = lies & 16 && lies >= 128 ? fuzz_peer_number() : reply.capsule_tokens;
    reply.capsule_bytes = lies & 8 && lies >= 128 ? fuzz_peer_number() : reply.capsule_bytes;
    reply.capsule_hash.len -= lies & 4 && lies >= 128 && reply.capsule_hash.len > 0;
    reply.lease_id = lies == 255 ? fuzz_draw_text() : lease;
    *reply_out = fuzz_as_received(&reply.base);
    return SL_OK;
}

// Ships what it has, or something else, to where it is told to.
static enum sl_status fetch(const Sluice__V1__FetchRequest *request, ProtobufCMessage **reply_out,
                            struct sl_error *err) {
    const Sluice__V1__Grant *to = request->destination;
    const struct fuzz_stored *capsule = &fuzz_stored[(uint8_t)request->lease_id[0] % FUZZ_N_STORED];
    uint8_t how = fuzz_peer_draw();
    struct sl_ship *ship;
    if (how >= 240 || !capsule->whole) {
        return sl_fail(err, how & 1 ? SL_ERR_NOT_FOUND : SL_ERR_PEER_LOST, "it is not there any more");
    }
    enum sl_status status = sl_ship_open(NULL, to->ticket.data, to->ticket.len, SL_NO_DEADLINE, &ship, err);
    if (status != SL_OK) {
        return status;
    }
    size_t bytes = capsule->body_bytes / (how == 239 ? 2 : 1), header_bytes = capsule->header_bytes;
    // It may be replaced while it is on its way.
    uint8_t *copy = malloc(capsule->body_bytes + header_bytes + 1), *header = copy + capsule->body_bytes;
    fuzz_require(copy != NULL);
    memcpy(copy, capsule->body, capsule->body_bytes);
    memcpy(header, capsule->header, header_bytes);
    status = bytes > 0 ? sl_ship_piece(ship, 0, copy, bytes) : SL_OK;
    status = status == SL_OK ? sl_ship_finish(ship, header, header_bytes, err)
                             : sl_fail(err, status, "the destination does not take it");
    sl_ship_close(&ship);
    free(copy);
    Sluice__V1__FetchReply reply = SLUICE__V1__FETCH_REPLY__INIT;
    reply.bytes = how == 238 ? fuzz_peer_number() : (int64_t)bytes;
    *reply_out = status == SL_OK ? fuzz_as_received(&reply.base) : NULL;
    return status;
}

// ---- remote KVs ------------------------------------------------------------------------------------------------------

static ProtobufCMessage *open_annex(const Sluice__V1__OpenAnnexRequest *request) {
    Sluice__V1__Annex remote_kv = SLUICE__V1__ANNEX__INIT;
    uint8_t how = fuzz_peer_draw();
    fuzz_require(request->n_tokens > 0 && request->share && request->share->n_lanes > 0);
    remote_kv.annex_id = how;
    remote_kv.lease_id = (char *)LEASE;
    remote_kv.lease_ms = how == 255 ? fuzz_peer_number() : 1000;
    remote_kv.n_tokens = how < 128 ? 0 : how < 192 ? request->n_tokens : how < 224 ? 64 : fuzz_peer_number();
    remote_kv.fabric_address = how == 254 ? fuzz_draw_text() : (char *)FUZZ_FABRIC;
    remote_kv.fabric_epoch = 1;
    remote_kv.window.data = fuzz_new_ticket('w', 0);
    remote_kv.window.len = how == 253 ? 0 : FUZZ_TICKET_BYTES;
    ProtobufCMessage *reply = fuzz_as_received(&remote_kv.base);
    free(remote_kv.window.data);
    return reply;
}

static ProtobufCMessage *await_annex(const Sluice__V1__AwaitAnnexRequest *request) {
    Sluice__V1__AwaitAnnexReply reply = SLUICE__V1__AWAIT_ANNEX_REPLY__INIT;
    uint8_t how = fuzz_peer_draw();
    reply.n_tokens = how < 192 ? request->n_tokens : how < 224 ? request->n_tokens / 2 : fuzz_peer_number();
    return fuzz_as_received(&reply.base);
}

static ProtobufCMessage *renew(void) {
    Sluice__V1__RenewReply reply = SLUICE__V1__RENEW_REPLY__INIT;
    uint8_t how = fuzz_peer_draw();
    reply.lease_ms = how >= 240 ? fuzz_peer_number() : 1000;
    return fuzz_as_received(&reply.base);
}

static ProtobufCMessage *release(void) {
    Sluice__V1__ReleaseReply reply = SLUICE__V1__RELEASE_REPLY__INIT;
    return fuzz_as_received(&reply.base);
}

// ---- calls -----------------------------------------------------------------------------------------------------------

static enum sl_status answer(const struct sl_rpc_method *method, const ProtobufCMessage *request,
                             ProtobufCMessage **reply_out, struct sl_error *err) {
    static const enum sl_status bad[] = {SL_ERR_PEER_LOST, SL_ERR_NOT_FOUND, SL_ERR_EXISTS, SL_ERR_EXHAUSTED};
    uint8_t how = fuzz_peer_draw();
    if (how >= 248) {
        return sl_fail(err, bad[how % 4], "the store says no");
    }
    enum sl_status status = SL_OK;
    if (method == &sl_method_store_reserve) {
        status = reserve((const Sluice__V1__StoreReserveRequest *)request, reply_out, err);
    } else if (method == &sl_method_store_lookup) {
        status = lookup((const Sluice__V1__LookupRequest *)request, reply_out, err);
    } else if (method == &sl_method_store_fetch) {
        status = fetch((const Sluice__V1__FetchRequest *)request, reply_out, err);
    } else if (method == &sl_method_store_open_annex) {
        *reply_out = open_annex((const Sluice__V1__OpenAnnexRequest *)request);
    } else if (method == &sl_method_store_grant_stretch) {
        *reply_out = grant_of(how == 247 ? 'g' : 'w', how, INT32_MAX);
    } else if (method == &sl_method_store_await_annex) {
        *reply_out = await_annex((const Sluice__V1__AwaitAnnexRequest *)request);
    } else {
        *reply_out = method == &sl_method_store_renew ? renew() : release();
    }
    return status;
}

enum sl_status sl_rpc_channel_create(const char *address, const struct sl_rpc_credentials *credentials, unsigned roles,
                                     struct sl_rpc_channel **channel_out, struct sl_error *err) {
    (void)credentials, (void)err;
    fuzz_require(roles != 0);
    *channel_out = (struct sl_rpc_channel *)strdup(address);
    fuzz_n_open++;
    return SL_OK;
}

void sl_rpc_channel_destroy(struct sl_rpc_channel **channel) {
    fuzz_n_open -= *channel != NULL;
    free(*channel);
    *channel = NULL;
}

enum sl_status sl_rpc_stream_open(struct sl_rpc_channel *channel, const struct sl_rpc_method *method,
                                  const ProtobufCMessage *request, int64_t deadline_ns, struct sl_rpc_call *parent,
                                  struct sl_rpc_stream **stream_out, struct sl_error *err) {
    (void)channel, (void)err;
    struct sl_rpc_stream *stream = calloc(1, sizeof *stream);
    fuzz_require(stream != NULL);
    uint8_t how = fuzz_peer_draw();
    stream->parent = parent;
    stream->deadline_ns = deadline_ns;
    stream->n_waits = how >= 192 ? how - 192 : 0;
    stream->status = answer(method, request, &stream->reply, &stream->err);
    fuzz_n_open++;
    *stream_out = stream;
    return SL_OK;
}

enum sl_status sl_rpc_stream_next(struct sl_rpc_stream *stream, int64_t wait_ms, ProtobufCMessage **message_out,
                                  struct sl_error *err) {
    if (stream->parent && sl_rpc_call_cancelled(stream->parent)) {
        return sl_fail(err, SL_ERR_CANCELLED, "the call was cancelled");
    }
    if (fuzz_now_ns() >= stream->deadline_ns) {
        return sl_fail(err, SL_ERR_DEADLINE, "no answer came in time");
    }
    if (stream->n_waits > 0) {
        stream->n_waits--;
        fuzz_wait_ms(wait_ms);
        return SL_AGAIN;
    }
    fuzz_pass();
    if (stream->status == SL_OK && stream->reply) {
        *message_out = stream->reply;
        stream->reply = NULL;
        return SL_OK;
    }
    return stream->status == SL_OK ? SL_ERR_NOT_FOUND : sl_fail(err, stream->status, "%s", stream->err.text);
}

void sl_rpc_stream_close(struct sl_rpc_stream **stream) {
    if (*stream) {
        if ((*stream)->reply) {
            protobuf_c_message_free_unpacked((*stream)->reply, NULL);
        }
        free(*stream);
        *stream = NULL;
        fuzz_n_open--;
    }
}

enum sl_status sl_rpc_unary(struct sl_rpc_channel *channel, const struct sl_rpc_method *method,
                            const ProtobufCMessage *request, int64_t deadline_ns, struct sl_rpc_call *parent,
                            ProtobufCMessage **reply_out, struct sl_error *err) {
    struct sl_rpc_stream *stream;
    ProtobufCMessage *reply = NULL;
    enum sl_status status = sl_rpc_stream_open(channel, method, request, deadline_ns, parent, &stream, err);
    while (status == SL_OK && (status = sl_rpc_stream_next(stream, 20, &reply, err)) == SL_AGAIN) {
        status = SL_OK;
    }
    sl_rpc_stream_close(&stream);
    if (reply && reply_out) {
        *reply_out = reply;
    } else if (reply) {
        protobuf_c_message_free_unpacked(reply, NULL);
    }
    return status;
}
