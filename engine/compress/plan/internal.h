// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: declarations that only the files of engine/compress/plan/ share. From the bottom up:
 *
 *     budget.c  divides a budget over layers and heads
 *     slots.c   slots of heads
 *     sizes.c   bytes
 *     plan.c    the plan: layouts, budgets
 */
#pragma once

#include "engine/compress/plan/plan.h"

static inline int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static inline int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

// --- slots.c

int sl_plan_n_evicting(const struct sl_plan *plan); // layers
// The most slots per head of a layer between two chunks, and while the layer processes a chunk.
int64_t sl_plan_between_slots(const struct sl_plan *plan, int layer);
int64_t sl_plan_at_work_slots(const struct sl_plan *plan, int layer);

// --- sizes.c: members of struct sl_plan of that name

size_t sl_plan_capsule_bytes(const struct sl_plan *plan);
size_t sl_plan_prefill_peak_bytes(const struct sl_plan *plan);
