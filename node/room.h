// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: how much memory a worker takes for KV (--arena), and whether it is there.
 *
 * Design: `auto` is what the limit of the container, or the machine, leaves: less what the process has by now, the model among it,
 *         what it is known to take later, and 256 MiB; of the rest a 16th stays for requests, for what recipes need while they
 *         evict, and for a store's headers and keys.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

#define SL_ROOM_AUTO (-1)

// What --arena says: bytes, 0 where it says nothing, SL_ROOM_AUTO. SL_ERR_INVALID: neither.
enum sl_status sl_room_parse(const char *text, int64_t *bytes_out, struct sl_error *err);

struct sl_room_needs {
    int64_t activation_bytes; // of the engine, not touched yet
    int64_t other_bytes;      // of the service
    bool shared;              // the region lies in /dev/shm, which has a size of its own
};

// `auto`, in bytes; the log says how. root: of /proc and /sys, "" but in tests. SL_ERR_EXHAUSTED: nothing useful is left.
enum sl_status sl_room_auto(const char *root, const struct sl_room_needs *needs, int64_t *bytes_out,
                            struct sl_error *err);

// Whether this machine has so much available. SL_ERR_EXHAUSTED: it has not. `option` is whose value it is.
enum sl_status sl_room_check(const char *option, int64_t bytes, bool shared, struct sl_error *err);
