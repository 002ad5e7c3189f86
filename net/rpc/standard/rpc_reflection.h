// SPDX-License-Identifier: Apache-2.0
// Purpose: server reflection, two services, with which foreign clients discover ours. Answers from proto/descriptors.h.
#pragma once

#include "net/rpc/rpc.h"

struct sl_rpc_reflection;

// Creates both services. They list the given services, and then themselves.
enum sl_status sl_rpc_reflection_create(const struct sl_rpc_implementation *services, size_t n_services,
                                        struct sl_rpc_reflection **reflection_out, struct sl_error *err);
void sl_rpc_reflection_destroy(struct sl_rpc_reflection **reflection);

enum { SL_RPC_N_REFLECTION = 2 }; // v1, v1alpha
void sl_rpc_reflection_services(struct sl_rpc_reflection *reflection,
                                struct sl_rpc_implementation services_out[SL_RPC_N_REFLECTION]);
