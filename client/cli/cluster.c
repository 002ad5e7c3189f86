// SPDX-License-Identifier: Apache-2.0
#include "client/cli/cluster.h"

#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/model_place.h"
#include "base/thread.h"
#include "client/cli/cluster_arena.h"
#include "client/cli/cluster_internal.h"
#include "engine/tensor/ops.h"

#define STEP_MS         50
#define SECOND_GRACE_MS 3000 // after the second signal
#define LEFT_GRACE_MS   500  // of a coordinator without workers: its jobs cannot end

static enum sl_status make_certificates(struct sl_cluster *cluster, struct sl_error *err) {
    const struct sl_cluster_config *config = &cluster->config;
    struct sl_cluster_names names = {config->n_prefill, config->n_decode, config->n_kvstore};
    SL_TRY(sl_cluster_tls_make(cluster->bin, config->tls, &names, err));
    return sl_cluster_tls_find(config->tls, "operator", "local", &cluster->operator_tls, err);
}

static struct sl_cluster_origin origin_of(const struct sl_cluster *cluster) {
    return (struct sl_cluster_origin){&cluster->config, cluster->bin, cluster->address, cluster->etcd.servers};
}

// Starts the next child, with the command line at its index. status: result of making the command line.
static enum sl_status start_child(struct sl_cluster *cluster, const char *name, enum sl_status status,
                                  struct sl_error *err) {
    size_t i = cluster->n_children;
    SL_THEN(status, sl_child_start(&cluster->children[i], name, cluster->starts[i].words.list, err));
    if (status == SL_OK) {
        cluster->starts[i].started_ns = sl_now_ns();
        cluster->n_children++;
    }
    return status;
}

static enum sl_status start_coordinator(struct sl_cluster *cluster, int64_t i, const char *name, struct sl_error *err) {
    struct sl_cluster_origin of = origin_of(cluster);
    struct sl_argv *words = &cluster->starts[cluster->n_children].words;
    return start_child(cluster, name, sl_argv_of_coordinator(&of, i, name, words, err), err);
}

static enum sl_status start_gateway(struct sl_cluster *cluster, struct sl_error *err) {
    struct sl_cluster_origin of = origin_of(cluster);
    struct sl_argv *words = &cluster->starts[cluster->n_children].words;
    return start_child(cluster, "gateway", sl_argv_of_gateway(&of, words, err), err);
}

static enum sl_status start_workers(struct sl_cluster *cluster, const char *role, int64_t n, struct sl_error *err) {
    struct sl_cluster_origin of = origin_of(cluster);
    enum sl_status status = SL_OK;
    for (int64_t i = 0; i < n && status == SL_OK; i++) {
        char name[32];
        snprintf(name, sizeof name, "%s-%lld", role, (long long)i);
        struct sl_argv *words = &cluster->starts[cluster->n_children].words;
        status = start_child(cluster, name, sl_argv_of_worker(&of, role, name, words, err), err);
    }
    return status;
}

enum sl_status sl_cluster_pump(struct sl_cluster *cluster, int timeout_ms, struct sl_error *err) {
    sl_children_pump(cluster->children, cluster->n_children, timeout_ms, cluster->file);
    for (size_t i = 0; i < cluster->n_children; i++) {
        if (!cluster->children[i].running && !cluster->starts[i].reported) {
            char end[96];
            bool is_gateway = strcmp(cluster->children[i].name, "gateway") == 0;
            cluster->starts[i].reported = true;
            return sl_fail(err, SL_ERR_PEER_LOST, "%s %s%s", cluster->children[i].name,
                           sl_child_describe_end(&cluster->children[i], end, sizeof end),
                           is_gateway ? "; it says above why (--http-port PORT is its port, --no-gateway leaves it out)"
                                      : "");
        }
    }
    return SL_OK;
}

// Does one step of waiting for the cluster: SL_OK means continue to wait.
static enum sl_status wait_step(struct sl_cluster *cluster, struct sl_signals *signals, struct sl_error *err) {
    SL_FAIL_IF(signals && sl_signals_received(signals) > 0, err, SL_ERR_CANCELLED,
               "interrupted while the cluster came up");
    if (sl_children_wait(cluster->children, cluster->n_children, STEP_MS) && cluster->file_is_terminal) {
        sl_cluster_hide_loading(cluster);
    }
    SL_TRY(sl_cluster_pump(cluster, 0, err));
    sl_cluster_show_loading(cluster);
    return SL_OK;
}

static enum sl_status wait_for_lines(struct sl_cluster *cluster, size_t first, struct sl_signals *signals,
                                     struct sl_error *err) {
    enum sl_status status = SL_OK;
    char why[192];
    for (size_t i = first; i < cluster->n_children && status == SL_OK;) {
        if (cluster->children[i].ready[0]) {
            i++;
            continue;
        }
        status = wait_step(cluster, signals, err);
        for (size_t j = i; j < cluster->n_children && status == SL_OK; j++) {
            if (sl_cluster_is_late(cluster, j, why, sizeof why)) {
                status = sl_fail(err, SL_ERR_DEADLINE, "%s", why);
            }
        }
    }
    sl_cluster_hide_loading(cluster);
    return status;
}

static enum sl_status start_etcd(struct sl_cluster *cluster, struct sl_error *err) {
    const char *state = cluster->config.coordinator_state;
    char folder[PATH_MAX];
    enum sl_status status = state ? sl_join_path(folder, "--coordinator-state", state, "etcd", err) : SL_OK;
    SL_THEN_FAIL_IF(status, state && mkdir(state, 0700) != 0 && errno != EEXIST, err, SL_ERR_IO,
                    "--coordinator-state %s: cannot be made: %s", state, strerror(errno));
    SL_THEN(status, sl_cluster_etcd_start(state ? folder : NULL, &cluster->etcd, &cluster->children[0], err));
    cluster->n_children = cluster->first_coordinator = cluster->n_first = status == SL_OK;
    return status;
}

// Rejects one coordinator where several were before: their documents are in etcd.
static enum sl_status check_alone(const char *state, struct sl_error *err) {
    char folder[PATH_MAX];
    return state && sl_join_path(folder, "", state, "etcd", NULL) == SL_OK && access(folder, F_OK) == 0
               ? sl_fail(
                     err, SL_ERR_INVALID,
                     "%.200s: it is of several coordinators, whose documents are in its etcd; give --coordinators 2",
                     state)
               : SL_OK;
}

// Returns whether a coordinator leads: the others refuse jobs and documents.
static bool has_leader(struct sl_client *client) {
    Sluice__V1__ModelReply *reply;
    struct sl_error why;
    if (sl_client_model(client, sl_deadline_in_ms(1000), &reply, &why) != SL_OK) {
        return false;
    }
    bool leads = !reply->standby;
    sluice__v1__model_reply__free_unpacked(reply, NULL);
    return leads;
}

// Waits until the first coordinator leads: then the documents that it has from a time when it was alone move to etcd.
static enum sl_status wait_for_first(struct sl_cluster *cluster, struct sl_signals *signals, struct sl_error *err) {
    struct sl_client *client;
    SL_TRY(sl_client_connect(cluster->address, sl_cluster_operator(cluster), &client, err));
    enum sl_status status = SL_OK;
    int64_t deadline_ns = sl_deadline_in_ms(cluster->config.ready_ms);
    while (status == SL_OK && !has_leader(client)) {
        status = sl_deadline_left_ms(deadline_ns) > 0
                     ? wait_step(cluster, signals, err)
                     : sl_fail(err, SL_ERR_DEADLINE, "the first coordinator does not lead after %lld ms",
                               (long long)cluster->config.ready_ms);
    }
    sl_client_close(&client);
    return status;
}

// Starts the coordinators one after the other: the first creates data that the others share.
static enum sl_status start_coordinators(struct sl_cluster *cluster, struct sl_signals *signals, struct sl_error *err) {
    int64_t n = cluster->config.n_coordinators > 1 ? cluster->config.n_coordinators : 1;
    enum sl_status status = n > 1 ? start_etcd(cluster, err) : check_alone(cluster->config.coordinator_state, err);
    for (int64_t i = 0; i < n && status == SL_OK; i++) {
        char name[32], address[128];
        snprintf(name, sizeof name, n > 1 ? "coordinator-%lld" : "coordinator", (long long)i);
        status = start_coordinator(cluster, i, name, err);
        SL_THEN(status, wait_for_lines(cluster, cluster->n_first++, signals, err));
        const struct sl_child *child = &cluster->children[cluster->n_first - 1];
        SL_THEN_FAIL_IF(status, !sl_child_ready_value(child, "rpc", address, sizeof address), err, SL_ERR_INTERNAL,
                        "%s is ready, but does not say where: '%s'", child->name, child->ready);
        if (status == SL_OK) {
            size_t at = strlen(cluster->address);
            snprintf(cluster->address + at, sizeof cluster->address - at, "%s%s", i > 0 ? "," : "", address);
        }
        if (n > 1 && i == 0 && cluster->config.coordinator_state) {
            SL_THEN(status, wait_for_first(cluster, signals, err));
        }
    }
    return status;
}

static enum sl_status start_all(struct sl_cluster *cluster, struct sl_signals *signals, struct sl_error *err) {
    const struct sl_cluster_config *config = &cluster->config;
    SL_TRY(sl_program_folder(cluster->bin, err));
    struct sl_cluster_config plain = *config;
    plain.tls = NULL;
    plain.n_coordinators = 1;
    struct sl_cluster_origin of = {&plain, cluster->bin, "127.0.0.1:7600", NULL};
    enum sl_status status = sl_argv_try(&of, err); // before any file is made and any process is started
    SL_THEN(status, config->tls ? make_certificates(cluster, err) : SL_OK);
    SL_THEN(status, start_coordinators(cluster, signals, err));
    SL_THEN(status, start_workers(cluster, "kvstore", config->n_kvstore, err));
    SL_THEN(status, start_workers(cluster, "decode", config->n_decode, err));
    SL_THEN(status, start_workers(cluster, "prefill", config->n_prefill, err));
    SL_THEN(status, config->has_gateway ? start_gateway(cluster, err) : SL_OK);
    return status == SL_OK ? wait_for_lines(cluster, cluster->n_first, signals, err) : status;
}

// Chooses --arena. If the model cannot be read, the children refuse it with the reason.
static void choose_arena(struct sl_cluster *cluster) {
    struct sl_cluster_config *config = &cluster->config;
    struct sl_model_config model = {0};
    struct sl_error why;
    if (!config->arena || config->arena[0]) {
        return;
    }
    if (sl_model_config_load(config->model, &model, &why) != SL_OK) {
        sl_log_debug("cluster", "%s", why.text);
    }
    int64_t n_workers = config->n_prefill + config->n_decode + config->n_kvstore;
    int64_t bytes = sl_cluster_arena_bytes(&model, sl_cluster_memory(""), n_workers);
    snprintf(cluster->arena, sizeof cluster->arena, "%lldM", (long long)(bytes >> 20));
    config->arena = cluster->arena;
    sl_cluster_arena_describe(&model, bytes, cluster->fits, sizeof cluster->fits);
}

enum sl_status sl_cluster_start(const struct sl_cluster_config *config, struct sl_signals *signals, FILE *file,
                                struct sl_cluster **cluster_out, struct sl_error *err) {
    struct stat st;
    SL_FAIL_IF(stat(config->model, &st) != 0, err, SL_ERR_INVALID, "--model %s is not there", config->model);
    SL_FAIL_IF(config->disk && mkdir(config->disk, 0700) != 0 && errno != EEXIST, err, SL_ERR_IO,
               "--disk %s: cannot be made: %s", config->disk, strerror(errno));
    enum sl_weight_format weights; // otherwise each child would refuse it
    struct sl_device_choice device;
    SL_TRY(sl_weight_format_parse(config->weights, &weights, err));
    SL_TRY(sl_device_choice_parse(config->device, &device, err));
    SL_NEW_OR_FAIL(struct sl_cluster, cluster, err, "cluster: out of memory");
    cluster->config = *config;
    if (config->n_prefill == 0) {
        cluster->config.n_prefill = config->aggregated ? 0 : 1;
    }
    choose_arena(cluster);
    cluster->file = file;
    cluster->file_is_terminal = isatty(fileno(file));
    cluster->n_allocated =
        (size_t)(3 + config->n_coordinators + cluster->config.n_prefill + config->n_decode + config->n_kvstore);
    cluster->children = calloc(cluster->n_allocated, sizeof *cluster->children);
    cluster->starts = calloc(cluster->n_allocated, sizeof *cluster->starts);
    SL_TRY_OR(cluster->children && cluster->starts ? start_all(cluster, signals, err)
                                                   : sl_fail(err, SL_ERR_EXHAUSTED, "cluster: out of memory"),
              sl_cluster_stop(&cluster, 2000, NULL));
    cluster->n_ready = cluster->n_children - cluster->first_coordinator; // an etcd has no ready line
    *cluster_out = cluster;
    return SL_OK;
}

const struct sl_tls_files *sl_cluster_operator(const struct sl_cluster *cluster) {
    return cluster->config.tls ? &cluster->operator_tls.files : NULL;
}
const char *sl_cluster_address(const struct sl_cluster *cluster) {
    return cluster->address;
}
const char *sl_cluster_fits(const struct sl_cluster *cluster) {
    return cluster->fits;
}
size_t sl_cluster_n_children(const struct sl_cluster *cluster) {
    return cluster->n_children;
}
const struct sl_child *sl_cluster_child(const struct sl_cluster *cluster, size_t i) {
    return &cluster->children[i];
}

static size_t count_ready(const Sluice__V1__WorkersReply *reply) {
    size_t n = 0;
    for (size_t i = 0; i < reply->n_workers; i++) {
        n += reply->workers[i]->state == SLUICE__V1__WORKER_STATE__READY;
    }
    return n;
}

static enum sl_status wait_for_workers(struct sl_cluster *cluster, struct sl_client *client, struct sl_signals *signals,
                                       struct sl_error *err) {
    size_t n_workers = cluster->n_children - cluster->n_first - cluster->config.has_gateway;
    int64_t deadline_ns = sl_deadline_in_ms(cluster->config.ready_ms);
    for (;;) {
        Sluice__V1__WorkersReply *reply;
        struct sl_error why;
        size_t n_ready = 0;
        if (sl_client_workers(client, sl_deadline_in_ms(1000), &reply, &why) == SL_OK) {
            n_ready = count_ready(reply);
            sluice__v1__workers_reply__free_unpacked(reply, NULL);
        }
        if (n_ready == n_workers && has_leader(client)) {
            return SL_OK;
        }
        if (sl_deadline_left_ms(deadline_ns) == 0) {
            return n_ready == n_workers
                       ? sl_fail(err, SL_ERR_DEADLINE, "no coordinator leads after %lld ms",
                                 (long long)cluster->config.ready_ms)
                       : sl_fail(err, SL_ERR_DEADLINE, "only %zu of %zu workers reached the coordinator within %lld ms",
                                 n_ready, n_workers, (long long)cluster->config.ready_ms);
        }
        SL_TRY(wait_step(cluster, signals, err));
    }
}

enum sl_status sl_cluster_wait_ready(struct sl_cluster *cluster, struct sl_client *client, struct sl_signals *signals,
                                     struct sl_error *err) {
    enum sl_status status = wait_for_workers(cluster, client, signals, err);
    sl_cluster_hide_loading(cluster);
    return status;
}

static bool is_led(const struct sl_cluster *cluster) {
    size_t i = cluster->first_coordinator;
    while (i < cluster->n_first && !cluster->children[i].running) {
        i++;
    }
    return i < cluster->n_first;
}

static void *pump_thread(void *arg) {
    struct sl_cluster *cluster = arg;
    while (!atomic_load(&cluster->stopping)) {
        struct sl_error err;
        if (sl_cluster_pump(cluster, STEP_MS, &err) != SL_OK) {
            fprintf(cluster->file, "sluice: %s\n", err.text);
            atomic_store(&cluster->coordinator_lost, !is_led(cluster));
        }
    }
    return NULL;
}

enum sl_status sl_cluster_run_thread(struct sl_cluster *cluster, struct sl_error *err) {
    enum sl_status status = sl_thread_start("cluster", pump_thread, cluster, &cluster->thread, err);
    cluster->has_thread = status == SL_OK;
    return status;
}

bool sl_cluster_coordinator_lost(struct sl_cluster *cluster) {
    return atomic_load(&cluster->coordinator_lost);
}

// Waits for children [first, end) to exit. False: some have not by the deadline, or a further signal came.
static bool wait_for_exit(struct sl_cluster *cluster, size_t first, size_t end, int64_t deadline_ns,
                          struct sl_signals *signals) {
    int n_signals = signals ? sl_signals_received(signals) : 0;
    for (;;) {
        size_t n_running = 0;
        for (size_t i = first; i < end; i++) {
            n_running += cluster->children[i].running;
        }
        if (n_running == 0) {
            return true;
        }
        if (sl_deadline_left_ms(deadline_ns) == 0 || (signals && sl_signals_received(signals) > n_signals)) {
            return false;
        }
        sl_children_pump(cluster->children, cluster->n_children, STEP_MS, cluster->file);
    }
}

static void stop_range(struct sl_cluster *cluster, size_t first, size_t end, int64_t grace_ms,
                       struct sl_signals *signals) {
    bool stopped = false;
    for (int n_sent = 0; n_sent < 2 && !stopped; n_sent++) { // at the second signal a server ends its jobs
        for (size_t i = first; i < end; i++) {
            sl_child_signal(&cluster->children[i], SIGTERM);
        }
        stopped =
            wait_for_exit(cluster, first, end, sl_deadline_in_ms(n_sent == 0 ? grace_ms : SECOND_GRACE_MS), signals);
    }
    if (!stopped) {
        for (size_t i = first; i < end; i++) {
            if (cluster->children[i].running) {
                fprintf(stderr, "sluice: %s did not stop, killing it\n", cluster->children[i].name);
                sl_child_signal(&cluster->children[i], SIGKILL);
            }
        }
        wait_for_exit(cluster, first, end, sl_deadline_in_ms(5000), NULL);
    }
}

void sl_cluster_stop(struct sl_cluster **cluster_ptr, int64_t grace_ms, struct sl_signals *signals) {
    struct sl_cluster *cluster = *cluster_ptr;
    if (!cluster) {
        return;
    }
    if (cluster->has_thread) {
        atomic_store(&cluster->stopping, true);
        pthread_join(cluster->thread, NULL);
    }
    if (cluster->children && cluster->n_children > 0) {
        size_t n_inner = cluster->n_children; // children except the gateway
        if (n_inner > cluster->n_first && strcmp(cluster->children[n_inner - 1].name, "gateway") == 0) {
            n_inner--;
        }
        stop_range(cluster, n_inner, cluster->n_children, grace_ms, signals);
        stop_range(cluster, cluster->n_first, n_inner, grace_ms, signals);
        const int64_t short_ms = grace_ms < LEFT_GRACE_MS ? grace_ms : LEFT_GRACE_MS;
        stop_range(cluster, cluster->first_coordinator, cluster->n_first, short_ms, signals);
        stop_range(cluster, 0, cluster->first_coordinator, grace_ms, signals);
    }
    for (size_t i = 0; i < cluster->n_children; i++) {
        sl_child_cleanup(&cluster->children[i]);
    }
    for (size_t i = 0; cluster->starts && i < cluster->n_allocated; i++) {
        sl_argv_cleanup(&cluster->starts[i].words);
    }
    sl_cluster_etcd_cleanup(&cluster->etcd);
    free(cluster->starts);
    free(cluster->children);
    free(cluster);
    *cluster_ptr = NULL;
}
