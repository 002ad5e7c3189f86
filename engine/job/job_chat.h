// SPDX-License-Identifier: Apache-2.0
// Purpose: the prompt of a job that is given as messages, the same for the coordinator and for `sluice run --local`.
#pragma once

#include "proto/sluice/v1/inference.pb-c.h"
#include "engine/text/chat/chat_template.h"
#include "engine/text/tokenizer/tokenizer.h"

#define SL_MAX_CHAT_BYTES ((size_t)15 << 20) // of all messages together
#define SL_MAX_ROLE_BYTES 64

/*
 * Checks the messages, renders them up to the start of the answer, and encodes the text. Adds no begin token: the
 * template writes it if the model needs one. *ids_out is malloc'd, the caller's to free, and not empty.
 * SL_ERR_INVALID: no messages, too many, too large; or the template rejects them. SL_ERR_UNSUPPORTED,
 * SL_ERR_EXHAUSTED: see sl_chat_template_render().
 */
enum sl_status sl_job_chat(const struct sl_chat_template *chat_template, const struct sl_tokenizer *tokenizer,
                           const Sluice__V1__Chat *chat, int32_t **ids_out, size_t *n_ids_out, struct sl_error *err);

/*
 * Writes the tokens that a further turn adds to a conversation. The first n_before messages were the prompt of an
 * answer, and the next message is that answer. Its tokens exist already and are not encoded from its text again; the
 * messages after it are new. *ids_out has the tokens after the answer's, without the token that ended the answer: the
 * template writes that token itself. SL_ERR_PRECONDITION: the template now renders the text before the answer
 * differently, so the caller must read everything again.
 */
enum sl_status sl_job_chat_turn(const struct sl_chat_template *chat_template, const struct sl_tokenizer *tokenizer,
                                const Sluice__V1__Chat *chat, size_t n_before, int32_t **ids_out, size_t *n_ids_out,
                                struct sl_error *err);
