// SPDX-License-Identifier: Apache-2.0
// Purpose: `sluice submit`, `watch`, `cancel`, `jobs`: jobs that outlive the command that started them.
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

#include "client/cli/commands/commands.h"
#include "client/cli/follow.h"
#include "client/cli/commands/listing.h"
#include "client/cli/message_json.h"
#include "client/cli/request.h"
#include "client/cli/tool.h"

struct submit_config {
    struct sl_tool_config tool;
    struct sl_request_config request;
    struct sl_request made;
};

static const struct sl_option submit_options[] = {SL_REQUEST_OPTIONS(submit_config), SL_TOOL_OPTIONS};

static const struct sl_program submit_program = {
    .name = "sluice submit",
    .usage = "[options] --prompt-file FILE --question TEXT",
    .summary = "Submit a job and print its id; `sluice watch ID` follows it.",
    SL_OPTIONS(submit_options),
};

static enum sl_status submit_made(struct sl_client *client, void *arg, struct sl_error *err) {
    struct submit_config *config = arg;
    char job_id[SL_JOB_ID_BYTES];
    int64_t deadline_ns = sl_deadline_in_ms(config->tool.timeout_ms);
    SL_TRY(sl_request_ask(&config->made, &config->request, client, deadline_ns, err));
    SL_TRY(sl_client_submit(client, &config->made.message, deadline_ns, job_id, err));
    printf(config->tool.json ? "{\"job_id\":\"%s\"}\n" : "%s\n", job_id);
    return SL_OK;
}

static enum sl_status submit(void *arg, struct sl_error *err) {
    struct submit_config *config = arg;
    SL_TRY(sl_request_init(&config->made, &config->request, err));
    enum sl_status status = sl_request_check_one_turn(&config->made, err);
    SL_THEN(status, sl_tool_call(config, submit_made, err));
    sl_request_cleanup(&config->made);
    return status;
}

SL_COMMAND_RUN(sl_command_submit, submit_config, submit_program, submit)

struct watch_config {
    struct sl_tool_config tool;
    int64_t from, deadline_ms;
    bool quiet;
};

static const struct sl_option watch_options[] = {
    {"from", 0, SL_OPTION_INT, "0", "N", "first event wanted; 0 is the beginning", SL_FIELD(watch_config, from), 0,
     9e18},
    {"deadline", 0, SL_OPTION_DURATION, NULL, "TIME", "stop watching then; the job continues",
     SL_FIELD(watch_config, deadline_ms), 1, 604800000},
    {"quiet", 0, SL_OPTION_FLAG, NULL, NULL, "print only the answer", SL_FIELD(watch_config, quiet)},
    SL_TOOL_OPTIONS,
};

static const struct sl_program watch_program = {
    .name = "sluice watch",
    .usage = "[options] JOB",
    .summary = "Follow a job to its end, from the beginning or from a later event. Reconnects by itself.\n"
               "Ctrl-C stops watching and leaves the job alone.",
    .epilog = "The exit code is the job's.\n" SL_EXIT_CODES_HELP,
    SL_ARGUMENTS(1),
    SL_OPTIONS(watch_options),
};

static enum sl_status watch(struct sl_client *client, void *arg, struct sl_error *err) {
    struct watch_config *config = arg;
    struct sl_follow follow = sl_follow_of("watch", &config->tool, config->quiet, config->tool.signals);
    struct sl_watch watch = {
        .job_id = config->tool.arguments[0],
        .from_sequence = config->from,
        .deadline_ns = sl_deadline_in_ms(config->deadline_ms),
        .reconnect_ms = config->tool.timeout_ms,
    };
    sl_follow_attach(&follow, &watch);
    enum sl_status status = sl_client_watch(client, &watch, err);
    config->tool.exit_code = sl_follow_end(&follow, status, err);
    return SL_OK;
}

SL_COMMAND_ASK(sl_command_watch, watch_config, watch_program, watch, SL_WITH_SIGNALS, .deadline_ms = -1)

static const struct sl_option tool_options[] = {SL_TOOL_OPTIONS};

static const struct sl_program cancel_program = {
    .name = "sluice cancel",
    .usage = "[options] JOB",
    .summary = "Cancel a job, and return when all its memory has been given back.",
    SL_ARGUMENTS(1),
    SL_OPTIONS(tool_options),
};

static enum sl_status cancel(struct sl_client *client, void *arg, struct sl_error *err) {
    const struct sl_tool_config *config = arg;
    Sluice__V1__Job *job = NULL;
    SL_TRY(sl_client_cancel(client, config->arguments[0], sl_deadline_in_ms(config->timeout_ms), &job, err));
    if (config->json) {
        sl_message_print_json(&job->base, stdout);
    } else {
        printf("%s %s\n", job->job_id, sl_job_state_name(job->state));
    }
    sluice__v1__job__free_unpacked(job, NULL);
    return SL_OK;
}

SL_COMMAND_ASK(sl_command_cancel, sl_tool_config, cancel_program, cancel)

struct jobs_config {
    struct sl_tool_config tool;
    int64_t limit;
};

static const struct sl_option jobs_options[] = {
    {"limit", 0, SL_OPTION_INT, "100", "N", "newest jobs shown", SL_FIELD(jobs_config, limit), 1, 1000000},
    SL_TOOL_OPTIONS,
};

static const struct sl_program jobs_program = {
    .name = "sluice jobs",
    .usage = "[options] [JOB...]",
    .summary = "List the cluster's jobs, newest first, or show the ones that are named.",
    .n_arguments_max = INT_MAX,
    SL_OPTIONS(jobs_options),
};

static enum sl_status show_all(struct sl_client *client, const struct jobs_config *config, struct sl_error *err) {
    Sluice__V1__ListReply *reply;
    SL_TRY(sl_client_list(client, 0, (int32_t)config->limit, sl_deadline_in_ms(config->tool.timeout_ms), &reply, err));
    for (size_t i = 0; config->tool.json && i < reply->n_jobs; i++) {
        sl_message_print_json(&reply->jobs[i]->base, stdout);
    }
    if (!config->tool.json) {
        sl_jobs_print(reply->jobs, reply->n_jobs, stdout);
    }
    sluice__v1__list_reply__free_unpacked(reply, NULL);
    return SL_OK;
}

static enum sl_status show_one(struct sl_client *client, const struct jobs_config *config, const char *job_id,
                               struct sl_error *err) {
    Sluice__V1__Job *job;
    SL_TRY(sl_client_get(client, job_id, sl_deadline_in_ms(config->tool.timeout_ms), &job, err));
    if (config->tool.json) {
        sl_message_print_json(&job->base, stdout);
    } else {
        sl_jobs_print(&job, 1, stdout);
        if (job->status_text[0]) {
            printf("%s\n", job->status_text);
        }
        if (job->statistics) {
            sl_statistics_print(job->statistics, stdout);
        }
    }
    sluice__v1__job__free_unpacked(job, NULL);
    return SL_OK;
}

static enum sl_status show(struct sl_client *client, void *arg, struct sl_error *err) {
    const struct jobs_config *config = arg;
    enum sl_status status = config->tool.n_arguments > 0 ? SL_OK : show_all(client, config, err);
    for (int i = 0; i < config->tool.n_arguments && status == SL_OK; i++) {
        status = show_one(client, config, config->tool.arguments[i], err);
    }
    return status;
}

SL_COMMAND_ASK(sl_command_jobs, jobs_config, jobs_program, show)
