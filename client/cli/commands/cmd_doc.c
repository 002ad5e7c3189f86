// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: `sluice doc`: texts that a cluster reads once and keeps, and questions about them.
 *
 * To add a command: write `int NAME(int argc, char **argv)` and a row of the table at the end.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/cli/commands/commands.h"
#include "client/cli/commands/doc_show.h"
#include "client/cli/commands/doc_text.h"
#include "client/cli/message_json.h"
#include "client/cli/progress.h"
#include "client/cli/request.h"
#include "client/cli/subcommands.h"
#include "client/cli/table.h"
#include "client/cli/tool.h"
#include "engine/compress/recipe/recipe.h"

#define CONVERT_MS        120000
#define DEADLINE_SLACK_MS 15000 // the coordinator ends the job at its deadline, and then waits for the store

// ---- add ------------------------------------------------------------------------------------------------------------

struct add_config {
    struct sl_tool_config tool;
    const char *recipe;
    double ship_at_most;
    int64_t keep_ms, deadline_ms, replicas;
    bool raw, as_is;
    char *text; // of the file
};

static const struct sl_option add_options[] = {
    {"recipe", 'r', SL_OPTION_STRING, NULL, "RECIPE",
     "full, kvzip, or locret if the model has heads, with a format, for example kvzip,heads=pages,format=int4. "
     "Default: full,format=int4",
     SL_FIELD(add_config, recipe)},
    {"ship-at-most", 0, SL_OPTION_FLOAT, "0", "PERCENT",
     "without --recipe: use the recipe recommended for this share of the full cache and for later questions; 0: the "
     "default recipe",
     SL_FIELD(add_config, ship_at_most), 0, 1000},
    {"raw", 0, SL_OPTION_FLAG, NULL, NULL, "the document is for plain prompts, even if the model has a chat template",
     SL_FIELD(add_config, raw)},
    {"as-is", 0, SL_OPTION_FLAG, NULL, NULL, "convert nothing: for the source of an HTML page",
     SL_FIELD(add_config, as_is)},
    {"keep", 0, SL_OPTION_DURATION, "0", "TIME", "remove the document after this time; 0: keep it until it is removed",
     SL_FIELD(add_config, keep_ms), 0, 3.1536e11},
    {"replicas", 0, SL_OPTION_INT, "1", "N", "stores that keep it, so that one may be lost",
     SL_FIELD(add_config, replicas), 1, 8},
    {"deadline", 0, SL_OPTION_DURATION, "10m", "TIME", "deadline of the reading", SL_FIELD(add_config, deadline_ms), 1,
     604800000},
    SL_TOOL_OPTIONS,
};

static const struct sl_program add_program = {
    .name = "sluice doc add",
    .usage = "[options] NAME FILE",
    .summary = "Read a text once, and keep its compressed KV cache in a store under a name.\n"
               "FILE is a text, a PDF, HTML or office file, a folder of code, or -, standard input.\n"
               "The name is letters, digits, '.', '_' and '-', at most 64.",
    .epilog = "Programs that are installed extract the text: pdftotext (package poppler-utils) that of PDF; w3m, "
              "lynx or pandoc\n"
              "of HTML; pandoc of epub and rtf; pandoc or python3 of docx and odt; python3 of pptx, ods and odp; "
              "xlsx2csv of xlsx.\n"
              "A folder is its text files, in order, each after a line with its path.\n"
              "Ctrl-C stops; nothing is kept then.\n" SL_EXIT_CODES_HELP,
    SL_ARGUMENTS(2),
    SL_OPTIONS(add_options),
};

struct progress {
    struct sl_signals *signals;
    struct sl_progress line;
    const char *name; // of the document
    int width;        // of standard error; 0: not a terminal
    bool json, is_warned;
};

// Prints the caution before the text is read, which may take minutes.
static void warn(struct progress *progress, const Sluice__V1__Accepted *accepted) {
    char caution[SL_CAUTION_BYTES];
    sl_recipe_caution(accepted->recipe, accepted->n_prompt_tokens, caution);
    sl_doc_warn(progress->name, accepted->n_prompt_tokens, caution);
    progress->is_warned = caution[0] != '\0';
}

static void on_event(void *arg, const Sluice__V1__Event *event) {
    struct progress *progress = arg;
    if (!progress->json && event->what_case == SLUICE__V1__EVENT__WHAT_STATE && event->state->accepted) {
        warn(progress, event->state->accepted);
    }
    if (progress->json) {
        sl_message_print_json(&event->base, stdout);
    } else if (sl_progress_update(&progress->line, event) && progress->width > 0) {
        sl_progress_draw(&progress->line, progress->width, stderr);
    }
}

static bool stopped(void *arg) {
    return sl_signals_received(((struct progress *)arg)->signals) > 0;
}

static enum sl_status add_text(struct sl_client *client, void *arg, struct sl_error *err) {
    const struct add_config *config = arg;
    struct progress progress = {.signals = config->tool.signals,
                                .name = config->tool.arguments[0],
                                .width = sl_terminal_width(STDERR_FILENO),
                                .json = config->tool.json};
    struct sl_document_watch watch = {.deadline_ns = sl_deadline_in_ms(config->deadline_ms + DEADLINE_SLACK_MS),
                                      .on_event = on_event,
                                      .stopped = stopped,
                                      .arg = &progress};
    Sluice__V1__AddDocumentRequest request = SLUICE__V1__ADD_DOCUMENT_REQUEST__INIT;
    request.name = config->tool.arguments[0];
    request.text = config->text;
    request.recipe = (char *)config->recipe;
    request.raw = config->raw;
    request.keep_ms = config->keep_ms;
    request.deadline_ms = config->deadline_ms;
    request.replicas = (int32_t)config->replicas;
    Sluice__V1__Document *document;
    enum sl_status status = sl_client_add_document(client, &request, &watch, &document, err);
    if (progress.width > 0 && !progress.json) {
        sl_progress_clear(stderr);
    }
    return status == SL_OK ? sl_doc_done(document, "added", config->tool.json, progress.is_warned) : status;
}

static enum sl_status add(void *arg, struct sl_error *err) {
    struct add_config *config = arg;
    struct sl_doc_source source = {.path = config->tool.arguments[1],
                                   .as_is = config->as_is,
                                   .timeout_ms = CONVERT_MS,
                                   .notes = config->tool.json ? NULL : stderr};
    SL_TRY(sl_request_choose_recipe(config->recipe, config->ship_at_most, true, &config->recipe, err));
    SL_TRY(sl_doc_text_read(&source, &config->text, err));
    enum sl_status status = sl_tool_call(config, add_text, err);
    free(config->text);
    return status;
}

static int add_main(int argc, char **argv) {
    struct sl_signals signals;
    struct add_config config = {.tool.signals = &signals};
    return sl_tool_run(&add_program, argc, argv, &config, add);
}

// ---- ls, show, rm ---------------------------------------------------------------------------------------------------

static const struct sl_option tool_options[] = {SL_TOOL_OPTIONS};

static const struct sl_program ls_program = {
    .name = "sluice doc ls",
    .usage = "[options]",
    .summary = "List the documents, and which store has each.",
    SL_OPTIONS(tool_options),
};

static void print_table(const Sluice__V1__ListDocumentsReply *reply) {
    static const struct sl_column columns[] = {{"DOCUMENT", false}, {"TOKENS", true},  {"CAPSULE", true},
                                               {"OFFLOADED", true}, {"RECIPE", false}, {"STORE", false},
                                               {"DISK", false},     {"ENDS", false},   {"TENANT", false}};
    struct sl_table table = SL_TABLE(columns);
    for (size_t i = 0; i < reply->n_documents; i++) {
        const Sluice__V1__Document *document = reply->documents[i];
        char bytes[32], offloaded[32], ends[SL_UTC_BYTES], stores[256];
        sl_table_add(&table, "%s", document->name);
        sl_table_add(&table, "%" PRId64 "\t%s\t%s\t%s\t%s", document->n_tokens,
                     sl_format_bytes((double)document->capsule_bytes, bytes, sizeof bytes),
                     document->offloaded_bytes > 0
                         ? sl_format_bytes((double)document->offloaded_bytes, offloaded, sizeof offloaded)
                         : "-",
                     document->recipe,
                     document->reading       ? "(being read)"
                     : document->other_model ? "(another model)"
                     : document->store[0]    ? sl_doc_stores_text(document, stores, sizeof stores)
                                             : "none");
        sl_table_add(&table, "%s\t%s", document->on_disk ? "yes" : "no",
                     document->ends_with_cluster && document->expires_ms <= 0
                         ? "with the cluster"
                         : sl_doc_time_text(document->expires_ms, ends));
        sl_table_add(&table, "%s", document->tenant[0] ? document->tenant : "-");
    }
    sl_table_finish(&table, stdout);
    for (size_t i = 0; i < reply->n_documents; i++) {
        if (reply->documents[i]->not_on_disk[0]) {
            fprintf(stderr, "%s: %s\n", reply->documents[i]->name, reply->documents[i]->not_on_disk);
        }
    }
}

static enum sl_status list(struct sl_client *client, void *arg, struct sl_error *err) {
    const struct sl_tool_config *config = arg;
    Sluice__V1__ListDocumentsReply *reply;
    SL_TRY(sl_client_list_documents(client, sl_deadline_in_ms(config->timeout_ms), &reply, err));
    for (size_t i = 0; config->json && i < reply->n_documents; i++) {
        sl_message_print_json(&reply->documents[i]->base, stdout);
    }
    if (!config->json) {
        print_table(reply);
    }
    sluice__v1__list_documents_reply__free_unpacked(reply, NULL);
    return SL_OK;
}

static int ls(int argc, char **argv) {
    struct sl_tool_config config = {0};
    return sl_tool_ask(&ls_program, argc, argv, &config, list);
}

static const struct sl_program show_program = {
    .name = "sluice doc show",
    .usage = "[options] NAME",
    .summary = "Show a document: text, digest, recipe, model, and where its compressed KV cache is.",
    SL_ARGUMENTS(1),
    SL_OPTIONS(tool_options),
};

static enum sl_status show_one(struct sl_client *client, void *arg, struct sl_error *err) {
    const struct sl_tool_config *config = arg;
    Sluice__V1__Document *document;
    SL_TRY(sl_client_get_document(client, config->arguments[0], sl_deadline_in_ms(config->timeout_ms), &document, err));
    sl_doc_show(document, config->json);
    sluice__v1__document__free_unpacked(document, NULL);
    return SL_OK;
}

static int show_main(int argc, char **argv) {
    struct sl_tool_config config = {0};
    return sl_tool_ask(&show_program, argc, argv, &config, show_one);
}

static const struct sl_program rm_program = {
    .name = "sluice doc rm",
    .usage = "[options] NAME",
    .summary = "Remove a document and its compressed KV cache. Answers in progress continue.",
    SL_ARGUMENTS(1),
    SL_OPTIONS(tool_options),
};

static enum sl_status remove_one(struct sl_client *client, void *arg, struct sl_error *err) {
    const struct sl_tool_config *config = arg;
    Sluice__V1__Document *document;
    SL_TRY(
        sl_client_delete_document(client, config->arguments[0], sl_deadline_in_ms(config->timeout_ms), &document, err));
    return sl_doc_done(document, "removed", config->json, true);
}

static int rm(int argc, char **argv) {
    struct sl_tool_config config = {0};
    return sl_tool_ask(&rm_program, argc, argv, &config, remove_one);
}

// ---- keep -----------------------------------------------------------------------------------------------------------

struct keep_config {
    struct sl_tool_config tool;
    int64_t keep_ms, replicas;
    bool has_keep, forever;
};

static const struct sl_option keep_options[] = {
    {"for", 0, SL_OPTION_DURATION, NULL, "TIME", "remove the document after this time from now",
     SL_FIELD(keep_config, keep_ms), 1, 3.1536e11, SL_GIVEN(keep_config, has_keep)},
    {"forever", 0, SL_OPTION_FLAG, NULL, NULL, "keep the document until it is removed", SL_FIELD(keep_config, forever)},
    {"replicas", 0, SL_OPTION_INT, NULL, "N", "stores that keep it, so that one may be lost",
     SL_FIELD(keep_config, replicas), 1, 8},
    SL_TOOL_OPTIONS,
};

static const struct sl_program keep_program = {
    .name = "sluice doc keep",
    .usage = "[options] NAME",
    .summary = "Change how long a document is kept, and in how many stores.",
    .epilog = "What no option names stays as it is. Stores get their copies, or forget them, within "
              "seconds.\n" SL_EXIT_CODES_HELP,
    SL_ARGUMENTS(1),
    SL_OPTIONS(keep_options),
};

static enum sl_status keep(struct sl_client *client, void *arg, struct sl_error *err) {
    const struct keep_config *config = arg;
    SL_FAIL_IF(config->has_keep && config->forever, err, SL_ERR_INVALID, "--for and --forever contradict each other");
    SL_FAIL_IF(!config->has_keep && !config->forever && config->replicas == 0, err, SL_ERR_INVALID,
               "nothing to change: give --for, --forever or --replicas");
    Sluice__V1__PinDocumentRequest request = SLUICE__V1__PIN_DOCUMENT_REQUEST__INIT;
    request.name = config->tool.arguments[0];
    request.replicas = (int32_t)config->replicas;
    if (config->has_keep || config->forever) {
        request.keep_present_case = SLUICE__V1__PIN_DOCUMENT_REQUEST__KEEP_PRESENT_KEEP_MS;
        request.keep_ms = config->forever ? 0 : config->keep_ms;
    }
    Sluice__V1__Document *document;
    SL_TRY(sl_client_pin_document(client, &request, sl_deadline_in_ms(config->tool.timeout_ms), &document, err));
    char ends[SL_UTC_BYTES];
    if (config->tool.json) {
        sl_message_print_json(&document->base, stdout);
    } else {
        printf("kept %s: replicas %d, ends %s\n", document->name, document->replicas,
               sl_doc_time_text(document->expires_ms, ends));
    }
    sluice__v1__document__free_unpacked(document, NULL);
    return SL_OK;
}

static int keep_main(int argc, char **argv) {
    struct keep_config config = {0};
    return sl_tool_ask(&keep_program, argc, argv, &config, keep);
}

// ---- the table ------------------------------------------------------------------------------------------------------

static const struct sl_subcommand commands[] = {
    {"add", "read a text once, and keep it under a name", add_main},
    {"ls", "list documents", ls},
    {"show", "show a document", show_main},
    {"ask", "ask a question about a document", sl_command_doc_ask},
    {"export", "write a document to a file", sl_command_doc_export},
    {"import", "add a document from such a file", sl_command_doc_import},
    {"keep", "change how long a document is kept, and in how many stores", keep_main},
    {"rm", "remove a document", rm},
};

#define SUMMARY                                                                                                        \
    "Keep texts in the cluster: each is read once, and any question about it takes the time of the question."

static const struct sl_subcommands table = {
    .name = "sluice doc",
    .word = "command",
    .summary = SUMMARY,
    .head = "Usage: sluice doc COMMAND [options]\n\n" SUMMARY "\n\nCommands:\n",
    .tail = "\n`sluice doc COMMAND --help` describes the options.\n" SL_EXIT_CODES_HELP "\n",
    .width = 6,
    .list = commands,
    .n = sizeof commands / sizeof *commands,
};

// Returns how many words at argv[1] are options that all commands take, with their values: `sluice doc -c ADDRESS ls`.
static int n_options_before(int argc, char **argv) {
    int at = 1;
    for (bool known = true; known && at < argc && argv[at][0] == '-';) {
        const char *word = argv[at];
        bool is_long = strncmp(word, "--", 2) == 0;
        size_t n = is_long ? strcspn(word + 2, "=") : 1;
        known = false;
        for (size_t i = 0; i < sizeof tool_options / sizeof *tool_options && !known; i++) {
            const struct sl_option *option = &tool_options[i];
            known = is_long ? strlen(option->name) == n && strncmp(option->name, word + 2, n) == 0
                            : option->letter != 0 && option->letter == word[1];
            bool joined = is_long ? word[2 + n] == '=' : word[1] != '\0' && word[2] != '\0';
            at += known ? (option->type == SL_OPTION_FLAG || joined ? 1 : 2) : 0;
        }
    }
    return at - 1;
}

static void move_options(int argc, char **argv) {
    int n = n_options_before(argc, argv);
    if (n > 0 && n + 1 < argc) {
        char *command = argv[n + 1];
        memmove(argv + 2, argv + 1, (size_t)n * sizeof *argv);
        argv[1] = command;
    }
}

int sl_command_doc(int argc, char **argv) {
    move_options(argc, argv);
    return sl_subcommands_run(&table, argc, argv);
}
