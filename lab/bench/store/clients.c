// SPDX-License-Identifier: Apache-2.0
#include "lab/bench/store/clients.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "lab/bench/store/redis.h"
#include "net/node/send.h"
#include "proto/methods.h"

#define CALL_MS      30000
#define MODEL        11
#define CHAIN_TOKENS 131072
#define CHAIN_KEYS   (CHAIN_TOKENS / SL_PREFIX_BLOCK)

// --- capsules --------------------------------------------------------------------------------------------------------

// Writes the header of a capsule of one head whose body has about `bytes`. Returns its tokens in *n_tokens_out.
enum sl_status sl_store_bench_header(struct sl_arena *arena, int64_t bytes, const struct sl_capsule_id *id,
                                     struct sl_capsule_bytes *capsule, int64_t *n_tokens_out, struct sl_error *err) {
    struct sl_page_layout layout;
    struct sl_session *session = NULL;
    enum sl_status status = sl_page_layout_init(&layout, SL_KV_F16, 64, 0, false);
    int64_t n_tokens = bytes / (int64_t)layout.bytes * SL_PAGE_SLOTS;
    struct sl_session_config config = {
        .geometry = {1, 1, 64}, .max_slots = n_tokens, .work = &layout, .packed = &layout};
    SL_THEN(status, sl_session_create(&config, arena, &session, err));
    SL_THEN(status, sl_session_reserve(session, 0, (int)n_tokens));
    if (status == SL_OK) {
        sl_session_set_slots(session, 0, 0, (uint32_t)n_tokens);
        session->n_tokens = *n_tokens_out = n_tokens;
        capsule->body_bytes = sl_capsule_body_bytes(session);
        status = sl_capsule_write_header(session, id, &capsule->header, &capsule->header_bytes, err);
    }
    sl_session_destroy(&session);
    return status;
}

struct sl_capsule_id sl_store_bench_id(uint64_t size, uint64_t client, uint64_t number) {
    struct sl_capsule_id id = {MODEL, size, {{0}}};
    uint64_t words[2] = {client + 1, number + 1};
    memcpy(id.prefix_hash.bytes, words, sizeof words);
    return id;
}

enum sl_status sl_store_ends_take_size(struct sl_store_ends *b, int64_t size, struct sl_error *err) {
    struct sl_capsule_bytes capsule = {0};
    struct sl_capsule_id id = sl_store_bench_id((uint64_t)size, 0, 0);
    free(b->header);
    b->header = NULL;
    enum sl_status status = sl_store_bench_header(b->arena, size, &id, &capsule, &b->n_tokens, err);
    b->header = capsule.header;
    b->header_bytes = capsule.header_bytes;
    b->size = size;
    return status != SL_OK || (int64_t)capsule.body_bytes == size
               ? status
               : sl_fail(err, SL_ERR_INTERNAL, "a capsule of %" PRId64 " bytes has %zu", size, capsule.body_bytes);
}

// --- calls -----------------------------------------------------------------------------------------------------------

static enum sl_status call(const struct sl_store_bench_client *c, const struct sl_rpc_method *method,
                           const ProtobufCMessage *request, void *reply_out, struct sl_error *err) {
    return sl_rpc_unary(c->ends->store->channel, method, request, sl_deadline_in_ms(CALL_MS), NULL, reply_out, err);
}

static enum sl_status put(struct sl_store_bench_client *c, struct sl_error *err) {
    const struct sl_store_ends *b = c->ends;
    struct sl_capsule_id id = sl_store_bench_id((uint64_t)b->size, (uint64_t)c->index, (uint64_t)c->n_stored);
    Sluice__V1__StoreKey key = SLUICE__V1__STORE_KEY__INIT;
    Sluice__V1__StoreReserveRequest request = SLUICE__V1__STORE_RESERVE_REQUEST__INIT;
    Sluice__V1__Grant *grant = NULL;
    uint8_t *header = NULL;
    size_t header_bytes;
    key.model_fingerprint = id.model_fingerprint;
    key.recipe_fingerprint = id.recipe_fingerprint;
    key.n_tokens = b->n_tokens;
    key.prefix_hash = (ProtobufCBinaryData){sizeof id.prefix_hash, id.prefix_hash.bytes};
    request.key = &key;
    request.capsule_bytes = b->size;
    enum sl_status status =
        sl_capsule_rekey_header(b->header, b->header_bytes, &id.prefix_hash, &header, &header_bytes, err);
    SL_THEN(status, call(c, &sl_method_store_reserve, &request.base, &grant, err));
    if (status == SL_OK) {
        struct sl_send send = {.destination = grant,
                               .body = b->source,
                               .body_bytes = (size_t)b->size,
                               .header = header,
                               .header_bytes = header_bytes,
                               .deadline_ns = sl_deadline_in_ms(CALL_MS)};
        status = sl_send_capsule(b->store->fabric, &send, err);
        protobuf_c_message_free_unpacked(&grant->base, NULL);
        c->n_stored += status == SL_OK;
    }
    free(header);
    return status;
}

// Looks prefixes up, longest first. A store may take a moment to find what has just arrived.
static enum sl_status look_up(const struct sl_store_bench_client *c, Sluice__V1__PrefixKey **keys, size_t n_keys,
                              Sluice__V1__LookupReply **reply_out, struct sl_error *err) {
    Sluice__V1__LookupRequest request = SLUICE__V1__LOOKUP_REQUEST__INIT;
    request.model_fingerprint = MODEL;
    request.recipe_fingerprint = (uint64_t)c->ends->size;
    request.n_prefixes = n_keys;
    request.prefixes = keys;
    int64_t deadline_ns = sl_deadline_in_ms(CALL_MS);
    enum sl_status status;
    while ((status = call(c, &sl_method_store_lookup, &request.base, reply_out, err)) == SL_ERR_NOT_FOUND &&
           sl_now_ns() < deadline_ns) {
        sl_sleep_ms(1);
    }
    return status;
}

static enum sl_status release(const struct sl_store_bench_client *c, Sluice__V1__LookupReply *found,
                              struct sl_error *err) {
    Sluice__V1__ReleaseRequest request = SLUICE__V1__RELEASE_REQUEST__INIT;
    request.lease_id = found->lease_id;
    enum sl_status status = call(c, &sl_method_store_release, &request.base, NULL, err);
    protobuf_c_message_free_unpacked(&found->base, NULL);
    return status;
}

static void on_complete(void *arg, const void *header, size_t header_bytes, size_t body_bytes) {
    (void)arg, (void)header, (void)header_bytes, (void)body_bytes; // the store's reply to Fetch says it
}

static void on_failure(void *arg, enum sl_status status, const char *text) {
    (void)arg, (void)status, (void)text; // likewise
}

static void on_release(void *client) {
    sem_post(&((struct sl_store_bench_client *)client)->released);
}

// Has the store ship what was found into the client's block.
static enum sl_status fetch(struct sl_store_bench_client *c, Sluice__V1__LookupReply *found, struct sl_error *err) {
    static const struct sl_grant_events events = {on_complete, on_failure, on_release};
    const struct sl_store_ends *b = c->ends;
    struct sl_grant_plan plan = {.block = b->blocks + (size_t)c->index * b->block_bytes,
                                 .bytes = (size_t)b->size,
                                 .deadline_ns = sl_deadline_in_ms(CALL_MS),
                                 .events = &events,
                                 .arg = c};
    struct sl_grant *grant;
    Sluice__V1__Grant destination = SLUICE__V1__GRANT__INIT;
    Sluice__V1__FetchRequest request = SLUICE__V1__FETCH_REQUEST__INIT;
    enum sl_status status =
        sl_grant_open(b->store->fabric, &plan, &grant, &destination.ticket.data, &destination.ticket.len, err);
    SL_TRY(status);
    destination.capacity_bytes = b->size;
    request.lease_id = found->lease_id;
    request.destination = &destination;
    request.release = true;
    status = call(c, &sl_method_store_fetch, &request.base, NULL, err);
    free(destination.ticket.data);
    sl_grant_close(&grant);
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += CALL_MS / 1000;
    return sem_clockwait(&c->released, CLOCK_MONOTONIC, &until) == 0 || status != SL_OK
               ? status
               : sl_fail(err, SL_ERR_DEADLINE, "the fabric did not give the client's memory back in %d ms", CALL_MS);
}

static enum sl_status get(struct sl_store_bench_client *c, struct sl_error *err) {
    struct sl_capsule_id id = sl_store_bench_id((uint64_t)c->ends->size, (uint64_t)c->index, (uint64_t)c->n_stored - 1);
    Sluice__V1__PrefixKey key = SLUICE__V1__PREFIX_KEY__INIT, *keys[] = {&key};
    Sluice__V1__LookupReply *found;
    key.n_tokens = c->ends->n_tokens;
    key.hash = (ProtobufCBinaryData){sizeof id.prefix_hash, id.prefix_hash.bytes};
    const int64_t begin_ns = sl_now_ns();
    SL_TRY(look_up(c, keys, 1, &found, err));
    const int64_t found_ns = sl_now_ns();
    const enum sl_status status = fetch(c, found, err);
    protobuf_c_message_free_unpacked(&found->base, NULL);
    c->n_got++;
    c->look_up_ns += found_ns - begin_ns;
    c->fetch_ns += sl_now_ns() - found_ns;
    return status;
}

void *sl_store_client_run(void *client) {
    struct sl_store_bench_client *c = client;
    const struct sl_store_ends *b = c->ends;
    char key[32];
    snprintf(key, sizeof key, "client-%d", c->index);
    c->status = SL_OK;
    for (int64_t i = 0; i < c->n && c->status == SL_OK; i++) {
        uint8_t *block = b->blocks + (size_t)c->index * b->block_bytes;
        c->status = c->op == SL_STORE_PUT   ? put(c, &c->err)
                    : c->op == SL_STORE_GET ? get(c, &c->err)
                    : c->op == SL_REDIS_PUT ? sl_redis_set(c->fd, key, b->source, (size_t)b->size, &c->err)
                                            : sl_redis_get(c->fd, key, block, (size_t)b->size, &c->err);
    }
    return NULL;
}

// --- long prompts --------------------------------------------------------------------------------------------------------

enum sl_status sl_store_client_look_up(struct sl_store_bench_client *c, double *rate_out, struct sl_error *err) {
    enum { N = 100 };
    const struct sl_store_ends *b = c->ends;
    struct sl_capsule_id stored = sl_store_bench_id((uint64_t)b->size, 0, (uint64_t)c->n_stored - 1);
    static struct sl_hash128 hashes[CHAIN_KEYS];
    static Sluice__V1__PrefixKey keys[CHAIN_KEYS], *pointers[CHAIN_KEYS];
    for (int i = 0; i < CHAIN_KEYS; i++) {
        hashes[i] = sl_store_bench_id(0, UINT32_MAX, (uint64_t)i).prefix_hash;
        sluice__v1__prefix_key__init(&keys[i]);
        keys[i].n_tokens = (int64_t)(CHAIN_KEYS - i) * SL_PREFIX_BLOCK;
        bool is_stored = keys[i].n_tokens == b->n_tokens;
        keys[i].hash = (ProtobufCBinaryData){16, is_stored ? stored.prefix_hash.bytes : hashes[i].bytes};
        pointers[i] = &keys[i];
    }
    enum sl_status status = SL_OK;
    double ns = 0;
    for (int i = 0; i < N && status == SL_OK; i++) {
        Sluice__V1__LookupReply *found;
        int64_t begin_ns = sl_now_ns();
        status = look_up(c, pointers, CHAIN_KEYS, &found, err);
        ns += (double)(sl_now_ns() - begin_ns);
        SL_THEN(status, release(c, found, err));
    }
    *rate_out = N * 1e9 / ns;
    return status;
}
