// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: computes how much memory a worker takes for KV (--arena), and checks that it is available.
 *
 * Design: `auto` starts from the limit of the container, or the memory of the machine. It subtracts what the process
 *         uses by now, including the model, what it is known to take later, and 256 MiB. Of the rest a 16th stays for
 *         requests, for recipes' scratch memory while they evict, and for a store's headers and keys.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

#define SL_ROOM_AUTO (-1)

// Parses the value of --arena: bytes; 0 for no text; or SL_ROOM_AUTO. SL_ERR_INVALID: anything else.
enum sl_status sl_room_parse(const char *text, int64_t *bytes_out, struct sl_error *err);

struct sl_room_needs {
    int64_t activation_bytes; // of the engine, not touched yet
    int64_t other_bytes;      // of the service
    bool shared;              // the region lies in /dev/shm, which has its own size limit
};

// Computes `auto` in bytes; the log says how. root: prefix of /proc and /sys, "" except in tests. SL_ERR_EXHAUSTED: too
// little is left.
enum sl_status sl_room_auto(const char *root, const struct sl_room_needs *needs, int64_t *bytes_out,
                            struct sl_error *err);

// Checks that this machine has this much available. SL_ERR_EXHAUSTED: it has not. `option` names the option that set the
// value.
enum sl_status sl_room_check(const char *option, int64_t bytes, bool shared, struct sl_error *err);
