// SPDX-License-Identifier: Apache-2.0
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/whole_file.h"
#include "client/cli/chat/chat.h"
#include "client/cli/chat/cmd_chat.h"
#include "engine/compress/recipe/recipe.h"
#include "engine/runtime/device_choice.h"

#define ROW          SL_OPTION_ROW
#define HISTORY_NAME "sluice/chat-history"

static const struct sl_option options[] = {
    ROW("local", 0, SL_OPTION_FLAG, NULL, NULL, "use no cluster: run everything in this process (needs --model)",
        SL_FIELD(sl_chat_config, local)),
    ROW("model", 'm', SL_OPTION_MODEL, NULL, "MODEL",
        "with --local: model folder, GGUF file, or a name of `sluice models`", SL_FIELD(sl_chat_config, model)),
    ROW("recipe", 'r', SL_OPTION_STRING, NULL, "RECIPE", "how the KV cache is compressed; see `sluice recipes`",
        SL_FIELD(sl_chat_config, request.recipe)),
    ROW("ship-at-most", 0, SL_OPTION_FLOAT, "0", "PERCENT",
        "without --recipe: use the recipe recommended for this share of the full cache; 0: the default recipe",
        SL_FIELD(sl_chat_config, request.ship_at_most), 0, 1000),
    ROW("system", 0, SL_OPTION_STRING, NULL, "TEXT", "the system message", SL_FIELD(sl_chat_config, request.system)),
    ROW("raw", 0, SL_OPTION_FLAG, NULL, NULL,
        "no chat template: the model continues the text as it is; the default if it has no template",
        SL_FIELD(sl_chat_config, request.raw)),
    ROW("max-new-tokens", 'n', SL_OPTION_INT, NULL, "N",
        "most tokens of an answer. Default: to the answer's end (--raw: 128)",
        SL_FIELD(sl_chat_config, request.max_new), 1, 1 << 20, SL_GIVEN(sl_chat_config, request.has_max_new)),
    SL_SAMPLING_OPTIONS(sl_chat_config),
    ROW("deadline", 0, SL_OPTION_DURATION, "10m", "TIME", "deadline of one turn",
        SL_FIELD(sl_chat_config, request.deadline_ms), 1, 604800000),
    ROW("keep", 0, SL_OPTION_DURATION, "10m", "TIME",
        "how long a worker keeps what it has read between two turns, unless it needs the memory",
        SL_FIELD(sl_chat_config, keep_ms), 0, 3600000),
    ROW("no-history", 0, SL_OPTION_FLAG, NULL, NULL, "keep none of the lines that are typed",
        SL_FIELD(sl_chat_config, no_history)),
    ROW("weights", 0, SL_OPTION_STRING, "stored", "FORMAT",
        "with --local: format of the model's weights in memory: stored, int8 or int4",
        SL_FIELD(sl_chat_config, weights)),
    ROW("private-weights", 0, SL_OPTION_FLAG, NULL, NULL,
        "with --local: keep a copy of the weights in this process alone. By default all processes of this user on this "
        "machine share one",
        SL_FIELD(sl_chat_config, private_weights)),
    SL_DEVICE_OPTION(sl_chat_config, device),
    ROW("arena", 'a', SL_OPTION_STRING, "", "SIZE",
        "with --local: memory for KV. Default: 1G, or most of a device's own memory", SL_FIELD(sl_chat_config, arena)),
    ROW("threads", 0, SL_OPTION_INT, "0", "N", "threads of --local; 0: one for each processor",
        SL_FIELD(sl_chat_config, threads), 0, 1024),
    ROW("quiet", 0, SL_OPTION_FLAG, NULL, NULL, "print only answers", SL_FIELD(sl_chat_config, quiet)),
    SL_TOOL_OPTIONS,
};

static const struct sl_program program = {
    .name = "sluice chat",
    .usage = "[options]",
    .summary =
        "Talk with the model. Every line is a question, every answer stays part of the conversation, and a turn\n"
        "reads only what is new. /help lists commands: documents, statistics, another recipe.\n"
        "Without a terminal, standard input is read as if it were typed, and the first turn that fails is the last.",
    .epilog = "Lines that are typed are kept in $XDG_STATE_HOME/sluice/chat-history, or below ~/.local/state, for you "
              "alone.\n"
              "Ctrl-C ends an answer, Ctrl-D leaves. With --json, every turn is one line, and what commands show is on "
              "standard\n"
              "error.\n" SL_EXIT_CODES_HELP,
    SL_OPTIONS(options),
};

// ---- the answering side ---------------------------------------------------------------------------------------------

static int progress_width(const struct sl_chat_config *config) {
    return config->quiet || config->tool.json ? 0 : sl_terminal_width(STDERR_FILENO);
}

static bool show_loading(void *arg, size_t done_bytes, size_t total_bytes) {
    struct sl_chat_session *chat = arg;
    const struct sl_chat_config *config = chat->config;
    char phase[SL_LOADING_PHASE_BYTES];
    struct sl_progress progress = {.phase = sl_progress_loading_phase(config->model, phase, sizeof phase),
                                   .done = (int64_t)done_bytes,
                                   .total = (int64_t)total_bytes,
                                   .bytes = true};
    int width = progress_width(config);
    if (width > 0) {
        sl_progress_draw(&progress, width, stderr);
    } else if (!config->quiet && !config->tool.json && sl_progress_is_due(&chat->next_line_ns, sl_now_ns())) {
        sl_progress_print(&progress, "sluice chat", stderr);
    }
    return sl_signals_received(chat->signals) == 0;
}

static enum sl_status open_local(struct sl_chat_session *chat, struct sl_error *err) {
    const struct sl_chat_config *config = chat->config;
    enum sl_weight_format weights;
    size_t arena_bytes = 0;
    enum sl_status status = sl_weight_format_parse(config->weights, &weights, err);
    SL_THEN(status, sl_local_arena_parse(config->arena, &arena_bytes, err));
    if (status == SL_OK) {
        struct sl_local_config local = {.model_dir = config->model,
                                        .device = config->device,
                                        .weights = weights,
                                        .share_weights = !config->private_weights,
                                        .arena_bytes = arena_bytes,
                                        .threads = (int)config->threads,
                                        .loading_fn = show_loading,
                                        .loading_arg = chat};
        status = sl_local_talk_open(&local, &chat->local, err);
        if (progress_width(config) > 0) {
            sl_progress_clear(stderr);
        }
    }
    chat->as_text = status == SL_OK && !sl_local_talk_takes_chats(chat->local);
    return status;
}

static enum sl_status ask_cluster(struct sl_chat_session *chat, struct sl_error *err) {
    Sluice__V1__ModelReply *reply;
    SL_TRY(sl_client_model(chat->client, sl_deadline_in_ms(chat->config->tool.timeout_ms), &reply, err));
    chat->as_text = !reply->takes_chats;
    sluice__v1__model_reply__free_unpacked(reply, NULL);
    return SL_OK;
}

// Prepares the recipe text for requests, and the system message.
static enum sl_status prepare(struct sl_chat_session *chat, struct sl_error *err) {
    struct sl_request request;
    struct sl_request_config config = chat->config->request;
    config.later = true;
    enum sl_status status = sl_request_set_options(&request, &config, err);
    if (status == SL_OK && request.message.recipe[0]) {
        struct sl_recipe recipe;
        status = sl_recipe_parse(request.message.recipe, &recipe, err);
        if (status == SL_OK) {
            sl_recipe_format(&recipe, chat->recipe, sizeof chat->recipe);
        }
    }
    chat->as_text |= chat->config->request.raw;
    const char *system = chat->config->request.system;
    if (status == SL_OK && system && chat->as_text) {
        status = sl_fail(err, SL_ERR_INVALID,
                         chat->config->request.raw ? "--system is for chats: leave out --raw"
                                                   : "--system is for chats, and this model has no chat template");
    } else if (status == SL_OK && system) {
        status = sl_messages_add(&chat->messages, "system", system, err);
    }
    return status;
}

// ---- the loop -------------------------------------------------------------------------------------------------------

// Reads a question: a line that ends with a backslash continues on the next one.
static enum sl_status read_question(struct sl_chat_session *chat, char **line_out, struct sl_error *err) {
    char *whole = NULL;
    for (;;) {
        char *line = NULL;
        enum sl_status status = sl_lines_next(chat->lines, whole ? "... " : "> ", &line, err);
        if (status == SL_ERR_NOT_FOUND && whole) { // the input has ended: this line completes the question
            *line_out = whole;
            return SL_OK;
        }
        SL_TRY_OR(status, free(whole));
        char *both;
        int n = whole ? asprintf(&both, "%s\n%s", whole, line) : asprintf(&both, "%s", line);
        free(whole);
        free(line);
        if (n < 0 || (size_t)n > SL_MAX_PROMPT_BYTES) {
            if (n >= 0) {
                free(both);
            }
            return sl_fail(err, n < 0 ? SL_ERR_EXHAUSTED : SL_ERR_INVALID, "a question of this many lines is too long");
        }
        whole = both;
        if (n == 0 || whole[n - 1] != '\\') {
            *line_out = whole;
            return SL_OK;
        }
        whole[n - 1] = '\0';
    }
}

// Executes a line. False: the conversation is over, with *code_inout.
static bool follow_line(struct sl_chat_session *chat, char *line, int *code_inout) {
    bool terminal = sl_lines_is_terminal(chat->lines);
    if (line[strspn(line, " \t")] == '\0') {
        return true;
    }
    int code = SL_EXIT_OK;
    if (line[0] == '/' && line[1] != '/') {
        enum sl_chat_next next = sl_chat_command(chat, line);
        if (next == SL_CHAT_LEAVE) {
            return false;
        }
        code = next == SL_CHAT_FAILED ? SL_EXIT_USAGE : SL_EXIT_OK;
    } else {
        code = sl_chat_ask(chat, line + (line[0] == '/'));
    }
    if (ferror(stdout) || chat->signals->terminated ||
        (code != SL_EXIT_OK && !terminal)) { // a script ends at the first failure
        *code_inout = chat->signals->terminated ? SL_EXIT_CANCELLED : code == SL_EXIT_OK ? SL_EXIT_FAILED : code;
        return false;
    }
    return true;
}

static int talk(struct sl_chat_session *chat) {
    int code = SL_EXIT_OK;
    bool terminal = sl_lines_is_terminal(chat->lines);
    for (bool again = true; again;) {
        struct sl_error err = {0};
        char *line = NULL;
        enum sl_status status = read_question(chat, &line, &err);
        if (status == SL_ERR_CANCELLED && terminal && !chat->signals->terminated) {
            fprintf(stderr, "\n"); // Ctrl-C discards the line, but does not end the conversation
        } else if (status == SL_ERR_INVALID && terminal) {
            (void)sl_tool_complain("chat", &err);
        } else if (status != SL_OK) {
            again = false;
            code = status == SL_ERR_NOT_FOUND ? SL_EXIT_OK : sl_tool_complain("chat", &err);
            if (terminal) {
                fprintf(stderr, "\n");
            }
        } else {
            again = follow_line(chat, line, &code);
        }
        free(line);
    }
    return code;
}

/*
 * Writes the path of the file that keeps typed lines: $XDG_STATE_HOME/sluice/chat-history, or
 * ~/.local/state/sluice/chat-history. Makes its folders, accessible only for their owner. False: there is no such path, so
 * no history is kept.
 */
static bool history_path(char path_out[PATH_MAX]) {
    const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
    int n = -1;
    if (state && state[0] == '/') { // the XDG specification says that relative paths are ignored
        n = snprintf(path_out, PATH_MAX, "%s/" HISTORY_NAME, state);
    } else if (home && home[0] == '/') {
        n = snprintf(path_out, PATH_MAX, "%s/.local/state/" HISTORY_NAME, home);
    }
    if (n < 0 || n >= PATH_MAX) {
        return false;
    }
    char *slash = strrchr(path_out, '/');
    struct sl_error ignored; // writing the file reports it
    *slash = '\0';
    (void)sl_folder_make(path_out, 0700, &ignored);
    *slash = '/';
    return true;
}

static int talk_on_lines(struct sl_chat_session *chat) {
    struct sl_error err = {0};
    char history[PATH_MAX];
    FILE *screen = isatty(STDOUT_FILENO) ? stdout : stderr;
    bool kept = isatty(STDIN_FILENO) && !chat->config->no_history && history_path(history);
    if (sl_lines_open(chat->signals, screen, kept ? history : NULL, &chat->lines, &err) != SL_OK) {
        return sl_tool_complain("chat", &err);
    }
    if (sl_lines_is_terminal(chat->lines) && !chat->config->quiet) {
        fprintf(stderr, "%sA line is a question; /help lists commands, Ctrl-D leaves.\n",
                chat->as_text && !chat->config->request.raw
                    ? "This model has no chat template: it continues the text as it is.\n"
                    : "");
    }
    int code = talk(chat);
    sl_lines_close(&chat->lines);
    return code;
}

static int converse(struct sl_chat_session *chat) {
    struct sl_error err = {0};
    int code = SL_EXIT_OK;
    if (chat->config->local) {
        if (open_local(chat, &err) != SL_OK || prepare(chat, &err) != SL_OK) {
            code = sl_tool_complain("chat", &err);
        } else {
            code = talk_on_lines(chat);
        }
        sl_local_talk_close(&chat->local);
        return code;
    }
    const char *coordinator = chat->config->tool.coordinator;
    if (!sl_tool_connect("chat", coordinator, &chat->config->tool.tls, &chat->client, &code)) {
        return code;
    }
    if (ask_cluster(chat, &err) != SL_OK) {
        code = sl_tool_complain_of(coordinator, "chat", &err);
    } else {
        code = prepare(chat, &err) == SL_OK ? talk_on_lines(chat) : sl_tool_complain("chat", &err);
    }
    sl_chat_forget(chat);
    sl_tool_disconnect(&chat->client);
    return code;
}

static enum sl_status run(void *arg, struct sl_error *err) {
    struct sl_chat_config *config = arg;
    struct sl_signals signals;
    struct sl_chat_session chat = {.config = config, .signals = &signals};
    SL_FAIL_IF(config->local && !config->model, err, SL_ERR_INVALID, "--local needs --model DIR");
    SL_TRY(sl_signals_init(&signals, err));
    enum sl_status status = sl_signals_add_screen(&signals, err);
    if (status == SL_OK) {
        config->tool.exit_code = converse(&chat);
    }
    sl_chat_forget(&chat);
    free(chat.turns);
    sl_messages_cleanup(&chat.messages);
    sl_signals_cleanup(&signals);
    return status;
}

SL_COMMAND_RUN(sl_command_chat, sl_chat_config, program, run)
