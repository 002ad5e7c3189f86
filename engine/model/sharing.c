// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: decides which processes share a model's packed weights (engine/tensor/shared_weights.h).
 *
 * Design: the key has what decides the bytes: the files, the configuration, the format and the tier; and the NUMA node,
 *         so that no process reads the memory of another node. Files are identified by device, inode, size and times,
 *         not by the model's fingerprint: that one samples bytes, so it can be equal for two models. The configuration
 *         decides which tensors are packed: the head is the embedding or a tensor of its own, of the same shape. Two
 *         folders may have the same files and two configurations.
 */
#include "base/close.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/processors.h"
#include "engine/model/model_internal.h"
#include "engine/tensor/shared_weights.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define MOST_GROWTH 8            // times that packed weights can be as large as the file's
#define SPARE_BYTES (1ULL << 28) // for panels that are padded

// Returns true where this process would have small pages, too: sharing then makes nothing slower.
static bool has_small_pages(void) {
    char text[64] = "";
    int file = open("/sys/kernel/mm/transparent_hugepage/enabled", O_RDONLY | O_CLOEXEC);
    ssize_t n = file >= 0 ? read(file, text, sizeof text - 1) : -1;
    sl_close(file);
    return n <= 0 || strstr(text, "[never]") != NULL;
}

void sl_model_share_begin(struct sl_model *model, const char *model_dir, enum sl_weight_format weights,
                          struct sl_stream *stream, struct sl_model_progress *progress) {
    uint64_t key = sl_model_config_hash(&model->config, sl_tensors_identity(model->tensors));
    key = sl_hash(model->ops->name, strlen(model->ops->name), key);
    key = sl_mix(key + (uint64_t)weights * SL_GOLDEN);
    const struct sl_shared_weights_config config = {
        .key = sl_mix(key + (uint64_t)sl_processors_node("") * SL_GOLDEN),
        .room_bytes = MOST_GROWTH * sl_tensors_bytes(model->tensors) + SPARE_BYTES,
        .max_matrices = (uint32_t)(model->config.n_layers * SL_N_LAYER_MATRICES + 1),
        .small_pages = has_small_pages(),
        .team = stream->team,
        .done_out = progress != NULL ? &progress->done_bytes : NULL,
        .stops = progress != NULL ? &progress->stops : NULL,
    };
    struct sl_error why;
    enum sl_status status = sl_shared_weights_open(&config, &model->shared, &why);
    if (status != SL_OK && status != SL_ERR_CANCELLED) {
        sl_log_warn("engine", "%s: weights are not shared: %s", model_dir, why.text);
    }
    sl_tensors_tell(model->tensors, model->shared);
}

enum sl_status sl_model_share_end(const struct sl_model *model, const char *model_dir, struct sl_error *err) {
    struct sl_error why;
    enum sl_status status = sl_shared_weights_finish(model->shared, &why);
    SL_FAIL_IF(status == SL_ERR_PEER_STALE || status == SL_ERR_INTERNAL, err, status, "%s: %s", model_dir, why.text);
    if (status != SL_OK) {
        sl_log_warn("engine", "%s: weights are not shared: %s", model_dir, why.text);
        return SL_OK;
    }
    sl_log_info("engine", "%s: weights=%s bytes=%zu processes=%d", model_dir,
                sl_shared_weights_are_ready(model->shared) ? "shared" : "packed-to-share",
                sl_shared_weights_bytes(model->shared), sl_shared_weights_users(model->shared));
    return SL_OK;
}
