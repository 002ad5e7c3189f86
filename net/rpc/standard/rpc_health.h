// SPDX-License-Identifier: Apache-2.0
// Purpose: grpc.health.v1.Health, a service: whether the server and each of its services accept work. All do at first.
#pragma once

#include "net/rpc/rpc.h"

struct sl_rpc_health;

enum sl_status sl_rpc_health_create(const struct sl_rpc_implementation *services, size_t n_services,
                                    struct sl_rpc_health **health_out, struct sl_error *err);
void sl_rpc_health_destroy(struct sl_rpc_health **health);

// Sets the status of a service ("" is the whole server) and notifies its watchers. Once the server stops, all services
// are NOT_SERVING.
void sl_rpc_health_set(struct sl_rpc_health *health, const char *service, bool serving);

struct sl_rpc_implementation sl_rpc_health_service(struct sl_rpc_health *health);
