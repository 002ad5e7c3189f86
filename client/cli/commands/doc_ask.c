// SPDX-License-Identifier: Apache-2.0
// Purpose: `sluice doc ask`: a question about a document, what the answer cost, and a comparison with the full text.
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/cli/commands/commands.h"
#include "client/cli/follow.h"
#include "client/cli/message_json.h"
#include "client/cli/request.h"
#include "client/cli/tool.h"

#define DEADLINE_SLACK_MS 15000 // the coordinator ends the job at its deadline, and then waits for the store

struct ask_config {
    struct sl_tool_config tool;
    struct sl_request_config request;
    bool check, quiet;
};

static const struct sl_option ask_options[] = {
    {"max-new-tokens", 'n', SL_OPTION_INT, NULL, "N",
     "most tokens to generate. Default: 1024 in a chat, 128 after a text", SL_FIELD(ask_config, request.max_new), 1,
     1 << 20, SL_GIVEN(ask_config, request.has_max_new)},
    {"stop", 0, SL_OPTION_STRING, NULL, "TEXT", "end the answer before this text", SL_FIELD(ask_config, request.stop)},
    SL_SAMPLING_OPTIONS(ask_config),
    {"check", 0, SL_OPTION_FLAG, NULL, NULL,
     "answer once more, with the text read again under the recipe full, and compare the answers",
     SL_FIELD(ask_config, check)},
    {"deadline", 0, SL_OPTION_DURATION, "10m", "TIME", "deadline of the whole job",
     SL_FIELD(ask_config, request.deadline_ms), 1, 604800000},
    {"quiet", 0, SL_OPTION_FLAG, NULL, NULL, "print only the answer", SL_FIELD(ask_config, quiet)},
    SL_TOOL_OPTIONS,
};

static const struct sl_program ask_program = {
    .name = "sluice doc ask",
    .usage = "[options] NAME[,NAME...] QUESTION",
    .summary = "Ask a question about a document, whose text is not read again. A line says what the answer cost.\n"
               "Several documents are joined as they were read: each apart (docs/USING.md).",
    .epilog = "`sluice run --doc NAME` does the same with all options of `sluice run`.\n" SL_EXIT_CODES_HELP,
    SL_ARGUMENTS(2),
    SL_OPTIONS(ask_options),
};

struct answer {
    char *text; // owned; NULL: there is none
    bool has_seed;
    int64_t seed;
};

static bool keep(void *arg, const Sluice__V1__Event *event) {
    struct answer *answer = arg;
    if (event->what_case == SLUICE__V1__EVENT__WHAT_FINISHED && !answer->text) {
        const Sluice__V1__Statistics *s = event->finished->statistics;
        answer->text = strdup(event->finished->text);
        answer->has_seed = s && s->sampling;
        answer->seed = answer->has_seed ? (int64_t)s->sampling->seed : 0;
    }
    return true;
}

static int ask_once(const struct ask_config *config, const struct sl_request_config *asked, struct sl_client *client,
                    struct answer *answer_out) {
    struct sl_follow follow = sl_follow_of("doc ask", &config->tool, config->quiet, config->tool.signals);
    struct sl_watch watch = {.deadline_ns = sl_deadline_in_ms(asked->deadline_ms + DEADLINE_SLACK_MS)};
    struct sl_request request;
    struct sl_error err = {0};
    char job_id[SL_JOB_ID_BYTES] = "";
    *answer_out = (struct answer){0};
    follow.cost = true;
    follow.look_fn = keep;
    follow.also_arg = answer_out;
    sl_follow_attach(&follow, &watch);
    if (sl_request_init(&request, asked, &err) != SL_OK) {
        return sl_tool_complain("doc ask", &err);
    }
    enum sl_status status = sl_request_ask(&request, asked, client, sl_deadline_in_ms(config->tool.timeout_ms), &err);
    SL_THEN(status, sl_client_generate(client, &request.message, &watch, job_id, &err));
    int code = sl_follow_end(&follow, status, &err);
    sl_request_cleanup(&request);
    return code;
}

// Reads the text again without compression, and compares the answers.
static int check(const struct ask_config *config, struct sl_client *client, const struct answer *first) {
    struct sl_request_config asked = config->request;
    struct answer second;
    asked.recipe = "full";
    asked.no_reuse = true;
    asked.seed = first->seed;
    asked.has_seed = first->has_seed;
    if (!config->quiet && !config->tool.json) {
        fprintf(stderr, "check: the text is read again, under the recipe full\n");
    }
    int code = ask_once(config, &asked, client, &second);
    if (code == SL_EXIT_OK && first->text && second.text) {
        bool same = strcmp(first->text, second.text) == 0;
        if (config->tool.json) {
            sl_json_print(json_pack("{s:{s:b}}", "check", "same", same), JSON_COMPACT, stdout);
        } else {
            fprintf(stderr, "check: the answers %s\n", same ? "are the same" : "differ");
        }
    }
    free(second.text);
    return code;
}

static enum sl_status ask(struct sl_client *client, void *arg, struct sl_error *err) {
    struct ask_config *config = arg;
    struct answer answer;
    (void)err; // what follows the answer reports it
    config->request.document = config->tool.arguments[0];
    config->request.prompt = config->tool.arguments[1];
    config->request.label = "";
    config->tool.exit_code = ask_once(config, &config->request, client, &answer);
    if (config->tool.exit_code == SL_EXIT_OK && config->check) {
        config->tool.exit_code = check(config, client, &answer);
    }
    free(answer.text);
    return SL_OK;
}

SL_COMMAND_ASK(sl_command_doc_ask, ask_config, ask_program, ask, SL_WITH_SIGNALS)
