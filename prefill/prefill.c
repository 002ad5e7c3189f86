// SPDX-License-Identifier: Apache-2.0
#include "prefill/prefill.h"

#include <stdlib.h>

#include "base/metrics.h"
#include "prefill/internal.h"
#include "proto/methods.h"

static void report_load(void *arg, Sluice__V1__WorkerLoad *load) {
    struct sl_prefill *prefill = arg;
    load->jobs = (int32_t)atomic_load(&prefill->n_jobs);
    load->tokens_per_s = (double)atomic_load(&prefill->tokens_rate.per_s);
}

void sl_prefill_write_metrics(struct sl_prefill *prefill, FILE *page) {
    static const char name[] = "sluice_ship_failures_total";
    static const char *const reasons[SL_N_SHIP_FAILURES] = {
        [SL_SHIP_FAILED_LOST] = "lost",           [SL_SHIP_FAILED_CORRUPT] = "corrupt",
        [SL_SHIP_FAILED_DEADLINE] = "deadline",   [SL_SHIP_FAILED_CANCELLED] = "cancelled",
        [SL_SHIP_FAILED_OTHERWISE] = "otherwise",
    };
    sl_metrics_declare(page, SL_COUNTER, name, "Capsules that did not arrive at their decode worker.");
    for (int i = 0; i < SL_N_SHIP_FAILURES; i++) {
        sl_metrics_sample(page, name, (double)atomic_load(&prefill->n_ship_failures[i]), "reason", reasons[i], NULL);
    }
    static const char not_cached[] = "sluice_prompts_not_cached_total";
    sl_metrics_declare(page, SL_COUNTER, not_cached, "Prompts of which nothing was reused.");
    for (int i = 1; i < SL_N_NOT_CACHED; i++) {
        sl_metrics_sample(page, not_cached, (double)atomic_load(&prefill->n_not_cached[i]), "reason",
                          sl_not_cached_word((Sluice__V1__NotCached)i), NULL);
    }
    sl_archive_write_metrics(prefill->archive, page);
}

static void write_metrics(void *prefill, FILE *page) {
    sl_prefill_write_metrics(prefill, page);
}

int64_t sl_prefill_n_jobs(struct sl_prefill *prefill) {
    return atomic_load(&prefill->n_jobs);
}

struct sl_rpc_implementation sl_prefill_rpc(struct sl_prefill *prefill) {
    static const struct sl_rpc_handler handlers[] = {
        {&sl_method_prefill_run, sl_prefill_handle_run, SL_ROLE_COORDINATOR},
    };
    return SL_RPC_IMPLEMENTATION(&sl_service_prefill, handlers, prefill);
}

void sl_prefill_close(struct sl_prefill **prefill_inout) {
    SL_TAKE_OR_RETURN(prefill, prefill_inout);
    sl_loop_stop(&prefill->loop); // no thread waits for jobs any more
    sl_prefill_stepper_destroy(&prefill->stepper);
    sl_archive_destroy(&prefill->archive);
    sl_store_client_destroy(&prefill->store);
    sl_loop_cleanup(&prefill->loop);
    free(prefill);
}

enum sl_status sl_prefill_open(const struct sl_prefill_limits *limits, struct sl_node *node,
                               const struct sl_prefill_host *host, struct sl_prefill **prefill_out,
                               struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_prefill, prefill, err, "prefill: out of memory");
    prefill->node = node;
    prefill->host = *host;
    prefill->max_chunk_tokens = limits->chunk_tokens;
    prefill->checkpoint_ms = limits->checkpoint_ms;
    prefill->checkpoint_share = limits->checkpoint_share;
    sl_loop_init(&prefill->loop);
    prefill->inbox_end = &prefill->inbox;
    enum sl_status status = sl_store_client_create(node, &prefill->store, err);
    SL_THEN(status, sl_archive_create(prefill, &prefill->archive, err));
    SL_THEN(status, sl_prefill_stepper_create(prefill, &prefill->stepper, err));
    SL_TRY_OR(status, sl_prefill_close(&prefill));
    *prefill_out = prefill;
    return SL_OK;
}

static enum sl_status serve(struct sl_prefill *prefill, struct sl_error *err) {
    SL_TRY(sl_loop_start(&prefill->loop, "engine", sl_prefill_engine_main, prefill, err));
    struct sl_rpc_implementation rpc = sl_prefill_rpc(prefill);
    struct sl_node_service service = {.rpc = &rpc, .load_fn = report_load, .metrics_fn = write_metrics, .arg = prefill};
    enum sl_status status =
        sl_node_serve(prefill->node, &service, err); // returns when no handler runs, so no job is being read
    sl_loop_stop(&prefill->loop);
    return status;
}

enum sl_status sl_prefill_run(const struct sl_node_config *node_config, struct sl_error *err) {
    const struct sl_prefill_config *config = (const struct sl_prefill_config *)node_config;
    struct sl_node node;
    struct sl_prefill *prefill = NULL;
    SL_TRY(sl_node_open(&node, &config->node, SLUICE__V1__WORKER_ROLE__PREFILL, (int)config->limits.chunk_tokens, err));
    const struct sl_prefill_host alone = {0};
    enum sl_status status = sl_prefill_open(&config->limits, &node, &alone, &prefill, err);
    SL_THEN(status, serve(prefill, err));
    sl_prefill_close(&prefill);
    sl_node_close(&node);
    return status;
}
