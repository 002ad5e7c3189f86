// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the special tokens of a model: in a folder those that tokenizer_config.json or tokenizer.json mark as
 *          special, in a GGUF file those of type control.
 */
#pragma once

#include <jansson.h>
#include <stdint.h>

#include "base/status.h"

/*
 * Writes an object of content -> id, which the caller releases; it is empty for a model without a tokenizer.
 * *eos_id_out is the tokenizer's own end of a text (eos_token of tokenizer_config.json, a text or an object with
 * content, or tokenizer.ggml.eos_token_id). It is -1 if the tokenizer names none, or one that its vocabulary does not
 * have. SL_ERR_IO, SL_ERR_INVALID, SL_ERR_EXHAUSTED: a document cannot be read; err names it.
 */
enum sl_status sl_model_special_tokens(const char *model, json_t **tokens_out, int64_t *eos_id_out,
                                       struct sl_error *err);
