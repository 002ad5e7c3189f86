// SPDX-License-Identifier: Apache-2.0
// Purpose: model folders of any geometry with random bf16 weights: speed does not depend on what a model has learned.
#ifndef SL_BENCH_SYNTHETIC_H
#define SL_BENCH_SYNTHETIC_H

#include "engine/model.h"

/*
 * Make a folder below TMPDIR (or /tmp) with config.json and model.safetensors. Its path goes to dir_out; the caller
 * removes it with sl_synthetic_remove(). SL_ERR_IO.
 */
enum sl_status sl_synthetic_create(const struct sl_model_config *config, char *dir_out, size_t dir_bytes,
                                   struct sl_error *err);
void sl_synthetic_remove(const char *dir);

#endif
