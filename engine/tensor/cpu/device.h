// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the processors as a device (engine/tensor/device.h): one memory, and streams whose work has finished when a
 *          call returns.
 */
#pragma once

#include "engine/tensor/device.h"

// Opens the device. `team` computes, is not owned, and must outlive the device; NULL: the calling thread computes
// alone. Returns SL_ERR_EXHAUSTED.
enum sl_status sl_cpu_device_open(struct sl_team *team, struct sl_device **device_out, struct sl_error *err);

// Returns the stream of a device that always exists, without a team; never close it.
struct sl_stream *sl_cpu_caller(void);
