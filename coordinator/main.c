// SPDX-License-Identifier: Apache-2.0
// Purpose: the program sluice-coordinator: options, signals, and the coordinator between them.
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "base/thread.h"
#include "coordinator/coordinator.h"
#include "base/options/program.h"
#include "net/rpc/rpc.h"
#include "net/trace/otlp/otlp.h"

struct options {
    struct sl_coordinator_config coordinator;
    int64_t grace_ms;
    struct sl_program_options common;
};

// Names a field of the coordinator's config.
#define FIELD(name) SL_FIELD(options, coordinator.name)

static const struct sl_option options[] = {
    {"listen", 'l', SL_OPTION_STRING, "127.0.0.1:7600", "HOST:PORT", "where clients and workers connect",
     FIELD(listen)},
    SL_TLS_OPTIONS(options, coordinator.tls, "coordinator"),
    SL_UNSTATED_ROLES_OPTION(options, coordinator.tls),
    SL_INSECURE_OPTION(options, coordinator.insecure),
    {"etcd", 0, SL_OPTION_STRING, "", "HOST:PORT,...",
     "the servers of an etcd in which several coordinators elect their leader; without it, this coordinator is alone",
     FIELD(etcd)},
    {"etcd-prefix", 0, SL_OPTION_STRING, "/sluice", "KEY", "prefix of this cluster's keys, if clusters share an etcd",
     FIELD(etcd_prefix)},
    {"etcd-ca", 0, SL_OPTION_STRING, "", "FILE",
     "certificates of etcd's authority, PEM, which authenticate its servers by host name; with --etcd-cert and "
     "--etcd-key",
     FIELD(etcd_tls.ca)},
    {"etcd-cert", 0, SL_OPTION_STRING, "", "FILE", "this coordinator's certificate for etcd",
     FIELD(etcd_tls.certificate)},
    {"etcd-key", 0, SL_OPTION_STRING, "", "FILE", "its key", FIELD(etcd_tls.key)},
    {"advertise", 0, SL_OPTION_STRING, "", "HOST:PORT",
     "address for clients, which the other coordinators report when this one leads; without it, --listen",
     FIELD(advertise)},
    {"salt-file", 0, SL_OPTION_STRING, NULL, "FILE",
     "the secret that keeps tenants' caches apart, created if it does not exist; without it, and with certificates, "
     "each start makes a new one. Several coordinators need the same",
     FIELD(salt_file)},
    {"state", 0, SL_OPTION_STRING, "", "DIR",
     "folder of accepted jobs: after a restart they continue, and ended ones can be read. For this coordinator only",
     FIELD(state_dir)},
    {"state-bytes", 0, SL_OPTION_SIZE, "1G", "BYTES",
     "the most that --state may take; the jobs that ended first are deleted first", FIELD(state_bytes), 1 << 20, 1e15},
    {"model", 'm', SL_OPTION_MODEL, NULL, "MODEL",
     "the cluster's model, a folder or a name of `sluice models` (the weights are not loaded)", FIELD(model_dir)},
    {"model-name", 0, SL_OPTION_STRING, NULL, "NAME", "the model's name for clients; without it, the folder's name",
     FIELD(model_name)},
    {"weights", 0, SL_OPTION_STRING, "stored", "FORMAT", "format of the workers' weights: stored, int8 or int4",
     FIELD(weights)},
    {"recipe", 'r', SL_OPTION_STRING, NULL, "RECIPE",
     "recipe of requests that name none. Default: full,format=int8, or full if the model's heads cannot be quantized",
     FIELD(default_recipe)},
    {"generation-config", 0, SL_OPTION_STRING, "auto", "WHOSE",
     "auto: the model's own generation settings are the defaults of temperature, top_k, top_p, min_p and "
     "repetition_penalty; "
     "none: they are ignored",
     FIELD(generation_config)},
    {"routing", 0, SL_OPTION_STRING, "affinity", "POLICY",
     "how workers are chosen. affinity: where the prompt and those in line wait least for each other; deadline: of the "
     "workers that read in time, the one that has read most of the prompt; least-loaded: the fewest tokens in line; "
     "round-robin: the fewest jobs so far",
     FIELD(routing)},
    {"rebalance", 0, SL_OPTION_DURATION, "0s", "TIME",
     "let `sluice-decode --aggregated` workers either read or write, and change one of them, by drain, where one role "
     "is "
     "full and the other is not: at most one in this time; 0: they do both",
     FIELD(rebalance_ms), 0, 86400000},
    {"max-jobs", 0, SL_OPTION_INT, "64", "N", "jobs admitted at once", FIELD(max_jobs), 1, 65536},
    {"queue", 0, SL_OPTION_INT, "256", "N", "jobs that may wait; more are refused, with a hint when to retry",
     FIELD(max_queued), 1, 65536},
    {"max-watchers", 0, SL_OPTION_INT, "1024", "N", "Generate, Watch, Cancel and SubmitInParts calls at once",
     FIELD(max_watchers), 1, 65536},
    {"heartbeat", 0, SL_OPTION_DURATION, "1s", "TIME",
     "interval of workers' heartbeats; a worker is lost after two missed ones", FIELD(heartbeat_ms), 10, 60000},
    {"stall-after", 0, SL_OPTION_DURATION, "30s", "TIME",
     "a worker that sends heartbeats, has work and makes no progress for this long is stalled: its jobs move to others",
     FIELD(stall_ms), 1000, 86400000},
    {"prefill-timeout", 0, SL_OPTION_DURATION, "3s", "TIME",
     "a prefill or decode call that is silent for this long is lost", FIELD(silence_ms), 10, 600000},
    {"reader-timeout", 0, SL_OPTION_DURATION, "30s", "TIME",
     "a client that does not read for this long is disconnected", FIELD(reader_ms), 10, 86400000},
    {"worker-wait", 0, SL_OPTION_DURATION, "1m", "TIME",
     "how long a job waits for a role without a ready worker; with a deadline before --deadline it waits until that",
     FIELD(worker_wait_ms), 0, 600000},
    {"retries", 0, SL_OPTION_INT, "2", "N", "workers that a job may lose before it fails", FIELD(max_retries), 0, 100},
    {"deadline", 0, SL_OPTION_DURATION, "10m", "TIME", "deadline of jobs that set none", FIELD(deadline_ms), 1,
     604800000},
    {"job-retention", 0, SL_OPTION_DURATION, "10m", "TIME", "how long an ended job can still be watched",
     FIELD(retention_ms), 0, 604800000},
    {"kept-jobs", 0, SL_OPTION_INT, "1000", "N", "the most ended jobs that are retained", FIELD(max_kept_jobs), 1,
     1000000},
    {"kept-bytes", 0, SL_OPTION_SIZE, "256M", "BYTES", "memory for the events of ended jobs", FIELD(max_kept_bytes), 1,
     1e15},
    {"prefixes", 0, SL_OPTION_INT, "65536", "N", "entries of the index of prompts that workers have read",
     FIELD(max_prefixes), 1, 1 << 28},
    {"max-prompt", 0, SL_OPTION_SIZE, "64M", "BYTES", "the most bytes of a request that arrives in parts",
     FIELD(max_prompt_bytes), 1, 1e12},
    {"request-memory", 0, SL_OPTION_SIZE, "1G", "BYTES",
     "memory for all requests that are being handled; further requests are refused", FIELD(request_bytes), 1 << 20,
     1e12},
    {"parts-timeout", 0, SL_OPTION_DURATION, "60s", "TIME", "time for all parts of a request to arrive",
     FIELD(parts_ms), 100, 86400000},
    {"max-documents", 0, SL_OPTION_INT, "64", "N", "documents of one tenant (`sluice doc`)", FIELD(max_documents), 0,
     4096},
    {"document-bytes", 0, SL_OPTION_SIZE, "1G", "BYTES",
     "capsules, offloaded layers and texts of one tenant's documents; of a store's arena, or its larger disk, half may "
     "be documents",
     FIELD(document_bytes), 0, 1e15},
    {"tenant-share", 0, SL_OPTION_INT, "50", "PERCENT",
     "share of --queue, --max-watchers, calls that are handled, --kept-jobs, --kept-bytes and memory for unfinished "
     "requests (three quarters "
     "of --request-memory) that one tenant may use",
     FIELD(tenant_share), 1, 100},
    {"grace", 0, SL_OPTION_DURATION, "30s", "TIME",
     "time that running jobs have after SIGTERM; a second signal ends it", SL_FIELD(options, grace_ms), 0, 86400000},
    {"metrics-alias", 0, SL_OPTION_STRING, "none", "NAME",
     "vllm: also export the metrics that endpoint pickers read, under vLLM's names", FIELD(metrics_alias)},
    SL_PROGRAM_OPTIONS(options, common),
};

static const struct sl_program program = {
    .name = "sluice-coordinator",
    .usage = "--model DIR [options]",
    .summary = "Admit, route and follow the jobs of a Sluice cluster.",
    .epilog = "Prints one line, `ready rpc=HOST:PORT admin=HOST:PORT`, on standard output when it serves.",
    SL_OPTIONS(options),
};

struct stopper {
    sigset_t signals;
    struct sl_coordinator *coordinator;
    int64_t grace_ms;
    atomic_bool over; // nothing is left to stop: the next signal comes from main(), to wake the thread
};

// Waits for signals. The first one begins the grace period, the next one ends it.
static void *wait_for_signals(void *arg) {
    struct stopper *stopper = arg;
    int64_t grace_ms = stopper->grace_ms;
    for (;;) {
        int number;
        if (sigwait(&stopper->signals, &number) == 0) {
            if (atomic_load(&stopper->over)) {
                return NULL;
            }
            sl_log_info("coordinator", "%s: stopping", strsignal(number));
            sl_coordinator_stop(stopper->coordinator, grace_ms);
            grace_ms = 0;
        }
    }
}

static enum sl_status serve(const struct options *chosen, struct sl_error *err) {
    struct stopper stopper = {.grace_ms = chosen->grace_ms};
    sigemptyset(&stopper.signals);
    sigaddset(&stopper.signals, SIGTERM);
    sigaddset(&stopper.signals, SIGINT);
    pthread_sigmask(SIG_BLOCK, &stopper.signals, NULL); // before any thread exists, so that all inherit it

    sl_rpc_init();
    const struct sl_otlp_config spans = {
        .collector = chosen->common.otlp, .share = chosen->common.otlp_share, .service = "sluice-coordinator"};
    struct sl_otlp *otlp;
    enum sl_status status = sl_otlp_start(&spans, &otlp, err);
    SL_THEN(status, sl_coordinator_create(&chosen->coordinator, &stopper.coordinator, err));
    if (status == SL_OK) {
        pthread_t thread;
        status = sl_thread_start("signals", wait_for_signals, &stopper, &thread, err);
        if (status == SL_OK) {
            const char *admin = sl_coordinator_admin_address(stopper.coordinator);
            printf("ready rpc=%s%s%s\n", sl_coordinator_address(stopper.coordinator), admin[0] ? " admin=" : "", admin);
            fflush(stdout);
            sl_coordinator_run(stopper.coordinator);
            atomic_store(&stopper.over, true);
            pthread_kill(thread, SIGTERM);
            pthread_join(thread, NULL);
        }
        sl_coordinator_destroy(&stopper.coordinator);
    }
    sl_otlp_stop(&otlp);
    sl_rpc_shutdown();
    return status;
}

int main(int argc, char **argv) {
    struct options chosen;
    memset(&chosen, 0, sizeof(chosen));
    int code;
    if (!sl_program_begin(&program, argc, argv, &chosen, &chosen.common, &code)) {
        return code;
    }
    struct sl_error err = {0};
    if (chosen.coordinator.model_dir == NULL) {
        return sl_program_end(&program, sl_fail(&err, SL_ERR_INVALID, "--model DIR is needed"), &err);
    }
    if (chosen.common.check) {
        return sl_program_end(&program, sl_coordinator_config_check(&chosen.coordinator, &err), &err);
    }
    chosen.coordinator.admin_listen = chosen.common.admin_listen;
    sl_log_set_process("coordinator");
    return sl_program_end(&program, serve(&chosen, &err), &err);
}
