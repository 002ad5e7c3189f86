// SPDX-License-Identifier: Apache-2.0
// Handlers of sluice.v1.Store about offloaded layers.
#include <stdlib.h>

#include "base/clock.h"
#include "net/fabric/fabric.h"
#include "engine/kvcache/capsule.h"
#include "kvstore/internal.h"
#include "net/node/lease_rpc.h"
#include "proto/sluice/v1/worker.pb-c.h"

#define OPEN_MS  500  // left of a call's time when it does not wait for the disk any longer
#define AWAIT_MS 1000 // at most, of one call: it occupies one of a bounded number of handlers that all lessees share
#define LOOK_MS  100  // the same, where the caller calls again

_Static_assert(SL_PREFIX_BLOCK == SL_PAGE_SLOTS, "segments end where prefixes have keys");

// Checks that the scanning threads have time for one more session.
static enum sl_status check_scan_load(struct sl_kvstore *kvstore, struct sl_error *err) {
    struct sl_questions_stats stats;
    sl_questions_get_stats(kvstore->questions, &stats);
    if (stats.scan_load <= kvstore->max_scan_load) {
        return SL_OK;
    }
    return sl_fail(err, SL_ERR_EXHAUSTED,
                   "this store scans as much as it can: its %d scanning threads were busy %.0f%% of the last seconds, "
                   "--max-scan-load is %.0f%%; retry in 1000 ms, or add a store",
                   stats.n_threads, 100 * stats.scan_load, 100 * kvstore->max_scan_load);
}

static enum sl_status read_prompt(const Sluice__V1__OpenAnnexRequest *request, struct sl_prompt_hashes *prompt_out,
                                  struct sl_error *err) {
    struct sl_prompt_hashes prompt = {request->n_tokens, (struct sl_hash128 *)request->prefixes.data, {{0}}};
    size_t n_prefixes = request->prefixes.len / sizeof prompt.whole;
    SL_FAIL_IF(request->prefixes.len % sizeof prompt.whole != 0 ||
                   !sl_hash128_read(request->prefix_hash.data, request->prefix_hash.len, &prompt.whole),
               err, SL_ERR_INVALID, "prefixes or prefix_hash: a prefix hash has %zu bytes", sizeof prompt.whole);
    SL_FAIL_IF(request->n_tokens < 1 || n_prefixes != (size_t)(request->n_tokens / SL_PREFIX_BLOCK), err,
               SL_ERR_INVALID, "n_tokens %lld, %zu prefixes: one is needed for each whole block of %d tokens",
               (long long)request->n_tokens, n_prefixes, SL_PREFIX_BLOCK);
    SL_FAIL_IF(request->n_tokens % SL_PREFIX_BLOCK == 0 &&
                   !sl_hash128_equals(&prompt.prefixes[n_prefixes - 1], &prompt.whole),
               err, SL_ERR_INVALID, "prefix_hash: the last prefix has all tokens, and another hash");
    *prompt_out = prompt;
    return SL_OK;
}

// Reads the key of the capsule; without one the remote KV is not a document's.
static enum sl_status read_capsule(const Sluice__V1__StoreKey *key, struct sl_capsule_id *id_out,
                                   struct sl_error *err) {
    *id_out = (struct sl_capsule_id){0};
    if (!key) {
        return SL_OK;
    }
    id_out->model_fingerprint = key->model_fingerprint;
    id_out->recipe_fingerprint = key->recipe_fingerprint;
    return sl_hash128_read(key->prefix_hash.data, key->prefix_hash.len, &id_out->prefix_hash)
               ? SL_OK
               : sl_fail(err, SL_ERR_INVALID, "capsule: a prefix hash has %zu bytes", sizeof id_out->prefix_hash);
}

enum sl_status sl_store_handle_open_annex(void *service, struct sl_rpc_call *call, const ProtobufCMessage *message,
                                          struct sl_error *err) {
    struct sl_kvstore *kvstore = service;
    const Sluice__V1__OpenAnnexRequest *request = (const Sluice__V1__OpenAnnexRequest *)message;
    SL_FAIL_IF(!request->share, err, SL_ERR_INVALID, "share: missing");
    struct sl_kv_family family = {.model_fingerprint = request->model_fingerprint,
                                  .first_offloaded_head = request->share->first_lane,
                                  .n_offloaded_heads = request->share->n_lanes,
                                  .head_dim = request->head_dim,
                                  .work = request->work_format,
                                  .rows = request->rows_format,
                                  .scan = request->scan_format};
    sl_log_set_job(request->job_id);
    struct sl_prompt_hashes prompt;
    struct sl_capsule_id capsule;
    Sluice__V1__Annex reply = SLUICE__V1__ANNEX__INIT;
    int64_t give_up_ns = sl_deadline_in_ms(request->wait_ms > 0 ? request->wait_ms : 0);
    enum sl_status status = read_prompt(request, &prompt, err);
    SL_THEN(status, read_capsule(request->capsule, &capsule, err));
    SL_THEN(status, check_scan_load(kvstore, err));
    if (status == SL_OK) {
        int64_t until_ns = request->wait_ms != 0 ? sl_deadline_in_ms(request->wait_ms > 0 ? LOOK_MS : 0)
                                                 : sl_rpc_call_deadline_ns(call) - OPEN_MS * SL_NS_PER_MS;
        const int64_t began_ns = sl_now_ns();
        reply.restore_ms = sl_document_layers_await(kvstore->layers, &family, &prompt, until_ns);
        reply.waited_ms = (sl_now_ns() - began_ns) / SL_NS_PER_MS;
    }
    if (reply.restore_ms > 0 && sl_deadline_in_ms(reply.restore_ms) < give_up_ns) {
        return sl_rpc_call_send(call, &reply.base);
    }
    reply.restore_ms = 0;
    struct sl_remote_kv_lease lease;
    SL_THEN(status,
            sl_remote_kv_table_open(kvstore->remote_kvs, request->job_id, &family, &prompt, &capsule, &lease, err));
    SL_TRY(status);
    reply.annex_id = lease.remote_kv_id;
    reply.lease_id = lease.lease_id;
    reply.lease_ms = kvstore->node.config.lease_ms;
    reply.n_tokens = lease.n_tokens;
    reply.fabric_address = (char *)sl_fabric_address(kvstore->node.fabric);
    reply.fabric_epoch = sl_fabric_epoch(kvstore->node.fabric);
    reply.window.data = lease.window;
    reply.window.len = lease.window_bytes;
    atomic_fetch_add(&kvstore->n_calls, 1);
    status = sl_rpc_call_send(call, &reply.base);
    if (status != SL_OK) {
        sl_remote_kv_table_release(kvstore->remote_kvs, lease.lease_id);
    }
    return status;
}

enum sl_status sl_store_handle_grant_stretch(void *service, struct sl_rpc_call *call, const ProtobufCMessage *message,
                                             struct sl_error *err) {
    struct sl_kvstore *kvstore = service;
    const Sluice__V1__GrantStretchRequest *request = (const Sluice__V1__GrantStretchRequest *)message;
    struct sl_inbound_ticket ticket;
    size_t capacity;
    SL_TRY(sl_remote_kv_table_grant(kvstore->remote_kvs, request->lease_id, request->begin, request->n_tokens, &ticket,
                                    &capacity, err));
    atomic_fetch_add(&kvstore->n_calls, 1);
    // If the reply does not arrive, the next grant for this range replaces this one.
    enum sl_status status = sl_lease_send_grant(call, &ticket, (int64_t)capacity);
    free(ticket.ticket);
    return status;
}

enum sl_status sl_store_handle_await_annex(void *service, struct sl_rpc_call *call, const ProtobufCMessage *message,
                                           struct sl_error *err) {
    struct sl_kvstore *kvstore = service;
    const Sluice__V1__AwaitAnnexRequest *request = (const Sluice__V1__AwaitAnnexRequest *)message;
    int64_t limit = sl_deadline_in_ms(AWAIT_MS), deadline = sl_rpc_call_deadline_ns(call);
    struct sl_remote_kv_wait wait = {.lease_id = request->lease_id,
                                     .n_tokens = request->n_tokens,
                                     .deadline_ns = deadline < limit ? deadline : limit,
                                     .go_on = sl_rpc_call_wanted,
                                     .arg = call};
    Sluice__V1__AwaitAnnexReply reply = SLUICE__V1__AWAIT_ANNEX_REPLY__INIT;
    enum sl_status status = sl_remote_kv_table_await(kvstore->remote_kvs, &wait, &reply.n_tokens, err);
    if (status == SL_ERR_DEADLINE) { // report how many tokens it has by now
        wait.n_tokens = 0;
        wait.deadline_ns = limit;
        status = sl_remote_kv_table_await(kvstore->remote_kvs, &wait, &reply.n_tokens, err);
    }
    atomic_fetch_add(&kvstore->n_calls, 1);
    return status == SL_OK ? sl_rpc_call_send(call, &reply.base) : status;
}
