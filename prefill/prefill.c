// SPDX-License-Identifier: Apache-2.0
// The life cycle of the prefill worker. See prefill.h.
#include "prefill/prefill.h"

#include "base/metrics.h"
#include "base/thread.h"
#include "prefill/internal.h"
#include "proto/methods.h"

static void report_load(void *arg, Sluice__V1__WorkerLoad *load) {
    struct sl_prefill *prefill = arg;
    load->jobs = (int32_t)atomic_load(&prefill->n_jobs);
    load->tokens_per_s = (double)atomic_load(&prefill->tokens_rate.per_s);
}

static void write_metrics(void *arg, FILE *page) {
    struct sl_prefill *prefill = arg;
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

static enum sl_status serve(struct sl_prefill *prefill, struct sl_error *err) {
    struct sl_node *node = &prefill->node;
    enum sl_status status = sl_store_client_create(node, &prefill->store, err);
    if (status == SL_OK) {
        status = sl_archive_create(prefill, &prefill->archive, err);
    }
    if (status == SL_OK) {
        status = sl_thread_start("engine", sl_prefill_engine_main, prefill, &prefill->engine_thread, err);
    }
    if (status != SL_OK) {
        return status;
    }
    static const struct sl_rpc_handler handlers[] = {
        {&sl_method_prefill_run, sl_prefill_handle_run, SL_ROLE_COORDINATOR},
    };
    struct sl_rpc_implementation rpc = SL_RPC_IMPLEMENTATION(&sl_service_prefill, handlers, prefill);
    struct sl_node_service service = {&rpc, report_load, write_metrics, prefill};
    status = sl_node_serve(node, &service, err); // returns when no handler runs any more, so no job is being read
    pthread_mutex_lock(&prefill->mutex);
    prefill->stopping = true;
    pthread_cond_signal(&prefill->wake);
    pthread_mutex_unlock(&prefill->mutex);
    pthread_join(prefill->engine_thread, NULL);
    return status;
}

enum sl_status sl_prefill_run(const struct sl_prefill_config *config, struct sl_error *err) {
    struct sl_prefill prefill = {.max_chunk_tokens = config->chunk_tokens,
                                 .checkpoint_ms = config->checkpoint_ms,
                                 .checkpoint_share = config->checkpoint_share};
    enum sl_status status =
        sl_node_open(&prefill.node, &config->node, SLUICE__V1__WORKER_ROLE__PREFILL, (int)config->chunk_tokens, err);
    if (status != SL_OK) {
        return status;
    }
    pthread_mutex_init(&prefill.mutex, NULL);
    sl_cond_init(&prefill.wake);
    prefill.inbox_end = &prefill.inbox;
    status = serve(&prefill, err);
    sl_archive_destroy(&prefill.archive);
    sl_store_client_destroy(&prefill.store);
    pthread_cond_destroy(&prefill.wake);
    pthread_mutex_destroy(&prefill.mutex);
    sl_node_close(&prefill.node);
    return status;
}
