// SPDX-License-Identifier: Apache-2.0
#include "net/node/load.h"

void sl_node_report_load(struct sl_node *node, const struct sl_node_service *service, Sluice__V1__WorkerLoad *load) {
    struct sl_arena_stats arena;
    sl_arena_get_stats(node->arena, &arena);
    load->arena_used_bytes = (int64_t)arena.used_bytes;
    load->arena_high_water_bytes = (int64_t)arena.high_water_bytes;
    if (sl_node_stages(node)) {
        sl_arena_get_stats(node->staging, &arena);
        load->staging_used_bytes = (int64_t)arena.used_bytes;
    }
    struct sl_fabric_stats fabric;
    sl_fabric_get_stats(node->fabric, &fabric);
    load->fabric_grants = fabric.grants_open + fabric.grants_quarantined;
    load->fabric_ships = fabric.ships_open;
    load->leases = sl_inbound_count(node->inbound);
    load->stalled = atomic_load(&node->stands_still);
    load->stopping = atomic_load(&node->stopping);
    load->waiting = atomic_load(&node->engine.n_waiting);
    load->progress = (int64_t)sl_progress_counter_count(&node->engine);
    service->load_fn(service->arg, load); // may add to leases
}
