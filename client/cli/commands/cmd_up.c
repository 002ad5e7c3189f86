// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: `sluice up`: a whole cluster on this machine until Ctrl-C, or in the background until `sluice down`.
 * Design: single-threaded except for gRPC: it checks for signals, passes on output of the processes, and repeats.
 */
#include <limits.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/json_file.h"
#include "base/whole_file.h"
#include "client/cli/cluster.h"
#include "client/cli/clusters_here.h"
#include "client/cli/commands/commands.h"
#include "client/cli/commands/listing.h"
#include "client/cli/doctor/checks.h"
#include "client/cli/message_json.h"
#include "client/cli/tool.h"

struct up_config {
    struct sl_tool_config tool;
    struct sl_cluster_config cluster;
    const char *folder, *state, *name;
    int64_t grace_ms;
    bool has_disk_bytes, keep_going, no_gateway, detach, verbose;
};

struct up {
    struct up_config config;
    struct sl_cluster_here here;
    struct sl_cluster *cluster;
    struct sl_signals signals;
    bool wrote_state, detached; // wrote_state: wrote the --state-file; detached: the starting command has exited
};

static const struct sl_option options[] = {
    SL_CLUSTER_OPTIONS(up_config),
    {"host", 0, SL_OPTION_STRING, "127.0.0.1", "ADDRESS", "address that everything listens on",
     SL_FIELD(up_config, cluster.host)},
    {"port", 0, SL_OPTION_INT, "7600", "PORT", "port of the coordinator; 0: a free one",
     SL_FIELD(up_config, cluster.port), 0, 65535},
    {"http-port", 0, SL_OPTION_INT, "8000", "PORT", "port of the gateway, for OpenAI's clients; 0: a free one",
     SL_FIELD(up_config, cluster.http_port), 0, 65535},
    {"no-gateway", 0, SL_OPTION_FLAG, NULL, NULL, "start no gateway", SL_FIELD(up_config, no_gateway)},
    {"state", 0, SL_OPTION_STRING, NULL, "DIR",
     "keep documents, stored prompts and jobs there: `up --state DIR` continues with them after `down`. Sets --disk "
     "and --coordinator-state",
     SL_FIELD(up_config, folder)},
    {"disk", 0, SL_OPTION_STRING, NULL, "DIR",
     "KV stores keep capsules in DIR/kvstore-0 and so on, beyond memory and over restarts",
     SL_FIELD(up_config, cluster.disk)},
    {"disk-bytes", 0, SL_OPTION_SIZE, "8G", "SIZE", "most that the folder of each store may take",
     SL_FIELD(up_config, cluster.disk_bytes), SL_GIVEN(up_config, has_disk_bytes)},
    {"evict", 0, SL_OPTION_STRING, NULL, "POLICY",
     "how KV stores choose the capsules that they evict: cost, lru, ttl or share", SL_FIELD(up_config, cluster.evict)},
    {"ttl", 0, SL_OPTION_STRING, NULL, "TIME",
     "with --evict ttl: evict capsules first that were stored longer ago than this", SL_FIELD(up_config, cluster.ttl)},
    {"coordinators", 0, SL_OPTION_INT, "1", "N",
     "coordinators, of which one leads; more than one need etcd, which must be installed",
     SL_FIELD(up_config, cluster.n_coordinators), 1, 9},
    {"coordinator-state", 0, SL_OPTION_STRING, NULL, "DIR",
     "the coordinator keeps accepted jobs and documents there (of several, each in DIR/coordinator-0 and so on): "
     "a cluster that is started again continues with them",
     SL_FIELD(up_config, cluster.coordinator_state)},
    {"generation-config", 0, SL_OPTION_STRING, "auto", "WHOSE",
     "auto: the model's own generation settings are the defaults of temperature, top_k, top_p, min_p and "
     "repetition_penalty; none: they are ignored",
     SL_FIELD(up_config, cluster.generation_config)},
    {"routing", 0, SL_OPTION_STRING, NULL, "POLICY",
     "how workers are chosen: affinity, deadline, least-loaded or round-robin (sluice-coordinator --help)",
     SL_FIELD(up_config, cluster.routing)},
    {"rebalance", 0, SL_OPTION_DURATION, "0s", "TIME",
     "with --aggregated: each decode worker either reads or writes; the load decides, and at most one worker changes "
     "in this time",
     SL_FIELD(up_config, cluster.rebalance_ms), 0, 86400000},
    {"state-file", 0, SL_OPTION_STRING, NULL, "FILE", "write addresses and process ids there once all are ready",
     SL_FIELD(up_config, state)},
    {"grace", 0, SL_OPTION_DURATION, "10s", "TIME", "time that the processes have to stop by themselves",
     SL_FIELD(up_config, grace_ms), 0, 3600000},
    {"keep-going", 0, SL_OPTION_FLAG, NULL, NULL, "continue without a process that dies, coordinators too",
     SL_FIELD(up_config, keep_going)},
    {"detach", 'd', SL_OPTION_FLAG, NULL, NULL, "return once all are ready; `sluice down` stops the cluster",
     SL_FIELD(up_config, detach)},
    {"name", 0, SL_OPTION_STRING, NULL, "NAME",
     "name of the cluster, for `sluice down` and `status`. Default: its port", SL_FIELD(up_config, name)},
    {"verbose", 'v', SL_OPTION_FLAG, NULL, NULL,
     "show the logs of the processes here, instead of writing them to a file", SL_FIELD(up_config, verbose)},
    {"workers-log", 0, SL_OPTION_STRING, "info", "FILTER", "log level of the cluster's processes",
     SL_FIELD(up_config, cluster.workers_log)},
    {"json", 'j', SL_OPTION_FLAG, NULL, NULL, "one JSON object a line on standard output",
     SL_FIELD(up_config, tool.json)},
    {"log", 0, SL_OPTION_STRING, "warn", "FILTER", "log level of this process", SL_FIELD(up_config, tool.log)},
};

static const struct sl_program program = {
    .name = "sluice up",
    .usage = "--model DIR [options] [-- OPTIONS OF EVERY WORKER]",
    .summary = "Start a whole cluster on this machine and stop it again on Ctrl-C, or by `sluice down`.",
    .epilog = "Prints the workers once all are ready, where their metrics are, and a line\n"
              "`ready rpc=HOST:PORT http=HOST:PORT`. A worker that dies is started again, after a pause. A "
              "coordinator that\ndies, or a worker again and again, ends the cluster with exit code 1, unless "
              "--keep-going.\n" SL_EXIT_CODES_HELP,
    .n_arguments_max = INT_MAX,
    SL_OPTIONS(options),
};

static json_t *state_json(const struct up *up) {
    const struct sl_cluster *cluster = up->cluster;
    char gateway[128] = "";
    json_t *processes = json_array();
    for (size_t i = 0; i < sl_cluster_n_children(cluster); i++) {
        const struct sl_child *child = sl_cluster_child(cluster, i);
        char rpc[128] = "", fabric[128] = "", http[128] = "", admin[128] = "";
        if (child->running) {
            sl_child_ready_value(child, "rpc", rpc, sizeof rpc);
            sl_child_ready_value(child, "fabric", fabric, sizeof fabric);
            sl_child_ready_value(child, "http", http, sizeof http);
            sl_child_ready_value(child, "admin", admin, sizeof admin);
        }
        snprintf(gateway, sizeof gateway, "%s", http[0] ? http : gateway);
        json_array_append_new(processes, json_pack("{s:s, s:i, s:s, s:s, s:s, s:s}", "name", child->name, "pid",
                                                   child->running ? (int)child->pid : 0, "rpc", rpc, "fabric", fabric,
                                                   "http", http, "admin", admin));
    }
    const char *routing = up->config.cluster.routing;
    return json_pack("{s:s, s:s, s:o, s:s, s:i, s:s, s:I, s:o}", "coordinator", sl_cluster_address(cluster), "http",
                     gateway, "model", sl_text_json(up->config.cluster.model), "name", up->here.name, "pid",
                     (int)getpid(), "routing", routing ? routing : "affinity", "rebalance_ms",
                     (json_int_t)up->config.cluster.rebalance_ms, "processes", processes);
}

// Writes the state where `sluice down` looks for it, and to the --state-file.
static enum sl_status write_states(struct up *up, json_t *state, struct sl_error *err) {
    enum sl_status status =
        up->here.lock_fd >= 0 ? sl_json_file_write(up->here.state_path, state, JSON_INDENT(2), err) : SL_OK;
    if (status == SL_OK && up->config.state) {
        status = sl_json_file_write(up->config.state, state, JSON_INDENT(2), err);
        up->wrote_state = up->wrote_state || status == SL_OK;
        if (status != SL_OK) {
            sl_error_prefix(err, "--state-file");
        }
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

static void print_cluster(const struct up *up, const Sluice__V1__WorkersReply *reply) {
    sl_workers_print(reply, stdout);
    if (up->here.log && !up->config.verbose) {
        printf("log           %s\n", up->here.log_path);
    }
    if (sl_cluster_fits(up->cluster)[0]) {
        printf("arena         %s\n", sl_cluster_fits(up->cluster));
    }
    print_ready(up->cluster);
    if (up->config.cluster.tls) {
        const char *dir = up->config.cluster.tls;
        printf("export SLUICE_TLS_CA=%s/ca.pem SLUICE_TLS_CERT=%s/client-local.pem "
               "SLUICE_TLS_KEY=%s/client-local.key\n",
               dir, dir, dir);
    }
    if (up->config.detach) {
        printf("`sluice down %s` stops it\n", up->here.name);
    }
}

static enum sl_status announce(struct up *up, struct sl_client *client, struct sl_error *err) {
    json_t *state = state_json(up);
    Sluice__V1__WorkersReply *reply = NULL;
    enum sl_status status = sl_client_workers(client, sl_deadline_in_ms(5000), &reply, err);
    SL_THEN(status, write_states(up, state, err)); // from here on a reader of the state may use the cluster
    if (status == SL_OK && up->config.tool.json) {
        sl_json_print(json_incref(state), JSON_COMPACT, stdout);
    } else if (status == SL_OK) {
        print_cluster(up, reply);
    }
    sluice__v1__workers_reply__free_unpacked(reply, NULL);
    json_decref(state);
    if (fflush(stdout) != 0 && status == SL_OK && up->config.detach) {
        status =
            sl_fail(err, SL_ERR_CANCELLED, "the process that started the cluster ended before the cluster was ready");
    }
    return status;
}

static void speak_to_log(const struct up *up) {
    dup2(fileno(up->here.log), STDOUT_FILENO);
    dup2(fileno(up->here.log), STDERR_FILENO);
}

static void keep_up_to_date(struct up *up, bool changed) {
    struct sl_error err;
    bool anew;
    json_t *state = changed ? state_json(up) : NULL;
    if (state && write_states(up, state, &err) != SL_OK) {
        fprintf(stderr, "sluice up: %s\n", err.text);
    }
    json_decref(state);
    if (sl_cluster_here_bound_log(&up->here, &anew, &err) != SL_OK) {
        fprintf(stderr, "sluice up: %s\n", err.text);
    }
    if (anew && up->detached) {
        speak_to_log(up);
    }
}

// Runs until a signal (SL_OK), or without --keep-going until a process ends and cannot be restarted.
static enum sl_status supervise(struct up *up, struct sl_signals *signals, struct sl_error *err) {
    while (sl_signals_received(signals) == 0) {
        struct sl_error why;
        bool changed = false;
        enum sl_status status = up->config.keep_going ? sl_cluster_pump(up->cluster, 100, &why)
                                                      : sl_cluster_look_after(up->cluster, 100, &changed, &why);
        if (status != SL_OK && !up->config.keep_going) {
            return sl_fail(err, SL_ERR_INTERNAL, "%s: stopping the cluster", why.text); // exit code 1
        }
        if (status != SL_OK) {
            fprintf(stderr, "sluice up: %s\n", why.text);
        }
        keep_up_to_date(up, changed || status != SL_OK);
    }
    return SL_OK;
}

static enum sl_status serve(struct up *up, struct sl_error *err) {
    struct sl_client *client;
    int code;
    SL_FAIL_IF(
        !sl_tool_connect("up", sl_cluster_address(up->cluster), sl_cluster_operator(up->cluster), &client, &code), err,
        SL_ERR_INTERNAL, "no connection to %s", sl_cluster_address(up->cluster));
    enum sl_status status = sl_cluster_wait_ready(up->cluster, client, &up->signals, err);
    SL_THEN(status, announce(up, client, err));
    sl_tool_disconnect(&client);
    if (status == SL_OK && up->config.detach) { // from here on the waiting command may exit
        up->detached = true;
        speak_to_log(up);
    }
    return status == SL_OK ? supervise(up, &up->signals, err) : status;
}

// Prints the last output of the processes, which has the reason of the failure.
static void print_end_of_log(struct sl_cluster_here *here) {
    char text[4096];
    fflush(here->log);
    FILE *file = fopen(here->log_path, "r");
    if (!file) {
        return;
    }
    bool cut = fseek(file, -(long)(sizeof text - 1), SEEK_END) == 0;
    size_t n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = '\0';
    const char *newline = cut ? strchr(text, '\n') : NULL;
    const char *begin = newline ? newline + 1 : text;
    fputs(begin, stderr);
    fprintf(stderr, "sluice up: all that the processes said is in %s\n", here->log_path);
}

static enum sl_status check(struct up_config *config, struct sl_error *err) {
    SL_FAIL_IF(!config->cluster.model, err, SL_ERR_INVALID, "--model DIR is needed");
    SL_FAIL_IF(config->detach && config->verbose, err, SL_ERR_INVALID, "--detach and --verbose exclude each other");
    SL_FAIL_IF(config->cluster.rebalance_ms > 0 && !config->cluster.aggregated, err, SL_ERR_INVALID,
               "--rebalance is for workers that read and write: give --aggregated, too");
    SL_FAIL_IF(config->folder && (config->cluster.disk || config->cluster.coordinator_state), err, SL_ERR_INVALID,
               "--state sets --disk and --coordinator-state; give it or them");
    if (config->folder) {
        config->cluster.disk = config->cluster.coordinator_state = config->folder;
    }
    SL_FAIL_IF(config->has_disk_bytes && !config->cluster.disk, err, SL_ERR_INVALID,
               "--disk-bytes is for --disk DIR or --state DIR, and both are missing");
    SL_FAIL_IF(config->cluster.disk && config->cluster.n_kvstore == 0, err, SL_ERR_INVALID,
               "a disk is for KV stores, and with --kvstore 0 there is none");
    return config->folder ? sl_folder_make(config->folder, 0700, err) : SL_OK;
}

// Takes the cluster's name. If the user may not write to that folder, a cluster in the foreground works without it.
static enum sl_status take_name(struct up *up, struct sl_error *err) {
    const struct up_config *config = &up->config;
    char name[32];
    snprintf(name, sizeof name, config->cluster.port ? "%lld" : "pid-%lld",
             (long long)(config->cluster.port ? config->cluster.port : getpid()));
    enum sl_status status = sl_cluster_here_open(config->name ? config->name : name, &up->here, err);
    if (status != SL_ERR_IO || config->detach) {
        return status;
    }
    fprintf(stderr, "sluice up: %s: the logs of the processes go here, and `sluice down` will not find this cluster\n",
            err->text);
    return SL_OK;
}

static int run(struct up *up) {
    struct sl_error err;
    if (take_name(up, &err) != SL_OK) {
        return sl_tool_complain("up", &err);
    }
    enum sl_status status = sl_signals_init(&up->signals, &err);
    bool to_file = up->here.log && !up->config.verbose;
    SL_THEN(status, sl_doctor_before_up(&up->config.cluster, &err));
    SL_THEN(status,
            sl_cluster_start(&up->config.cluster, &up->signals, to_file ? up->here.log : stderr, &up->cluster, &err));
    SL_THEN(status, serve(up, &err));
    if (to_file && !up->detached && status != SL_OK && status != SL_ERR_CANCELLED && ftell(up->here.log) > 0) {
        print_end_of_log(&up->here);
    }
    if (status == SL_ERR_PEER_LOST) { // a process of the cluster was lost: exit code 1, tried and failed
        err.status = SL_ERR_INTERNAL;
    }
    int code = status == SL_OK ? SL_EXIT_OK : sl_tool_complain("up", &err);
    sl_cluster_stop(&up->cluster, up->config.grace_ms, &up->signals);
    if (up->wrote_state) {
        unlink(up->config.state); // its addresses are no longer valid
    }
    bool keep = code != SL_EXIT_OK && code != SL_EXIT_CANCELLED && up->here.log && ftell(up->here.log) > 0;
    sl_cluster_here_close(&up->here, keep);
    sl_signals_cleanup(&up->signals);
    return code;
}

// Passes on the output of the detached process until it is ready, or ends. Returns its exit code.
static int wait_for_detached(pid_t pid, int fd) {
    char text[4096], line[16] = "";
    size_t n_line = 0;
    bool ready = false;
    for (ssize_t n; (n = read(fd, text, sizeof text)) > 0;) {
        fwrite(text, 1, (size_t)n, stdout);
        for (ssize_t i = 0; i < n; i++) {
            line[n_line < sizeof line - 1 ? n_line++ : n_line] = text[i];
            ready = ready || strncmp(line, "ready rpc=", 10) == 0 || strncmp(line, "{\"coordinator\"", 14) == 0;
            if (text[i] == '\n') {
                memset(line, 0, sizeof line);
                n_line = 0;
            }
        }
    }
    int status = 0;
    return ready                                                  ? SL_EXIT_OK
           : waitpid(pid, &status, 0) == pid && WIFEXITED(status) ? WEXITSTATUS(status)
                                                                  : SL_EXIT_FAILED;
}

// Runs the cluster's process in a session of its own, without this terminal.
static int run_detached(struct up *up) {
    struct sl_error err;
    int fds[2] = {-1, -1};
    pid_t pid = pipe2(fds, O_CLOEXEC) == 0 ? fork() : -1;
    if (pid < 0) {
        sl_fail(&err, SL_ERR_EXHAUSTED, "no process for the cluster");
        return sl_tool_complain("up", &err);
    }
    if (pid > 0) {
        close(fds[1]);
        int code = wait_for_detached(pid, fds[0]);
        close(fds[0]);
        if (code == SL_EXIT_OK && (fflush(stdout) != 0 || ferror(stdout))) {
            // Stop the cluster, because the user could not be told its addresses.
            fprintf(stderr, "sluice up: standard output cannot be written to: stopping the cluster\n");
            kill(pid, SIGTERM);
            waitpid(pid, NULL, 0); // it kills processes that have not ended within its --grace
            code = SL_EXIT_FAILED;
        }
        return code;
    }
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    setsid();
    dup2(null, STDIN_FILENO);
    dup2(fds[1], STDOUT_FILENO);
    close(fds[0]);
    close(fds[1]);
    return run(up);
}

int sl_command_up(int argc, char **argv) {
    struct up up = {.here.lock_fd = -1};
    int code;
    if (!sl_tool_parse(&program, argc, argv, &up.config, &code)) {
        return code;
    }
    struct sl_error err;
    if (check(&up.config, &err) != SL_OK) {
        return sl_tool_complain("up", &err);
    }
    up.config.cluster.has_gateway = !up.config.no_gateway;
    up.config.cluster.lines = up.config.tool.json;
    up.config.cluster.worker_arguments = up.config.tool.arguments;
    up.config.cluster.n_worker_arguments = (size_t)up.config.tool.n_arguments;
    return up.config.detach ? run_detached(&up) : run(&up);
}
