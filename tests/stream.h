// SPDX-License-Identifier: Apache-2.0
// Purpose: a stream of the processors with threads of its own, for tests of operations and of what queues them.
#pragma once

#include <stdlib.h>

#include "engine/tensor/cpu/device.h"

// n_threads as of sl_team_create(). Ends the test program where there is no memory.
static inline struct sl_stream *test_stream_open(int n_threads) {
    struct sl_team *team;
    struct sl_device *device;
    if (sl_team_create(n_threads, &team, NULL) != SL_OK || sl_cpu_device_open(team, &device, NULL) != SL_OK) {
        abort();
    }
    return sl_device_stream(device, SL_STREAM_COMPUTE);
}

static inline void test_stream_close(struct sl_stream **stream) {
    if (*stream != NULL) {
        struct sl_team *team = (*stream)->team;
        struct sl_device *device = (*stream)->device;
        sl_device_close(&device);
        sl_team_destroy(&team);
        *stream = NULL;
    }
}
