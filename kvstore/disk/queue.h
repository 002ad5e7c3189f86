// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a bounded first-in first-out queue of pointers between threads.
 * Design: a ring under one mutex. A full queue is back-pressure (SL_AGAIN), not an error. The queue never owns items.
 * Threads: any number of pushers and poppers.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

struct sl_queue;

enum sl_status sl_queue_create(size_t capacity, struct sl_queue **queue_out, struct sl_error *err);

// Accepts NULL, nulls *queue. Does not free items still inside: drain the queue first.
void sl_queue_destroy(struct sl_queue **queue);

// Returns SL_OK, SL_AGAIN (full) or SL_ERR_CANCELLED (closed). The caller keeps the item unless SL_OK.
enum sl_status sl_queue_try_push(struct sl_queue *queue, void *item);

// Returns SL_OK, SL_ERR_DEADLINE (empty until then) or SL_ERR_CANCELLED (closed and drained).
enum sl_status sl_queue_pop(struct sl_queue *queue, int64_t deadline_ns, void **item_out);

// Refuses further pushes; poppers get the remaining items and then SL_ERR_CANCELLED. Idempotent.
void sl_queue_close(struct sl_queue *queue);
