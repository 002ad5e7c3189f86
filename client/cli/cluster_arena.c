// SPDX-License-Identifier: Apache-2.0
#include "client/cli/cluster_arena.h"

#include <limits.h>
#include <stdio.h>
#include <sys/statvfs.h>

#include "base/memory_limit.h"

#define LEAST_BYTES (INT64_C(256) << 20)
#define STEP_BYTES  (INT64_C(64) << 20)
#define TEXT_TOKENS INT64_C(16384)

static int64_t least(int64_t a, int64_t b) {
    return a < 0 || (b >= 0 && b < a) ? b : a;
}

int64_t sl_cluster_memory(const char *root) {
    char path[PATH_MAX];
    struct statvfs shm;
    struct sl_memory_limit limit;
    int64_t bytes = sl_memory_available(root);
    if (sl_memory_limit_read(root, &limit, NULL) == SL_OK) {
        bytes = least(bytes, limit.bytes);
    }
    if ((size_t)snprintf(path, sizeof path, "%s/dev/shm", root) < sizeof path && statvfs(path, &shm) == 0) {
        bytes = least(bytes, (int64_t)shm.f_bavail * (int64_t)shm.f_frsize);
    }
    return bytes;
}

// Returns the bytes of K and V of one token, two bytes a number; 0: the model is not known.
static int64_t token_bytes(const struct sl_model_config *model) {
    return (int64_t)model->n_layers * model->n_kv_heads * model->head_dim * 2 * 2;
}

// Returns the bytes for a text. A quarter more for positions, scores, partly filled pages, and tokens that are written
// after the text.
static int64_t text_bytes(const struct sl_model_config *model, int64_t tokens) {
    return (tokens * token_bytes(model) / 4 * 5 + STEP_BYTES - 1) / STEP_BYTES * STEP_BYTES;
}

int64_t sl_cluster_arena_bytes(const struct sl_model_config *model, int64_t available_bytes, int64_t n_workers) {
    int64_t bytes = text_bytes(model, least(model->max_positions, TEXT_TOKENS));
    int64_t room = available_bytes < 0 ? bytes : available_bytes / 2 / n_workers / STEP_BYTES * STEP_BYTES;
    bytes = bytes < room ? bytes : room;
    return bytes > LEAST_BYTES ? bytes : LEAST_BYTES;
}

void sl_cluster_arena_describe(const struct sl_model_config *model, int64_t bytes, char *text_out, size_t text_size) {
    int64_t tokens = token_bytes(model) > 0 ? bytes / 5 * 4 / token_bytes(model) : INT64_MAX;
    text_out[0] = '\0';
    if (tokens < model->max_positions) {
        snprintf(text_out, text_size,
                 "%lld MiB a worker: texts of up to %lld tokens, uncompressed; the model's %lld take --arena %lldM",
                 (long long)(bytes >> 20), (long long)tokens, (long long)model->max_positions,
                 (long long)(text_bytes(model, model->max_positions) >> 20));
    }
}
