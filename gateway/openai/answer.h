// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: formats the answer to a request as OpenAI does: chunks of a stream (server-sent events), or one object.
 *
 * Design: pure functions from our events to text. A stream is
 *
 *     role (chats) -> tokens ... -> an empty delta with the finish_reason -> usage (if requested) -> [DONE]
 *
 *         A stream that fails in the middle ends with an error and without [DONE]. finish_reason is null until the end.
 *         The last chunk with choices or usage, and the single object, contain the job's measurements: "sluice". Of a
 *         request with several prompts, each prompt has a job, and each choice its job's measurements.
 */
#pragma once

#include <jansson.h>
#include <stdint.h>

#include "gateway/openai/request.h"

struct sl_openai_answer {
    const struct sl_openai_request *request;
    const char *model, *job_id, *first_job_id; // first_job_id: of the first prompt; NULL: job_id
    int64_t created;                           // Unix time, seconds
    size_t index;                              // of the prompt that is being answered; the end of an answer advances it
    json_t *tokens;                            // tokens with logprobs, if the answer is sent as one object
    size_t n_text;                             // characters so far, for a completion's text_offset
    // The prompts that are answered.
    char *choices;    // "{...},{...}" if the answer is sent as one object; owned
    size_t n_choices; // its bytes
    int64_t n_prompt_tokens, n_output_tokens, n_reused_tokens;
};

// Returns malloc'd text that the caller frees, like the next functions. NULL: no memory.
char *sl_openai_begin(struct sl_openai_answer *answer); // "" if the stream has no first chunk
char *sl_openai_token(struct sl_openai_answer *answer,
                      const Sluice__V1__Token *token); // "" if the token has nothing to show
// Ends the answer to one prompt; the last one's end has the usage and [DONE].
char *sl_openai_end(struct sl_openai_answer *answer, const Sluice__V1__Finished *finished);

// Keeps a token's logprobs for an answer that is sent as one object.
enum sl_status sl_openai_keep(struct sl_openai_answer *answer, const Sluice__V1__Token *token);
// Returns the object after the last prompt's answer, and "" after those before it.
char *sl_openai_whole(struct sl_openai_answer *answer, const Sluice__V1__Finished *finished);
// Refuses further prompts if the answers so far are as large as one object may be. SL_ERR_RANGE: *refusal is set.
enum sl_status sl_openai_check_room(const struct sl_openai_answer *answer, struct sl_refusal *refusal);

void sl_openai_answer_cleanup(struct sl_openai_answer *answer);
