// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: libFuzzer target for the messages of workers and operators to the coordinator: RegisterWorker, Heartbeat, Drain. After any
 *          messages in any order, routing still works, and it chooses workers that take jobs.
 *
 * Design: messages in order: a byte for the kind, a byte for the time that has passed, two for the length, and the bytes. Half of the
 *         workers get a correct version and model, and half of the beats correct names and epochs: so the code after those checks is
 *         reached. There are no channels to workers: no worker is called.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/version.h"
#include "coordinator/workers/registry.h"
#include "net/rpc/rpc_internal.h"

#define MODEL        7
#define MAX_MESSAGES 48

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds) {
    if (!holds) {
        abort();
    }
}

enum sl_status sl_rpc_channel_create(const char *address, const struct sl_rpc_credentials *credentials, unsigned roles,
                                     struct sl_rpc_channel **channel_out, struct sl_error *err) {
    (void)credentials, (void)roles, (void)err;
    *channel_out = (struct sl_rpc_channel *)strdup(address);
    return SL_OK;
}

void sl_rpc_channel_destroy(struct sl_rpc_channel **channel) {
    free(*channel);
    *channel = NULL;
}

// ---- messages --------------------------------------------------------------------------------------------------------

static void hear_worker(struct sl_registry *registry, Sluice__V1__WorkerInfo *info, bool mended, int64_t now_ns) {
    char *version = info->version;
    struct sl_error err = {0};
    if (mended) {
        info->version = SL_VERSION;
        info->model_fingerprint = MODEL;
    }
    enum sl_status status = sl_registry_register(registry, info, now_ns, &err);
    require(status == SL_OK || err.text[0] != '\0');
    info->version = version;
}

static void hear_beat(struct sl_registry *registry, Sluice__V1__HeartbeatRequest *beat, bool mended, int64_t now_ns) {
    char *name = beat->name;
    struct sl_worker_report *reports = NULL;
    size_t n = 0;
    bool drain;
    struct sl_error err = {0};
    require(sl_registry_report(registry, now_ns, &reports, &n, &err) == SL_OK);
    if (mended && n > 0) {
        beat->name = reports[n - 1].name;
        beat->epoch = reports[n - 1].info.epoch;
    }
    (void)sl_registry_heartbeat(registry, beat, now_ns, &drain, &err);
    beat->name = name;
    free(reports);
}

static void hear(struct sl_registry *registry, unsigned kind, const uint8_t *bytes, size_t n, int64_t now_ns) {
    static const ProtobufCMessageDescriptor *const types[] = {
        &sluice__v1__register_request__descriptor, &sluice__v1__heartbeat_request__descriptor,
        &sluice__v1__drain_request__descriptor, &sluice__v1__workers_request__descriptor};
    struct sl_rpc_budget budget = {1 << 22};
    struct sl_rpc_account account;
    sl_rpc_account_open(&account, &budget);
    sl_rpc_account_begin(&account, n);
    ProtobufCAllocator allocator = sl_rpc_account_allocator(&account);
    ProtobufCMessage *message = protobuf_c_message_unpack(types[kind % 4], &allocator, n, bytes);
    bool mended = kind & 4;
    struct sl_error err;
    int jobs;
    if (message && kind % 4 == 0 && ((Sluice__V1__RegisterRequest *)message)->worker) {
        hear_worker(registry, ((Sluice__V1__RegisterRequest *)message)->worker, mended, now_ns);
    } else if (message && kind % 4 == 1) {
        hear_beat(registry, (Sluice__V1__HeartbeatRequest *)message, mended, now_ns);
    } else if (message && kind % 4 == 2) {
        const Sluice__V1__DrainRequest *drain = (const Sluice__V1__DrainRequest *)message;
        (void)sl_registry_drain(registry, drain->name, drain->undo, &jobs, &err);
    }
    if (message) {
        protobuf_c_message_free_unpacked(message, &allocator);
    }
    sl_rpc_account_close(&account);
    require(atomic_load(&budget.left) == 1 << 22);
}

// ---- what comes of them ----------------------------------------------------------------------------------------------

static void check_route(struct sl_registry *registry, Sluice__V1__WorkerRole role) {
    struct sl_worker_set set;
    struct sl_route_need need = {1000, 100};
    sl_registry_snapshot(registry, role, &set);
    const struct sl_route_ask ask = {sl_route_policies, need, 100, 1000};
    int at[] = {sl_route_prefill(set.views, set.n, &ask), sl_route_decode(set.views, set.n, &ask)};
    for (int i = 0; i < 2; i++) {
        require(at[i] >= -1 && at[i] < set.n);
        if (at[i] >= 0) {
            const struct sl_route_view *view = &set.views[at[i]];
            require(view->ready && view->capacity_bytes - view->claimed_bytes >= need.bytes);
            sl_worker_claim(set.workers[at[i]], need, 100);
            sl_worker_unclaim(set.workers[at[i]], need, 100);
        }
    }
    require(sl_route_store(set.views, set.n, 5) < set.n && sl_route_largest(set.views, set.n) >= 0);
    require(sl_route_store_room(set.views, set.n) >= 0);
    struct sl_route_offloaded_heads offloaded_heads = {16, 2, 1 << 20};
    struct sl_route_share shares[64];
    int n_shares = sl_route_shares(set.views, set.n, 5, &offloaded_heads, false, shares, 64);
    for (int i = 0; i < n_shares; i++) {
        require(shares[i].view < set.n && shares[i].n_offloaded_heads > 0 &&
                shares[i].first_offloaded_head + shares[i].n_offloaded_heads <= offloaded_heads.n);
    }
    sl_worker_set_release(&set);
}

static void check_reports(struct sl_registry *registry, int64_t now_ns) {
    struct sl_worker_report *reports = NULL;
    size_t n = 0;
    struct sl_error err;
    require(sl_registry_report(registry, now_ns, &reports, &n, &err) == SL_OK && n <= SL_MAX_WORKERS);
    for (size_t i = 0; i < n; i++) {
        require(reports[i].name[0] != '\0' && reports[i].rpc_address[0] != '\0');
        require(strlen(reports[i].name) < sizeof reports[i].name &&
                strlen(reports[i].rpc_address) < sizeof reports[i].rpc_address &&
                strlen(reports[i].fabric_address) < sizeof reports[i].fabric_address);
        (void)sluice__v1__worker_status__get_packed_size(&reports[i].status);
    }
    free(reports);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct sl_registry_config config = {.model_fingerprint = MODEL, .heartbeat_ms = 1000, .stall_ms = 10000};
    struct sl_registry *registry = NULL;
    struct sl_error err;
    int64_t now_ns = SL_NS_PER_S;
    sl_log_configure("error", &err);
    require(sl_registry_create(&config, &registry, &err) == SL_OK);
    for (int i = 0; i < MAX_MESSAGES && size >= 4; i++) {
        size_t n = (size_t)data[2] | (size_t)data[3] << 8;
        n = n < size - 4 ? n : size - 4;
        now_ns += (int64_t)data[1] * SL_NS_PER_S / 16;
        hear(registry, data[0], data + 4, n, now_ns);
        sl_registry_sweep(registry, now_ns);
        data += 4 + n;
        size -= 4 + n;
    }
    for (Sluice__V1__WorkerRole role = SLUICE__V1__WORKER_ROLE__PREFILL; role <= SLUICE__V1__WORKER_ROLE__KVSTORE;
         role++) {
        check_route(registry, role);
    }
    check_reports(registry, now_ns);
    char store[SL_ADDRESS_BYTES];
    sl_registry_store_address(registry, 3, store);
    sl_registry_destroy(&registry);
    return 0;
}
