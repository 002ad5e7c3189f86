// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: renders a conversation as the text that a model was trained to continue, by the model's own chat template.
 *
 * Design: templates are written in Jinja. A subset is supported (engine/text/chat/chat_internal.h), with the
 *         semantics of the transformers library. Other constructs are rejected by name and line when the template is
 *         loaded. A template is untrusted code: its size, nesting, steps, memory and output are limited.
 * Threads: a template is immutable after loading; any number of threads may render it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#define SL_MAX_CHAT_MESSAGES 4096

struct sl_chat_template;

struct sl_chat_message {
    const char *role;    // "system", "user", "assistant", or another role that the template supports
    const char *content; // UTF-8
};

struct sl_chat {
    const struct sl_chat_message *messages; // [n_messages]
    size_t n_messages;                      // at most SL_MAX_CHAT_MESSAGES
    bool add_generation_prompt;             // end with the start of the model's answer
    int64_t time_ms;                        // the current time for templates that write the date (sl_wall_ms())
};

/*
 * Reads chat_template.jinja of a model folder, or else "chat_template" of tokenizer_config.json, and the special
 * tokens that templates write. SL_ERR_NOT_FOUND: the model has no template. SL_ERR_UNSUPPORTED: it uses a construct
 * outside the subset; SL_ERR_INVALID: it is damaged. The text of err names the line.
 */
enum sl_status sl_chat_template_load(const char *model_dir, struct sl_chat_template **chat_template_out,
                                     struct sl_error *err);
void sl_chat_template_destroy(struct sl_chat_template **chat_template);

/*
 * Renders a conversation. *text_out is malloc'd, the caller's to free. It begins with the model's begin token if the
 * template writes one: encode it without adding special tokens. Special tokens that are spelled out in a message
 * become tokens, as in every prompt. SL_ERR_INVALID: the template rejects this conversation with its own message, or
 * a message is not UTF-8. SL_ERR_UNSUPPORTED: the template did something that Jinja supports and this subset does
 * not. SL_ERR_EXHAUSTED: a limit was exceeded.
 */
enum sl_status sl_chat_template_render(const struct sl_chat_template *chat_template, const struct sl_chat *chat,
                                       char **text_out, struct sl_error *err);

// Returns true if the template may treat messages of this role on their own: the role is "system", "user" or "assistant", or
// is in quotes in the template. Many templates write any other role as it is, special tokens included.
bool sl_chat_template_knows_role(const struct sl_chat_template *chat_template, const char *role);
