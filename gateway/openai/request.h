// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: converts the body of POST /v1/chat/completions and /v1/completions into a GenerateRequest.
 *
 * Design: one table row per field (request.c). A field that is not in the table, or has an unsupported value, is
 *         refused by its name: no field is ignored that could change an answer (unused.h). The coordinator checks ranges;
 *         here only types are checked. Additional fields: recipe, ship_at_most, document, documents, reread, top_k, min_p,
 *         repetition_penalty, ignore_eos, reuse, deadline_ms.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "gateway/openai/json_memory.h"
#include "gateway/openai/refusal.h"
#include "proto/sluice/v1/inference.pb-c.h"

#define SL_OPENAI_MAX_STOPS     16
#define SL_OPENAI_MAX_PROMPTS   256
#define SL_OPENAI_MAX_DOCUMENTS 8

struct sl_openai_prompt {
    char *text; // NULL: token ids
    Sluice__V1__TokenIds tokens;
};

struct sl_openai_request {
    bool is_chat;
    bool stream, include_usage;
    bool wants_logprobs;
    int n_top_logprobs; // number shown for each token
    const char *model;  // NULL: the request names none
    // The coordinator's request, and the data that it points to.
    Sluice__V1__GenerateRequest message;
    Sluice__V1__Sampling sampling;
    Sluice__V1__Chat chat;
    Sluice__V1__ChatMessage *messages;
    Sluice__V1__ChatMessage **message_list;
    char **joined;                         // [chat.n_messages] contents that were sent in several pieces
    struct sl_openai_prompt *prompts, one; // [n_prompts] of a completion; &one if there is one
    size_t n_prompts;
    char *stops[SL_OPENAI_MAX_STOPS], *documents[SL_OPENAI_MAX_DOCUMENTS];
    json_t *json;
    bool has_long_integers; // the body has integers of more than 64 bits: all of them were parsed as reals
    char ignored[256];      // names of accepted fields that are not used: "service_tier, messages.name", or ""
};

// Parses a body. The caller destroys *request_out, and then gives the memory back (NULL: it is not bounded). SL_ERR_INVALID,
// SL_ERR_EXHAUSTED: *refusal has the reason, and there is no request.
enum sl_status sl_openai_request_parse(bool is_chat, const char *body, size_t n_bytes, struct sl_json_memory *memory,
                                       struct sl_openai_request **request_out, struct sl_refusal *refusal);
// Puts prompt i, below n_prompts, into the message of a completion. The parser puts the first one.
void sl_openai_request_select(struct sl_openai_request *request, size_t i);
void sl_openai_request_destroy(struct sl_openai_request **request); // accepts NULL, nulls *request
// Takes the recipe that is recommended for the field ship_at_most; later: questions come after the text was compressed.
// SL_ERR_INVALID: no number, or too small.
enum sl_status sl_openai_take_share(const json_t *percent, bool later, char **recipe_out, struct sl_refusal *refusal);
