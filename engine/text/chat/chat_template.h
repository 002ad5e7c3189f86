// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a conversation as the one text that a model was trained to continue, by the model's own chat template.
 *
 * Design: templates are written in Jinja. What is understood is a subset of it (engine/text/chat/chat_internal.h) with the
 * meaning that the transformers library gives it; what is not is refused by name and line when the template is loaded.
 * A template is code from outside: its size, its nesting, its steps, its memory and its output are bounded.
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
    const char *role;    // "system", "user", "assistant", or what else the template knows
    const char *content; // UTF-8
};

struct sl_chat {
    const struct sl_chat_message *messages; // [n_messages]
    size_t n_messages;                      // at most SL_MAX_CHAT_MESSAGES
    bool add_generation_prompt;             // end with what begins the model's answer
    int64_t time_ms;                        // what a template that writes the date takes for now (sl_wall_ms())
};

/*
 * Reads chat_template.jinja of a model folder or, where there is none, "chat_template" of tokenizer_config.json, and the
 * special tokens that templates write. SL_ERR_NOT_FOUND: the model has no template. SL_ERR_UNSUPPORTED: it uses
 * something that is not in the subset; SL_ERR_INVALID: it is damaged. The text of err names the line.
 */
enum sl_status sl_chat_template_load(const char *model_dir, struct sl_chat_template **chat_template_out,
                                     struct sl_error *err);
void sl_chat_template_destroy(struct sl_chat_template **chat_template);

/*
 * *text_out is malloc'd, the caller's to free. It begins with the model's begin token if the template writes one: encode
 * it without adding special tokens. Special tokens that are spelled out in a message become tokens, as they do in every
 * prompt. SL_ERR_INVALID: the template refuses this conversation, in its own words, or a message is not UTF-8.
 * SL_ERR_UNSUPPORTED: what happened has a meaning in Jinja, but not here. SL_ERR_EXHAUSTED: a bound was exceeded.
 */
enum sl_status sl_chat_template_render(const struct sl_chat_template *chat_template, const struct sl_chat *chat,
                                       char **text_out, struct sl_error *err);
