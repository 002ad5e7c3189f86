// SPDX-License-Identifier: Apache-2.0
#include "decode/decode.h"

#include "base/locked.h"
#include "base/metrics.h"
#include "decode/internal.h"
#include "net/node/lease_rpc.h"
#include "proto/methods.h"
#include "proto/sluice/v1/worker.pb-c.h"

static void report_load(void *arg, Sluice__V1__WorkerLoad *load) {
    struct sl_decode *decode = arg;
    int64_t n_read = decode->prefill ? sl_prefill_n_jobs(decode->prefill) : 0;
    load->jobs = (int32_t)(atomic_load(&decode->n_jobs) + n_read);
    load->leases += load->jobs +
                    sl_kept_count(&decode->kept); // sessions in use hold memory for their jobs, as inbound transfers do
    load->base_bytes = sl_kept_base_bytes(&decode->kept);
    load->tokens_per_s = (double)atomic_load(&decode->tokens_rate.per_s);
}

static void write_metrics(void *arg, FILE *page) {
    struct sl_decode *decode = arg;
    sl_metrics_write(page, SL_COUNTER, "sluice_retrieval_fallbacks_total",
                     "Layers of steps that had to do without offloaded tokens.",
                     (double)atomic_load(&decode->n_fallbacks));
    sl_metrics_write(page, SL_GAUGE, "sluice_kept_sessions", "Sessions of conversations that wait for their next turn.",
                     (double)sl_kept_count(&decode->kept));
    sl_decode_write_prefix_metrics(decode, page);
    if (decode->prefill) {
        sl_prefill_write_metrics(decode->prefill, page);
    }
}

static enum sl_status handle_renew(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                   struct sl_error *err) {
    return sl_lease_handle_renew(((struct sl_decode *)service)->node.inbound, call, request, err);
}

static enum sl_status handle_release(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                     struct sl_error *err) {
    struct sl_node *node = &((struct sl_decode *)service)->node;
    SL_TRY(sl_term_guard_check(&node->term_guard, ((const Sluice__V1__ReleaseRequest *)request)->term, err));
    sl_kept_release(&((struct sl_decode *)service)->kept, ((const Sluice__V1__ReleaseRequest *)request)->lease_id);
    return sl_lease_handle_release(node->inbound, call, request);
}

// ---- the prefill worker inside an aggregated worker -------------------------------------------------------------------

static void wake(void *arg) {
    struct sl_decode *decode = arg;
    SL_LOCKED(&decode->loop.mutex);
    decode->woken = true;
    pthread_cond_signal(&decode->loop.changed);
}

static bool drop(void *arg, size_t bytes) {
    struct sl_decode *decode = arg;
    return sl_kept_make_room(&decode->kept, decode->node.ledger, bytes);
}

static enum sl_status take(void *arg, const struct sl_capsule_id *id, struct sl_session **session_inout,
                           size_t promised_bytes, char lease_id_out[SL_LEASE_ID_BYTES], struct sl_error *err) {
    struct sl_decode *decode = arg;
    return sl_kept_hand_over(&decode->kept, decode->node.ledger, id, session_inout, promised_bytes, lease_id_out, err);
}

// Opens the prefill worker, which reads on the engine's thread and hands its sessions to decode->kept.
static enum sl_status open_here(struct sl_decode *decode, const struct sl_prefill_limits *limits,
                                struct sl_error *err) {
    const struct sl_prefill_host host = {.wake_fn = wake, .drop_fn = drop, .take_fn = take, .arg = decode};
    decode->node.info.reads = true;
    return sl_prefill_open(limits, &decode->node, &host, &decode->prefill, err);
}

// ---- life -------------------------------------------------------------------------------------------------------------

static enum sl_status serve(struct sl_decode *decode, struct sl_error *err) {
    struct sl_node *node = &decode->node;
    enum sl_status status =
        sl_activations_create(node->runtime.engine, SL_DECODE_MAX_ROWS, &decode->turn_activations, err);
    decode->write_activations = sl_engine_activations(node->runtime.engine);
    SL_THEN_IF(status, decode->prefill,
               sl_activations_create(node->runtime.engine, SL_DECODE_MAX_ROWS, &decode->write_activations, err));
    SL_TRY(status);
    SL_TRY(sl_loop_start(&decode->loop, "engine", sl_decode_engine_main, decode, err));
    static const struct sl_rpc_handler handlers[] = {
        {&sl_method_decode_reserve, sl_decode_handle_reserve, SL_ROLE_COORDINATOR},
        {&sl_method_decode_renew, handle_renew, SL_ROLE_COORDINATOR},
        {&sl_method_decode_release, handle_release, SL_ROLE_COORDINATOR},
        {&sl_method_decode_archive, sl_decode_handle_archive, SL_ROLE_COORDINATOR},
        {&sl_method_decode_run, sl_decode_handle_run, SL_ROLE_COORDINATOR},
    };
    struct sl_rpc_implementation rpc = SL_RPC_IMPLEMENTATION(&sl_service_decode, handlers, decode);
    struct sl_rpc_implementation prefill_rpc;
    struct sl_node_service service = {.rpc = &rpc, .load_fn = report_load, .metrics_fn = write_metrics, .arg = decode};
    if (decode->prefill) {
        prefill_rpc = sl_prefill_rpc(decode->prefill);
        service.second_rpc = &prefill_rpc;
    }
    status = sl_node_serve(node, &service, err); // returns when no handler runs any more, so no answer is left
    sl_loop_stop(&decode->loop);
    return status;
}

enum sl_status sl_decode_config_check(const struct sl_node_config *node_config, struct sl_error *err) {
    const struct sl_decode_config *config = (const struct sl_decode_config *)node_config;
    // the engine waits for a store for up to this time
    SL_FAIL_IF(config->retrieve_deadline_ms >= config->node.stall_ms, err, SL_ERR_INVALID,
               "--retrieve-deadline, %lld ms, must be less than --stall-after, %lld ms",
               (long long)config->retrieve_deadline_ms, (long long)config->node.stall_ms);
    return SL_OK;
}

enum sl_status sl_decode_run(const struct sl_node_config *node_config, struct sl_error *err) {
    const struct sl_decode_config *config = (const struct sl_decode_config *)node_config;
    struct sl_decode decode = {0};
    int64_t chunk_tokens = config->aggregated ? config->limits.chunk_tokens : 0;
    int max_rows = chunk_tokens > SL_DECODE_MAX_ROWS ? (int)chunk_tokens : SL_DECODE_MAX_ROWS;
    SL_TRY(sl_node_open(&decode.node, &config->node, SLUICE__V1__WORKER_ROLE__DECODE, max_rows, err));
    sl_loop_init(&decode.loop);
    decode.inbox_end = &decode.inbox;
    sl_kept_init(&decode.kept);
    decode.retrieve_deadline_ms = config->retrieve_deadline_ms;
    decode.retrieve_lost_ms = config->retrieve_lost_ms;
    enum sl_status status = sl_connections_create(decode.node.fabric, &decode.connections, err);
    SL_THEN(status, sl_store_client_create(&decode.node, &decode.store, err));
    SL_THEN_IF(status, config->aggregated, open_here(&decode, &config->limits, err));
    SL_THEN(status, serve(&decode, err));
    sl_prefill_close(&decode.prefill);
    sl_store_client_destroy(&decode.store);
    sl_connections_destroy(&decode.connections);
    sl_kept_cleanup(&decode.kept);
    sl_loop_cleanup(&decode.loop);
    sl_activations_destroy(&decode.turn_activations);
    if (decode.write_activations != sl_engine_activations(decode.node.runtime.engine)) {
        sl_activations_destroy(&decode.write_activations);
    }
    sl_node_close(&decode.node);
    return status;
}
