// SPDX-License-Identifier: Apache-2.0
// Purpose: lower bounds of operations over a world: the bytes that they must move, or the operations that they must
// compute.
#pragma once

#include "lab/bench/rig/kernel_world.h"

struct sl_cost {
    double bytes, flop; // one of them is 0
};

// Returns how many channels are scanned: eight, or as many f16 ones as fit into the scores of a KV head's query
// heads, which hold the index.
static inline int sl_world_channels(const struct sl_world *w) {
    int held = 2 * (w->shape.n_heads / w->shape.n_kv_heads);
    return held < 8 ? held : 8;
}

static inline double sl_cost_slots(const struct sl_world *w) {
    return (double)w->shape.n_kv_heads * (double)w->shape.slots;
}

static inline struct sl_cost sl_cost_floats_twice(const struct sl_world *w, int of_heads) {
    return (struct sl_cost){.bytes =
                                8.0 * (double)w->shape.slots * (of_heads ? w->shape.n_heads : w->shape.n_kv_heads)};
}

static inline struct sl_cost sl_cost_norm(const struct sl_world *w, int arg) {
    (void)arg;
    return (struct sl_cost){.bytes = 8.0 * (double)w->shape.rows * (double)w->shape.hidden};
}

static inline struct sl_cost sl_cost_rotate(const struct sl_world *w, int arg) {
    (void)arg;
    return (struct sl_cost){.bytes = 8.0 * (double)w->shape.rows * w->shape.n_heads * w->shape.head_dim};
}

static inline struct sl_cost sl_cost_angles(const struct sl_world *w, int arg) {
    (void)arg;
    return (struct sl_cost){.bytes = 4.0 * (double)w->shape.rows * w->shape.head_dim};
}

static inline struct sl_cost sl_cost_append(const struct sl_world *w, int arg) {
    (void)arg;
    return (struct sl_cost){.bytes = 12.0 * (double)w->shape.rows * w->shape.n_kv_heads * w->shape.head_dim};
}

static inline struct sl_cost sl_cost_pages(const struct sl_world *w, int f) {
    return (struct sl_cost){.bytes = sl_cost_slots(w) / SL_PAGE_SLOTS * w->layouts[f].bytes};
}

static inline struct sl_cost sl_cost_quantize(const struct sl_world *w, int f) {
    return (struct sl_cost){.bytes = sl_cost_pages(w, 0).bytes + sl_cost_pages(w, f).bytes};
}

// Returns the cost of q.K and p.V of the slots that rows see.
static inline struct sl_cost sl_cost_attention(const struct sl_world *w, int products) {
    double seen = (double)w->shape.rows * ((double)w->shape.slots - ((double)w->shape.rows - 1) / 2);
    return (struct sl_cost){.flop = 2.0 * products * w->shape.n_heads * w->shape.head_dim * seen};
}

static inline struct sl_cost sl_cost_window(const struct sl_world *w, int rows) {
    (void)rows; // few: reading the keys dominates
    return (struct sl_cost){.bytes = 2.0 * sl_cost_slots(w) * w->shape.head_dim};
}

static inline struct sl_cost sl_cost_listed(const struct sl_world *w, int arg) {
    (void)arg;
    return (struct sl_cost){.bytes = 4.0 * sl_cost_slots(w) * w->shape.kept * w->shape.head_dim};
}

static inline struct sl_cost sl_cost_value_change(const struct sl_world *w, int arg) {
    (void)arg;
    return (struct sl_cost){.bytes = 4.0 * sl_cost_slots(w) * w->shape.head_dim};
}

static inline struct sl_cost sl_cost_select(const struct sl_world *w, int arg) {
    (void)arg;
    return (struct sl_cost){.bytes = sl_cost_slots(w) * 4.0 * (1 + w->shape.kept)};
}

static inline struct sl_cost sl_cost_scan(const struct sl_world *w, int arg) {
    (void)arg;
    return (struct sl_cost){.bytes = sl_cost_slots(w) * (2.0 * sl_world_channels(w) + 4.0)};
}

static inline struct sl_cost sl_cost_gather(const struct sl_world *w, int arg) {
    (void)arg;
    return (struct sl_cost){.bytes = 2.0 * w->shape.kept * sl_cost_pages(w, 0).bytes};
}

static inline struct sl_cost sl_cost_nearest(const struct sl_world *w, int arg) {
    double kept = (double)w->shape.slots * w->shape.kept, others = (double)w->shape.slots - kept;
    (void)arg;
    return (struct sl_cost){.flop = 2.0 * w->shape.n_kv_heads * kept * others * w->shape.head_dim};
}

static inline struct sl_cost sl_cost_logits(const struct sl_world *w, int rows) {
    return (struct sl_cost){.bytes = 4.0 * rows * (double)w->shape.vocab};
}
