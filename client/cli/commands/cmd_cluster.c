// SPDX-License-Identifier: Apache-2.0
// Purpose: `sluice top`, `workers`, `drain`: the commands of operators.
#include <stdio.h>
#include <unistd.h>

#include "client/cli/commands/commands.h"
#include "client/cli/commands/listing.h"
#include "client/cli/message_json.h"
#include "client/cli/tool.h"

static const struct sl_option tool_options[] = {SL_TOOL_OPTIONS};

static const struct sl_program workers_program = {
    .name = "sluice workers",
    .usage = "[options]",
    .summary = "List the cluster's workers.",
    SL_OPTIONS(tool_options),
};

static enum sl_status list_workers(struct sl_client *client, void *arg, struct sl_error *err) {
    const struct sl_tool_config *config = arg;
    Sluice__V1__WorkersReply *reply = NULL;
    SL_TRY(sl_client_workers(client, sl_deadline_in_ms(config->timeout_ms), &reply, err));
    for (size_t i = 0; config->json && i < reply->n_workers; i++) {
        sl_message_print_json(&reply->workers[i]->base, stdout);
    }
    if (!config->json) {
        sl_workers_print(reply, stdout);
    }
    sluice__v1__workers_reply__free_unpacked(reply, NULL);
    return SL_OK;
}

SL_COMMAND_ASK(sl_command_workers, sl_tool_config, workers_program, list_workers)

struct drain_config {
    struct sl_tool_config tool;
    bool undo;
};

static const struct sl_option drain_options[] = {
    {"undo", 0, SL_OPTION_FLAG, NULL, NULL, "give the worker new jobs again", SL_FIELD(drain_config, undo)},
    SL_TOOL_OPTIONS,
};

static const struct sl_program drain_program = {
    .name = "sluice drain",
    .usage = "[options] WORKER",
    .summary = "Take a worker out of the cluster: no new jobs, running ones finish.",
    SL_ARGUMENTS(1),
    SL_OPTIONS(drain_options),
};

static enum sl_status drain(struct sl_client *client, void *arg, struct sl_error *err) {
    const struct drain_config *config = arg;
    const char *name = config->tool.arguments[0];
    int32_t n_running = 0;
    SL_TRY(sl_client_drain(client, name, config->undo, sl_deadline_in_ms(config->tool.timeout_ms), &n_running, err));
    if (config->tool.json) {
        printf("{\"jobs_running\":%d}\n", n_running);
    } else {
        printf("%s %s, %d jobs running\n", name, config->undo ? "takes new jobs again" : "drains", n_running);
    }
    return SL_OK;
}

SL_COMMAND_ASK(sl_command_drain, drain_config, drain_program, drain)

struct top_config {
    struct sl_tool_config tool;
    int64_t interval_ms, limit;
    bool once;
};

static const struct sl_option top_options[] = {
    {"interval", 'i', SL_OPTION_DURATION, "1s", "TIME", "time between refreshes", SL_FIELD(top_config, interval_ms), 50,
     3600000},
    {"limit", 0, SL_OPTION_INT, "15", "N", "newest jobs shown", SL_FIELD(top_config, limit), 1, 10000},
    {"once", '1', SL_OPTION_FLAG, NULL, NULL, "print once and exit; also when the output is not a terminal",
     SL_FIELD(top_config, once)},
    SL_TOOL_OPTIONS,
};

static const struct sl_program top_program = {
    .name = "sluice top",
    .usage = "[options]",
    .summary = "Watch the workers and the newest jobs of a cluster. Ctrl-C ends it.",
    SL_OPTIONS(top_options),
};

static enum sl_status show_top(struct sl_client *client, const struct top_config *config, bool clear,
                               struct sl_error *err) {
    Sluice__V1__WorkersReply *workers = NULL;
    Sluice__V1__ListReply *jobs = NULL;
    int64_t deadline_ns = sl_deadline_in_ms(config->tool.timeout_ms);
    enum sl_status status = sl_client_workers(client, deadline_ns, &workers, err);
    SL_THEN(status, sl_client_list(client, 0, (int32_t)config->limit, deadline_ns, &jobs, err));
    if (status == SL_OK && config->tool.json) {
        sl_message_print_json(&workers->base, stdout);
        sl_message_print_json(&jobs->base, stdout);
    } else if (status == SL_OK) {
        char leased[32];
        fputs(clear ? "\033[H\033[J" : "", stdout); // cursor to the top left, and clear to the end of the screen
        printf("%s: %lld jobs running, %lld queued, %s admitted, routing %s\n\n", config->tool.coordinator,
               (long long)workers->jobs_running, (long long)workers->jobs_queued,
               sl_format_bytes((double)workers->coordinator_leases, leased, sizeof leased), workers->routing);
        sl_workers_print(workers, stdout);
        putchar('\n');
        sl_jobs_print(jobs->jobs, jobs->n_jobs, stdout);
    }
    sluice__v1__workers_reply__free_unpacked(workers, NULL);
    sluice__v1__list_reply__free_unpacked(jobs, NULL);
    fflush(stdout);
    return status;
}

static enum sl_status refresh(struct sl_client *client, const struct top_config *config, struct sl_error *err) {
    for (;;) {
        struct sl_error why;
        enum sl_status status = show_top(client, config, true, &why);
        if (status == SL_ERR_PEER_LOST || status == SL_ERR_DEADLINE) { // the coordinator may come back
            printf("\033[H\033[J%s\n", why.text);
            fflush(stdout);
        } else if (status != SL_OK) {
            return sl_fail_from(err, status, &why, "%s", why.text);
        }
        for (int64_t until = sl_deadline_in_ms(config->interval_ms); sl_deadline_left_ms(until) > 0;) {
            if (sl_signals_received(config->tool.signals) > 0) {
                return SL_OK;
            }
            int64_t left = sl_deadline_left_ms(until);
            sl_sleep_ms(left < 50 ? left : 50);
        }
    }
}

static enum sl_status top(struct sl_client *client, void *arg, struct sl_error *err) {
    const struct top_config *config = arg;
    bool once = config->once || config->tool.json || sl_terminal_width(STDOUT_FILENO) == 0;
    return once ? show_top(client, config, false, err) : refresh(client, config, err);
}

SL_COMMAND_ASK(sl_command_top, top_config, top_program, top, SL_WITH_SIGNALS)
