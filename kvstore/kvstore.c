// SPDX-License-Identifier: Apache-2.0
// The kvstore's life. See kvstore.h.
#include "kvstore/kvstore.h"

#include <sys/random.h>

#include "base/thread.h"
#include "kvstore/internal.h"
#include "proto/sluice/v1/worker.pb-c.h"

static void report_load(void *arg, Sluice__V1__WorkerLoad *load) {
    struct sl_kvstore *kvstore = arg;
    struct sl_shelf_stats stats;
    sl_shelf_get_stats(kvstore->shelf, &stats);
    load->stored_capsules = stats.n_capsules;
    load->stored_bytes = (int64_t)stats.bytes;
    load->jobs = (int32_t)atomic_load(&kvstore->n_jobs);
    load->progress = atomic_load(&kvstore->n_calls);
    pthread_mutex_lock(&kvstore->mutex);
    load->leases += kvstore->n_pins;
    pthread_mutex_unlock(&kvstore->mutex);
}

static enum sl_status serve(struct sl_kvstore *kvstore, struct sl_error *err) {
    enum sl_status status = sl_shelf_create(kvstore->node.arena, &kvstore->shelf, err);
    if (status == SL_OK && getrandom(&kvstore->secret, sizeof kvstore->secret, 0) != sizeof kvstore->secret) {
        status = sl_fail(err, SL_ERR_IO, "kvstore: no random numbers from the kernel");
    }
    if (status == SL_OK) {
        status = sl_thread_start("keeper", sl_kvstore_keeper_main, kvstore, &kvstore->keeper, err);
    }
    if (status != SL_OK) {
        return status;
    }
    static const struct sl_rpc_method methods[] = {
        {"/sluice.v1.Store/Reserve", SL_RPC_UNARY, &sluice__v1__store_reserve_request__descriptor,
         sl_store_handle_reserve},
        {"/sluice.v1.Store/Renew", SL_RPC_UNARY, &sluice__v1__renew_request__descriptor, sl_store_handle_renew},
        {"/sluice.v1.Store/Release", SL_RPC_UNARY, &sluice__v1__release_request__descriptor, sl_store_handle_release},
        {"/sluice.v1.Store/Lookup", SL_RPC_UNARY, &sluice__v1__lookup_request__descriptor, sl_store_handle_lookup},
        {"/sluice.v1.Store/Fetch", SL_RPC_UNARY, &sluice__v1__fetch_request__descriptor, sl_store_handle_fetch},
        {"/sluice.v1.Store/Stats", SL_RPC_UNARY, &sluice__v1__store_stats_request__descriptor, sl_store_handle_stats},
    };
    struct sl_rpc_service rpc = {"sluice.v1.Store", methods, sizeof methods / sizeof *methods, kvstore};
    struct sl_node_service service = {&rpc, report_load, kvstore};
    status = sl_node_serve(&kvstore->node, &service, err);
    pthread_mutex_lock(&kvstore->mutex);
    kvstore->stopping = true;
    pthread_mutex_unlock(&kvstore->mutex);
    pthread_join(kvstore->keeper, NULL);
    return status;
}

enum sl_status sl_kvstore_run(const struct sl_kvstore_config *config, struct sl_error *err) {
    struct sl_kvstore kvstore = {0};
    enum sl_status status = sl_node_open(&kvstore.node, &config->node, SLUICE__V1__WORKER_ROLE__KVSTORE, err);
    if (status != SL_OK) {
        return status;
    }
    pthread_mutex_init(&kvstore.mutex, NULL);
    status = serve(&kvstore, err);
    sl_shelf_destroy(&kvstore.shelf);
    pthread_mutex_destroy(&kvstore.mutex);
    sl_node_close(&kvstore.node);
    return status;
}
