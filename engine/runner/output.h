// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the output processor: turns each step's choice into the next token, its text, and the reason to stop. A
 *          decode worker and `sluice run --local` use the same code.
 *text that might be the beginning of a stop string is held back until it is clear that it is not, so no part of a
 *stop string is ever shown. Stop strings match special tokens by their spelling ("<|im_end|>"), although the text
 *does not contain them.
 *         although the text does not have them.
 * Threads: one at a time per output processor.
 */
#pragma once

#include <stdbool.h>

#include "engine/model/model.h"
#include "engine/sampling/sampler.h"
#include "engine/text/tokenizer/tokenizer.h"

#define SL_MAX_STOPS      16
#define SL_MAX_STOP_BYTES 256

enum sl_stop_reason { SL_STOP_NONE, SL_STOP_TOKEN, SL_STOP_STRING, SL_STOP_LENGTH };

struct sl_output_config {
    const struct sl_tokenizer *tokenizer;
    const struct sl_model_config *model; // n_vocab and the ids that end a text
    struct sl_sampling sampling;
    int64_t max_new_tokens; // at least 1
    bool ignore_eos;
    const char *const *stops; // [n_stops]
    size_t n_stops;
    const int32_t *prompt; // for the repetition penalty
    int64_t n_prompt;
    const int32_t *resumed; // output of an earlier attempt: counted, part of the text, not reported again
    int64_t n_resumed;
    const int32_t *said; // the token after these, which was already reported; it overrides the choice. NULL: none
};

struct sl_output;

// Creates an output processor. SL_ERR_INVALID names the parameter that is out of bounds. Copies everything in config
// except tokenizer and model.
enum sl_status sl_output_create(const struct sl_output_config *config, struct sl_output **output_out,
                                struct sl_error *err);
void sl_output_destroy(struct sl_output **output);

struct sl_output_token {
    struct sl_token token;
    int64_t index;
    const char *text; // NUL-terminated; whole characters to show now; valid until the next call
    enum sl_stop_reason stop;
};

/*
 * Produces the next token. The choice of sl_output_choice() goes into the step that reads the previous token, and is
 * valid until sl_output_next(). The caller calls sl_output_next() after that step; it takes the chosen token. When
 * token_out->stop is set, the answer is complete.
 */
struct sl_choice *sl_output_choice(struct sl_output *output);
enum sl_status sl_output_next(struct sl_output *output, struct sl_output_token *token_out, struct sl_error *err);

// Returns all text so far that may be shown, without the stop string; NUL-terminated. Owned by the output.
const char *sl_output_text(const struct sl_output *output);
int64_t sl_output_n_tokens(const struct sl_output *output); // resumed ones included
