// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: `sluice run`: the main job in one line. Reads a long document, compresses its KV cache, and answers.
 *
 * Design: three ways to the same events, tried in this order: with --local, all in this process; a coordinator that can
 *         be reached; with --model, a cluster started on this machine for this one job.
 */
#include <stdio.h>
#include <unistd.h>

#include "base/whole_file.h"
#include "client/cli/cluster.h"
#include "client/cli/commands/commands.h"
#include "client/cli/follow.h"
#include "client/cli/jsonl/jsonl.h"
#include "client/cli/local_job.h"
#include "client/cli/request.h"
#include "client/cli/tool.h"

#define PROBE_MS     1000
#define WAIT_STEP_MS 100
// The cluster ends the job at its deadline and reports that; wait a little longer for the report.
#define DEADLINE_SLACK_MS 5000
#define STOP_GRACE_MS     5000

struct run_config {
    struct sl_tool_config tool;
    struct sl_request_config request;
    struct sl_cluster_config cluster;
    int64_t threads, wait_ms;
    const char *capsule_path;
    bool local, jsonl, private_weights, quiet;
};

static const struct sl_option options[] = {
    SL_REQUEST_OPTIONS(run_config),
    SL_CLUSTER_OPTIONS(run_config),
    {"local", 0, SL_OPTION_FLAG, NULL, NULL, "use no cluster: run everything in this process (needs --model)",
     SL_FIELD(run_config, local)},
    {"jsonl", 0, SL_OPTION_FLAG, NULL, NULL,
     "with --local: load the model once, and answer each line of standard input, a JSON object with the fields of the "
     "HTTP API, with a JSON object on a line",
     SL_FIELD(run_config, jsonl)},
    {"save-capsule", 0, SL_OPTION_STRING, NULL, "FILE",
     "with --local: write the compressed cache of the document to a file, for `sluice inspect`",
     SL_FIELD(run_config, capsule_path)},
    {"threads", 0, SL_OPTION_INT, "0", "N", "threads of --local; 0: one for each processor",
     SL_FIELD(run_config, threads), 0, 1024},
    {"private-weights", 0, SL_OPTION_FLAG, NULL, NULL,
     "with --local: keep a copy of the weights in this process alone. By default all processes of this user on this "
     "machine share one",
     SL_FIELD(run_config, private_weights)},
    {"wait", 0, SL_OPTION_DURATION, "0", "TIME", "longest time to wait for a cluster that is starting",
     SL_FIELD(run_config, wait_ms), 0, 3600000},
    {"quiet", 0, SL_OPTION_FLAG, NULL, NULL, "print only the answer", SL_FIELD(run_config, quiet)},
    SL_TOOL_OPTIONS,
};

static const struct sl_program program = {
    .name = "sluice run",
    .usage = "[options] --prompt-file FILE --question TEXT",
    .summary = "Read a document, compress its KV cache on the way, and answer a question about it.\n"
               "The job goes to the coordinator. Where none answers and --model is given, a cluster is started on\n"
               "this machine for the duration. With --local and several questions, the document is read once: every\n"
               "question is a turn on the same compressed session.",
    .epilog =
        "The answer goes to standard output as it is written, progress and statistics to standard error.\n"
        "Ctrl-C cancels the job.\n"
        "--jsonl: a line that fails gets the answer {\"error\": ...}, and the exit code stays 0.\n" SL_EXIT_CODES_HELP,
    SL_OPTIONS(options),
};

static bool cluster_lost(void *arg) {
    return sl_cluster_coordinator_lost(arg);
}

static bool is_chat(const struct sl_request *request) {
    return request->message.prompt_case == SLUICE__V1__GENERATE_REQUEST__PROMPT_CHAT;
}

static int follow_job(const struct run_config *config, struct sl_client *client, struct sl_request *request,
                      struct sl_follow *follow) {
    struct sl_watch watch = {.deadline_ns = sl_deadline_in_ms(config->request.deadline_ms + DEADLINE_SLACK_MS)};
    struct sl_error err = {0};
    follow->coordinator = config->tool.coordinator;
    char job_id[SL_JOB_ID_BYTES] = "";
    sl_follow_attach(follow, &watch);
    enum sl_status status =
        sl_request_ask(request, &config->request, client, sl_deadline_in_ms(config->tool.timeout_ms), &err);
    follow->no_chat = !is_chat(request);
    SL_THEN(status, sl_client_generate(client, &request->message, &watch, job_id, &err));
    return sl_follow_end(follow, status, &err);
}

static int run_remote(const struct run_config *config, struct sl_request *request, struct sl_follow *follow) {
    struct sl_client *client;
    int code;
    if (!sl_tool_connect("run", config->tool.coordinator, &config->tool.tls, &client, &code)) {
        return code;
    }
    code = follow_job(config, client, request, follow);
    sl_tool_disconnect(&client);
    return code;
}

// Runs the job in a cluster of its own. gRPC must start after the processes, and stop before they do.
static int run_in_cluster(const struct run_config *config, struct sl_request *request, struct sl_follow *follow,
                          struct sl_cluster *cluster) {
    struct sl_client *client;
    int code;
    if (!sl_tool_connect("run", sl_cluster_address(cluster), sl_cluster_operator(cluster), &client, &code)) {
        return code;
    }
    struct sl_error err;
    enum sl_status status = sl_cluster_wait_ready(cluster, client, follow->signals, &err);
    SL_THEN(status, sl_cluster_run_thread(cluster, &err));
    if (status == SL_OK) {
        follow->also_stopped = cluster_lost;
        follow->also_arg = cluster;
        code = follow_job(config, client, request, follow);
    } else {
        code = sl_tool_complain("run", &err);
    }
    sl_tool_disconnect(&client);
    return code;
}

static int run_own_cluster(struct run_config *config, struct sl_request *request, struct sl_follow *follow) {
    if (!config->quiet) {
        fprintf(stderr, "sluice run: no coordinator at %s: starting a cluster on this machine\n",
                config->tool.coordinator);
    }
    config->cluster.host = "127.0.0.1";
    config->cluster.port = 0;
    config->cluster.workers_log = config->tool.log;
    config->cluster.quiet = config->quiet || config->tool.json;
    struct sl_cluster *cluster = NULL;
    struct sl_error err;
    if (sl_cluster_start(&config->cluster, follow->signals, stderr, &cluster, &err) != SL_OK) {
        return sl_tool_complain("run", &err);
    }
    int code = run_in_cluster(config, request, follow, cluster);
    sl_cluster_stop(&cluster, STOP_GRACE_MS, follow->signals);
    return code;
}

static int run_local(const struct run_config *config, struct sl_request *request, struct sl_follow *follow) {
    struct sl_watch watch = {.deadline_ns = sl_deadline_in_ms(config->request.deadline_ms)};
    struct sl_error err = {0};
    enum sl_weight_format weights;
    size_t arena_bytes = 0;
    follow->model = config->cluster.model;
    sl_follow_attach(follow, &watch);
    enum sl_status status = sl_weight_format_parse(config->cluster.weights, &weights, &err);
    SL_THEN(status, sl_local_arena_parse(config->cluster.arena, &arena_bytes, &err));
    SL_THEN(status,
            sl_request_is_open(&config->request)
                ? sl_request_choose(request, &config->request, sl_local_takes_chats(config->cluster.model), &err)
                : SL_OK);
    follow->no_chat = !is_chat(request);
    if (status == SL_OK) {
        struct sl_local_config local = {.model_dir = config->cluster.model,
                                        .device = config->cluster.device,
                                        .weights = weights,
                                        .share_weights = !config->private_weights,
                                        .ranks = (int)config->cluster.ranks,
                                        .arena_bytes = arena_bytes,
                                        .threads = (int)config->threads,
                                        .loading_fn = sl_follow_loading,
                                        .loading_arg = follow};
        status = sl_local_job(&local, request, config->capsule_path, &watch, &err);
    }
    return sl_follow_end(follow, status, &err);
}

// Returns memory for prefixes that lines share, as a prompt is asked under many recipes: up to a quarter of the
// machine's memory.
static size_t shared_prefix_bytes(void) {
    long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    return pages > 0 && page_bytes > 0 ? (size_t)pages / 4 * (size_t)page_bytes : 0;
}

// Rejects options that a line of --jsonl has as fields.
static enum sl_status check_jsonl(const struct run_config *config, struct sl_error *err) {
    const struct sl_request_config *r = &config->request;
    SL_FAIL_IF(!config->local, err, SL_ERR_INVALID, "--jsonl needs --local");
    SL_FAIL_IF(config->capsule_path, err, SL_ERR_INVALID, "--save-capsule is of one prompt, and --jsonl has many");
    SL_FAIL_IF(r->recipe || r->prompt || r->prompt_file || r->system || r->stop || r->questions.n > 0 ||
                   r->ship_at_most > 0 || r->document || r->chat || r->raw || r->ignore_eos || r->estimate_errors ||
                   r->no_reuse || r->has_temperature || r->has_top_k || r->has_top_p || r->has_repetition_penalty ||
                   r->has_min_p || r->frequency_penalty != 0 || r->presence_penalty != 0 || r->has_seed ||
                   r->has_max_new,
               err, SL_ERR_INVALID,
               "--jsonl: each line has its own prompt, recipe and sampling; leave out "
               "these options");
    return SL_OK;
}

static enum sl_status run_jsonl(const struct run_config *config, struct sl_error *err) {
    struct sl_signals signals;
    struct sl_jsonl_config jsonl = {.local = {.model_dir = config->cluster.model,
                                              .device = config->cluster.device,
                                              .share_weights = !config->private_weights,
                                              .ranks = (int)config->cluster.ranks,
                                              .threads = (int)config->threads,
                                              .shared_prefix_bytes = shared_prefix_bytes(),
                                              .loading_fn = sl_signals_loading,
                                              .loading_arg = &signals},
                                    .weights = config->cluster.weights,
                                    .deadline_ms = config->request.deadline_ms,
                                    .signals = &signals,
                                    .in = STDIN_FILENO,
                                    .out = stdout};
    SL_TRY(check_jsonl(config, err));
    SL_TRY(sl_weight_format_parse(jsonl.weights, &jsonl.local.weights, err));
    SL_TRY(sl_local_arena_parse(config->cluster.arena, &jsonl.local.arena_bytes, err));
    SL_TRY(sl_signals_init(&signals, err));
    enum sl_status status = sl_jsonl_run(&jsonl, err);
    sl_signals_cleanup(&signals);
    return status;
}

static bool is_ready(struct sl_client *client) {
    Sluice__V1__ModelReply *reply;
    struct sl_error err;
    bool ready = sl_client_model(client, sl_deadline_in_ms(PROBE_MS), &reply, &err) == SL_OK;
    if (ready) {
        ready = reply->ready;
        sluice__v1__model_reply__free_unpacked(reply, NULL);
    }
    return ready;
}

// Implements --wait: waits until the cluster takes jobs, the time is over, or a signal comes. The caller then finds out
// which.
static void wait_for_cluster(const struct run_config *config, struct sl_signals *signals) {
    int64_t deadline_ns = sl_deadline_in_ms(config->wait_ms);
    struct sl_client *client = NULL;
    int code;
    bool ready = false;
    while (!ready && sl_deadline_left_ms(deadline_ns) > 0 && sl_signals_received(signals) == 0) {
        if (sl_tool_reachable(config->tool.coordinator, PROBE_MS) &&
            sl_tool_connect("run", config->tool.coordinator, &config->tool.tls, &client, &code)) {
            ready = is_ready(client);
            sl_tool_disconnect(&client);
        }
        sl_sleep_ms(ready ? 0 : WAIT_STEP_MS);
    }
}

static int run_somewhere(struct run_config *config, struct sl_request *request, struct sl_follow *follow) {
    if (config->local) {
        return run_local(config, request, follow);
    }
    if (config->wait_ms > 0) {
        struct sl_error err;
        wait_for_cluster(config, follow->signals);
        if (sl_signals_check(follow->signals, &err) != SL_OK) {
            return sl_tool_complain("run", &err);
        }
    }
    if (sl_tool_reachable(config->tool.coordinator, PROBE_MS)) {
        return run_remote(config, request, follow);
    }
    if (config->cluster.model) {
        return run_own_cluster(config, request, follow);
    }
    fprintf(stderr,
            "sluice run: no coordinator at %s: start a cluster with `sluice up --detach --model DIR`, or give --model "
            "DIR here\n",
            config->tool.coordinator);
    return SL_EXIT_UNAVAILABLE;
}

static enum sl_status run(void *arg, struct sl_error *err) {
    struct run_config *config = arg;
    SL_FAIL_IF(config->local && !config->cluster.model, err, SL_ERR_INVALID, "--local needs --model DIR");
    if (config->jsonl) {
        return run_jsonl(config, err);
    }
    SL_FAIL_IF(config->capsule_path && !config->local, err, SL_ERR_INVALID, "--save-capsule needs --local");
    SL_FAIL_IF(config->request.document && config->local, err, SL_ERR_INVALID,
               "--doc names a document of a cluster: leave out --local, or give --prompt-file");
    SL_TRY(config->capsule_path ? sl_whole_file_check(config->capsule_path, err) : SL_OK); // before hours of work
    struct sl_request request;
    struct sl_signals signals;
    SL_TRY(sl_request_init(&request, &config->request, err)); // may wait for standard input: before signals are blocked
    enum sl_status status = config->local ? SL_OK : sl_request_check_one_turn(&request, err);
    SL_THEN(status, sl_signals_init(&signals, err));
    if (status == SL_OK) {
        struct sl_follow follow = sl_follow_of("run", &config->tool, config->quiet, &signals);
        follow.coordinator = NULL; // until it is known that it answers
        config->tool.exit_code = run_somewhere(config, &request, &follow);
        sl_signals_cleanup(&signals);
    }
    sl_request_cleanup(&request);
    return status;
}

SL_COMMAND_RUN(sl_command_run, run_config, program, run)
