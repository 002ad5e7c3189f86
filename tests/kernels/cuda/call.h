// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a call of an operation with the host's memory, done on a device: what entries of tested_device.c and tested_evict.c are
 *          made of. Each leads its arguments there (image.h), and ends with CALL().
 */
#pragma once

#include "engine/tensor/ops.h"
#include "tests/kernels/cuda/image.h"

enum { MOST_HEADS = 2048 }; // of a call

struct here {
    struct sl_device *device; // NULL: not open yet
    struct sl_stream *stream;
    const struct sl_ops *ops; // the device's
};
extern struct here here;

// The call as the device takes it, in the next order of threads and blocks for this operation; done on return.
#define CALL(operation, ...)                                                                                           \
    do {                                                                                                               \
        (void)stream;                                                                                                  \
        call_begin(#operation);                                                                                        \
        here.ops->operation(here.stream, __VA_ARGS__);                                                                 \
        call_end(#operation);                                                                                          \
    } while (0)
void call_begin(const char *operation);
void call_end(const char *operation);

// Returns whether every operation that was called has been through all orders; prints which was not.
bool call_has_seen_all_orders(void);

// --- arguments, led there --------------------------------------------------------------------------------------------

enum use { READ, WRITTEN };

void *led(const void *host, size_t bytes, enum use use);
float *floats(const float *x, int64_t n, enum use use);
// Rows of `width`, `stride` apart.
float *rows_of(const float *x, int64_t m, int64_t stride, int64_t width, enum use use);
// Published, with their pages. Heads without layouts are numbers of slots.
struct sl_kv_heads heads_of(const struct sl_kv_heads *heads, enum use use);
// An element a slot, of `group` rows a head.
struct sl_vectors vectors_of(struct sl_vectors x, const struct sl_kv_heads *heads, int group, enum use use);

uint32_t count_of(struct sl_counts n, int h);
struct sl_counts counts_of(struct sl_counts n, int n_heads, enum use use);
// Lists of what is kept (at most all), or of what is evicted where anything is kept.
struct sl_lists slots_of(struct sl_lists lists, const struct sl_kv_heads *heads, struct sl_counts kept, bool evicted,
                         enum use use);
// Numbers beside such lists.
struct sl_vectors numbers_of(struct sl_vectors x, const struct sl_kv_heads *heads, struct sl_counts kept, bool evicted,
                             enum use use);
struct sl_softmax *softmax_of(const struct sl_attend *a, const struct sl_softmax *x, enum use use);
// A call with its heads; out where it is asked for.
struct sl_attend attend_of(const struct sl_attend *a, enum use heads, enum use lse, bool has_out);
