// SPDX-License-Identifier: Apache-2.0
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/similar.h"
#include "client/cli/chat/chat.h"
#include "engine/compress/recipe/recipe.h"

// Returns the stream for the output of commands: with --json, standard output has only turns.
static FILE *screen(const struct sl_chat_session *chat) {
    return chat->config->tool.json ? stderr : stdout;
}

static enum sl_status help(struct sl_chat_session *chat, const char *argument, struct sl_error *err);

static enum sl_status begin_anew(struct sl_chat_session *chat, const char *, struct sl_error *) {
    sl_chat_forget(chat);
    return SL_OK;
}

// Rejects files that are not regular: opening a named pipe would block, and a device might never end.
static enum sl_status check_file(const char *path, struct sl_error *err) {
    struct stat found;
    SL_FAIL_IF(stat(path, &found) != 0, err, SL_ERR_INVALID, "%s: %s", path, strerror(errno));
    return S_ISREG(found.st_mode) ? SL_OK : sl_fail(err, SL_ERR_INVALID, "%s is not a file", path);
}

// Expands "~/notes.txt" as a shell does. malloc'd.
static char *expand(const char *path) {
    const char *home = getenv("HOME");
    char *whole;
    bool at_home = path[0] == '~' && path[1] == '/' && home != NULL;
    return asprintf(&whole, "%s%s", at_home ? home : "", at_home ? path + 1 : path) < 0 ? NULL : whole;
}

static enum sl_status add_file(struct sl_chat_session *chat, const char *argument, struct sl_error *err) {
    SL_FAIL_IF(!argument[0], err, SL_ERR_INVALID, "/file FILE: which one?");
    char *document = NULL, *path = expand(argument);
    SL_FAIL_IF(!path, err, SL_ERR_EXHAUSTED, "no memory for a path");
    enum sl_status status = check_file(path, err);
    SL_THEN(status, sl_request_read_text(path, &document, err));
    size_t n_bytes = document ? strlen(document) : 0;
    SL_THEN(status, sl_messages_add_document(&chat->messages, document, err));
    if (status == SL_OK && !chat->config->quiet) {
        fprintf(stderr, "%s: %zu bytes, which the next question begins with\n", path, n_bytes);
    }
    free(path);
    return status;
}

static enum sl_status list_documents(struct sl_chat_session *chat, struct sl_error *err) {
    Sluice__V1__ListDocumentsReply *reply;
    SL_TRY(sl_client_list_documents(chat->client, sl_deadline_in_ms(chat->config->tool.timeout_ms), &reply, err));
    FILE *file = screen(chat);
    for (size_t i = 0; i < reply->n_documents; i++) {
        const Sluice__V1__Document *one = reply->documents[i];
        fprintf(file, "%c %-20s %9lld tokens, %s\n", strcmp(one->name, chat->document) == 0 ? '*' : ' ', one->name,
                (long long)one->n_tokens, one->recipe);
    }
    if (reply->n_documents == 0) {
        fprintf(file, "no documents; `sluice doc add NAME FILE` adds one\n");
    }
    sluice__v1__list_documents_reply__free_unpacked(reply, NULL);
    return SL_OK;
}

static enum sl_status check_document(const struct sl_chat_session *chat, const Sluice__V1__Document *document,
                                     struct sl_error *err) {
    SL_FAIL_IF(document->chat && chat->as_text, err, SL_ERR_INVALID, "%s was added for chats: leave out --raw",
               document->name);
    SL_FAIL_IF(!document->chat && !chat->as_text, err, SL_ERR_INVALID,
               "%s was added for texts (--raw), and this is a chat: use `sluice chat --raw`", document->name);
    SL_FAIL_IF(document->reading || document->other_model, err, SL_ERR_INVALID, "%s %s", document->name,
               document->reading ? "is still being read" : "was read by another model: remove it, and add it again");
    return SL_OK;
}

static enum sl_status set_document(struct sl_chat_session *chat, const char *name, struct sl_error *err) {
    if (chat->messages.n > 0) { // the text is before everything else
        return sl_fail(err, SL_ERR_INVALID, "%s",
                       strcmp(chat->messages.items[chat->messages.n - 1].role, "system") == 0
                           ? "a document begins the conversation, before a system message: leave out --system"
                           : "a document begins the conversation: /new first");
    }
    Sluice__V1__Document *document;
    SL_TRY(
        sl_client_get_document(chat->client, name, sl_deadline_in_ms(chat->config->tool.timeout_ms), &document, err));
    enum sl_status status = check_document(chat, document, err);
    if (status == SL_OK) {
        snprintf(chat->document, sizeof chat->document, "%s", document->name);
    }
    if (status == SL_OK && !chat->config->quiet) {
        fprintf(stderr, "%s: %lld tokens under %s, which the conversation begins with\n", document->name,
                (long long)document->n_tokens, document->recipe);
    }
    sluice__v1__document__free_unpacked(document, NULL);
    return status;
}

static enum sl_status use_document(struct sl_chat_session *chat, const char *argument, struct sl_error *err) {
    SL_FAIL_IF(!chat->client, err, SL_ERR_INVALID, "documents belong to a cluster: leave out --local, or /file FILE");
    return argument[0] ? set_document(chat, argument, err) : list_documents(chat, err);
}

static enum sl_status save(struct sl_chat_session *chat, const char *argument, struct sl_error *err) {
    SL_FAIL_IF(!argument[0], err, SL_ERR_INVALID, "/save FILE: where to?");
    char *path = expand(argument);
    enum sl_status status = path ? sl_messages_save(&chat->messages, chat->document, path, err)
                                 : sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a path");
    free(path);
    return status;
}

static enum sl_status set_recipe(struct sl_chat_session *chat, const char *argument, struct sl_error *err) {
    struct sl_recipe recipe;
    SL_FAIL_IF(argument[0] && chat->document[0], err, SL_ERR_INVALID, "document %s has its own recipe: /new first",
               chat->document);
    if (!argument[0]) {
        fprintf(screen(chat), "%s\n",
                chat->last && chat->last->recipe[0] ? chat->last->recipe
                : chat->recipe[0]                   ? chat->recipe
                                                    : "the default");
        return SL_OK;
    }
    SL_TRY(sl_recipe_parse(argument, &recipe, err));
    sl_recipe_format(&recipe, chat->recipe, sizeof chat->recipe);
    if (chat->messages.n > 1 && !chat->config->quiet) {
        fprintf(stderr, "the next turn reads the whole conversation under %s\n", chat->recipe);
    }
    return SL_OK;
}

static enum sl_status show_statistics(struct sl_chat_session *chat, const char *, struct sl_error *) {
    if (chat->n_turns == 0) {
        fprintf(screen(chat), "no answer has come to its end yet\n");
        return SL_OK;
    }
    FILE *file = screen(chat);
    fprintf(file, "%5s %9s %9s %9s %10s %10s\n", "TURN", "CONTEXT", "READ", "WRITTEN", "FIRST", "ALL");
    for (size_t i = 0; i < chat->n_turns; i++) {
        const struct sl_chat_turn *turn = &chat->turns[i];
        fprintf(file, "%5zu %9lld %9lld %9lld %7.0f ms %7.0f ms\n", i + 1, (long long)turn->n_context,
                (long long)turn->n_read, (long long)turn->n_written, turn->ttft_ms, turn->total_ms);
    }
    fprintf(file, "the last one:\n");
    if (chat->last) {
        sl_statistics_print(chat->last, file);
    }
    return SL_OK;
}

// To add a command: write a function above, and add a row here.
static const struct command {
    const char *name, *argument, *says;
    enum sl_status (*run)(struct sl_chat_session *chat, const char *argument, struct sl_error *err); // NULL: leave
} commands[] = {
    {"/help", "", "this list", help},
    {"/file", "FILE", "a text, which the next question begins with; several may follow on each other", add_file},
    {"/doc", "NAME", "begin with a document of the cluster (`sluice doc`), read once; without one: list them",
     use_document},
    {"/recipe", "RECIPE", "how the KV cache is compressed from here on; without one: how it is", set_recipe},
    {"/stats", "", "what every turn has read, and the statistics of the last one", show_statistics},
    {"/save", "FILE", "the conversation as JSON, in a new file", save},
    {"/new", "", "begin anew; the system message and the recipe stay", begin_anew},
    {"/clear", "", "the same", begin_anew},
    {"/quit", "", "leave, as Ctrl-D does", NULL},
    {"/exit", "", "the same", NULL},
};

static enum sl_status help(struct sl_chat_session *chat, const char *, struct sl_error *) {
    FILE *file = screen(chat);
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        fprintf(file, "%-8s %-7s %s\n", commands[i].name, commands[i].argument, commands[i].says);
    }
    fprintf(file,
            "A line that ends with \\ continues in the next one, and one that begins with // is a question that begins "
            "with /.\n"
            "Ctrl-C ends an answer.\n");
    return SL_OK;
}

enum sl_chat_next sl_chat_command(struct sl_chat_session *chat, char *line) {
    size_t n = strcspn(line, " \t");
    char *argument = line + n + strspn(line + n, " \t");
    for (size_t end = strlen(argument); end > 0 && strchr(" \t", argument[end - 1]); end--) {
        argument[end - 1] = '\0';
    }
    line[n] = '\0';
    struct sl_similar meant = {.word = line};
    const struct command *command = NULL;
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        command = strcmp(commands[i].name, line) == 0 ? &commands[i] : command;
        sl_similar_offer(&meant, commands[i].name);
    }
    if (command && !command->run) {
        return SL_CHAT_LEAVE;
    }
    struct sl_error err = {0};
    enum sl_status status = command ? command->run(chat, argument, &err)
                                    : sl_fail(&err, SL_ERR_INVALID, "there is no %.60s%s%s; /help lists what there is",
                                              line, meant.name ? ": did you mean " : "", meant.name ? meant.name : "");
    fflush(stdout);
    if (status != SL_OK) {
        (void)sl_tool_complain("chat", &err);
    }
    return status == SL_OK ? SL_CHAT_GO_ON : SL_CHAT_FAILED;
}
