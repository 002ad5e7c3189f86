// SPDX-License-Identifier: Apache-2.0
#include "net/node/node.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/version.h"
#include "net/node/agent.h"
#include "net/node/load.h"
#include "net/node/probes.h"
#include "net/node/room.h"
#include "net/node/verifier.h"
#include "net/node/watch.h"
#include "net/trace/otlp/otlp.h"
#include "proto/methods.h"

#define MAX_MESSAGE_BYTES (64 << 20) // a prompt of millions of tokens, which the coordinator has checked
#define REQUEST_BYTES     (INT64_C(1) << 30)
#define SPARE_CALLS       64 // for Reserve, Renew, Release beside one long call a job
#define DRAIN_MS          500

static bool wants_direct(const struct sl_node *node) {
    return node->config.gpudirect == NULL || strcmp(node->config.gpudirect, "off") != 0;
}

static enum sl_status check_direct(const struct sl_node *node, struct sl_error *err) {
    const char *said = node->config.gpudirect;
    return said == NULL || strcmp(said, "auto") == 0 || strcmp(said, "off") == 0
               ? SL_OK
               : sl_fail(err, SL_ERR_INVALID, "--gpudirect %s: auto or off", said);
}

// A line of --report-loading, which client/cli/child.c reads.
static bool report_loading(void *, size_t done_bytes, size_t total_bytes) {
    printf("loading done=%zu total=%zu\n", done_bytes, total_bytes);
    fflush(stdout);
    return true;
}

static enum sl_status open_model(struct sl_node *node, int max_rows, struct sl_error *err) {
    const char *dir = node->config.model;
    if (check_direct(node, err) != SL_OK) {
        return SL_ERR_INVALID;
    }
    enum sl_weight_format weights;
    sl_loading_fn report = node->config.report_loading ? report_loading : NULL;
    SL_TRY(sl_weight_format_parse(node->config.weights, &weights, err));
    struct sl_runtime_config runtime = {.model_dir = dir,
                                        .tier = node->config.tier,
                                        .device = node->config.device,
                                        .weights = weights,
                                        .share_weights = !node->config.private_weights,
                                        .ranks = (int)node->config.ranks,
                                        .threads = (int)node->config.threads,
                                        .pin = node->config.pin,
                                        .max_rows = max_rows,
                                        .tokenizer = true,
                                        .stall_ms = node->config.stall_ms,
                                        .loading_fn = report};
    SL_TRY(sl_runtime_open(&runtime, &node->runtime, err));
    return sl_model_fingerprint(dir, weights, &node->model_fingerprint, err);
}

static bool has_device_memory(const struct sl_node *node) {
    return node->runtime.device && !node->runtime.device->ops->one_memory;
}

static enum sl_status open_region(struct sl_node *node, int64_t bytes, struct sl_error *err) {
    void *base = NULL;
    unsigned kinds =
        (node->config.lock_memory ? SL_REGION_LOCKED : 0U) | (node->config.huge_pages ? SL_REGION_HUGE_PAGES : 0U);
    enum sl_status status = sl_fabric_region_create(node->fabric, (size_t)bytes, kinds, &base, err);
    if (status == SL_OK && has_device_memory(node)) {
        status = sl_device_share(node->runtime.device, base, (size_t)bytes, err);
        node->shared = status == SL_OK ? base : NULL;
    }
    SL_THEN(status, sl_arena_create(base, (size_t)bytes, &node->staging, err));
    return status == SL_OK ? sl_ledger_create(node->staging, &node->staging_ledger, err) : status;
}

// Opens the arena of sessions: in the region, or in the memory of the device.
static enum sl_status open_arena(struct sl_node *node, struct sl_error *err) {
    if (!has_device_memory(node)) {
        node->arena = node->staging;
        node->ledger = node->staging_ledger;
        return SL_OK;
    }
    enum sl_status status = sl_runtime_open_arena(&node->runtime, (size_t)node->config.arena_bytes, err);
    node->arena = node->runtime.arena;
    return status == SL_OK ? sl_ledger_create(node->arena, &node->ledger, err) : status;
}

static enum sl_status check_device(void *arg, enum sl_status status, struct sl_error *err) {
    return sl_node_check_device(arg, status, err);
}

// Opens device memory for capsules that leave or arrive without staging, if all requirements are met.
static enum sl_status open_direct(struct sl_node *node, bool arrives, struct sl_error *err) {
    struct sl_device *device = node->runtime.device;
    void *arena = node->runtime.arena_memory[0];
    bool reaches = sl_device_network_reaches(device);
    struct sl_direct_means means = {.wanted = wants_direct(node),
                                    .one_device = sl_runtime_ranks(&node->runtime) == 1,
                                    .network_reaches = reaches,
                                    .ordinary = reaches && sl_device_network_view(device, arena) != arena};
    char ucx[32];
    means.ucx = ucx;
    means.ucx_is_new = sl_fabric_ucx_puts_from_devices(ucx, sizeof ucx);
    if (means.wanted && !means.ordinary) {
        means.ucx_knows_cuda = sl_fabric_knows_cuda(node->fabric);
        means.has_rdma = sl_fabric_has_rdma(node->fabric);
    }
    sl_direct_open(&node->direct, node->fabric, device, (size_t)node->config.staging_bytes, arrives, &means);
    if (!arrives || node->direct.arena == NULL) {
        return SL_OK;
    }
    const struct sl_verifying verifying = {
        .runtime = &node->runtime, .direct = &node->direct, .check = check_device, .arg = node};
    SL_TRY(sl_verifier_start(&verifying, &node->verifier, err));
    sl_inbound_go_straight(node->inbound, node->direct.arena, sl_verifier_take, node->verifier);
    return SL_OK;
}

// Returns true where peers on this host may put into the region: UCX then makes it of shared memory.
static bool region_is_shared(const struct sl_node *node) {
    return strcmp(node->config.transport, "tcp") != 0 && strcmp(node->config.transport, "rdma") != 0;
}

static enum sl_status choose_arena(struct sl_node *node, bool staged, struct sl_error *err) {
    enum sl_status status = sl_room_parse(node->config.arena, &node->config.arena_bytes, err);
    if (status != SL_OK || node->config.arena_bytes > 0) {
        return status;
    }
    if (node->config.arena_bytes == SL_ROOM_AUTO && !staged) {
        const struct sl_room_needs needs = {
            .activation_bytes = node->runtime.engine ? (int64_t)sl_engine_bytes(node->runtime.engine) : 0,
            .other_bytes = node->config.beside_bytes,
            .shared = region_is_shared(node)};
        return sl_room_auto("", &needs, &node->config.arena_bytes, err);
    }
    node->config.arena_bytes = (int64_t)sl_runtime_usual_arena_bytes(&node->runtime);
    return SL_OK;
}

static enum sl_status open_memory(struct sl_node *node, Sluice__V1__WorkerRole role, struct sl_error *err) {
    bool staged = has_device_memory(node);
    SL_TRY(choose_arena(node, staged, err));
    // The region is touched whole at start: refuse a size that would exhaust the machine's memory.
    int64_t bytes = staged ? node->config.staging_bytes : node->config.arena_bytes;
    struct sl_fabric_config fabric = {.listen = node->config.fabric_listen,
                                      .tls = node->credentials ? &node->config.tls : NULL,
                                      .transport = node->config.transport,
                                      .insecure = node->config.insecure,
                                      .device_memory = staged && wants_direct(node),
                                      .inject = node->config.inject};
    SL_TRY(sl_room_check(staged ? "--staging" : "--arena", bytes, region_is_shared(node), err));
    SL_TRY(sl_fabric_create(&fabric, &node->fabric, err));
    SL_TRY(open_region(node, bytes, err));
    SL_TRY(open_arena(node, err));
    SL_TRY(sl_inbound_create(node->fabric, node->staging_ledger, node->ledger, node->config.lease_ms, &node->inbound,
                             err));
    return staged ? open_direct(node, role == SLUICE__V1__WORKER_ROLE__DECODE, err) : SL_OK;
}

// Checks, with certificates, that the worker's name and role are those in its certificate.
static enum sl_status check_identity(struct sl_node *node, Sluice__V1__WorkerRole role, struct sl_error *err) {
    enum sl_status status = sl_rpc_credentials_create(&node->config.tls, &node->credentials, err);
    if (status != SL_OK || !node->credentials) {
        return status;
    }
    const struct sl_identity *self = sl_rpc_credentials_self(node->credentials);
    SL_FAIL_IF(strcmp(self->name, node->config.name) != 0, err, SL_ERR_INVALID,
               "--name %s: the certificate %s is of \"%s\"", node->config.name, node->config.tls.certificate,
               self->name);
    const unsigned roles = sl_roles_accepted(sl_rpc_role_of(role), node->config.tls.accepts_unstated);
    if (sl_identity_check(self, self->cluster, roles, err) != SL_OK) {
        sl_error_prefix(err, node->config.tls.certificate);
        return SL_ERR_INVALID;
    }
    return SL_OK;
}

static enum sl_status start_spans(struct sl_node *node, Sluice__V1__WorkerRole role, struct sl_error *err) {
    const struct sl_otlp_config spans = {
        .collector = node->config.common.otlp,
        .share = node->config.common.otlp_share,
        .service = role == SLUICE__V1__WORKER_ROLE__PREFILL  ? "sluice-prefill"
                   : role == SLUICE__V1__WORKER_ROLE__DECODE ? "sluice-decode"
                                                             : "sluice-kvstore",
        .instance = node->config.name,
    };
    sl_admin_add_metrics(node->admin, sl_otlp_write_metrics, NULL);
    return sl_otlp_start(&spans, &node->otlp, err);
}

enum sl_status sl_node_open(struct sl_node *node, const struct sl_node_config *config, Sluice__V1__WorkerRole role,
                            int max_rows, struct sl_error *err) {
    *node = (struct sl_node){.config = *config};
    sl_rpc_init();
    enum sl_status status = sl_admin_open(config->common.admin_listen, SL_VERSION, &node->admin, err);
    SL_THEN(status, start_spans(node, role, err));
    SL_THEN(status, check_identity(node, role, err));
    SL_THEN(status, max_rows > 0 ? open_model(node, max_rows, err) : SL_OK);
    SL_THEN(status, open_memory(node, role, err));
    SL_TRY_OR(status, sl_node_close(node));
    sluice__v1__worker_info__init(&node->info);
    node->info.name = (char *)config->name;
    node->info.role = role;
    node->info.fabric_address = (char *)sl_fabric_address(node->fabric);
    node->info.version = (char *)SL_VERSION;
    node->info.model_fingerprint = node->model_fingerprint;
    node->info.arena_bytes = node->config.arena_bytes;
    node->info.staging_bytes = sl_node_stages(node) ? config->staging_bytes : 0;
    node->info.max_jobs = (int32_t)config->max_jobs;
    node->info.epoch = sl_fabric_epoch(node->fabric);
    sl_node_add_progress_counter(node, sl_fabric_progress_counter(node->fabric));
    if (max_rows > 0) {
        node->engine = (struct sl_progress_counter){.name = "engine", .team = node->runtime.team};
        sl_node_add_progress_counter(node, &node->engine);
        node->runtime.progress_counter = &node->engine;
    }
    return SL_OK;
}

void sl_node_close(struct sl_node *node) {
    sl_admin_close(&node->admin); // of a worker that never served
    sl_otlp_stop(&node->otlp);
    sl_thread_watch_destroy(&node->watch);
    sl_rpc_standard_cleanup(&node->standard); // the watch used it
    if (node->inbound) {
        sl_inbound_close(node->inbound);
    }
    if (node->shared) {
        sl_device_unshare(node->runtime.device, node->shared);
    }
    sl_verifier_stop(node->verifier); // its entries go back to the fabric
    sl_fabric_destroy(&node->fabric); // releases every block of the inbound transfers
    sl_inbound_destroy(&node->inbound);
    sl_verifier_destroy(&node->verifier);
    sl_direct_close(&node->direct);
    if (node->ledger != node->staging_ledger) {
        sl_ledger_destroy(&node->ledger);
    }
    sl_ledger_destroy(&node->staging_ledger);
    sl_arena_destroy(&node->staging);
    sl_runtime_close(&node->runtime); // and its arena
    sl_rpc_credentials_destroy(&node->credentials);
}

// ---- serving -------------------------------------------------------------------------------------------------------

struct serving {
    struct sl_node *node;
    const struct sl_node_service *service;
};

static void report_load(void *arg, Sluice__V1__WorkerLoad *load) {
    struct serving *serving = arg;
    sl_node_report_load(serving->node, serving->service, load);
}

// ---- stalled threads ----------------------------------------------------------------------------------------------

void sl_node_add_progress_counter(struct sl_node *node, struct sl_progress_counter *progress_counter) {
    progress_counter->next = node->progress_counters;
    node->progress_counters = progress_counter;
}

bool sl_node_stands_still(const struct sl_node *node) {
    return atomic_load(&node->stands_still);
}

static void say_health(struct sl_node *node, bool well) {
    atomic_store(&node->stands_still, !well);
    sl_rpc_health_set(node->standard.health, "", well);
    sl_rpc_health_set(node->standard.health, node->service_name, well);
    if (node->service && node->service->second_rpc) {
        sl_rpc_health_set(node->standard.health, node->service->second_rpc->service->name, well);
    }
}

static void on_still(void *arg, const struct sl_progress_counter *progress_counter) {
    struct sl_node *node = arg;
    if (!progress_counter->is_spared) {
        say_health(node, false);
    }
    sl_log_error("node", "the %s stands still: it has work and nothing of it was done for %lld ms (--stall-after)%s",
                 progress_counter->name, (long long)node->config.stall_ms,
                 progress_counter->is_spared ? "; the others go on" : "");
}

static void on_moving(void *arg, const struct sl_progress_counter *progress_counter) {
    struct sl_node *node = arg;
    bool well = true;
    for (const struct sl_progress_counter *other = node->progress_counters; other; other = other->next) {
        well &= other->is_spared || other->still_ns < node->config.stall_ms * SL_NS_PER_MS;
    }
    if (well) {
        say_health(node, true);
    }
    sl_log_warn("node", "the %s moves again", progress_counter->name);
}

/*
 * Ends the process: with a stalled thread it cannot stop in order, as that waits for the thread. Its supervisor starts
 * another. Logging takes no lock that the stalled thread could hold.
 */
static void on_over(void *arg, const struct sl_progress_counter *progress_counter) {
    const struct sl_node *node = arg;
    if (progress_counter->is_spared) {
        return;
    }
    sl_log_error("node", "the %s has been standing still for %lld ms: this process ends, to be started again",
                 progress_counter->name, (long long)(2 * node->config.stall_ms));
    _exit(1);
}

static void refused(void *arg, const char *reason) {
    struct sl_node *node = ((struct serving *)arg)->node;
    snprintf(node->refusal, sizeof node->refusal, "%s", reason);
    kill(getpid(), SIGTERM); // wakes sl_node_serve(), which sees the refusal
}

enum sl_status sl_node_check_device(struct sl_node *node, enum sl_status status, struct sl_error *err) {
    if (status == SL_OK || !sl_device_has_failed(node->runtime.device)) {
        return status;
    }
    char why[sizeof node->failure];
    struct sl_error words = *err; // the device's error: `err` may describe a later failure that it caused
    (void)sl_stream_wait(node->runtime.stream, &words);
    snprintf(why, sizeof why, "%s", words.text);
    if (!atomic_flag_test_and_set(&node->failing)) {
        snprintf(node->failure, sizeof node->failure, "%s", why);
        sl_log_error("node", "the device has failed: %s", why);
        kill(getpid(), SIGTERM);
    }
    return sl_fail(err, SL_ERR_PEER_LOST, "the device of this worker has failed: %s", why);
}

static void block_signals(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
    signal(SIGPIPE, SIG_IGN); // a closed connection becomes a status and does not end the process
}

static int wait_for_signal(void) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    int signal_number = 0;
    while (sigwait(&set, &signal_number) == EINTR) {
    }
    return signal_number;
}

/*
 * Tells the coordinators that this worker takes no new jobs; it stays registered, and beats, until the running ones are
 * done. Best effort: a coordinator that does not answer learns it from the calls that we refuse.
 */
static void announce_drain(struct sl_node *node) {
    if (!sl_agent_announce(node->agent, sl_deadline_in_ms(DRAIN_MS))) {
        sl_log_debug("node", "not every coordinator of %s was told of the drain", node->config.coordinator);
    }
}

static enum sl_status start_server(struct sl_node *node, const struct sl_node_service *service, struct sl_error *err) {
    struct sl_rpc_implementation services[2 + SL_RPC_N_STANDARD] = {*service->rpc};
    size_t n_own = 1;
    if (service->second_rpc) {
        services[n_own++] = *service->second_rpc;
    }
    SL_TRY(sl_rpc_standard_init(&node->standard, services, n_own, err));
    struct sl_rpc_server_config config = {.listen = node->config.listen,
                                          .services = services,
                                          .n_services = n_own + SL_RPC_N_STANDARD,
                                          .max_calls = 2 * (int)node->config.max_jobs + SPARE_CALLS,
                                          .max_message_bytes = MAX_MESSAGE_BYTES,
                                          .request_bytes = REQUEST_BYTES,
                                          .credentials = node->credentials,
                                          .insecure = node->config.insecure};
    SL_TRY_OR(sl_rpc_server_start(&config, &node->server, err), sl_rpc_standard_cleanup(&node->standard));
    return SL_OK;
}

static enum sl_status start_watch(struct sl_node *node, struct sl_error *err) {
    struct sl_thread_watch_config watch = {.stall_ms = node->config.stall_ms,
                                           .progress_counters = node->progress_counters,
                                           .still_fn = on_still,
                                           .moving_fn = on_moving,
                                           .over_fn = on_over,
                                           .arg = node};
    return sl_thread_watch_create(&watch, &node->watch, err);
}

static void describe_device(struct sl_node *node) {
    const char *device = node->runtime.device->ops->name, *tier = node->runtime.ops->name;
    bool alike = strcmp(device, tier) == 0;
    int n_ranks = sl_runtime_ranks(&node->runtime);
    char ranks[16] = "";
    if (n_ranks > 1) {
        snprintf(ranks, sizeof ranks, "*%d", n_ranks);
    }
    snprintf(node->device, sizeof node->device, "%s%s%s%s", device, ranks, alike ? "" : "/", alike ? "" : tier);
    node->info.device = node->device;
}

enum sl_status sl_node_serve(struct sl_node *node, const struct sl_node_service *service, struct sl_error *err) {
    SL_TRY(start_server(node, service, err));
    snprintf(node->rpc_address, sizeof node->rpc_address, "%s", sl_rpc_server_address(node->server));
    node->info.rpc_address = node->rpc_address;
    describe_device(node);

    struct serving serving = {node, service};
    struct sl_agent_config agent = {.coordinators = node->config.coordinator,
                                    .term_guard = &node->term_guard,
                                    .credentials = node->credentials,
                                    .info = &node->info,
                                    .load_fn = report_load,
                                    .refused_fn = refused,
                                    .arg = &serving};
    node->service_name = service->rpc->service->name;
    enum sl_status status = start_watch(node, err);
    SL_THEN(status, sl_rpc_selfcheck_start(node->rpc_address, node->credentials, &node->selfcheck, err));
    SL_THEN(status, sl_agent_create(&agent, &node->agent, err));
    if (status == SL_OK) {
        sl_node_add_probes(node, service);
        sl_admin_started(node->admin);
        printf("ready rpc=%s fabric=%s name=%s%s%s\n", node->info.rpc_address, node->info.fabric_address,
               node->info.name, node->admin ? " admin=" : "", sl_admin_address(node->admin));
        fflush(stdout);
        int signal_number = wait_for_signal();
        atomic_store(&node->stopping, true);
        if (node->refusal[0]) {
            status = sl_fail(err, SL_ERR_PRECONDITION, "the coordinator at %s refuses this worker: %s",
                             node->config.coordinator, node->refusal);
        } else if (node->failure[0]) {
            status = sl_fail(err, SL_ERR_INTERNAL, "the device has failed: %s", node->failure);
        } else {
            sl_log_info("node", "stopping signal=%d", signal_number);
            announce_drain(node);
        }
    }
    sl_rpc_selfcheck_stop(node->selfcheck);
    sl_rpc_server_stop(&node->server, status == SL_OK ? node->config.grace_ms : 0);
    sl_admin_close(&node->admin); // it reads agent, service and self-check
    sl_rpc_selfcheck_destroy(&node->selfcheck);
    sl_agent_destroy(&node->agent); // last: the coordinator counts a worker that no longer beats as lost, with its jobs
    return status;
}

int sl_node_main(const struct sl_program *program, int argc, char **argv, struct sl_node_config *config,
                 enum sl_status (*run_fn)(const struct sl_node_config *config, struct sl_error *err)) {
    int code;
    if (!sl_program_begin(program, argc, argv, config, &config->common, &code)) {
        return code;
    }
    struct sl_error err = {0};
    bool has_certificates;
    enum sl_status status = sl_room_parse(config->arena, &config->arena_bytes, &err);
    SL_THEN_FAIL_IF(status, config->needs_model && !config->model, &err, SL_ERR_INVALID,
                    "no model: give --model DIR (a Hugging Face model folder, or a GGUF file)");
    SL_THEN(status, sl_tls_files_given(&config->tls, &has_certificates, &err));
    SL_THEN(status, config->check_fn ? config->check_fn(config, &err) : SL_OK);
    SL_THEN(status, sl_fabric_check_transport(config->transport, &err));
    struct sl_device_choice device;
    SL_THEN(status, sl_device_choice_parse(config->device, &device, &err));
    SL_THEN(status, sl_device_choice_add_ranks(&device, (int)config->ranks, &err));
    if (status != SL_OK || config->common.check) {
        return sl_program_end(program, status, &err);
    }
    sl_log_set_process(config->name);
    block_signals();
    status = run_fn(config, &err);
    code = sl_program_end(program, status, &err);
    sl_rpc_shutdown();
    return code;
}
