// SPDX-License-Identifier: Apache-2.0
// Purpose: one turn: a request with the whole conversation, its events, and its result. See chat.h.
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/array.h"
#include "base/log.h"
#include "client/cli/chat/chat.h"
#include "client/cli/follow.h"
#include "engine/compress/recipe/recipe.h"
#include "engine/text/tokenizer/tokenizer.h"
#include "proto/copy.h"
#include "proto/kept.h"

#define MAX_MESSAGE_BYTES ((size_t)4 << 20) // limit of a coordinator for one message; a chat must fit in one
// The cluster ends the job at its deadline and reports that: wait a little longer for the report
#define DEADLINE_SLACK_MS 5000

struct turn {
    struct sl_chat_session *chat;
    struct sl_follow follow;
    char *answer; // the answer so far
    size_t n_answer;
    bool no_memory;
    bool repeats; // the answer is ended: it only repeats itself, and -n set no length
    Sluice__V1__Finished__Reason reason;
};

// ---- events ---------------------------------------------------------------------------------------------------------

static void keep_text(struct turn *turn, const char *text) {
    size_t n = strlen(text);
    char *answer = realloc(turn->answer, turn->n_answer + n + 1);
    if (!answer) {
        turn->no_memory = true;
        return;
    }
    memcpy(answer + turn->n_answer, text, n + 1);
    turn->answer = answer;
    turn->n_answer += n;
    turn->repeats |= !turn->chat->config->request.has_max_new && sl_repeats_itself(turn->answer, turn->n_answer);
}

// Replaces the answer by its final text, which has no stop string.
static void keep_end(struct turn *turn, const Sluice__V1__Finished *finished) {
    struct sl_chat_session *chat = turn->chat;
    turn->reason = finished->reason;
    if (finished->text[0]) {
        turn->n_answer = 0;
        keep_text(turn, finished->text);
    }
    if (!finished->statistics) {
        return;
    }
    sluice__v1__statistics__free_unpacked(chat->last, NULL);
    chat->last = (Sluice__V1__Statistics *)sl_message_copy(&finished->statistics->base);
}

static bool look_at(void *arg, const Sluice__V1__Event *event) {
    struct turn *turn = arg;
    bool ends = event->what_case == SLUICE__V1__EVENT__WHAT_FINISHED;
    if (event->what_case == SLUICE__V1__EVENT__WHAT_TOKEN) {
        keep_text(turn, event->token->text);
    } else if (ends) {
        keep_end(turn, event->finished);
    }
    bool json = turn->chat->config->tool.json, cut = turn->reason == SLUICE__V1__FINISHED__REASON__CANCELLED_BY_CLIENT;
    return json ? ends : !cut; // with --json, a turn is one line
}

static bool is_enough(void *arg) {
    const struct turn *turn = arg;
    return turn->no_memory || turn->repeats;
}

// ---- request --------------------------------------------------------------------------------------------------------

static enum sl_status make_request(struct sl_chat_session *chat, struct sl_request *request, struct sl_error *err) {
    struct sl_request_config config = chat->config->request;
    config.recipe = chat->document[0] ? "" : chat->recipe; // a document has its own
    config.document = chat->document[0] ? chat->document : NULL;
    config.ship_at_most = 0; // the recipe contains it already
    config.label = "chat";
    enum sl_status status = sl_request_set_options(request, &config, err);
    if (status == SL_OK && chat->client && !chat->id[0]) {
        status = sl_lease_id_draw("chat", chat->id, err); // a random id that no other conversation has
    }
    if (status == SL_OK && chat->client) {
        sluice__v1__conversation__init(&chat->conversation);
        chat->conversation.id = chat->id;
        chat->conversation.keep_ms = chat->config->keep_ms;
        request->message.conversation = &chat->conversation;
    }
    return status == SL_OK ? sl_messages_request(&chat->messages, chat->as_text, &request->message, err) : status;
}

static enum sl_status answer(struct turn *turn, struct sl_error *err) {
    struct sl_chat_session *chat = turn->chat;
    struct sl_request request;
    SL_TRY(make_request(chat, &request, err));
    struct sl_watch watch = {
        .deadline_ns = sl_deadline_in_ms(chat->config->request.deadline_ms + (chat->local ? 0 : DEADLINE_SLACK_MS))};
    sl_follow_attach(&turn->follow, &watch);
    if (chat->local) {
        return sl_local_talk_turn(chat->local, &request.message, &watch, err);
    }
    size_t n_bytes = request.message.chat ? sluice__v1__generate_request__get_packed_size(&request.message) : 0;
    SL_FAIL_IF(n_bytes > MAX_MESSAGE_BYTES, err, SL_ERR_INVALID,
               "the conversation has %zu bytes, and a cluster takes at most %zu of a chat; --local takes more", n_bytes,
               MAX_MESSAGE_BYTES);
    char job_id[SL_JOB_ID_BYTES] = "";
    return sl_client_generate(chat->client, &request.message, &watch, job_id, err);
}

// ---- result ---------------------------------------------------------------------------------------------------------

static void count(struct sl_chat_session *chat) {
    const Sluice__V1__Statistics *s = chat->last;
    if (!s) {
        return;
    }
    if (!SL_GROW(chat->turns, chat->n_turns, chat->turns_capacity)) { // then /stats lacks this turn
        return;
    }
    chat->turns[chat->n_turns++] = (struct sl_chat_turn){.n_context = s->n_prompt_tokens,
                                                         .n_read = s->n_prompt_tokens - s->n_reused_tokens,
                                                         .n_written = s->n_output_tokens,
                                                         .shipped_bytes = sl_statistics_shipped_bytes(s),
                                                         .ttft_ms = s->ttft_ms,
                                                         .total_ms = s->total_ms,
                                                         .not_cached = sl_not_cached_word(s->not_cached)};
}

// Says once in a conversation that a turn read more than its recipe was measured to hold at.
static void tell_caution(const struct sl_chat_session *chat) {
    char caution[SL_CAUTION_BYTES] = "";
    for (size_t i = 0; chat->last && i < chat->n_turns && !caution[0]; i++) {
        sl_recipe_caution(chat->last->recipe, chat->turns[i].n_read, caution);
        if (caution[0] && i + 1 == chat->n_turns && !chat->config->quiet) {
            fprintf(stderr, "sluice chat: %lld tokens were read: %s\n", (long long)chat->turns[i].n_read, caution);
        }
    }
}

static void tell_turn(const struct sl_chat_session *chat) {
    if (chat->n_turns > 0 && !chat->config->quiet && !chat->config->tool.json && sl_terminal_width(STDERR_FILENO) > 0) {
        const struct sl_chat_turn *turn = &chat->turns[chat->n_turns - 1];
        char bytes[32], shipped[48] = "";
        if (turn->shipped_bytes > 0) {
            snprintf(shipped, sizeof shipped, ", %s shipped",
                     sl_format_bytes((double)turn->shipped_bytes, bytes, sizeof bytes));
        }
        fprintf(stderr, "[%lld of %lld tokens read%s%s%s, %lld written, the first after %.0f ms, all after %.0f ms]\n",
                (long long)turn->n_read, (long long)turn->n_context, turn->not_cached ? ", not cached: " : "",
                turn->not_cached ? turn->not_cached : "", shipped, (long long)turn->n_written, turn->ttft_ms,
                turn->total_ms);
    }
}

// Ends a turn that was stopped, by the user or because the answer repeats itself. The partial answer becomes part of the conversation; an empty one does not.
static int end_cut(struct turn *turn) {
    struct sl_chat_session *chat = turn->chat;
    struct sl_error err;
    if (turn->follow.progress_shown) {
        sl_progress_clear(stderr);
    }
    if (turn->follow.answer_shown) {
        fputc('\n', turn->follow.out);
        fflush(turn->follow.out);
    }
    bool kept = turn->n_answer > 0 && sl_messages_add(&chat->messages, "assistant", turn->answer, &err) == SL_OK;
    if (kept && turn->reason == SLUICE__V1__FINISHED__REASON__CANCELLED_BY_CLIENT) {
        count(chat);
    }
    bool again = !kept && sl_messages_take_back(&chat->messages);
    if (!chat->config->quiet) {
        fprintf(stderr, "sluice chat: stopped%s%s%s\n",
                turn->repeats
                    ? ": the answer repeats itself; --temperature 0.7 or --repetition-penalty 1.1 make this rarer, "
                      "-n N allows it"
                    : "",
                kept ? "" : "; the question is left out", again ? ", and its documents stand before the next one" : "");
    }
    return turn->repeats ? SL_EXIT_OK : SL_EXIT_CANCELLED;
}

// Removes the last question from the conversation; its documents become pending for the next one.
static void leave_out(struct sl_chat_session *chat) {
    if (sl_messages_take_back(&chat->messages) && !chat->config->quiet) {
        fprintf(stderr, "sluice chat: the question is left out; its documents stand before the next one\n");
    }
}

static int fail(struct turn *turn, enum sl_status status, const struct sl_error *err) {
    struct sl_chat_session *chat = turn->chat;
    int code = sl_follow_end(&turn->follow, status, err);
    if (status != SL_ERR_INVALID) {
        leave_out(chat);
    } else { // drop the documents too, otherwise no further question would fit
        sl_messages_drop_last(&chat->messages);
        fprintf(stderr,
                "sluice chat: the question is left out, with its documents: make it shorter, have shorter answers "
                "(--max-new-tokens), or begin with an empty context (/new)\n");
    }
    return code;
}

static int end_turn(struct turn *turn, enum sl_status status, struct sl_error *err) {
    struct sl_chat_session *chat = turn->chat;
    if (turn->no_memory) {
        status = sl_fail(err, SL_ERR_EXHAUSTED, "no memory for the answer");
    }
    bool cut = turn->reason == SLUICE__V1__FINISHED__REASON__CANCELLED_BY_CLIENT;
    if (!turn->no_memory && !turn->follow.output_failed && (cut || status == SL_ERR_CANCELLED)) {
        return end_cut(turn);
    }
    int code = status == SL_OK ? sl_follow_end(&turn->follow, status, err) : fail(turn, status, err);
    if (status == SL_OK && code != SL_EXIT_OK) { // the job has failed, and this was reported
        leave_out(chat);
    }
    if (code == SL_EXIT_OK) {
        code = sl_messages_add(&chat->messages, "assistant", turn->answer ? turn->answer : "", err) == SL_OK
                   ? SL_EXIT_OK
                   : sl_tool_complain("chat", err);
        count(chat);
        tell_turn(chat);
        tell_caution(chat);
    }
    return code;
}

int sl_chat_ask(struct sl_chat_session *chat, const char *line) {
    struct sl_error err = {0};
    enum sl_status status = sl_utf8_valid(line, strlen(line), NULL)
                                ? sl_messages_add_user(&chat->messages, line, &err)
                                : sl_fail(&err, SL_ERR_INVALID, "the line is not valid UTF-8; convert it with iconv");
    if (status != SL_OK) {
        return sl_tool_complain("chat", &err);
    }
    (void)sl_signals_received(chat->signals); // ignore a signal from before the question: it was not for this answer
    chat->signals->n_received = 0;
    struct turn turn = {.chat = chat,
                        .follow = sl_follow_of("chat", &chat->config->tool, chat->config->quiet, chat->signals)};
    turn.follow.brief = true;
    turn.follow.coordinator = chat->local ? NULL : turn.follow.coordinator;
    turn.follow.look_fn = look_at;
    turn.follow.also_stopped = is_enough;
    turn.follow.also_arg = &turn;
    status = answer(&turn, &err);
    int code = end_turn(&turn, status, &err);
    free(turn.answer);
    return code;
}

void sl_chat_forget(struct sl_chat_session *chat) {
    sl_messages_clear(&chat->messages);
    chat->document[0] = '\0';
    chat->n_turns = 0;
    if (chat->last) {
        sluice__v1__statistics__free_unpacked(chat->last, NULL);
        chat->last = NULL;
    }
    if (chat->local) {
        sl_local_talk_forget(chat->local);
    }
    struct sl_error err;
    if (chat->client && chat->id[0] &&
        sl_client_end_conversation(chat->client, chat->id, sl_deadline_in_ms(chat->config->tool.timeout_ms), &err) !=
            SL_OK) {
        sl_log_info("client", "what the cluster keeps of the conversation goes by itself: %s", err.text);
    }
    chat->id[0] = '\0';
}
