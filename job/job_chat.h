// SPDX-License-Identifier: Apache-2.0
// Purpose: the prompt of a job that is given as messages, the same for the coordinator and for `sluice run --local`.
#pragma once

#include "proto/sluice/v1/inference.pb-c.h"
#include "text/chat/chat_template.h"
#include "text/tokenizer/tokenizer.h"

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
