// SPDX-License-Identifier: Apache-2.0
// Purpose: the device that the checks of operations run on: emulated_device.c or plugin_device.c, whichever is linked.
#pragma once

#include "engine/tensor/ops.h"

extern const char *const device_under_test; // its name

// `host` as sl_plugin.ops() takes it.
enum sl_status device_under_test_open(const struct sl_ops *host, struct sl_device **device_out,
                                      const struct sl_ops **ops_out, struct sl_error *err);
void device_under_test_order(unsigned order); // of threads and blocks, where it can be chosen
size_t device_under_test_used(void);          // bytes of device memory, where they are counted

// Returns the operations of a group of ranks with such devices.
struct sl_group_ops;
const struct sl_group_ops *device_under_test_group(void);
