// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what every server answers beside its own services: health, and server reflection.
 *
 * Design: ordinary services with limits of their own, so that probes are answered when the others are full.
 */
#pragma once

#include "net/rpc/rpc_health.h"
#include "net/rpc/rpc_reflection.h"

enum { SL_RPC_N_STANDARD = 1 + SL_RPC_N_REFLECTION };

struct sl_rpc_standard {
    struct sl_rpc_health *health;
    struct sl_rpc_reflection *reflection;
};

// Puts SL_RPC_N_STANDARD services behind a server's own n_services, about which they are.
enum sl_status sl_rpc_standard_init(struct sl_rpc_standard *standard, struct sl_rpc_implementation *services_inout,
                                    size_t n_services, struct sl_error *err);
// After the server has stopped, or has failed to start.
void sl_rpc_standard_cleanup(struct sl_rpc_standard *standard);
