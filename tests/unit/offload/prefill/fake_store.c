// SPDX-License-Identifier: Apache-2.0
// Purpose: see fake_store.h.
#include "fake_store.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/thread.h"
#include "proto/methods.h"

#define GRANT_MS 20000
#define AWAIT_MS 1000

// ---- remote KVs ----------------------------------------------------------------------------------------------------

struct fake_remote_kv *fake_store_remote_kv(struct fake_store *store, int32_t first_offloaded_head) {
    for (int i = 0; i < store->n_remote_kvs; i++) {
        if (store->remote_kvs[i].first_offloaded_head == first_offloaded_head) {
            return &store->remote_kvs[i];
        }
    }
    return NULL;
}

// A lease's id is the remote KV's number.
static struct fake_remote_kv *remote_kv_of(struct fake_store *store, const char *lease_id) {
    return &store->remote_kvs[atoi(lease_id)];
}

const void *fake_remote_kv_page(const struct fake_remote_kv *remote_kv, int32_t offloaded_head, int64_t token) {
    for (int i = 0; i < remote_kv->n_segments; i++) {
        const struct fake_segment *s = &remote_kv->segments[i];
        if (token >= s->where.begin && token < s->where.begin + s->where.n_slots) {
            size_t page = (size_t)(offloaded_head - remote_kv->first_offloaded_head) * sl_pages_for(s->where.n_slots) +
                          (size_t)((token - s->where.begin) / SL_PAGE_SLOTS);
            return (const char *)s->block + page * remote_kv->store->work.bytes;
        }
    }
    return NULL;
}

int fake_store_n_leased(struct fake_store *store) {
    int n = 0;
    pthread_mutex_lock(&store->mutex);
    for (int i = 0; i < store->n_remote_kvs; i++) {
        n += store->remote_kvs[i].leased;
    }
    pthread_mutex_unlock(&store->mutex);
    return n;
}

// ---- what arrives ----------------------------------------------------------------------------------------------------

static void on_complete(void *arg, const void *header, size_t header_bytes, size_t body_bytes) {
    struct fake_segment *segment = arg;
    struct fake_remote_kv *remote_kv = segment->remote_kv;
    (void)header, (void)header_bytes, (void)body_bytes;
    pthread_mutex_lock(&remote_kv->store->mutex);
    segment->arrived = true;
    for (int i = 0; i < remote_kv->n_segments && remote_kv->segments[i].arrived; i++) {
        remote_kv->n_tokens = remote_kv->segments[i].where.begin + remote_kv->segments[i].where.n_slots;
    }
    pthread_cond_broadcast(&remote_kv->store->changed);
    pthread_mutex_unlock(&remote_kv->store->mutex);
}

static void on_failure(void *arg, enum sl_status status, const char *text) {
    (void)arg, (void)status, (void)text;
}

static void on_release(void *arg) {
    (void)arg; // the region goes as a whole
}

// ---- calls ---------------------------------------------------------------------------------------------------------

static enum sl_status open_annex(void *service, struct sl_rpc_call *call, const ProtobufCMessage *message,
                                 struct sl_error *err) {
    struct fake_store *store = service;
    const Sluice__V1__OpenAnnexRequest *request = (const Sluice__V1__OpenAnnexRequest *)message;
    if (store->says_exists) {
        return sl_fail(err, SL_ERR_EXISTS, "somebody has done that");
    }
    if (store->full) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for %lld tokens", (long long)request->n_tokens);
    }
    pthread_mutex_lock(&store->mutex);
    store->wait_ms = request->wait_ms;
    bool is_restoring = request->wait_ms > 0 && store->n_restoring > 0;
    store->n_restoring -= is_restoring;
    pthread_mutex_unlock(&store->mutex);
    if (is_restoring) {
        Sluice__V1__Annex later = SLUICE__V1__ANNEX__INIT;
        later.restore_ms = 1;
        return sl_rpc_call_send(call, &later.base);
    }
    pthread_mutex_lock(&store->mutex);
    struct fake_remote_kv *remote_kv = fake_store_remote_kv(store, request->share->first_lane);
    if (remote_kv == NULL) {
        assert_true(store->n_remote_kvs < FAKE_MAX_REMOTE_KVS);
        remote_kv = &store->remote_kvs[store->n_remote_kvs++];
        *remote_kv = (struct fake_remote_kv){.store = store,
                                             .first_offloaded_head = request->share->first_lane,
                                             .n_offloaded_heads = request->share->n_lanes};
    }
    remote_kv->leased = true;
    // The store has its remote KV for any prompt: tests use one prompt. A partial page is of no use to a longer one.
    int64_t n_tokens = remote_kv->n_tokens <= request->n_tokens ? remote_kv->n_tokens : request->n_tokens;
    n_tokens = n_tokens < request->n_tokens ? n_tokens / SL_PAGE_SLOTS * SL_PAGE_SLOTS : n_tokens;
    while (remote_kv->n_segments > 0 && remote_kv->segments[remote_kv->n_segments - 1].where.begin >= n_tokens) {
        struct fake_segment *last = &remote_kv->segments[--remote_kv->n_segments];
        sl_grant_close(&last->grant);
        sl_arena_free(store->arena, last->block);
        last->block = NULL;
    }
    remote_kv->n_tokens = n_tokens;
    char lease_id[16];
    snprintf(lease_id, sizeof lease_id, "%td", remote_kv - store->remote_kvs);
    pthread_mutex_unlock(&store->mutex);
    Sluice__V1__Annex reply = SLUICE__V1__ANNEX__INIT;
    reply.annex_id = (uint64_t)(remote_kv - store->remote_kvs);
    reply.lease_id = lease_id;
    reply.lease_ms = store->lease_ms;
    reply.n_tokens = n_tokens;
    reply.waited_ms = store->waited_ms;
    reply.fabric_address = (char *)sl_fabric_address(store->fabric);
    reply.fabric_epoch = sl_fabric_epoch(store->fabric);
    reply.window.data = store->ticket;
    reply.window.len = store->ticket_bytes;
    return sl_rpc_call_send(call, &reply.base);
}

// Returns the end of what has been granted.
static int64_t granted_end(const struct fake_remote_kv *remote_kv) {
    const struct sl_near_segment *last =
        remote_kv->n_segments > 0 ? &remote_kv->segments[remote_kv->n_segments - 1].where : NULL;
    return last != NULL ? last->begin + last->n_slots : 0;
}

static enum sl_status grant_stretch(void *service, struct sl_rpc_call *call, const ProtobufCMessage *message,
                                    struct sl_error *err) {
    static const struct sl_grant_events events = {on_complete, on_failure, on_release};
    struct fake_store *store = service;
    const Sluice__V1__GrantStretchRequest *request = (const Sluice__V1__GrantStretchRequest *)message;
    struct fake_remote_kv *remote_kv = remote_kv_of(store, request->lease_id);
    int64_t end = granted_end(remote_kv);
    if (!remote_kv->leased || request->begin != end || request->begin % SL_PAGE_SLOTS != 0) {
        return sl_fail(err, SL_ERR_INVALID, "a segment from token %lld on behind %lld tokens",
                       (long long)request->begin, (long long)end);
    }
    struct sl_kv_segment_config config = {.begin = request->begin,
                                          .n_slots = (uint32_t)request->n_tokens,
                                          .first_offloaded_head = remote_kv->first_offloaded_head,
                                          .n_offloaded_heads = remote_kv->n_offloaded_heads,
                                          .work = store->work,
                                          .rows = store->work.format,
                                          .scan = store->work.format};
    size_t bytes = sl_kv_segment_block_bytes(&config), ticket_bytes;
    uint8_t *ticket;
    pthread_mutex_lock(&store->mutex);
    if (store->one_at_a_time && remote_kv->n_tokens < end) {
        store->n_refused++;
        pthread_mutex_unlock(&store->mutex);
        return sl_fail(err, SL_ERR_EXHAUSTED, "%lld tokens are on their way", (long long)(end - remote_kv->n_tokens));
    }
    assert_true(remote_kv->n_segments < FAKE_MAX_SEGMENTS);
    struct fake_segment *segment = &remote_kv->segments[remote_kv->n_segments++];
    *segment = (struct fake_segment){.remote_kv = remote_kv, .block = sl_arena_alloc(store->arena, bytes)};
    assert_non_null(segment->block);
    segment->where = (struct sl_near_segment){.begin = request->begin,
                                              .n_slots = (uint32_t)request->n_tokens,
                                              .n_offloaded_heads = (uint32_t)remote_kv->n_offloaded_heads,
                                              .offset = (uint64_t)((uint8_t *)segment->block - store->region)};
    store->n_granted++;
    pthread_mutex_unlock(&store->mutex);
    enum sl_status status = sl_grant_open(store->fabric,
                                          &(struct sl_grant_plan){.block = segment->block,
                                                                  .bytes = bytes,
                                                                  .deadline_ns = sl_deadline_in_ms(GRANT_MS),
                                                                  .events = &events,
                                                                  .arg = segment},
                                          &segment->grant, &ticket, &ticket_bytes, err);
    if (status != SL_OK) {
        return status;
    }
    Sluice__V1__Grant reply = SLUICE__V1__GRANT__INIT;
    reply.ticket.data = ticket;
    reply.ticket.len = ticket_bytes;
    reply.capacity_bytes = (int64_t)bytes;
    status = sl_rpc_call_send(call, &reply.base);
    free(ticket);
    return status;
}

static enum sl_status await_annex(void *service, struct sl_rpc_call *call, const ProtobufCMessage *message,
                                  struct sl_error *err) {
    struct fake_store *store = service;
    const Sluice__V1__AwaitAnnexRequest *request = (const Sluice__V1__AwaitAnnexRequest *)message;
    struct fake_remote_kv *remote_kv = remote_kv_of(store, request->lease_id);
    pthread_mutex_lock(&store->mutex);
    bool unready = store->n_unready > 0;
    store->n_unready -= unready;
    int64_t deadline_ns = sl_deadline_in_ms(unready ? FAKE_LEASE_MS / 2 : AWAIT_MS);
    while ((unready || remote_kv->n_tokens < request->n_tokens) && sl_now_ns() < deadline_ns) {
        sl_cond_wait_until(&store->changed, &store->mutex, deadline_ns);
    }
    Sluice__V1__AwaitAnnexReply reply = SLUICE__V1__AWAIT_ANNEX_REPLY__INIT;
    reply.n_tokens = unready ? 0 : remote_kv->n_tokens;
    pthread_mutex_unlock(&store->mutex);
    (void)err;
    return sl_rpc_call_send(call, &reply.base);
}

static enum sl_status renew(void *service, struct sl_rpc_call *call, const ProtobufCMessage *message,
                            struct sl_error *err) {
    struct fake_store *store = service;
    (void)message, (void)err;
    pthread_mutex_lock(&store->mutex);
    store->n_renewed++;
    pthread_mutex_unlock(&store->mutex);
    Sluice__V1__RenewReply reply = SLUICE__V1__RENEW_REPLY__INIT;
    reply.lease_ms = FAKE_LEASE_MS;
    return sl_rpc_call_send(call, &reply.base);
}

static enum sl_status release(void *service, struct sl_rpc_call *call, const ProtobufCMessage *message,
                              struct sl_error *err) {
    struct fake_store *store = service;
    (void)err;
    pthread_mutex_lock(&store->mutex);
    remote_kv_of(store, ((const Sluice__V1__ReleaseRequest *)message)->lease_id)->leased = false;
    pthread_mutex_unlock(&store->mutex);
    Sluice__V1__ReleaseReply reply = SLUICE__V1__RELEASE_REPLY__INIT;
    return sl_rpc_call_send(call, &reply.base);
}

// On the progress thread: MAP takes no time.
static void on_question(void *arg, struct sl_fabric_incoming *question) {
    struct fake_store *store = arg;
    size_t bytes;
    struct sl_near_request request;
    const void *data = sl_fabric_incoming_body(question, &bytes);
    assert_int_equal(bytes, sizeof request);
    memcpy(&request, data, sizeof request);
    assert_int_equal(request.kind, SL_NEAR_MAP);
    pthread_mutex_lock(&store->mutex);
    store->n_maps++;
    const struct fake_remote_kv *remote_kv = &store->remote_kvs[request.remote_kv_id];
    struct sl_near_answer head = {
        .magic = SL_NEAR_MAGIC, .kind = SL_NEAR_MAP, .n_offloaded_heads = request.n_offloaded_heads};
    uint8_t *answer = malloc(sizeof head + FAKE_MAX_SEGMENTS * sizeof remote_kv->segments[0].where);
    assert_non_null(answer);
    for (int i = 0; i < remote_kv->n_segments && remote_kv->segments[i].arrived; i++) {
        memcpy(answer + sizeof head + head.n_bytes, &remote_kv->segments[i].where, sizeof remote_kv->segments[i].where);
        head.n_bytes += sizeof remote_kv->segments[i].where;
    }
    pthread_mutex_unlock(&store->mutex);
    memcpy(answer, &head, sizeof head);
    sl_fabric_incoming_reply(&question, answer, sizeof head + head.n_bytes, free, answer);
}

// ---- life ----------------------------------------------------------------------------------------------------------

static const struct sl_rpc_handler handlers[] = {
    {&sl_method_store_open_annex, open_annex, SL_ROLE_ANY},
    {&sl_method_store_grant_stretch, grant_stretch, SL_ROLE_ANY},
    {&sl_method_store_await_annex, await_annex, SL_ROLE_ANY},
    {&sl_method_store_renew, renew, SL_ROLE_ANY},
    {&sl_method_store_release, release, SL_ROLE_ANY},
};

// As much of sluice.v1.Store as offloading calls.
static const struct sl_rpc_method *const methods[] = {
    &sl_method_store_open_annex, &sl_method_store_grant_stretch, &sl_method_store_await_annex,
    &sl_method_store_renew,      &sl_method_store_release,
};
static const struct sl_rpc_service store_service = {"sluice.v1.Store", methods, sizeof methods / sizeof *methods};

void fake_store_start(struct fake_store *store, const char *transport, const struct sl_page_layout *work,
                      size_t bytes) {
    *store = (struct fake_store){.work = *work, .lease_ms = FAKE_LEASE_MS};
    pthread_mutex_init(&store->mutex, NULL);
    sl_cond_init(&store->changed);
    struct sl_error err = {0};
    void *region;
    struct sl_fabric_config fabric_config = {.listen = "127.0.0.1:0", .transport = transport};
    struct sl_rpc_implementation service = SL_RPC_IMPLEMENTATION(&store_service, handlers, store);
    struct sl_rpc_server_config config = {.listen = "127.0.0.1:0", .services = &service, .n_services = 1};
    if (sl_fabric_create(&fabric_config, &store->fabric, &err) != SL_OK ||
        sl_fabric_region_create(store->fabric, bytes, 0, &region, &err) != SL_OK ||
        sl_arena_create(region, bytes, &store->arena, &err) != SL_OK ||
        sl_window_open(store->fabric, region, bytes, &store->window, &store->ticket, &store->ticket_bytes, &err) !=
            SL_OK ||
        sl_window_show(store->window, region, bytes, &err) != SL_OK ||
        sl_rpc_server_start(&config, &store->server, &err) != SL_OK) {
        fail_msg("fake store: %s", err.text);
    }
    store->region = region;
    sl_fabric_on_request(store->fabric, on_question, store);
}

const char *fake_store_address(const struct fake_store *store) {
    return sl_rpc_server_address(store->server);
}

void fake_store_close_window(struct fake_store *store) {
    sl_window_close(&store->window);
}

void fake_store_stop(struct fake_store *store) {
    if (store->server == NULL) {
        return;
    }
    sl_rpc_server_stop(&store->server, 0);
    sl_window_close(&store->window);
    for (int a = 0; a < store->n_remote_kvs; a++) {
        for (int s = 0; s < FAKE_MAX_SEGMENTS; s++) {
            sl_grant_close(&store->remote_kvs[a].segments[s].grant);
        }
    }
    sl_fabric_destroy(&store->fabric);
    for (int a = 0; a < store->n_remote_kvs; a++) {
        for (int s = 0; s < FAKE_MAX_SEGMENTS; s++) {
            sl_arena_free(store->arena, store->remote_kvs[a].segments[s].block);
        }
    }
    sl_arena_destroy(&store->arena);
    free(store->ticket);
    pthread_cond_destroy(&store->changed);
    pthread_mutex_destroy(&store->mutex);
}
