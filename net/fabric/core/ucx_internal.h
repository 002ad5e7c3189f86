// SPDX-License-Identifier: Apache-2.0
// Purpose: shared by ucx.c, its start and its stop, and ucx_transfer.c, endpoints and transfers.
#pragma once

#include <ucp/api/ucp.h>

#include "net/fabric/core/ucx.h"

struct sl_ucx {
    const struct sl_ucx_events *events;
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_address_t *address;
    size_t address_bytes;
    int fd;
};

enum sl_status sl_ucx_status(ucs_status_t status);
ucs_status_t sl_ucx_on_message(void *binding, const void *header, size_t header_bytes, void *data, size_t bytes,
                               const ucp_am_recv_param_t *param);
