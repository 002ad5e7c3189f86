// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what a call names of the host's memory, on a device: there before the call and back behind it.
 *
 * Design: every range gets a place in one image, with a border behind it. The image goes up in one copy and comes down in one. What a
 *         call only reads has to come back as it was, and so have the borders; what it writes is the host's again. So a check
 *         that knows nothing of devices sees what the processors would have done, and a kernel that writes elsewhere is found.
 */
#pragma once

#include <stddef.h>

#include "engine/tensor/device.h"

// One a process.
void image_open(struct sl_device *device, size_t most_bytes);
void image_close(void);

// Where `bytes` at `host` are on the device; NULL stays NULL. A range within one that was named since the last image_down() is part of
// that; ranges of which one is written must not overlap in any other way.
void *image_of(const void *host, size_t bytes);
void *image_of_written(void *host, size_t bytes);

void image_up(struct sl_stream *stream); // queued
// Waits. Fails the test where something else was written; `what`: by whom.
void image_down(struct sl_stream *stream, const char *what);
