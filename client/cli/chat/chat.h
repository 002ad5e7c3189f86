// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what the files of `sluice chat` share.
 *
 *     cmd_chat.c   options, who answers, the loop      commands.c  what begins with a slash
 *     turn.c       one question and its answer         messages.c  what has been said
 *     lines.c      what is typed                       history.c   where that is kept
 *
 * Design: every turn asks with the whole conversation, so whoever answers may have forgotten it. What has been read is known to who
 *         answers (client/cli/local_job.h, docs/CHAT.md), and only what is new is read.
 */
#pragma once

#include "base/lease_id.h"
#include "client/cli/chat/lines.h"
#include "client/cli/chat/messages.h"
#include "client/cli/follow.h"
#include "client/cli/local_job.h"
#include "client/cli/request.h"
#include "engine/compress/recipe/recipe.h"

struct sl_chat_config {
    struct sl_tool_config tool;
    struct sl_request_config request;
    const char *model, *device, *weights, *arena;
    int64_t threads, keep_ms;
    bool local, no_history, quiet;
};

// One turn that has ended.
struct sl_chat_turn {
    int64_t n_context, n_read, n_written; // tokens: of all that stood before the answer, of those that were read for it
    double ttft_ms, total_ms;
};

struct sl_chat_session {
    const struct sl_chat_config *config;
    struct sl_signals *signals;
    struct sl_lines *lines;
    struct sl_messages messages;
    char recipe[SL_RECIPE_TEXT_BYTES]; // as it was asked for; "": the default
    bool as_text;                      // the model takes no chats, or none are wanted

    struct sl_local_talk *local; // one of the two
    struct sl_client *client;
    char id[SL_LEASE_ID_BYTES];            // of the conversation in the cluster; "": none has begun
    Sluice__V1__Conversation conversation; // points to it

    struct sl_chat_turn *turns; // [n_turns] of this conversation
    size_t n_turns, turns_capacity;
    Sluice__V1__Statistics *last; // of the last turn; owned
};

enum sl_chat_next { SL_CHAT_GO_ON, SL_CHAT_LEAVE, SL_CHAT_FAILED };

// turn.c: ask, show the answer, and remember both. The exit code of the turn: what failed has been said, and is forgotten.
int sl_chat_ask(struct sl_chat_session *chat, const char *line);
// Everything begins anew, but for the system message and the recipe.
void sl_chat_forget(struct sl_chat_session *chat);

// commands.c: what a line that begins with a slash asks for. What failed has been said.
enum sl_chat_next sl_chat_command(struct sl_chat_session *chat, char *line);
