// SPDX-License-Identifier: Apache-2.0
// Purpose: the prompt of a job that is given as messages, the same for the coordinator and for `sluice run --local`.
#pragma once

#include "proto/sluice/v1/inference.pb-c.h"
#include "engine/text/chat/chat_template.h"
#include "engine/text/tokenizer/tokenizer.h"

#define SL_MAX_CHAT_BYTES ((size_t)15 << 20) // of all messages together
#define SL_MAX_ROLE_BYTES 64

/*
 * Check the messages, render them up to where the answer begins, and encode that. No begin token is put in front: the
 * template writes it where the model wants one. *ids_out is malloc'd, the caller's to free, and not empty.
 * SL_ERR_INVALID: no messages, too many, too large; or the template refuses them. SL_ERR_UNSUPPORTED, SL_ERR_EXHAUSTED:
 * see sl_chat_template_render().
 */
enum sl_status sl_job_chat(const struct sl_chat_template *chat_template, const struct sl_tokenizer *tokenizer,
                           const Sluice__V1__Chat *chat, int32_t **ids_out, size_t *n_ids_out, struct sl_error *err);

/*
 * What a further turn adds to the tokens of a conversation. The first n_before messages were the prompt of an answer; the message behind
 * them is that answer, whose tokens were written and are not made of its text again; what follows is new. *ids_out is what stands behind
 * those tokens, without the token that has ended the answer: the template writes that itself. SL_ERR_PRECONDITION: the template
 * now writes otherwise what stands before the answer, so everything is to be read again.
 */
enum sl_status sl_job_chat_turn(const struct sl_chat_template *chat_template, const struct sl_tokenizer *tokenizer,
                                const Sluice__V1__Chat *chat, size_t n_before, int32_t **ids_out, size_t *n_ids_out,
                                struct sl_error *err);
