// SPDX-License-Identifier: Apache-2.0
#include "net/rpc/standard/rpc_standard.h"

enum { MAX_CALLS = 64 }; // for each of these services

enum sl_status sl_rpc_standard_init(struct sl_rpc_standard *standard, struct sl_rpc_implementation *services_inout,
                                    size_t n_services, struct sl_error *err) {
    *standard = (struct sl_rpc_standard){0};
    struct sl_rpc_implementation *added = &services_inout[n_services];
    enum sl_status status = sl_rpc_health_create(services_inout, n_services, &standard->health, err);
    if (status == SL_OK) {
        added[0] = sl_rpc_health_service(standard->health);
        status = sl_rpc_reflection_create(services_inout, n_services + 1, &standard->reflection, err);
    }
    SL_TRY_OR(status, sl_rpc_standard_cleanup(standard));
    sl_rpc_reflection_services(standard->reflection, &added[1]);
    for (int i = 0; i < SL_RPC_N_STANDARD; i++) {
        added[i].max_calls = MAX_CALLS;
        added[i].on_fibers = true;
    }
    return SL_OK;
}

void sl_rpc_standard_cleanup(struct sl_rpc_standard *standard) {
    sl_rpc_reflection_destroy(&standard->reflection);
    sl_rpc_health_destroy(&standard->health);
}
