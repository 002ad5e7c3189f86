// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what has become of a request, in OpenAI's words: chunks of a stream (server-sent events), or one object.
 *
 * Design: pure functions from our events to text. A stream is
 *
 *     role (chats) -> tokens ... -> an empty delta with the finish_reason -> usage (if asked for) -> [DONE]
 *
 *         and one that fails in its middle ends with an error and without [DONE]. finish_reason is null until the end.
 *         The last chunk with choices or usage, and the one object, have what the job has measured: "sluice".
 */
#pragma once

#include <jansson.h>
#include <stdint.h>

#include "gateway/openai/request.h"

struct sl_openai_answer {
    const struct sl_openai_request *request;
    const char *model, *job_id;
    int64_t created; // Unix time, seconds
    json_t *tokens;  // of an answer that is given whole, with logprobs: what was heard of each
    size_t n_text;   // characters so far, of a completion's text_offset
};

// Texts are malloc'd, the caller's to free. NULL: no memory.
char *sl_openai_begin(struct sl_openai_answer *answer); // "" where a stream begins with nothing
char *sl_openai_token(struct sl_openai_answer *answer,
                      const Sluice__V1__Token *token); // "" where it has nothing to show
char *sl_openai_end(struct sl_openai_answer *answer, const Sluice__V1__Finished *finished);

// Of an answer that is given whole.
enum sl_status sl_openai_keep(struct sl_openai_answer *answer, const Sluice__V1__Token *token);
char *sl_openai_whole(struct sl_openai_answer *answer, const Sluice__V1__Finished *finished);

void sl_openai_answer_cleanup(struct sl_openai_answer *answer);
