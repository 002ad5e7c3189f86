// SPDX-License-Identifier: Apache-2.0
#include "client/cli/request.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "engine/compress/recipe/recipe.h"
#include "engine/text/tokenizer/tokenizer.h"

static enum sl_status check_text(const char *name, const char *text, size_t bytes, struct sl_error *err) {
    SL_FAIL_IF(memchr(text, '\0', bytes), err, SL_ERR_INVALID,
               "%s contains a zero byte: it is not a text, or one in UTF-16, which iconv converts", name);
    size_t bad;
    SL_FAIL_IF(!sl_utf8_valid(text, bytes, &bad), err, SL_ERR_INVALID,
               "%s is not valid UTF-8 at byte %zu; convert it with iconv", name, bad);
    return SL_OK;
}

static enum sl_status too_large(const char *name, struct sl_error *err) {
    return sl_fail(err, SL_ERR_INVALID, "%s is larger than %zu MiB, the most that one request carries", name,
                   SL_MAX_PROMPT_BYTES >> 20);
}

enum sl_status sl_request_read_stream(FILE *file, const char *name, char **text_out, struct sl_error *err) {
    char *text = NULL;
    size_t used = 0, allocated = 0, n;
    enum sl_status status = SL_OK;
    do {
        if (used + 1 >= allocated) {
            allocated = allocated ? allocated * 2 : 65536;
            char *grown = realloc(text, allocated);
            if (!grown) {
                status = sl_fail(err, SL_ERR_EXHAUSTED, "%s: out of memory", name);
                goto err_free;
            }
            text = grown;
        }
        n = fread(text + used, 1, allocated - 1 - used, file);
        used += n;
        if (used > SL_MAX_PROMPT_BYTES) {
            status = too_large(name, err);
            goto err_free;
        }
    } while (n > 0);
    if (ferror(file)) {
        status = sl_fail(err, SL_ERR_INVALID, "%s: %s", name, strerror(errno));
        goto err_free;
    }
    text[used] = '\0';
    status = check_text(name, text, used, err);
    if (status == SL_OK) {
        *text_out = text;
        return SL_OK;
    }
err_free:
    free(text);
    return status;
}

enum sl_status sl_request_read_text(const char *path, char **text_out, struct sl_error *err) {
    if (strcmp(path, "-") == 0) {
        return sl_request_read_stream(stdin, "standard input", text_out, err);
    }
    FILE *file = fopen(path, "rb");
    SL_FAIL_IF(!file, err, SL_ERR_INVALID, "%s: %s", path, strerror(errno));
    enum sl_status status = sl_request_read_stream(file, path, text_out, err);
    fclose(file);
    return status;
}

// Returns document + "\n" + question as a new string; either may be NULL, not both.
static enum sl_status compose(const char *document, const char *question, char **prompt_out, struct sl_error *err) {
    char *prompt;
    int n = document && question ? asprintf(&prompt, "%s\n%s", document, question)
                                 : asprintf(&prompt, "%s", document ? document : question);
    SL_FAIL_IF(n < 0, err, SL_ERR_EXHAUSTED, "prompt: out of memory");
    SL_TRY_OR(n == 0                            ? sl_fail(err, SL_ERR_INVALID, "the prompt is empty")
              : (size_t)n > SL_MAX_PROMPT_BYTES ? too_large("the prompt", err)
                                                : SL_OK,
              free(prompt));
    *prompt_out = prompt;
    return SL_OK;
}

static enum sl_status make_prompt(const struct sl_request_config *config, char **prompt_out, struct sl_error *err) {
    SL_FAIL_IF(config->prompt && config->prompt_file, err, SL_ERR_INVALID,
               "--prompt and --prompt-file exclude each other");
    const struct sl_option_list *questions = &config->questions;
    const char *question = questions->n > 0 ? questions->items[0] : NULL;
    SL_FAIL_IF(config->chat && questions->n > 1, err, SL_ERR_INVALID,
               "--question was given %d times: --chat takes one turn", questions->n);
    SL_FAIL_IF(config->chat && config->raw, err, SL_ERR_INVALID, "--chat and --raw exclude each other");
    SL_FAIL_IF(config->system && (config->raw || (questions->n > 1 && !config->chat)), err, SL_ERR_INVALID,
               "--system is for chats: leave out --raw, and ask one question");
    SL_FAIL_IF(!config->prompt && !config->prompt_file && !question, err, SL_ERR_INVALID,
               "nothing to read: give --prompt-file, --prompt or --question");
    enum sl_status status =
        config->prompt ? check_text("--prompt", config->prompt, strlen(config->prompt), err) : SL_OK;
    SL_THEN(status, config->system ? check_text("--system", config->system, strlen(config->system), err) : SL_OK);
    for (int i = 0; status == SL_OK && i < questions->n; i++) {
        status = check_text("--question", questions->items[i], strlen(questions->items[i]), err);
        SL_THEN_FAIL_IF(status, i > 0 && questions->items[i][0] == '\0', err, SL_ERR_INVALID,
                        "--question: number %d is empty", i + 1);
    }
    SL_TRY(status);
    char *document = NULL;
    status = config->prompt_file ? sl_request_read_text(config->prompt_file, &document, err) : SL_OK;
    SL_THEN(status, compose(document ? document : config->prompt, question, prompt_out, err));
    free(document);
    return status;
}

static void add_message(struct sl_request *request, const char *role, const char *content) {
    Sluice__V1__ChatMessage *message = &request->chat_messages[request->chat.n_messages];
    sluice__v1__chat_message__init(message);
    message->role = (char *)role;
    message->content = (char *)content;
    request->chat_list[request->chat.n_messages++] = message;
}

static void set_prompt(struct sl_request *request, const struct sl_request_config *config, bool chat) {
    if (!chat) {
        request->message.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT;
        request->message.text = request->prompt;
        return;
    }
    sluice__v1__chat__init(&request->chat);
    request->chat.messages = request->chat_list;
    if (config->system) {
        add_message(request, "system", config->system);
    }
    add_message(request, "user", request->prompt);
    request->message.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_CHAT;
    request->message.chat = &request->chat;
}

enum sl_status sl_request_choose_recipe(const char *recipe, double ship_at_most, bool later, const char **recipe_out,
                                        struct sl_error *err) {
    SL_FAIL_IF(recipe && ship_at_most != 0, err, SL_ERR_INVALID,
               "--ship-at-most chooses the recipe: leave it out, or --recipe %.100s", recipe);
    *recipe_out = recipe ? recipe : "";
    if (ship_at_most == 0) {
        return SL_OK;
    }
    const struct sl_recommendation *recommended = sl_recipe_recommend(ship_at_most / 100, later);
    SL_FAIL_IF(
        !recommended, err, SL_ERR_INVALID,
        "--ship-at-most %g: no recommended recipe ships so little; see `sluice recipes --recommended`, or name a "
        "--recipe",
        ship_at_most);
    sl_log_info("client", "recipe=%s reason=\"--ship-at-most %g, %s\"", recommended->recipe, ship_at_most,
                later ? "and questions may come later" : "and the question is in the prompt");
    *recipe_out = recommended->recipe;
    return SL_OK;
}

#define SEND(is_given, field, FIELD, type)                                                                             \
    do {                                                                                                               \
        if (is_given) {                                                                                                \
            sampling->field##_present_case = SLUICE__V1__SAMPLING__##FIELD##_PRESENT_##FIELD;                          \
            sampling->field = (type)config->field;                                                                     \
        }                                                                                                              \
    } while (0)

// Sets the sampling options. An option that is left out has the model's own value. With --generation-config none all
// values are sent, so that the model's own never apply.
static enum sl_status set_sampling(struct sl_request *request, const struct sl_request_config *config,
                                   struct sl_error *err) {
    bool all = strcmp(config->generation_config, "none") == 0;
    SL_FAIL_IF(!all && strcmp(config->generation_config, "auto") != 0, err, SL_ERR_INVALID,
               "--generation-config %.40s: expected auto or none", config->generation_config);
    Sluice__V1__Sampling *sampling = &request->sampling;
    sluice__v1__sampling__init(sampling);
    SEND(all || config->has_temperature, temperature, TEMPERATURE, float);
    SEND(all || config->has_top_k, top_k, TOP_K, int32_t);
    SEND(all || config->has_top_p, top_p, TOP_P, float);
    SEND(all || config->has_repetition_penalty, repetition_penalty, REPETITION_PENALTY, float);
    SEND(all || config->has_min_p, min_p, MIN_P, float);
    SEND(config->has_seed, seed, SEED, uint64_t);
#undef SEND
    sampling->frequency_penalty = (float)config->frequency_penalty;
    sampling->presence_penalty = (float)config->presence_penalty;
    request->message.sampling = sampling;
    return SL_OK;
}

static enum sl_status name_documents(struct sl_request *request, const char *list, struct sl_error *err) {
    if (!strchr(list, ',')) {
        request->message.document = (char *)list;
        return SL_OK;
    }
    size_t n = 0;
    bool fits = strlen(list) < sizeof request->names;
    char *at = fits ? strcpy(request->names, list) : NULL;
    for (char *name; fits && (name = strsep(&at, ",")) != NULL; n++) {
        fits = n < SL_REQUEST_MAX_DOCUMENTS && name[0] != '\0';
        request->documents[fits ? n : 0] = name;
    }
    SL_FAIL_IF(!fits, err, SL_ERR_INVALID, "%.100s: must be 1 to %d names of documents, with commas between them", list,
               SL_REQUEST_MAX_DOCUMENTS);
    request->message.documents = request->documents;
    request->message.n_documents = n;
    return SL_OK;
}

enum sl_status sl_request_set_options(struct sl_request *request, const struct sl_request_config *config,
                                      struct sl_error *err) {
    bool later = config->document || config->questions.n > 1 || config->later;
    const char *recipe;
    SL_TRY(sl_request_choose_recipe(config->recipe, config->ship_at_most, later, &recipe, err));
    sluice__v1__generate_request__init(&request->message);
    SL_TRY(set_sampling(request, config, err));
    request->message.recipe = (char *)recipe;
    if (config->has_max_new) {
        request->message.max_new_tokens_present_case =
            SLUICE__V1__GENERATE_REQUEST__MAX_NEW_TOKENS_PRESENT_MAX_NEW_TOKENS;
        request->message.max_new_tokens = (int32_t)config->max_new;
    }
    if (config->stop) {
        request->stops[0] = (char *)config->stop;
        request->message.stop = request->stops;
        request->message.n_stop = 1;
    }
    request->message.deadline_ms = config->deadline_ms;
    request->message.ignore_eos = config->ignore_eos;
    request->message.estimate_errors = config->estimate_errors;
    request->message.no_reuse = config->no_reuse;
    request->message.label = (char *)config->label;
    return config->document ? name_documents(request, config->document, err) : SL_OK;
}

enum sl_status sl_request_init(struct sl_request *request, const struct sl_request_config *config,
                               struct sl_error *err) {
    char *prompt = NULL;
    SL_TRY(sl_request_set_options(request, config, err));
    SL_TRY(make_prompt(config, &prompt, err));
    request->prompt = prompt;
    request->turns = config->questions.items + 1;
    request->n_turns = config->questions.n > 1 ? config->questions.n - 1 : 0;
    set_prompt(request, config, config->chat);
    return SL_OK;
}

bool sl_request_is_open(const struct sl_request_config *config) {
    return !config->chat && !config->raw && config->questions.n <= 1;
}

enum sl_status sl_request_choose(struct sl_request *request, const struct sl_request_config *config, bool takes_chats,
                                 struct sl_error *err) {
    if (!sl_request_is_open(config)) {
        return SL_OK;
    }
    SL_FAIL_IF(config->system && !takes_chats, err, SL_ERR_INVALID,
               "--system is for chats, and this model has no chat template");
    set_prompt(request, config, takes_chats);
    return SL_OK;
}

enum sl_status sl_request_ask(struct sl_request *request, const struct sl_request_config *config,
                              struct sl_client *client, int64_t deadline_ns, struct sl_error *err) {
    if (!sl_request_is_open(config)) {
        return SL_OK;
    }
    bool takes_chats = false;
    enum sl_status status;
    if (config->document) {
        Sluice__V1__Document *document;
        const char *name = request->message.n_documents > 0 ? request->documents[0] : config->document;
        status = sl_client_get_document(client, name, deadline_ns, &document, err);
        if (status == SL_OK) {
            takes_chats = document->chat;
            sluice__v1__document__free_unpacked(document, NULL);
        }
    } else {
        Sluice__V1__ModelReply *reply;
        status = sl_client_model(client, deadline_ns, &reply, err);
        if (status == SL_OK) {
            takes_chats = reply->takes_chats;
            sluice__v1__model_reply__free_unpacked(reply, NULL);
        }
    }
    return status == SL_OK ? sl_request_choose(request, config, takes_chats, err) : status;
}

void sl_request_cleanup(struct sl_request *request) {
    free(request->prompt);
    request->prompt = NULL;
}

enum sl_status sl_request_check_one_turn(const struct sl_request *request, struct sl_error *err) {
    return request->n_turns == 0
               ? SL_OK
               : sl_fail(err, SL_ERR_INVALID, "--question was given %d times: turns need `sluice run --local`",
                         request->n_turns + 1);
}
