// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the sampling parameters that a model's authors recommend: those of generation_config.json, or the
 *          general.sampling keys of a GGUF file (engine/model/gguf/gguf_config.c). A request that leaves one out gets
 *          the model's.
 *
 * Design: they are filled in when a job begins (engine/job/job_request.h), so that every later step, and the record
 *         of the answer, has the values used. A file with do_sample false is greedy, as in Transformers. Without
 *         do_sample its parameters apply, as in vLLM. Only requests limit the length of an answer.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

// 0: the file does not set the parameter.
struct sl_model_sampling {
    bool has_temperature;
    float temperature; // 0 is greedy
    int top_k;
    float top_p;
    float repetition_penalty;
    float min_p;
    char left_out[128]; // names of its parameters that our sampler does not support; "": none
};

// Reads the parameters. SL_ERR_INVALID names the parameter that is out of bounds. *sampling_out is written on success
// alone.
enum sl_status sl_model_sampling_read(const json_t *root, const char *file, struct sl_model_sampling *sampling_out,
                                      struct sl_error *err);

// Writes "temperature 0.6, top_p 0.9", or "" if the model sets nothing; truncated to the buffer. Returns buf.
char *sl_model_sampling_text(const struct sl_model_sampling *sampling, char *buf, size_t buf_bytes);

// Logs the model's parameters, and those that are not supported.
void sl_model_sampling_log(const struct sl_model_sampling *sampling, const char *component);

// Applies the option --generation-config: "auto" leaves *sampling as it is, "none" clears it. SL_ERR_INVALID: another
// word.
enum sl_status sl_model_sampling_choose(const char *word, struct sl_model_sampling *sampling, struct sl_error *err);
