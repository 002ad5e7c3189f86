// SPDX-License-Identifier: Apache-2.0
// Purpose: the options that describe a job, shared by `sluice run` and `sluice submit`, and the request that is made
// from them.
#pragma once

#include <stdio.h>

#include "client/libsluice/sluice.h"
#include "base/options/config.h"
#include "proto/sluice/v1/inference.pb-c.h"

// A coordinator's default limit.
#define SL_MAX_PROMPT_BYTES ((size_t)64 << 20)

struct sl_request_config {
    const char *recipe, *prompt, *prompt_file, *system, *stop, *label, *generation_config, *document;
    struct sl_option_list questions; // the first is part of the prompt, each other one is a later turn
    int64_t max_new, top_k, seed, deadline_ms;
    double ship_at_most, temperature, top_p, repetition_penalty, min_p, frequency_penalty, presence_penalty;
    bool chat, raw, ignore_eos, estimate_errors, no_reuse;
    bool later; // more questions may follow, beside those in `questions`
    // If true, the option overrides the model's own value
    bool has_temperature, has_top_k, has_top_p, has_repetition_penalty, has_min_p;
    bool has_seed, has_max_new;
};

// Table rows for sampling, for the same member; also used by `sluice chat`.
#define SL_SAMPLING_OPTIONS(type)                                                                                      \
    SL_OPTION_ROW("temperature", 0, SL_OPTION_FLOAT, "0", "T",                                                         \
                  "0 takes the likeliest token. Default: the model's own setting, as for the next four options, else", \
                  SL_FIELD(type, request.temperature), 0, 100, SL_GIVEN(type, request.has_temperature)),               \
        SL_OPTION_ROW("top-k", 0, SL_OPTION_INT, "0", "K", "sample among the K likeliest; 0: among all",               \
                      SL_FIELD(type, request.top_k), 0, 1 << 24, SL_GIVEN(type, request.has_top_k)),                   \
        SL_OPTION_ROW("top-p", 0, SL_OPTION_FLOAT, "1", "P", "sample among the likeliest that make up P",              \
                      SL_FIELD(type, request.top_p), 1e-6, 1, SL_GIVEN(type, request.has_top_p)),                      \
        SL_OPTION_ROW("min-p", 0, SL_OPTION_FLOAT, "0", "P",                                                           \
                      "sample among tokens with at least P of the likeliest token's probability",                      \
                      SL_FIELD(type, request.min_p), 0, 1, SL_GIVEN(type, request.has_min_p)),                         \
        SL_OPTION_ROW("repetition-penalty", 0, SL_OPTION_FLOAT, "1", "R", "above 1 discourages repetition",            \
                      SL_FIELD(type, request.repetition_penalty), 1e-3, 100,                                           \
                      SL_GIVEN(type, request.has_repetition_penalty)),                                                 \
        SL_OPTION_ROW("frequency-penalty", 0, SL_OPTION_FLOAT, "0", "F",                                               \
                      "lower a token's logit by F for each time it is in the answer",                                  \
                      SL_FIELD(type, request.frequency_penalty), -2, 2),                                               \
        SL_OPTION_ROW("presence-penalty", 0, SL_OPTION_FLOAT, "0", "F", "lower it by F once if it is in the answer",   \
                      SL_FIELD(type, request.presence_penalty), -2, 2),                                                \
        SL_OPTION_ROW(                                                                                                 \
            "generation-config", 0, SL_OPTION_STRING, "auto", "WHOSE",                                                 \
            "auto: take settings that are not given from the model's own generation settings; none: ignore these",     \
            SL_FIELD(type, request.generation_config)),                                                                \
        SL_OPTION_ROW("seed", 0, SL_OPTION_INT, NULL, "N",                                                             \
                      "seed of the sampling. Default: drawn for each request and shown", SL_FIELD(type, request.seed), \
                      SL_GIVEN(type, request.has_seed))

// Table rows for the member `request` of the command's config struct `type`.
#define SL_REQUEST_OPTIONS(type)                                                                                       \
    SL_OPTION_ROW("recipe", 'r', SL_OPTION_STRING, NULL, "RECIPE",                                                     \
                  "how the KV cache is compressed; see `sluice recipes`", SL_FIELD(type, request.recipe)),             \
        SL_OPTION_ROW(                                                                                                 \
            "ship-at-most", 0, SL_OPTION_FLOAT, "0", "PERCENT",                                                        \
            "without --recipe: use the recipe recommended for this share of the full cache; 0: the default recipe",    \
            SL_FIELD(type, request.ship_at_most), 0, 1000),                                                            \
        SL_OPTION_ROW("prompt-file", 'f', SL_OPTION_STRING, NULL, "FILE", "document to read; - is standard input",     \
                      SL_FIELD(type, request.prompt_file)),                                                            \
        SL_OPTION_ROW("prompt", 'p', SL_OPTION_STRING, NULL, "TEXT", "the document itself",                            \
                      SL_FIELD(type, request.prompt)),                                                                 \
        SL_OPTION_ROW("doc", 0, SL_OPTION_STRING, NULL, "NAME",                                                        \
                      "a document of the cluster (`sluice doc`), or several (A,B), before all else of the prompt",     \
                      SL_FIELD(type, request.document)),                                                               \
        SL_OPTION_ROW("question", 'q', SL_OPTION_LIST, NULL, "TEXT",                                                   \
                      "put after the document, on a line of its own; with run --local several times: turns",           \
                      SL_FIELD(type, request.questions)),                                                              \
        SL_OPTION_ROW("chat", 0, SL_OPTION_FLAG, NULL, NULL,                                                           \
                      "the prompt is a user's message, which the model's chat template renders; the default if there " \
                      "is one",                                                                                        \
                      SL_FIELD(type, request.chat)),                                                                   \
        SL_OPTION_ROW("raw", 0, SL_OPTION_FLAG, NULL, NULL, "the model continues the prompt as it is: no chat",        \
                      SL_FIELD(type, request.raw)),                                                                    \
        SL_OPTION_ROW("system", 0, SL_OPTION_STRING, NULL, "TEXT", "system message before the prompt, in a chat",      \
                      SL_FIELD(type, request.system)),                                                                 \
        SL_OPTION_ROW("max-new-tokens", 'n', SL_OPTION_INT, NULL, "N",                                                 \
                      "most tokens to generate. Default: to the answer's end in a chat (with --doc: 1024), else 128",  \
                      SL_FIELD(type, request.max_new), 1, 1 << 20, SL_GIVEN(type, request.has_max_new)),               \
        SL_OPTION_ROW("stop", 0, SL_OPTION_STRING, NULL, "TEXT", "end the answer before this text",                    \
                      SL_FIELD(type, request.stop)),                                                                   \
        SL_SAMPLING_OPTIONS(type),                                                                                     \
        SL_OPTION_ROW("ignore-eos", 0, SL_OPTION_FLAG, NULL, NULL, "continue to --max-new-tokens",                     \
                      SL_FIELD(type, request.ignore_eos)),                                                             \
        SL_OPTION_ROW("estimate-errors", 0, SL_OPTION_FLAG, NULL, NULL,                                                \
                      "estimate what compression costs, layer by layer", SL_FIELD(type, request.estimate_errors)),     \
        SL_OPTION_ROW("no-reuse", 0, SL_OPTION_FLAG, NULL, NULL,                                                       \
                      "read the whole prompt, even if a store has its beginning", SL_FIELD(type, request.no_reuse)),   \
        SL_OPTION_ROW("deadline", 0, SL_OPTION_DURATION, "10m", "TIME", "deadline of the whole job",                   \
                      SL_FIELD(type, request.deadline_ms), 1, 604800000),                                              \
        SL_OPTION_ROW("label", 0, SL_OPTION_STRING, "", "TEXT", "a label, which `sluice jobs` shows",                  \
                      SL_FIELD(type, request.label))

#define SL_REQUEST_MAX_DOCUMENTS 8

struct sl_request {
    Sluice__V1__GenerateRequest message; // points into the fields below
    Sluice__V1__Sampling sampling;
    Sluice__V1__Chat chat; // for a prompt that is a chat
    Sluice__V1__ChatMessage chat_messages[2], *chat_list[2];
    char *prompt; // owned
    char *stops[1];
    char names[SL_REQUEST_MAX_DOCUMENTS * 65], *documents[SL_REQUEST_MAX_DOCUMENTS]; // documents point into names
    const char *const *turns; // [n_turns] questions after the first, each a turn of its own
    int n_turns;
};

/*
 * Reads the prompt and fills the message. SL_ERR_INVALID: no prompt, not text, too large. The config's strings must
 * outlive the request. Not movable: the message points into the struct.
 */
enum sl_status sl_request_init(struct sl_request *request, const struct sl_request_config *config,
                               struct sl_error *err);

/*
 * Returns true if the model decides whether the prompt is a message of a chat, because neither --chat nor --raw is set
 * (with several questions the prompt stays text). When it is known whether the model takes chats, sl_request_choose()
 * makes the prompt a chat. SL_ERR_INVALID: there is a system message, but no chat.
 */
bool sl_request_is_open(const struct sl_request_config *config);
enum sl_status sl_request_choose(struct sl_request *request, const struct sl_request_config *config, bool takes_chats,
                                 struct sl_error *err);
// Asks the cluster about its model, or about the request's document, if the request is open, and then works like
// sl_request_choose().
enum sl_status sl_request_ask(struct sl_request *request, const struct sl_request_config *config,
                              struct sl_client *client, int64_t deadline_ns, struct sl_error *err);

/*
 * Sets everything except the prompt: recipe, sampling, lengths, stop, label. SL_ERR_INVALID: no recipe is recommended
 * for so few bytes, or two are given. The config's strings must outlive the request.
 */
enum sl_status sl_request_set_options(struct sl_request *request, const struct sl_request_config *config,
                                      struct sl_error *err);

// Returns the recipe that --recipe, or NULL, and --ship-at-most mean; "" is the cluster's default. later: questions come
// after the text was compressed. SL_ERR_INVALID: both are given, or no recipe is recommended for so few bytes.
enum sl_status sl_request_choose_recipe(const char *recipe, double ship_at_most, bool later, const char **recipe_out,
                                        struct sl_error *err);

void sl_request_cleanup(struct sl_request *request);

// Rejects a request with turns, because a cluster's jobs have none: SL_ERR_INVALID.
enum sl_status sl_request_check_one_turn(const struct sl_request *request, struct sl_error *err);

// Reads a stream to its end, as sl_request_read_text() does; `name` is for messages.
enum sl_status sl_request_read_stream(FILE *file, const char *name, char **text_out, struct sl_error *err);
// Reads a whole file as a string that is valid UTF-8 without zero bytes; "-" is standard input.
enum sl_status sl_request_read_text(const char *path, char **text_out, struct sl_error *err);
