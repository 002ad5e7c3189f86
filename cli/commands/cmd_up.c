// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: `sluice up`: a whole cluster on this machine until Ctrl-C.
 * Design: single-threaded but for gRPC: between two looks at the signals it passes on what its processes say.
 */
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/whole_file.h"
#include "cli/cluster.h"
#include "cli/commands/commands.h"
#include "cli/listing.h"
#include "cli/message_json.h"
#include "cli/tool.h"

struct up_config {
    struct sl_tool_config tool;
    struct sl_cluster_config cluster;
    const char *state;
    int64_t grace_ms;
    bool keep_going, no_gateway;
};

static const struct sl_option options[] = {
    SL_CLUSTER_OPTIONS(up_config),
    {"host", 0, SL_OPTION_STRING, "127.0.0.1", "ADDRESS", "address that everything listens on",
     SL_FIELD(up_config, cluster.host)},
    {"port", 'p', SL_OPTION_INT, "7600", "PORT", "of the coordinator; 0 picks a free one",
     SL_FIELD(up_config, cluster.port), 0, 65535},
    {"http-port", 0, SL_OPTION_INT, "8000", "PORT", "of the gateway, for OpenAI's clients; 0 picks a free one",
     SL_FIELD(up_config, cluster.http_port), 0, 65535},
    {"no-gateway", 0, SL_OPTION_FLAG, NULL, NULL, "without a gateway", SL_FIELD(up_config, no_gateway)},
    {"disk", 0, SL_OPTION_STRING, NULL, "DIR",
     "KV stores keep capsules in DIR/kvstore-0 and so on, beyond memory and over restarts",
     SL_FIELD(up_config, cluster.disk)},
    {"disk-bytes", 0, SL_OPTION_SIZE, "0", "SIZE", "all that the folder of each may take",
     SL_FIELD(up_config, cluster.disk_bytes)},
    {"coordinators", 0, SL_OPTION_INT, "1", "N",
     "coordinators, of which one leads; more than one by an etcd, which must be installed",
     SL_FIELD(up_config, cluster.n_coordinators), 1, 9},
    {"coordinator-state", 0, SL_OPTION_STRING, NULL, "DIR",
     "the coordinator keeps accepted jobs there (of several, each in DIR/coordinator-0 and so on): started again, the "
     "cluster goes on "
     "with them",
     SL_FIELD(up_config, cluster.coordinator_state)},
    {"state", 0, SL_OPTION_STRING, NULL, "FILE", "write addresses and process ids there once all are ready",
     SL_FIELD(up_config, state)},
    {"grace", 0, SL_OPTION_DURATION, "10s", "TIME", "for the processes to stop by themselves",
     SL_FIELD(up_config, grace_ms), 0, 3600000},
    {"keep-going", 0, SL_OPTION_FLAG, NULL, NULL, "go on when a process dies", SL_FIELD(up_config, keep_going)},
    {"workers-log", 0, SL_OPTION_STRING, "info", "FILTER", "of the cluster's processes",
     SL_FIELD(up_config, cluster.workers_log)},
    {"json", 'j', SL_OPTION_FLAG, NULL, NULL, "one JSON object a line on standard output",
     SL_FIELD(up_config, tool.json)},
    {"log", 0, SL_OPTION_STRING, "warn", "FILTER", "of this process", SL_FIELD(up_config, tool.log)},
};

static const struct sl_program program = {
    .name = "sluice up",
    .usage = "--model DIR [options] [-- OPTIONS OF EVERY WORKER]",
    .summary = "Start a whole cluster on this machine and stop it again on Ctrl-C.",
    .epilog = "Prints the workers once all are ready, where their metrics are, and a line\n"
              "`ready rpc=HOST:PORT http=HOST:PORT`. A process that dies ends the cluster with exit code 1, unless "
              "--keep-going.\n" SL_EXIT_CODES_HELP,
    SL_OPTIONS(options),
};

static json_t *state_json(const struct sl_cluster *cluster) {
    json_t *processes = json_array();
    for (size_t i = 0; i < sl_cluster_n_children(cluster); i++) {
        const struct sl_child *child = sl_cluster_child(cluster, i);
        char rpc[128] = "", fabric[128] = "", http[128] = "", admin[128] = "";
        sl_child_ready_value(child, "rpc", rpc, sizeof rpc);
        sl_child_ready_value(child, "fabric", fabric, sizeof fabric);
        sl_child_ready_value(child, "http", http, sizeof http);
        sl_child_ready_value(child, "admin", admin, sizeof admin);
        json_array_append_new(processes,
                              json_pack("{s:s, s:i, s:s, s:s, s:s, s:s}", "name", child->name, "pid", (int)child->pid,
                                        "rpc", rpc, "fabric", fabric, "http", http, "admin", admin));
    }
    return json_pack("{s:s, s:i, s:o}", "coordinator", sl_cluster_address(cluster), "pid", (int)getpid(), "processes",
                     processes);
}

// Whoever waits for the file must not read half of it.
static enum sl_status write_state(const char *path, json_t *state, struct sl_error *err) {
    struct sl_whole_file whole;
    enum sl_status status = sl_whole_file_open(&whole, path, err);
    if (status == SL_OK && json_dumpf(state, whole.file, JSON_INDENT(2)) != 0 && !ferror(whole.file)) {
        sl_whole_file_abandon(&whole);
        status = sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
    }
    status = status == SL_OK ? sl_whole_file_finish(&whole, err) : status;
    if (status != SL_OK) {
        sl_error_prefix(err, "--state");
    }
    return status;
}

static void print_ready(const struct sl_cluster *cluster) {
    const struct sl_child *last = sl_cluster_child(cluster, sl_cluster_n_children(cluster) - 1);
    char http[128];
    bool has_gateway = sl_child_ready_value(last, "http", http, sizeof http);
    for (size_t i = 0; i < sl_cluster_n_children(cluster); i++) {
        char admin[128];
        const struct sl_child *child = sl_cluster_child(cluster, i);
        if (sl_child_ready_value(child, "admin", admin, sizeof admin)) {
            printf("%-13s http://%s/metrics\n", child->name, admin);
        }
    }
    if (has_gateway) {
        printf("%-13s http://%s/status\n", last->name, http);
    }
    printf("ready rpc=%s%s%s\n", sl_cluster_address(cluster), has_gateway ? " http=" : "", has_gateway ? http : "");
}

static enum sl_status announce(const struct up_config *config, const struct sl_cluster *cluster,
                               struct sl_client *client, struct sl_error *err) {
    json_t *state = state_json(cluster);
    if (!state) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "state: out of memory");
    }
    enum sl_status status = config->state ? write_state(config->state, state, err) : SL_OK;
    if (status == SL_OK && config->tool.json) {
        sl_json_print(json_incref(state), JSON_COMPACT, stdout);
    } else if (status == SL_OK) {
        Sluice__V1__WorkersReply *reply;
        status = sl_client_workers(client, sl_deadline_in_ms(5000), &reply, err);
        if (status == SL_OK) {
            sl_workers_print(reply, stdout);
            sluice__v1__workers_reply__free_unpacked(reply, NULL);
            print_ready(cluster);
            if (config->cluster.tls) {
                const char *dir = config->cluster.tls;
                printf("export SLUICE_TLS_CA=%s/ca.pem SLUICE_TLS_CERT=%s/client-local.pem "
                       "SLUICE_TLS_KEY=%s/client-local.key\n",
                       dir, dir, dir);
            }
        }
    }
    fflush(stdout);
    json_decref(state);
    return status;
}

// Until a signal (SL_OK) or, without --keep-going, the death of a process.
static enum sl_status supervise(const struct up_config *config, struct sl_cluster *cluster, struct sl_signals *signals,
                                struct sl_error *err) {
    while (sl_signals_received(signals) == 0) {
        enum sl_status status = sl_cluster_pump(cluster, 100, err);
        if (status != SL_OK && !config->keep_going) {
            return sl_fail(err, SL_ERR_INTERNAL, "%s: stopping the cluster", err->text); // exit code 1
        }
        if (status != SL_OK) {
            fprintf(stderr, "sluice up: %s\n", err->text);
        }
    }
    return SL_OK;
}

static enum sl_status serve(const struct up_config *config, struct sl_cluster *cluster, struct sl_signals *signals,
                            struct sl_error *err) {
    struct sl_client *client;
    int code;
    if (!sl_tool_connect("up", sl_cluster_address(cluster), sl_cluster_operator(cluster), &client, &code)) {
        return sl_fail(err, SL_ERR_INTERNAL, "no connection to %s", sl_cluster_address(cluster));
    }
    enum sl_status status = sl_cluster_wait_ready(cluster, client, signals, err);
    if (status == SL_OK) {
        status = announce(config, cluster, client, err);
    }
    sl_tool_disconnect(&client);
    return status == SL_OK ? supervise(config, cluster, signals, err) : status;
}

int sl_command_up(int argc, char **argv) {
    struct up_config config = {0};
    int first, code;
    if (!sl_tool_parse(&program, argc, argv, &config, 0, argc, &first, &code)) {
        return code;
    }
    struct sl_error err;
    if (!config.cluster.model) {
        sl_fail(&err, SL_ERR_INVALID, "--model DIR is needed");
        return sl_tool_complain("up", &err);
    }
    bool has_disk = config.cluster.disk != NULL;
    if (has_disk != (config.cluster.disk_bytes > 0)) {
        sl_fail(&err, SL_ERR_INVALID, "--disk DIR and --disk-bytes SIZE belong together; %s is missing",
                has_disk ? "--disk-bytes" : "--disk");
        return sl_tool_complain("up", &err);
    }
    if (has_disk && config.cluster.n_kvstore == 0) {
        sl_fail(&err, SL_ERR_INVALID, "--disk is for KV stores, and with --kvstore 0 there is none");
        return sl_tool_complain("up", &err);
    }
    config.cluster.has_gateway = !config.no_gateway;
    config.cluster.worker_arguments = argv + first;
    config.cluster.n_worker_arguments = (size_t)(argc - first);
    struct sl_signals signals;
    if (sl_signals_init(&signals, &err) != SL_OK) {
        return sl_tool_complain("up", &err);
    }
    struct sl_cluster *cluster = NULL;
    enum sl_status status = sl_cluster_start(&config.cluster, &signals, stderr, &cluster, &err);
    if (status == SL_OK) {
        status = serve(&config, cluster, &signals, &err);
    }
    code = status == SL_OK ? SL_EXIT_OK : sl_tool_complain("up", &err);
    sl_cluster_stop(&cluster, config.grace_ms, &signals);
    if (config.state) {
        unlink(config.state); // its addresses are no longer true
    }
    sl_signals_cleanup(&signals);
    return code;
}
