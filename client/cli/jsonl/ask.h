// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: operations of a line of `sluice run --jsonl` that generate nothing. Programs that prepare prompts need them:
 *
 *     {"operation": "model"}                                   fingerprints, context, presets
 *     {"operation": "tokenize", "prompt": TEXT}                 token ids, with the begin token first
 *     {"operation": "recipe", "recipe": RECIPE, "tokens": N}    canonical text and properties; with "tokens" also the
 *                                                              bytes that a prompt of N tokens gives to kvstores
 */
#pragma once

#include <jansson.h>

#include "engine/model/model.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "gateway/openai/refusal.h"

struct sl_jsonl_model {
    const char *dir, *weights;
    uint64_t fingerprint;
    const struct sl_model_config *config;
    const struct sl_tokenizer *tokenizer;
};

// Returns the reply to a line with "operation", a new reference. NULL: *refusal has the reason.
json_t *sl_jsonl_ask(const struct sl_jsonl_model *model, const json_t *line, struct sl_refusal *refusal);
