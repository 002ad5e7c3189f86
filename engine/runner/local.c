// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>

#include "engine/runner/local_internal.h"

enum sl_status sl_local_open(const struct sl_local_config *config, struct sl_local **local_out, struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_local, local, err, "local: out of memory");
    local->max_chunk_tokens = config->max_chunk_tokens ? config->max_chunk_tokens : 3072;
    struct sl_runtime_config runtime = {.model_dir = config->model_dir,
                                        .tier = config->tier,
                                        .device = config->device,
                                        .weights = config->weights,
                                        .share_weights = config->share_weights,
                                        .ranks = config->ranks,
                                        .threads = config->threads,
                                        .max_rows = local->max_chunk_tokens,
                                        .tokenizer = true,
                                        .loading_fn = config->loading_fn,
                                        .loading_arg = config->loading_arg};
    enum sl_status status = sl_runtime_open(&runtime, &local->runtime, err);
    if (status == SL_OK) {
        size_t usual = sl_runtime_usual_arena_bytes(&local->runtime);
        size_t bytes = config->arena_bytes ? config->arena_bytes : usual;
        status = sl_runtime_open_arena(&local->runtime, bytes, err);
    }
    // The host copies kept pages, so a device with its own memory reads every prompt again.
    if (status == SL_OK && config->shared_prefix_bytes > 0 && local->runtime.device->ops->one_memory) {
        status = sl_shared_prefixes_create(config->shared_prefix_bytes, &local->shared_prefixes, err);
    }
    SL_TRY_OR(status, sl_local_close(&local));
    *local_out = local;
    return SL_OK;
}

void sl_local_close(struct sl_local **local_inout) {
    struct sl_local *local = *local_inout;
    if (!local) {
        return;
    }
    sl_shared_prefixes_destroy(&local->shared_prefixes);
    sl_runtime_close(&local->runtime);
    free(local);
    *local_inout = NULL;
}

const struct sl_tokenizer *sl_local_tokenizer(const struct sl_local *local) {
    return local->runtime.tokenizer;
}
const struct sl_model_config *sl_local_model(const struct sl_local *local) {
    return local->runtime.config;
}
