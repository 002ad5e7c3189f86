// SPDX-License-Identifier: Apache-2.0
// Purpose: skips tests of shared weights where the system refuses to share them.
#pragma once

#include <unistd.h>

#include "base/status.h"
#include "engine/tensor/shared_weights.h"

/*
 * Skips the test, and says why, where weights are not shared: before Linux 6.1, or without /dev/shm. Tests of
 * shared_weights.h do not call it: they ask for no huge pages, and fail where sharing is broken.
 */
static inline void skip_without_sharing(void) {
    const struct sl_shared_weights_config config = {
        .key = (uint64_t)getpid(), .room_bytes = 1 << 24, .max_matrices = 1};
    struct sl_shared_weights *shared = NULL;
    struct sl_error why;
    if (sl_shared_weights_open(&config, &shared, &why) != SL_OK) {
        print_message("weights are not shared here: %s\n", why.text);
        skip();
    }
    sl_shared_weights_close(&shared);
}
