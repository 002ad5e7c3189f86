// SPDX-License-Identifier: Apache-2.0
// Purpose: set-up and tear-down of a group of tests that call; after <cmocka.h>.
#pragma once

#include "base/log.h"
#include "net/rpc/rpc.h"

static inline int start_rpc(void **state) {
    (void)state;
    sl_log_configure("error", NULL);
    sl_rpc_init();
    return 0;
}

static inline int stop_rpc(void **state) {
    (void)state;
    sl_rpc_shutdown();
    return 0;
}
