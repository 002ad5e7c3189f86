// SPDX-License-Identifier: Apache-2.0
#include "engine/model/gguf/document.h"
#include "engine/text/chat/chat_template.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "base/json_file.h"
#include "engine/text/chat/chat_internal.h"
#include "engine/text/tokenizer/tokenizer.h"

#define TEMPLATE_FILE "chat_template.jinja"
#define CONFIG_FILE   "tokenizer_config.json"
#define TOKENS_FILE   "special_tokens_map.json"

// Variables for special tokens, set if the model has the token.
static const char *const token_names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                          "pad_token", "cls_token", "mask_token"};
#define N_TOKENS (sizeof(token_names) / sizeof(*token_names))

struct sl_chat_template {
    struct sl_chat_work work; // its arena holds the tree
    struct sl_chat_node *statements;
    char *source, *tokens[N_TOKENS]; // tokens: NULL if the model has none
};

void sl_chat_template_destroy(struct sl_chat_template **chat_template_in) {
    struct sl_chat_template *chat_template = *chat_template_in;
    if (!chat_template) {
        return;
    }
    sl_chat_work_cleanup(&chat_template->work);
    free(chat_template->source);
    for (size_t i = 0; i < N_TOKENS; i++) {
        free(chat_template->tokens[i]);
    }
    free(chat_template);
    *chat_template_in = NULL;
}

// ---- where the source is --------------------------------------------------------------------------------------------

static enum sl_status copy(const char *text, char **copy_out, struct sl_error *err) {
    *copy_out = strdup(text);
    return *copy_out ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a chat template");
}

// Reads a file. SL_ERR_NOT_FOUND: no such file.
static enum sl_status read_file(const char *dir, char **source_out, struct sl_error *err) {
    char path[PATH_MAX];
    SL_TRY(sl_model_path(dir, TEMPLATE_FILE, path, sizeof(path), err));
    FILE *file = fopen(path, "rb");
    SL_FAIL_IF(!file, err, errno == ENOENT ? SL_ERR_NOT_FOUND : SL_ERR_IO, "%s: %s", path, strerror(errno));
    struct stat st;
    char *source = malloc(SL_CHAT_MAX_TEMPLATE_BYTES + 2);
    enum sl_status status = SL_OK;
    if (!source) {
        status = sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a chat template");
    } else if (fstat(fileno(file), &st) != 0 || !S_ISREG(st.st_mode)) {
        status = sl_fail(err, SL_ERR_IO, "%s: not a regular file", path);
    } else {
        size_t n = fread(source, 1, SL_CHAT_MAX_TEMPLATE_BYTES + 1, file);
        source[n] = '\0';
        if (ferror(file)) {
            status = sl_fail(err, SL_ERR_IO, "%s: %s", path, strerror(errno));
        } else if (strlen(source) != n) {
            status = sl_fail(err, SL_ERR_INVALID, "%s: contains a zero byte", path);
        }
    }
    fclose(file);
    SL_TRY_OR(status, free(source));
    *source_out = source;
    return SL_OK;
}

// Takes the source from "chat_template": the source itself, or a list of {"name", "template"} with an entry
// "default".
static enum sl_status source_from_config(const json_t *config, char **source_out, struct sl_error *err) {
    const json_t *value = json_object_get(config, "chat_template"), *item;
    size_t i;
    if (json_is_string(value)) {
        return copy(json_string_value(value), source_out, err);
    }
    json_array_foreach(value, i, item) {
        const char *name = json_string_value(json_object_get(item, "name"));
        const char *source = json_string_value(json_object_get(item, "template"));
        if (name && source && strcmp(name, "default") == 0) {
            return copy(source, source_out, err);
        }
    }
    SL_FAIL_IF(value && !json_is_null(value), err, SL_ERR_INVALID,
               CONFIG_FILE ": chat_template is neither a string nor a list with \"default\"");
    return sl_fail(err, SL_ERR_NOT_FOUND,
                   "the model has no chat template (" TEMPLATE_FILE ", or chat_template in " CONFIG_FILE
                   "): give text instead of messages, or put a template into its folder");
}

static enum sl_status take_tokens(struct sl_chat_template *chat_template, const json_t *config, struct sl_error *err) {
    enum sl_status status = SL_OK;
    for (size_t i = 0; i < N_TOKENS && status == SL_OK; i++) {
        const json_t *token = json_object_get(config, token_names[i]);
        const json_t *text = json_is_object(token) ? json_object_get(token, "content") : token;
        if (json_string_length(text) > 0 && !chat_template->tokens[i]) {
            status = copy(json_string_value(text), &chat_template->tokens[i], err);
        }
    }
    return status;
}

static enum sl_status read_folder(const char *dir, struct sl_chat_template *chat_template, struct sl_error *err) {
    json_t *config = NULL, *tokens = NULL;
    enum sl_status status = sl_model_document_load_optional(dir, CONFIG_FILE, &config, err);
    SL_THEN(status, sl_model_document_load_optional(dir, TOKENS_FILE, &tokens, err));
    SL_THEN(status, read_file(dir, &chat_template->source, err));
    if (status == SL_ERR_NOT_FOUND) {
        status = source_from_config(config, &chat_template->source, err);
    }
    SL_THEN(status, take_tokens(chat_template, config, err));
    if (status == SL_OK) {
        status = take_tokens(chat_template, tokens, err); // older models define them only here
    }
    json_decref(config);
    json_decref(tokens);
    return status;
}

// ---- loading --------------------------------------------------------------------------------------------------------

// Makes every line end with \n, and the last line end without one, as Jinja does before it lexes.
static void normalize_lines(char *source) {
    char *to = source;
    for (const char *from = source; *from; from++) {
        bool pair = from[0] == '\r' && from[1] == '\n';
        from += pair;
        *to++ = *from == '\r' ? '\n' : *from;
    }
    to -= to > source && to[-1] == '\n';
    *to = '\0';
}

// Parses the template; err is not NULL.
static enum sl_status parse(struct sl_chat_template *chat_template, struct sl_error *err) {
    size_t n_bytes = strlen(chat_template->source), bad;
    SL_FAIL_IF(n_bytes > SL_CHAT_MAX_TEMPLATE_BYTES, err, SL_ERR_EXHAUSTED, "larger than %zu KiB",
               SL_CHAT_MAX_TEMPLATE_BYTES >> 10);
    SL_FAIL_IF(!sl_utf8_valid(chat_template->source, n_bytes, &bad), err, SL_ERR_INVALID, "not UTF-8 at byte %zu", bad);
    normalize_lines(chat_template->source);
    struct sl_chat_work *work = &chat_template->work;
    *work = (struct sl_chat_work){.max_bytes = SL_CHAT_PARSE_MEMORY, .steps_left = SL_CHAT_MAX_STEPS, .err = err};
    chat_template->statements = sl_chat_parse(work, sl_chat_text_of(chat_template->source));
    work->err = NULL; // the caller's err must not be used later
    return work->status;
}

// Takes the source from the model's folder, or a copy of the given one.
static enum sl_status create(const char *model_dir, const char *source, struct sl_chat_template **chat_template_out,
                             struct sl_error *err) {
    struct sl_error own;
    err = err ? err : &own;
    SL_NEW_OR_FAIL(struct sl_chat_template, chat_template, err, "no memory for a chat template");
    enum sl_status status =
        source ? copy(source, &chat_template->source, err) : read_folder(model_dir, chat_template, err);
    if (status == SL_OK) {
        status = parse(chat_template, err);
        if (status != SL_OK) {
            sl_error_prefix(err, "chat template");
        }
    }
    SL_TRY_OR(status, sl_chat_template_destroy(&chat_template));
    *chat_template_out = chat_template;
    return SL_OK;
}

enum sl_status sl_chat_template_load(const char *model_dir, struct sl_chat_template **chat_template_out,
                                     struct sl_error *err) {
    return create(model_dir, NULL, chat_template_out, err);
}

enum sl_status sl_chat_template_parse(const char *source, struct sl_chat_template **chat_template_out,
                                      struct sl_error *err) {
    return create(NULL, source, chat_template_out, err);
}

// ---- rendering ------------------------------------------------------------------------------------------------------

static struct sl_chat_value string(const char *text) {
    return sl_chat_string(sl_chat_text_of(text));
}

static struct sl_chat_value messages_value(struct sl_chat_work *work, const struct sl_chat *chat) {
    struct sl_chat_list *list = sl_chat_list_create(work, chat->n_messages);
    for (size_t i = 0; i < chat->n_messages; i++) {
        struct sl_chat_value message = {.kind = SL_CHAT_DICT, .dict = sl_chat_dict_create(work)};
        sl_chat_dict_set(work, message.dict, SL_CHAT_TEXT("role"), string(chat->messages[i].role));
        sl_chat_dict_set(work, message.dict, SL_CHAT_TEXT("content"), string(chat->messages[i].content));
        sl_chat_list_push(work, list, message);
    }
    return sl_chat_list_value(SL_CHAT_LIST, list);
}

// Returns the variables that the transformers library passes to a template.
static struct sl_chat_dict *variables_of(struct sl_chat_work *work, const struct sl_chat_template *chat_template,
                                         const struct sl_chat *chat) {
    struct sl_chat_dict *variables = sl_chat_dict_create(work);
    struct sl_chat_value none = {.kind = SL_CHAT_NONE};
    for (size_t i = 0; i < N_TOKENS; i++) {
        if (chat_template->tokens[i]) {
            sl_chat_dict_set(work, variables, sl_chat_text_of(token_names[i]), string(chat_template->tokens[i]));
        }
    }
    sl_chat_dict_set(work, variables, SL_CHAT_TEXT("messages"), messages_value(work, chat));
    sl_chat_dict_set(work, variables, SL_CHAT_TEXT("tools"), none);
    sl_chat_dict_set(work, variables, SL_CHAT_TEXT("documents"), none);
    sl_chat_dict_set(work, variables, SL_CHAT_TEXT("add_generation_prompt"), sl_chat_bool(chat->add_generation_prompt));
    return work->status == SL_OK ? variables : NULL;
}

bool sl_chat_template_knows_role(const struct sl_chat_template *chat_template, const char *role) {
    static const char *const usual[] = {"system", "user", "assistant"};
    const size_t n = strlen(role);
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++) {
        if (strcmp(role, usual[i]) == 0) {
            return true;
        }
    }
    for (const char *at = chat_template->source; n > 0 && (at = strstr(at, role)) != NULL; at++) {
        const char before = at > chat_template->source ? at[-1] : '\0';
        if ((before == '\'' || before == '"') && at[n] == before) {
            return true;
        }
    }
    return false;
}

static enum sl_status check_messages(const struct sl_chat *chat, struct sl_error *err) {
    SL_FAIL_IF(chat->n_messages > SL_MAX_CHAT_MESSAGES, err, SL_ERR_INVALID, "%zu messages, at most %d",
               chat->n_messages, SL_MAX_CHAT_MESSAGES);
    for (size_t i = 0; i < chat->n_messages; i++) {
        const struct sl_chat_message *message = &chat->messages[i];
        size_t bad;
        SL_FAIL_IF(!sl_utf8_valid(message->role, strlen(message->role), &bad), err, SL_ERR_INVALID,
                   "message %zu: the role is not UTF-8", i);
        SL_FAIL_IF(!sl_utf8_valid(message->content, strlen(message->content), &bad), err, SL_ERR_INVALID,
                   "message %zu: the content is not UTF-8 at byte %zu", i, bad);
    }
    return SL_OK;
}

enum sl_status sl_chat_template_render(const struct sl_chat_template *chat_template, const struct sl_chat *chat,
                                       char **text_out, struct sl_error *err) {
    struct sl_error own;
    err = err ? err : &own;
    SL_TRY(check_messages(chat, err));
    struct sl_chat_work work = {
        .max_bytes = SL_CHAT_MAX_MEMORY, .steps_left = SL_CHAT_MAX_STEPS, .err = err, .time_ms = chat->time_ms};
    struct sl_chat_dict *variables = variables_of(&work, chat_template, chat);
    struct sl_chat_text text = {0};
    if (variables) {
        text = sl_chat_render(&work, chat_template->statements, variables);
    }
    enum sl_status status = work.status;
    char *copied = status == SL_OK ? strndup(text.bytes ? text.bytes : "", text.n_bytes) : NULL;
    if (status == SL_OK && !copied) {
        status = sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a conversation");
    } else if (status != SL_OK) {
        sl_error_prefix(err, "chat template");
    }
    sl_chat_work_cleanup(&work);
    if (status == SL_OK) {
        *text_out = copied;
    }
    return status;
}
