// SPDX-License-Identifier: Apache-2.0
// Purpose: `sluice compare`: shows finished jobs, or one prompt under several recipes, side by side: the savings of a recipe, and
// its effect on the answer.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/cli/commands/commands.h"
#include "client/cli/follow.h"
#include "client/cli/message_json.h"
#include "client/cli/request.h"
#include "client/cli/table.h"
#include "client/cli/tool.h"
#include "engine/compress/recipe/recipe.h"
#include "net/rpc/rpc.h"

#define MAX_JOBS          8
#define MAX_ANSWER        48                   // characters of an answer that the table shows
#define MIN_ANSWER        12                   // the same on a narrow terminal
#define MAX_TITLE         28                   // characters of a recipe
#define DEADLINE_SLACK_MS 5000                 // the coordinator tells that a deadline has passed
#define TITLES_WIDTH      20                   // of the first column
#define MIN_COLUMN        (2 + MIN_ANSWER + 3) // gap, answer and "..."

struct compare_config {
    struct sl_tool_config tool;
    struct sl_request_config request;
};

static const struct sl_option options[] = {SL_REQUEST_OPTIONS(compare_config), SL_TOOL_OPTIONS};

static const struct sl_program program = {
    .name = "sluice compare",
    .usage = "[options] JOB JOB ... | --prompt TEXT RECIPE RECIPE ...",
    .summary = "Show finished jobs side by side: answer, bytes shipped, memory held, times. With a prompt, answer it "
               "under each "
               "of the recipes first, with the same seed. At most 8 of them.",
    .n_arguments_min = 1,
    .n_arguments_max = MAX_JOBS,
    SL_OPTIONS(options),
};

struct subject {
    Sluice__V1__Job *job;
    char *answer;
    int n_shown; // characters of the answer that its cell has
};

static void keep_answer(void *arg, const Sluice__V1__Event *event) {
    struct subject *subject = arg;
    if (event->what_case == SLUICE__V1__EVENT__WHAT_FINISHED) {
        free(subject->answer);
        subject->answer = strdup(event->finished->text);
    }
}

static enum sl_status fetch(struct sl_client *client, const char *id, int64_t timeout_ms, struct subject *subject,
                            struct sl_error *err) {
    SL_TRY(sl_client_get(client, id, sl_deadline_in_ms(timeout_ms), &subject->job, err));
    SL_FAIL_IF(subject->job->state < SLUICE__V1__JOB_STATE__DONE, err, SL_ERR_PRECONDITION,
               "job %s has not ended yet; `sluice watch %s` follows it", id, id);
    SL_FAIL_IF(!subject->job->statistics, err, SL_ERR_PRECONDITION, "job %s ended without statistics: %s", id,
               subject->job->status_text);
    struct sl_watch watch = {.job_id = id,
                             .deadline_ns = sl_deadline_in_ms(timeout_ms),
                             .reconnect_ms = timeout_ms,
                             .on_event = keep_answer,
                             .arg = subject};
    SL_TRY(sl_client_watch(client, &watch, err));
    SL_FAIL_IF(!subject->answer, err, SL_ERR_EXHAUSTED, "job %s: no memory for its answer", id);
    return SL_OK;
}

// Adds a number of bytes; "-" if the job did not get that far or the number is unknown.
static void add_bytes(struct sl_table *table, int64_t bytes) {
    char text[32];
    sl_table_add(table, "%s", bytes > 0 ? sl_format_bytes((double)bytes, text, sizeof text) : "-");
}
static void add_ms(struct sl_table *table, double ms, int digits) {
    sl_table_add(table, ms > 0 ? "%.*f ms" : "-", digits, ms);
}
static bool has_capsule(const struct subject *subject) {
    return subject->job->statistics->capsule_bytes > 0;
}

struct row {
    const char *title;
    void (*add)(struct sl_table *table, const struct subject *subject);
};

// Returns the length of at most n characters of UTF-8.
static int bytes_of(const char *text, int n) {
    int bytes = 0;
    for (; text[bytes]; bytes++) {
        n -= ((unsigned char)text[bytes] & 0xc0) != 0x80;
        if (n < 0) {
            break;
        }
    }
    return bytes;
}

static void add_answer(struct sl_table *table, const struct subject *subject) {
    const char *text = subject->answer + strspn(subject->answer, " \n");
    const int bytes = bytes_of(text, subject->n_shown);
    sl_table_add(table, "%.*s%s", bytes, text, text[bytes] ? "..." : "");
}
static void add_reused(struct sl_table *table, const struct subject *subject) {
    sl_table_add(table, has_capsule(subject) ? "%lld of %lld" : "-",
                 (long long)subject->job->statistics->n_reused_tokens,
                 (long long)subject->job->statistics->n_prompt_tokens);
}
static void add_shipped(struct sl_table *table, const struct subject *subject) {
    add_bytes(table, sl_statistics_shipped_bytes(subject->job->statistics));
}
static void add_ratio(struct sl_table *table, const struct subject *subject) {
    const Sluice__V1__Statistics *s = subject->job->statistics;
    const char *format = !has_capsule(subject) ? "-" : s->capsule_bytes > s->full_bytes ? "whole pages" : "%.1fx";
    sl_table_add(table, format, (double)s->full_bytes / (double)s->capsule_bytes);
}
static void add_prefill_peak(struct sl_table *table, const struct subject *subject) {
    add_bytes(table, subject->job->statistics->prefill_peak_bytes);
}
static void add_resident(struct sl_table *table, const struct subject *subject) {
    add_bytes(table, subject->job->statistics->decode_resident_bytes);
}
static void add_slots(struct sl_table *table, const struct subject *subject) {
    double n_slots = subject->job->statistics->slots_per_head;
    sl_table_add(table, n_slots > 0 ? "%.0f" : "-", n_slots);
}
static void add_evicted(struct sl_table *table, const struct subject *subject) {
    const Sluice__V1__Statistics *s = subject->job->statistics;
    if (s->slots_per_head <= 0) {
        sl_table_add(table, "-");
    } else if (s->slots_merged > 0) {
        sl_table_add(table, "%lld, %lld merged", (long long)s->slots_evicted, (long long)s->slots_merged);
    } else {
        sl_table_add(table, "%lld", (long long)s->slots_evicted);
    }
}
static void add_fetched(struct sl_table *table, const struct subject *subject) {
    sl_table_add(table, has_capsule(subject) ? "%lld" : "-", (long long)subject->job->statistics->slots_fetched);
}
static void add_layers(struct sl_table *table, const struct subject *subject) {
    const Sluice__V1__Statistics *s = subject->job->statistics;
    if (s->n_slots_min == 0 || s->n_slots_max != s->n_slots_min) {
        sl_table_add(table, "-");
        return;
    }
    int32_t least = s->slots_min[0], most = s->slots_max[0];
    for (size_t l = 1; l < s->n_slots_min; l++) {
        least = s->slots_min[l] < least ? s->slots_min[l] : least;
        most = s->slots_max[l] > most ? s->slots_max[l] : most;
    }
    sl_table_add(table, least == most ? "%d" : "%d to %d", least, most);
}
static void add_ttft(struct sl_table *table, const struct subject *subject) {
    add_ms(table, subject->job->statistics->ttft_ms, 0);
}
static void add_ship(struct sl_table *table, const struct subject *subject) {
    add_ms(table, subject->job->statistics->ship_ms, 1);
}
static void add_tpot(struct sl_table *table, const struct subject *subject) {
    add_ms(table, subject->job->statistics->tpot_ms, 1);
}
static void add_transport(struct sl_table *table, const struct subject *subject) {
    sl_table_add(table, "%s", has_capsule(subject) ? subject->job->statistics->transport : "-");
}

static const struct row rows[] = {
    {"answer", add_answer},
    {"prompt tokens reused", add_reused},
    {"bytes shipped", add_shipped},
    {"smaller than f16 by", add_ratio},
    {"slots per head", add_slots},
    {"slots at the end", add_layers},
    {"slots evicted", add_evicted},
    {"slots fetched", add_fetched},
    {"resident KV, prefill", add_prefill_peak},
    {"resident KV, decode", add_resident},
    {"time to first token", add_ttft},
    {"of it shipping", add_ship},
    {"time per token", add_tpot},
    {"transport", add_transport},
};

// Returns how many characters of a recipe or an answer fit a column; 0 is not a terminal.
static int column_room(int width, size_t n_columns) {
    const int room = width > 0 ? (width - TITLES_WIDTH) / (int)n_columns - 2 - (int)strlen("...") : MAX_ANSWER;
    return room > MAX_ANSWER ? MAX_ANSWER : room < MIN_ANSWER ? MIN_ANSWER : room;
}

// Prints n subjects as one table. n_before: subjects in earlier tables.
static void print_table(struct subject *subjects, size_t n, size_t n_before, int room) {
    struct sl_column columns[MAX_JOBS + 1] = {{"", false}};
    char numbers[MAX_JOBS][8];
    for (size_t j = 0; j < n; j++) {
        const char *recipe = subjects[j].job->recipe;
        subjects[j].n_shown = room;
        if (strlen(recipe) >
            (size_t)(room < MAX_TITLE ? room : MAX_TITLE)) { // too long for a title: printed above the table instead
            snprintf(numbers[j], sizeof numbers[j], "(%zu)", n_before + j + 1);
            printf("%s %s\n", numbers[j], recipe);
            recipe = numbers[j];
        }
        columns[j + 1] = (struct sl_column){recipe, true};
    }
    struct sl_table table;
    sl_table_init(&table, columns, n + 1);
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        sl_table_add(&table, "%s", rows[r].title);
        for (size_t j = 0; j < n; j++) {
            rows[r].add(&table, &subjects[j]);
        }
    }
    sl_table_finish(&table, stdout);
}

static void print(struct subject *subjects, size_t n_subjects) {
    const int width = sl_terminal_width(STDOUT_FILENO);
    const size_t most = width > TITLES_WIDTH + MIN_COLUMN ? (size_t)((width - TITLES_WIDTH) / MIN_COLUMN) : 1;
    const size_t n_tables = width > 0 ? (n_subjects + most - 1) / most : 1;
    const size_t n_columns = (n_subjects + n_tables - 1) / n_tables;
    for (size_t j = 0; j < n_subjects; j += n_columns) {
        const size_t n = n_subjects - j < n_columns ? n_subjects - j : n_columns;
        printf("%s", j > 0 ? "\n" : "");
        print_table(&subjects[j], n, j, column_room(width, n_columns));
    }
}

// ---- one prompt under several recipes -------------------------------------------------------------------------------

struct answering {
    struct sl_signals *signals;
    uint64_t seed;
    bool has_seed;
    struct sl_error failure; // status SL_OK: the job did not fail
};

static void on_event(void *arg, const Sluice__V1__Event *event) {
    struct answering *answering = arg;
    if (event->what_case == SLUICE__V1__EVENT__WHAT_STATE && event->state->accepted &&
        event->state->accepted->sampling) {
        answering->seed = event->state->accepted->sampling->seed;
        answering->has_seed = true;
    } else if (event->what_case == SLUICE__V1__EVENT__WHAT_FINISHED && event->finished->status_code != 0) {
        sl_fail(&answering->failure, sl_rpc_status_of_code(event->finished->status_code), "%s",
                event->finished->status_text);
    }
}

static bool stopped(void *arg) {
    const struct answering *answering = arg;
    return sl_signals_received(answering->signals) > 0;
}

// Answers the prompt under one recipe. With sampling, later recipes get the seed of the first.
static enum sl_status answer_under(struct sl_client *client, const struct compare_config *config, const char *recipe,
                                   struct sl_request *request, struct answering *answering,
                                   char job_id_out[SL_JOB_ID_BYTES], struct sl_error *err) {
    struct sl_watch watch = {.deadline_ns = sl_deadline_in_ms(config->request.deadline_ms + DEADLINE_SLACK_MS),
                             .on_event = on_event,
                             .stopped = stopped,
                             .arg = answering};
    request->message.recipe = (char *)recipe;
    if (answering->has_seed) {
        request->sampling.seed_present_case = SLUICE__V1__SAMPLING__SEED_PRESENT_SEED;
        request->sampling.seed = answering->seed;
    }
    if (isatty(STDERR_FILENO)) {
        fprintf(stderr, "answering under %s\n", recipe);
    }
    enum sl_status status = sl_client_generate(client, &request->message, &watch, job_id_out, err);
    if (status == SL_OK && answering->failure.status != SL_OK) {
        status = answering->failure.status;
        *err = answering->failure;
    }
    return status;
}

// Makes a job for each recipe, and replaces the recipes by the ids of the jobs.
static enum sl_status answer_all(struct sl_client *client, const struct compare_config *config, const char **recipes,
                                 size_t n, char (*job_ids)[SL_JOB_ID_BYTES], struct sl_error *err) {
    struct answering answering = {.signals = config->tool.signals};
    struct sl_request request;
    for (size_t i = 0; i < n; i++) { // before the first one takes its time
        struct sl_recipe recipe;
        SL_TRY(sl_recipe_parse(recipes[i], &recipe, err));
    }
    SL_TRY(sl_request_init(&request, &config->request, err));
    enum sl_status status = sl_request_check_one_turn(&request, err);
    SL_THEN(status,
            sl_request_ask(&request, &config->request, client, sl_deadline_in_ms(config->tool.timeout_ms), err));
    for (size_t i = 0; i < n && status == SL_OK; i++) {
        status = answer_under(client, config, recipes[i], &request, &answering, job_ids[i], err);
        recipes[i] = job_ids[i];
    }
    sl_request_cleanup(&request);
    return status;
}

static bool has_prompt(const struct sl_request_config *request) {
    return request->prompt || request->prompt_file || request->document || request->questions.n > 0;
}

static enum sl_status show(struct sl_client *client, const struct compare_config *config, const char *const *ids,
                           size_t n_ids, struct sl_error *err) {
    struct subject subjects[MAX_JOBS] = {0};
    enum sl_status status = SL_OK;
    for (size_t j = 0; j < n_ids && status == SL_OK; j++) {
        status = fetch(client, ids[j], config->tool.timeout_ms, &subjects[j], err);
    }
    if (status == SL_OK && config->tool.json) {
        for (size_t j = 0; j < n_ids; j++) {
            sl_message_print_json(&subjects[j].job->base, stdout);
        }
    } else if (status == SL_OK) {
        print(subjects, n_ids);
    }
    for (size_t j = 0; j < n_ids; j++) {
        sluice__v1__job__free_unpacked(subjects[j].job, NULL);
        free(subjects[j].answer);
    }
    return status;
}

static enum sl_status compare(struct sl_client *client, void *arg, struct sl_error *err) {
    const struct compare_config *config = arg;
    char job_ids[MAX_JOBS][SL_JOB_ID_BYTES] = {""};
    const char *ids[MAX_JOBS];
    const size_t n_ids = (size_t)config->tool.n_arguments;
    SL_FAIL_IF(config->request.recipe || config->request.ship_at_most != 0, err, SL_ERR_INVALID,
               "--recipe, --ship-at-most: the recipes are the arguments");
    memcpy(ids, config->tool.arguments, n_ids * sizeof *ids);
    SL_TRY(has_prompt(&config->request) ? answer_all(client, config, ids, n_ids, job_ids, err) : SL_OK);
    return show(client, config, ids, n_ids, err);
}

SL_COMMAND_ASK(sl_command_compare, compare_config, program, compare, SL_WITH_SIGNALS)
