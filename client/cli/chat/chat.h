// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: declarations that the files of `sluice chat` share.
 *
 *     cmd_chat.c   options, the answering side, loop   commands.c  lines that begin with a slash
 *     turn.c       one question and its answer         messages.c  the conversation so far
 *     lines.c      typed lines                         history.c   the file of typed lines
 *
 * Design: every turn sends the whole conversation, so a worker may have forgotten it. Workers (docs/CHAT.md), or this
 *         process with --local (client/cli/local_job.h), know which tokens have been read, and read only the new ones.
 */
#pragma once

#include "base/lease_id.h"
#include "client/cli/chat/lines.h"
#include "client/cli/chat/messages.h"
#include "client/cli/follow.h"
#include "client/cli/local_job.h"
#include "client/cli/request.h"
#include "engine/compress/recipe/recipe.h"

#define SL_CHAT_DOCUMENT_BYTES 65 // the longest name of a document

struct sl_chat_config {
    struct sl_tool_config tool;
    struct sl_request_config request;
    const char *model, *device, *weights, *arena;
    int64_t threads, keep_ms;
    bool local, no_history, private_weights, quiet;
};

// One completed turn.
struct sl_chat_turn {
    // Tokens before the answer; the part of them that was read for it; tokens of the answer
    int64_t n_context, n_read, n_written;
    int64_t shipped_bytes;
    double ttft_ms, total_ms;
    const char *not_cached; // why nothing was reused (proto/kept.h); NULL: something was, or the worker does not say
};

struct sl_chat_session {
    const struct sl_chat_config *config;
    struct sl_signals *signals;
    struct sl_lines *lines;
    struct sl_messages messages;
    char recipe[SL_RECIPE_TEXT_BYTES];     // as requested; "": the default
    bool as_text;                          // send text: the model takes no chats, or the user wants none
    char document[SL_CHAT_DOCUMENT_BYTES]; // the cluster's document that the conversation begins with; "": none

    int64_t next_line_ns;        // of the lines that tell how much of the model is loaded
    struct sl_local_talk *local; // either this or client is set
    struct sl_client *client;
    char id[SL_LEASE_ID_BYTES];            // id of the conversation in the cluster; "": not begun
    Sluice__V1__Conversation conversation; // its id points to `id`

    struct sl_chat_turn *turns; // [n_turns] of this conversation
    size_t n_turns, turns_capacity;
    Sluice__V1__Statistics *last; // statistics of the last turn; owned
};

enum sl_chat_next { SL_CHAT_GO_ON, SL_CHAT_LEAVE, SL_CHAT_FAILED };

// turn.c: asks, shows the answer, and stores both. Returns the turn's exit code. A failed turn has been reported, and
// is left out of the conversation.
int sl_chat_ask(struct sl_chat_session *chat, const char *line);
// Starts a new conversation, with the same system message and recipe, and no document.
void sl_chat_forget(struct sl_chat_session *chat);

// commands.c: executes a line that begins with a slash. A failure has been reported when this returns.
enum sl_chat_next sl_chat_command(struct sl_chat_session *chat, char *line);
