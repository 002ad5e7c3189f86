// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the processors as a device (engine/tensor/device.h): one memory, and streams whose work is done when a call returns.
 */
#pragma once

#include "engine/tensor/device.h"

// `team` computes, is not owned, and must outlive the device; NULL: whoever calls computes alone. SL_ERR_EXHAUSTED.
enum sl_status sl_cpu_device_open(struct sl_team *team, struct sl_device **device_out, struct sl_error *err);

// The stream of a device that is always there, without a team; never closed.
struct sl_stream *sl_cpu_caller(void);
