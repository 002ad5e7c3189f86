// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the services that every server has in addition to its own: health, and server reflection.
 *
 * Design: ordinary services with limits of their own, so that probes are answered when the others are full.
 */
#pragma once

#include "net/rpc/standard/rpc_health.h"
#include "net/rpc/standard/rpc_reflection.h"

enum { SL_RPC_N_STANDARD = 1 + SL_RPC_N_REFLECTION };

struct sl_rpc_standard {
    struct sl_rpc_health *health;
    struct sl_rpc_reflection *reflection;
};

// Appends SL_RPC_N_STANDARD services, which describe the server's own n_services, to these.
enum sl_status sl_rpc_standard_init(struct sl_rpc_standard *standard, struct sl_rpc_implementation *services_inout,
                                    size_t n_services, struct sl_error *err);
// Frees the services, after the server has stopped or has failed to start.
void sl_rpc_standard_cleanup(struct sl_rpc_standard *standard);
