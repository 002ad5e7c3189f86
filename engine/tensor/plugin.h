// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the interface of a shared library that computes on a device of its own. It exports one function, which
 *          returns
 *         a table. engine/runtime/plugin.h loads the library; engine/tensor/cuda/plugin makes it.
 *
 * Invariants: both sides are built from the same headers. The number of the interface checks this: it changes by itself
 *         when a table grows. A change of what an entry means must raise SL_PLUGIN_REVISION.
 */
#pragma once

#include <stdint.h>

#include "base/team.h"
#include "engine/tensor/device.h"
#include "engine/tensor/ops.h"

#define SL_PLUGIN_REVISION 8
#define SL_PLUGIN_ABI      (SL_PLUGIN_REVISION * 100000u + (uint32_t)(sizeof(struct sl_ops) + sizeof(struct sl_device_ops)))

struct sl_group_ops;

// Counts the memory of device 0. For benches that ask how much a real one would need.
struct sl_plugin_counts {
    void (*only)(void); // from here on the devices count and do not compute; call it before one is opened
    size_t (*bytes)(void);
    size_t (*most_bytes)(void); // so far
};

struct sl_plugin {
    uint32_t abi;     // SL_PLUGIN_ABI of its build; the loader compares it before it reads any later field
    const char *name; // "cuda" or "emulated"
    // Returns the plugin's table of operations, one for the process. Its ops->host is that of `host`.
    const struct sl_ops *(*ops)(const struct sl_ops *host);
    // Opens a device; several devices of one process are ranks. Returns SL_ERR_UNSUPPORTED when there is no driver or
    // no such device, or when the device is too old or cannot reach the memory of those that are open; the text says
    // which. SL_ERR_EXHAUSTED.
    enum sl_status (*open)(int index, struct sl_team *team, struct sl_device **device_out, struct sl_error *err);
    void (*describe)(int index, char *text, size_t bytes); // writes a text for people about an open device
    const struct sl_plugin_counts *counts;                 // NULL: the plugin counts no memory
    const struct sl_group_ops *group;                      // how its devices gather as ranks (engine/tensor/group.h)
};

#define SL_PLUGIN_GETTER "sl_plugin_get" // the exported function has this type
typedef const struct sl_plugin *(*sl_plugin_get_fn)(void);
