// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what a shared library exports that computes on a device of its own: one function, which returns a table. engine/runtime/plugin.h
 *          loads it, engine/tensor/cuda/plugin makes it.
 *
 * Invariants: both sides are built from the same headers. The number of the interface says so: tables that grow change it by
 *             themselves; whoever changes what an entry means raises SL_PLUGIN_REVISION.
 */
#pragma once

#include <stdint.h>

#include "base/team.h"
#include "engine/tensor/device.h"
#include "engine/tensor/ops.h"

#define SL_PLUGIN_REVISION 7
#define SL_PLUGIN_ABI      (SL_PLUGIN_REVISION * 100000u + (uint32_t)(sizeof(struct sl_ops) + sizeof(struct sl_device_ops)))

struct sl_group_ops;

struct sl_plugin {
    uint32_t abi;     // SL_PLUGIN_ABI of its build; nothing behind it is read before it was compared
    const char *name; // "cuda"
    // Its table of operations, of which a process has one. `host` is whose ops->host it has.
    const struct sl_ops *(*ops)(const struct sl_ops *host);
    // Several of a process are ranks. SL_ERR_UNSUPPORTED: no driver, no such device, one that is too old, or that does not reach
    // the memory of those which are open; says which. SL_ERR_EXHAUSTED.
    enum sl_status (*open)(int index, struct sl_team *team, struct sl_device **device_out, struct sl_error *err);
    void (*describe)(int index, char *text, size_t bytes); // a device that was opened, for a person
    const struct sl_group_ops *group;                      // how its devices gather as ranks (engine/tensor/group.h)
};

#define SL_PLUGIN_GETTER "sl_plugin_get" // of this type
typedef const struct sl_plugin *(*sl_plugin_get_fn)(void);
