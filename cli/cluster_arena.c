// SPDX-License-Identifier: Apache-2.0
// Purpose: see cluster_arena.h.
#include "cli/cluster_arena.h"

#define LEAST_BYTES (INT64_C(256) << 20)
#define STEP_BYTES  (INT64_C(64) << 20)
#define TEXT_TOKENS INT64_C(16384)

int64_t sl_cluster_arena_bytes(const struct sl_model_config *model, int64_t available_bytes, int64_t n_workers) {
    int64_t tokens = model->max_positions < TEXT_TOKENS ? model->max_positions : TEXT_TOKENS;
    int64_t token_bytes = (int64_t)model->n_layers * model->n_kv_heads * model->head_dim * 2 * 2; // K and V
    // A quarter more for positions, scores, pages that are not full, and what is written behind the text.
    int64_t bytes = (tokens * token_bytes / 4 * 5 + STEP_BYTES - 1) / STEP_BYTES * STEP_BYTES;
    int64_t room = available_bytes < 0 ? bytes : available_bytes / 2 / n_workers / STEP_BYTES * STEP_BYTES;
    bytes = bytes < room ? bytes : room;
    return bytes > LEAST_BYTES ? bytes : LEAST_BYTES;
}
