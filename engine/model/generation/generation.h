// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: how a model's authors want tokens drawn: the sampling parameters of generation_config.json, which of a GGUF file
 *          are its general.sampling keys (engine/model/gguf/gguf_config.c). A request that leaves one out gets the model's.
 *
 * Design: who reads them fills them in where a job begins (engine/job/job_request.h), so that every later step, and the record of
 *         the answer, has what was used. A file that says do_sample false is greedy, as in Transformers; where it does not
 *         say, its parameters count, as they do in vLLM. How long an answer may be is for requests alone.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

// 0: the file does not say.
struct sl_model_sampling {
    bool has_temperature;
    float temperature; // 0 is greedy
    int top_k;
    float top_p;
    float repetition_penalty;
    char left_out[128]; // names of what it asks for besides, and our sampler does not do; "": nothing
};

// SL_ERR_INVALID names the parameter that is out of bounds. *sampling_out is written on success alone.
enum sl_status sl_model_sampling_read(const json_t *root, const char *file, struct sl_model_sampling *sampling_out,
                                      struct sl_error *err);

// "temperature 0.6, top_p 0.9", or "" where the model says nothing; cut to what fits. Returns buf.
char *sl_model_sampling_text(const struct sl_model_sampling *sampling, char *buf, size_t buf_bytes);

// To the log: what the model says, and what of it is left out.
void sl_model_sampling_log(const struct sl_model_sampling *sampling, const char *component);

// The option --generation-config: "auto" leaves *sampling as it is, "none" clears it. SL_ERR_INVALID: it is neither.
enum sl_status sl_model_sampling_choose(const char *word, struct sl_model_sampling *sampling, struct sl_error *err);
