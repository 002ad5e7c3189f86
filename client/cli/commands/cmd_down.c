// SPDX-License-Identifier: Apache-2.0
// Purpose: `sluice down` and `sluice status`: the clusters that `sluice up` runs on this machine.
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "client/cli/clusters_here.h"
#include "client/cli/commands/commands.h"
#include "client/cli/message_json.h"
#include "client/cli/table.h"
#include "client/cli/tool.h"

struct here_config {
    struct sl_tool_config tool;
    int64_t wait_ms;
    bool all;
};

static const struct sl_option status_options[] = {SL_LOCAL_TOOL_OPTIONS};

static const struct sl_program status_program = {
    .name = "sluice status",
    .usage = "[options] [NAME|HOST:PORT]",
    .summary = "List the clusters that `sluice up` runs on this machine.",
    .epilog = "`sluice workers` and `sluice top` ask a cluster itself.\n" SL_EXIT_CODES_HELP,
    .n_arguments_max = 1,
    SL_OPTIONS(status_options),
};

static const struct sl_option down_options[] = {
    {"all", 0, SL_OPTION_FLAG, NULL, NULL, "every cluster of this machine", SL_FIELD(here_config, all)},
    {"wait", 0, SL_OPTION_DURATION, "60s", "TIME", "longest time that the cluster may take to end",
     SL_FIELD(here_config, wait_ms), 1, 3600000},
    SL_LOCAL_TOOL_OPTIONS,
};

static const struct sl_program down_program = {
    .name = "sluice down",
    .usage = "[options] [NAME|HOST:PORT]",
    .summary = "Stop a cluster that `sluice up` runs on this machine: the only one, or the one that is named.",
    .n_arguments_max = 1,
    SL_OPTIONS(down_options),
};

static const char *text_of(const struct sl_cluster_entry *entry, const char *key) {
    const char *text = json_string_value(json_object_get(entry->state, key));
    return text && text[0] ? text : "-";
}

static bool is_meant(const struct sl_cluster_entry *entry, const char *which) {
    return !which || strcmp(entry->name, which) == 0 || strcmp(text_of(entry, "coordinator"), which) == 0 ||
           strcmp(text_of(entry, "http"), which) == 0;
}

static void print_entry(const struct sl_cluster_entry *entry, struct sl_table *table) {
    const json_t *processes = json_object_get(entry->state, "processes");
    size_t n_running = 0;
    for (size_t i = 0; i < json_array_size(processes); i++) {
        pid_t pid = (pid_t)json_integer_value(json_object_get(json_array_get(processes, i), "pid"));
        n_running += pid > 0 && kill(pid, 0) == 0; // pid 0: the process is waiting for its restart
    }
    sl_table_add(table, "%s\t%s", entry->name, !entry->running ? "ended" : entry->state ? "ready" : "starting");
    sl_table_add(table, "%s", text_of(entry, "coordinator"));
    sl_table_add(table, "%s", text_of(entry, "http"));
    sl_table_add(table, entry->state ? "%zu of %zu" : "-", n_running, json_array_size(processes));
    sl_table_add(table, "%s", text_of(entry, "model"));
    bool moves = json_integer_value(json_object_get(entry->state, "rebalance_ms")) > 0;
    sl_table_add(table, "%s%s", text_of(entry, "routing"), moves ? ", roles by load" : "");
    sl_table_add(table, "%s/cluster.log", entry->dir);
}

static void print_json(const struct sl_cluster_entry *entry) {
    json_t *line =
        json_pack("{s:s, s:b, s:b}", "name", entry->name, "running", entry->running, "ready", entry->state != NULL);
    json_object_update_missing(line, entry->state);
    sl_json_print(line, JSON_COMPACT, stdout);
}

static enum sl_status show_status(void *arg, struct sl_error *err) {
    static const struct sl_column columns[] = {{"NAME", false},    {"STATE", false},    {"COORDINATOR", false},
                                               {"HTTP", false},    {"PROCESSES", true}, {"MODEL", false},
                                               {"ROUTING", false}, {"LOG", false}};
    struct here_config *config = arg;
    const char *which = config->tool.arguments[0];
    struct sl_cluster_entry *entries;
    size_t n, n_shown = 0;
    SL_TRY(sl_clusters_here(&entries, &n, err));
    struct sl_table table = SL_TABLE(columns);
    for (size_t i = 0; i < n; i++) {
        if (is_meant(&entries[i], which)) {
            n_shown += entries[i].running;
            if (config->tool.json) {
                print_json(&entries[i]);
            } else {
                print_entry(&entries[i], &table);
            }
        }
    }
    if (table.n_cells > 0) {
        sl_table_print(&table, stdout);
    }
    sl_table_cleanup(&table);
    sl_clusters_here_free(&entries, n);
    if (n_shown == 0) {
        fprintf(stderr,
                "sluice status: no cluster%s%s runs on this machine: `sluice up --detach --model DIR` starts one\n",
                which ? " " : "", which ? which : "");
        config->tool.exit_code = SL_EXIT_UNAVAILABLE;
    }
    return SL_OK;
}

SL_COMMAND_RUN(sl_command_status, here_config, status_program, show_status)

// Stops a cluster of the list. The list may be old: a newer cluster with this name or process id must not be stopped.
static enum sl_status stop(const struct sl_cluster_entry *entry, int64_t wait_ms, struct sl_error *err) {
    int64_t until = sl_deadline_in_ms(wait_ms);
    pid_t meant = entry->pid, pid;
    bool asked = false;
    while ((pid = sl_cluster_entry_pid(entry)) != 0 && (meant < 0 || pid == meant)) {
        if (pid > 0 && !asked) {
            meant = pid;
            asked = kill(pid, SIGTERM) == 0;
            SL_FAIL_IF(!asked && errno != ESRCH, err, SL_ERR_DENIED, "%s: process %d cannot be asked to end: %s",
                       entry->name, (int)pid, strerror(errno));
        }
        SL_FAIL_IF(sl_deadline_left_ms(until) == 0, err, SL_ERR_DEADLINE,
                   "%s has not ended within %lld ms; its log is %s/cluster.log", entry->name, (long long)wait_ms,
                   entry->dir);
        sl_sleep_ms(20);
    }
    return SL_OK;
}

// Stops all chosen clusters, even after one that could not be stopped. Returns the worst exit code.
static int stop_each(const struct here_config *config, const char *which, const struct sl_cluster_entry *entries,
                     size_t n) {
    int worst = SL_EXIT_OK;
    for (size_t i = 0; i < n; i++) {
        struct sl_error err;
        if (!entries[i].running && config->all && !which) {
            sl_cluster_entry_forget(&entries[i]);
            printf("%s had ended already\n", entries[i].name);
        } else if (entries[i].running && is_meant(&entries[i], which)) {
            int code = stop(&entries[i], config->wait_ms, &err) == SL_OK ? SL_EXIT_OK : sl_tool_complain("down", &err);
            worst = code > worst ? code : worst;
            if (code == SL_EXIT_OK) {
                printf("%s has ended\n", entries[i].name);
            }
        }
    }
    return worst;
}

static enum sl_status stop_meant(struct here_config *config, const struct sl_cluster_entry *entries, size_t n,
                                 struct sl_error *err) {
    const char *which = config->tool.arguments[0];
    char names[256] = "";
    size_t n_meant = 0, n_ended = 0;
    for (size_t i = 0; i < n; i++) {
        if (!entries[i].running && which && strcmp(which, entries[i].name) == 0) {
            sl_cluster_entry_forget(&entries[i]);
            printf("%s had ended already\n", which);
            return SL_OK;
        }
        n_ended += !entries[i].running;
        if (entries[i].running && is_meant(&entries[i], which)) {
            size_t used = strlen(names);
            snprintf(names + used, sizeof names - used, "%s%s", n_meant++ > 0 ? ", " : "", entries[i].name);
        }
    }
    bool has_any = n_meant > 0 || (config->all && !which && n_ended > 0);
    SL_FAIL_IF(!has_any, err, SL_ERR_NOT_FOUND, "no cluster%s%s runs on this machine; `sluice status` lists them",
               which ? " " : "", which ? which : "");
    SL_FAIL_IF(n_meant > 1 && !config->all, err, SL_ERR_INVALID, "which one? %s run here; name one, or give --all",
               names);
    config->tool.exit_code = stop_each(config, which, entries, n);
    return SL_OK;
}

static enum sl_status down(void *config, struct sl_error *err) {
    struct sl_cluster_entry *entries;
    size_t n;
    SL_TRY(sl_clusters_here(&entries, &n, err));
    enum sl_status status = stop_meant(config, entries, n, err);
    sl_clusters_here_free(&entries, n);
    return status;
}

SL_COMMAND_RUN(sl_command_down, here_config, down_program, down)
