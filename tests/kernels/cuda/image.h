// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: copies the host memory that a call names to the device before the call, and back after it.
 *
 * Design: every range gets a place in one image, with a border after it. The image goes up in one copy and comes down in one. Memory that a
 *         call only reads has to come back unchanged, and so have the borders; what it writes is copied to the host. So a check that knows
 *         nothing of devices sees what the CPU would have done, and a kernel that writes elsewhere is found.
 */
#pragma once

#include <stddef.h>

#include "engine/tensor/device.h"

// One a process.
void image_open(struct sl_device *device, size_t most_bytes);
void image_close(void);

// Returns the device address of `bytes` at `host`; NULL stays NULL. A range within one that was named since the last image_down() is part
// of that one. Ranges of which one is written must not overlap in any other way.
void *image_of(const void *host, size_t bytes);
void *image_of_written(void *host, size_t bytes);

void image_up(struct sl_stream *stream); // queued
// Waits. Fails the test where something else was written; `what` names the call.
void image_down(struct sl_stream *stream, const char *what);
