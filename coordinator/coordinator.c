// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: see coordinator.h. Creates the parts, sweeps, and shuts down in order.
 * Design: sl_coordinator_destroy() reverses sl_coordinator_create(), also after it has failed in the middle.
 */
#include "coordinator/coordinator.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/locked.h"
#include "base/log.h"
#include "base/loop.h"
#include "base/version.h"
#include "coordinator/coordinator_internal.h"
#include "coordinator/lead.h"
#include "engine/job/job_recipe.h"
#include "net/trace/otlp/otlp.h"

#define SWEEP_MS        100
#define SERVER_GRACE_MS 1000 // for handlers that are sending last events
#define MAX_DEADLINE_MS (7 * 24 * 3600 * INT64_C(1000))
#define SPARE_HANDLERS  256 // above the watchers: Submit, Get

// ---- the sweeper ------------------------------------------------------------------------------------------------

// Runs even when there is no work: a lost worker must be noticed before a job needs it.
static void *sweep(void *arg) {
    struct sl_coordinator *coordinator = arg;
    struct sl_loop *loop = &coordinator->sweeper;
    SL_LOCKED(&loop->mutex);
    while (!loop->stopping) {
        int64_t now_ns = sl_now_ns();
        atomic_store(&coordinator->swept_ns, now_ns);
        sl_registry_sweep(coordinator->registry, now_ns);
        (void)sl_admission_rebalance(coordinator->admission, now_ns);
        sl_jobs_trim(coordinator->jobs, now_ns);
        if (coordinator->state != NULL) {
            sl_state_watch(coordinator->state, now_ns);
        }
        sl_loop_sleep(loop, now_ns + SWEEP_MS * SL_NS_PER_MS);
    }
    return NULL;
}

// ---- create -----------------------------------------------------------------------------------------------------

enum sl_status sl_coordinator_config_check(const struct sl_coordinator_config *config, struct sl_error *err) {
    SL_FAIL_IF(config->listen == NULL || config->model_dir == NULL, err, SL_ERR_INVALID,
               "coordinator: listen and model must be given");
    SL_FAIL_IF(config->max_jobs < 1 || config->max_jobs > 65536 || config->max_queued < 1 ||
                   config->max_queued > 65536 || config->max_watchers < 1 || config->max_watchers > 65536 ||
                   config->heartbeat_ms < 10 || config->stall_ms < 1000 || config->silence_ms < 10 ||
                   config->max_retries < 0 || config->max_retries > 100 || config->deadline_ms < 1 ||
                   config->deadline_ms > MAX_DEADLINE_MS || config->max_kept_jobs < 1 || config->max_prefixes < 1,
               err, SL_ERR_INVALID, "coordinator: a limit is out of bounds; see sluice-coordinator --help");
    SL_FAIL_IF(strcmp(config->metrics_alias, "none") != 0 && strcmp(config->metrics_alias, "vllm") != 0, err,
               SL_ERR_INVALID, "--metrics-alias %.40s: expected vllm or none", config->metrics_alias);
    const struct sl_route_policy *policy;
    bool has_certificates;
    SL_TRY(sl_tls_files_given(&config->tls, &has_certificates, err));
    return sl_route_policy_find(config->routing, &policy, err);
}

static enum sl_status set_default_recipe(struct sl_coordinator *coordinator, struct sl_error *err) {
    const char *text = coordinator->config.default_recipe;
    coordinator->default_recipe = strdup(text ? text : sl_job_default_recipe(&coordinator->model));
    SL_FAIL_IF(!coordinator->default_recipe, err, SL_ERR_EXHAUSTED, "no memory for a coordinator");
    struct sl_known_recipe *known = &coordinator->known_recipe;
    SL_TRY_OR(sl_job_recipe(coordinator->default_recipe, &coordinator->model, &known->recipe, err),
              sl_error_prefix(err, "default recipe"));
    sl_recipe_format(&known->recipe, known->text, sizeof known->text);
    known->fingerprint = sl_recipe_fingerprint(&known->recipe);
    return SL_OK;
}

// Names the model after its folder or file: demo for "models/demo/" and for "models/demo.gguf".
static enum sl_status set_model_name(struct sl_coordinator *coordinator, struct sl_error *err) {
    const char *name = coordinator->config.model_name;
    char *folder = name ? NULL : realpath(coordinator->config.model_dir, NULL);
    if (folder) {
        name = strrchr(folder, '/') + 1;
        char *suffix = strrchr(folder, '.');
        if (suffix > name && strcmp(suffix, ".gguf") == 0) {
            *suffix = '\0';
        }
    }
    coordinator->model_name = strdup(name && name[0] ? name : "model");
    free(folder);
    return coordinator->model_name ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a coordinator");
}

// A model without a template, or with one that is not supported, still accepts text and tokens.
static enum sl_status load_chat_template(struct sl_coordinator *coordinator, const char *dir, struct sl_error *err) {
    enum sl_status status = sl_chat_template_load(dir, &coordinator->chat_template, &coordinator->no_chat);
    if (status == SL_OK || status == SL_ERR_NOT_FOUND) {
        return SL_OK;
    }
    if (status == SL_ERR_UNSUPPORTED) {
        sl_log_warn("coordinator", "no chats with this model: %s", coordinator->no_chat.text);
        return SL_OK;
    }
    return sl_fail(err, status, "%s", coordinator->no_chat.text);
}

static enum sl_status load_model(struct sl_coordinator *coordinator, struct sl_error *err) {
    const char *dir = coordinator->config.model_dir;
    enum sl_weight_format weights;
    enum sl_status status = sl_weight_format_parse(coordinator->config.weights, &weights, err);
    SL_THEN(status, sl_model_config_load(dir, &coordinator->model, err));
    SL_THEN(status, sl_model_sampling_choose(coordinator->config.generation_config, &coordinator->model.sampling, err));
    if (status == SL_OK) {
        sl_model_sampling_log(&coordinator->model.sampling, "coordinator");
        status = set_default_recipe(coordinator, err);
    }
    SL_THEN(status, set_model_name(coordinator, err));
    SL_THEN(status, sl_tokenizer_load(dir, &coordinator->tokenizer, err));
    SL_THEN(status, load_chat_template(coordinator, dir, err));
    SL_THEN(status, sl_model_fingerprint(dir, weights, &coordinator->model_fingerprint, err));
    coordinator->rules = (struct sl_request_rules){
        .tokenizer = coordinator->tokenizer,
        .chat_template = coordinator->chat_template,
        .no_chat_because = coordinator->no_chat.text,
        .model = &coordinator->model,
        .default_recipe = coordinator->default_recipe,
        .known = &coordinator->known_recipe,
        .default_deadline_ms = coordinator->config.deadline_ms,
        .max_deadline_ms = MAX_DEADLINE_MS,
    };
    return status;
}

static enum sl_status make_parts(struct sl_coordinator *coordinator, struct sl_error *err) {
    const struct sl_coordinator_config *config = &coordinator->config;
    struct sl_registry_config registry = {.model_fingerprint = coordinator->model_fingerprint,
                                          .heartbeat_ms = config->heartbeat_ms,
                                          .stall_ms = config->stall_ms,
                                          .rebalance_ms = config->rebalance_ms,
                                          .credentials = coordinator->credentials};
    struct sl_retention retention = {config->retention_ms, config->max_kept_jobs, config->max_kept_bytes};
    enum sl_status status = sl_registry_create(&registry, &coordinator->registry, err);
    SL_THEN(status, sl_tenants_create((int)config->tenant_share, &coordinator->tenants, err));
    SL_THEN(status, sl_tokenizing_create(0, &coordinator->tokenizing, err));
    SL_THEN(status, sl_affinity_create((size_t)config->max_prefixes, &coordinator->affinity, err));
    SL_THEN(status, sl_admission_create(coordinator->registry, coordinator->affinity, (int)config->max_jobs,
                                        (int)config->max_queued, &coordinator->admission, err));
    const struct sl_route_policy *policy;
    if (status == SL_OK && sl_route_policy_find(config->routing, &policy, err) == SL_OK) { // it was checked
        sl_admission_route_by(coordinator->admission, policy);
    }
    SL_THEN(status, sl_jobs_create(&retention, &coordinator->jobs, err));
    SL_THEN(status, sl_conversations_create(&coordinator->conversations, err));
    SL_THEN_IF(status, config->etcd[0] != '\0',
               sl_election_create(config->etcd, config->etcd_prefix, &config->etcd_tls, &coordinator->election, err));
    return status;
}

// Opens the documents; those of --state after its folder was locked. Of several coordinators, the leader has them from etcd.
static enum sl_status open_documents(struct sl_coordinator *coordinator, struct sl_error *err) {
    bool is_alone = coordinator->election == NULL;
    enum sl_status status = is_alone ? SL_OK
                                     : sl_etcd_create(coordinator->config.etcd, coordinator->config.etcd_prefix,
                                                      &coordinator->config.etcd_tls, true, &coordinator->etcd, err);
    const struct sl_documents_config config = {.folder = coordinator->config.state_dir,
                                               .etcd = coordinator->etcd,
                                               .max_documents = coordinator->config.max_documents,
                                               .max_bytes = coordinator->config.document_bytes,
                                               .secret = &coordinator->salt_secret};
    SL_THEN(status, sl_documents_create(&config, &coordinator->documents, err));
    SL_THEN(status,
            sl_document_keeper_start(coordinator->documents, coordinator->registry, sl_coordinator_lead_documents,
                                     sl_coordinator_read_again, coordinator, &coordinator->keeper, err));
    SL_THEN(status, sl_document_copies_start(coordinator->documents, coordinator->registry, &coordinator->copies, err));
    return status;
}

static enum sl_status start_server(struct sl_coordinator *coordinator, struct sl_error *err) {
    struct sl_rpc_implementation services[3 + SL_RPC_N_STANDARD] = {
        sl_inference_service(coordinator), sl_documents_service(coordinator), sl_cluster_service(coordinator)};
    SL_TRY(sl_rpc_standard_init(&coordinator->standard, services, 3, err));
    struct sl_rpc_server_config config = {
        .listen = coordinator->config.listen,
        .services = services,
        .n_services = sizeof services / sizeof *services,
        .max_calls = (int)coordinator->config.max_watchers + SPARE_HANDLERS,
        .caller_percent = (int)coordinator->config.tenant_share,
        .usage = &coordinator->usage,
        .credentials = coordinator->credentials,
        .insecure = coordinator->config.insecure,
        .send_ms = coordinator->config.reader_ms,
        .request_bytes = coordinator->config.request_bytes,
    };
    SL_TRY(sl_rpc_server_start(&config, &coordinator->server, err));
    return sl_rpc_selfcheck_start(sl_rpc_server_address(coordinator->server), coordinator->credentials,
                                  &coordinator->selfcheck, err);
}

enum sl_status sl_coordinator_create(const struct sl_coordinator_config *config,
                                     struct sl_coordinator **coordinator_out, struct sl_error *err) {
    SL_TRY(sl_coordinator_config_check(config, err));
    SL_NEW_OR_FAIL(struct sl_coordinator, coordinator, err, "no memory for a coordinator");
    coordinator->config = *config;
    coordinator->grace_end_ns = SL_NO_DEADLINE;
    atomic_init(&coordinator->n_watchers, 0);
    pthread_mutex_init(&coordinator->mutex, NULL);
    sl_cond_init(&coordinator->changed);
    sl_loop_init(&coordinator->sweeper);

    sl_job_figures_init(&coordinator->figures);
    coordinator->vllm_names = strcmp(config->metrics_alias, "vllm") == 0;
    enum sl_status status = sl_admin_open(config->admin_listen, SL_VERSION, &coordinator->admin, err);
    if (status == SL_OK) {
        sl_admin_add_metrics(coordinator->admin, sl_otlp_write_metrics, NULL);
        status = sl_rpc_credentials_create(&config->tls, &coordinator->credentials, err);
    }
    if (status == SL_OK) {
        bool has_certificates = coordinator->credentials != NULL;
        status = sl_salt_secret_open(config->salt_file, has_certificates, &coordinator->salt_secret, err);
    }
    SL_THEN(status, load_model(coordinator, err));
    SL_THEN(status, make_parts(coordinator, err));
    SL_THEN_IF(status, config->state_dir[0] != '\0', sl_coordinator_restore(coordinator, err));
    SL_THEN(status, open_documents(coordinator, err));
    SL_THEN(status, sl_loop_start(&coordinator->sweeper, "sweeper", sweep, coordinator, err));
    SL_THEN(status, start_server(coordinator, err));
    if (status == SL_OK && coordinator->election != NULL) {
        const char *address = config->advertise[0] != '\0' ? config->advertise : sl_coordinator_address(coordinator);
        status = sl_election_stand(coordinator->election, address, err);
    }
    SL_TRY_OR(status, sl_coordinator_destroy(&coordinator));
    sl_coordinator_go_on(coordinator);
    atomic_store(&coordinator->swept_ns, sl_now_ns());
    sl_coordinator_add_probes(coordinator);
    sl_log_info("coordinator", "serving at %s, model %016" PRIx64, sl_coordinator_address(coordinator),
                coordinator->model_fingerprint);
    *coordinator_out = coordinator;
    return SL_OK;
}

const char *sl_coordinator_address(const struct sl_coordinator *coordinator) {
    return sl_rpc_server_address(coordinator->server);
}

const char *sl_coordinator_admin_address(const struct sl_coordinator *coordinator) {
    return sl_admin_address(coordinator->admin);
}

// ---- stop -------------------------------------------------------------------------------------------------------

void sl_coordinator_stop(struct sl_coordinator *coordinator, int64_t grace_ms) {
    int64_t grace_end_ns = sl_deadline_in_ms(grace_ms > 0 ? grace_ms : 0);
    SL_LOCKED(&coordinator->mutex);
    coordinator->stopping = true;
    if (grace_end_ns < coordinator->grace_end_ns) {
        coordinator->grace_end_ns = grace_end_ns;
    }
    pthread_cond_broadcast(&coordinator->changed);
}

// Jobs end by themselves, or by cancellation within the deadlines of their calls: the last wait is bounded by those.
static void drain(struct sl_coordinator *coordinator) {
    pthread_mutex_lock(&coordinator->mutex);
    while (!coordinator->stopping) {
        (void)sl_cond_wait_until(&coordinator->changed, &coordinator->mutex, SL_NO_DEADLINE);
    }
    pthread_mutex_unlock(&coordinator->mutex);
    sl_rpc_health_set(coordinator->standard.health, "", false);
    if (coordinator->election != NULL) { // another coordinator leads while this one finishes its jobs
        sl_election_withdraw(coordinator->election);
    }

    pthread_mutex_lock(&coordinator->mutex);
    while (coordinator->n_fibers > 0 && sl_now_ns() < coordinator->grace_end_ns) {
        (void)sl_cond_wait_until(&coordinator->changed, &coordinator->mutex, coordinator->grace_end_ns);
    }
    int n_cancelled = coordinator->n_fibers;
    pthread_mutex_unlock(&coordinator->mutex);
    if (n_cancelled > 0 && coordinator->state != NULL) {
        sl_log_info("coordinator", "the grace period is over: %d jobs will continue after a restart", n_cancelled);
        sl_state_suspend(coordinator->state);
        sl_jobs_cancel_all(coordinator->jobs); // clients are not told: the jobs continue
    } else if (n_cancelled > 0) {
        sl_log_warn("coordinator", "the grace period is over: cancelling %d jobs", n_cancelled);
        sl_jobs_cancel_all(coordinator->jobs);
    }
    SL_LOCKED(&coordinator->mutex);
    while (coordinator->n_fibers > 0) {
        (void)sl_cond_wait_until(&coordinator->changed, &coordinator->mutex, sl_deadline_in_ms(SWEEP_MS));
    }
}

void sl_coordinator_run(struct sl_coordinator *coordinator) {
    drain(coordinator);
    sl_rpc_selfcheck_stop(coordinator->selfcheck);
    sl_rpc_server_stop(&coordinator->server, SERVER_GRACE_MS);
    SL_LOCKED(&coordinator->mutex);
    coordinator->served = true;
}

void sl_coordinator_destroy(struct sl_coordinator **coordinator_in) {
    SL_TAKE_OR_RETURN(coordinator, coordinator_in);
    if (coordinator->server != NULL && !coordinator->served) {
        sl_coordinator_stop(coordinator, 0);
        sl_coordinator_run(coordinator);
    }
    sl_loop_cleanup(&coordinator->sweeper);
    sl_admin_close(&coordinator->admin); // before the parts that it reports on
    sl_rpc_selfcheck_destroy(&coordinator->selfcheck);
    sl_rpc_standard_cleanup(&coordinator->standard);
    sl_document_copies_stop(&coordinator->copies); // their threads ask who leads
    sl_document_keeper_stop(&coordinator->keeper);
    sl_election_destroy(&coordinator->election);
    sl_coordinator_forget_restored(coordinator);
    sl_coordinator_forget_reading(coordinator);
    sl_documents_destroy(&coordinator->documents);
    sl_etcd_destroy(&coordinator->etcd);
    sl_state_close(&coordinator->state);
    sl_jobs_destroy(&coordinator->jobs);
    sl_conversations_destroy(&coordinator->conversations);
    sl_admission_destroy(&coordinator->admission);
    sl_tokenizing_destroy(&coordinator->tokenizing);
    sl_tenants_destroy(&coordinator->tenants);
    sl_affinity_destroy(&coordinator->affinity);
    sl_registry_destroy(&coordinator->registry);
    sl_rpc_credentials_destroy(&coordinator->credentials);
    sl_chat_template_destroy(&coordinator->chat_template);
    sl_tokenizer_destroy(&coordinator->tokenizer);
    free(coordinator->default_recipe);
    free(coordinator->model_name);
    pthread_cond_destroy(&coordinator->changed);
    pthread_mutex_destroy(&coordinator->mutex);
    free(coordinator);
}
