// SPDX-License-Identifier: Apache-2.0
// Purpose: sluice-gateway: its options and signals; gateway.h does the rest.
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/descriptors.h"
#include "base/log.h"
#include "base/options/program.h"
#include "base/thread.h"
#include "gateway/gateway.h"
#include "gateway/openai/json_memory.h"
#include "net/rpc/rpc.h"
#include "net/trace/otlp/otlp.h"

struct options {
    struct sl_gateway_config gateway;
    int64_t grace_ms;
    struct sl_program_options common;
};

#define FIELD(name) SL_FIELD(options, gateway.name)

static const struct sl_option options[] = {
    {"listen", 'l', SL_OPTION_STRING, "127.0.0.1:8000", "HOST:PORT", "where HTTP clients connect", FIELD(listen)},
    {"https-cert", 0, SL_OPTION_STRING, "", "FILE", "serve HTTPS: our certificate and its chain, PEM",
     FIELD(https_cert)},
    {"https-key", 0, SL_OPTION_STRING, "", "FILE", "its key, PEM", FIELD(https_key)},
    SL_INSECURE_OPTION(options, gateway.insecure),
    {"coordinator", 'c', SL_OPTION_STRING, "127.0.0.1:7600", "HOST:PORT,...", "the cluster's coordinators",
     FIELD(coordinator)},
    SL_TLS_OPTIONS(options, gateway.tls, "client"),
    {"keys", 0, SL_OPTION_STRING, "", "FILE",
     "admit callers with these API keys: a line has a key's SHA-256, its tenant and optional limits (docs/HTTP.md)",
     FIELD(tenants.keys)},
    {"tenants", 0, SL_OPTION_STRING, "", "DIR",
     "folder with client-TENANT.pem and .key of every tenant, for a cluster with certificates", FIELD(tenants.folder)},
    {"jwt-keys", 0, SL_OPTION_STRING, "", "FILE",
     "admit callers with a JSON web token that one of these public keys has signed: RSA (RS256), P-256 (ES256), "
     "P-384 (ES384), PEM",
     FIELD(tenants.token_keys)},
    {"jwt-issuer", 0, SL_OPTION_STRING, "", "TEXT", "required value of a token's iss",
     FIELD(tenants.token_policy.issuer)},
    {"jwt-audience", 0, SL_OPTION_STRING, "", "TEXT", "required value of a token's aud, or one of its values",
     FIELD(tenants.token_policy.audience)},
    {"jwt-tenant", 0, SL_OPTION_STRING, "tenant", "CLAIM", "claim of a token that names its tenant",
     FIELD(tenants.token_policy.claim)},
    {"allowed-hosts", 0, SL_OPTION_STRING, "", "NAME,...",
     "names of this gateway, beside localhost and numbers, that callers without a key may ask for; *: any",
     FIELD(head.allowed_hosts)},
    {"allowed-origins", 0, SL_OPTION_STRING, "", "ORIGIN,...",
     "sites, such as https://chat.example, whose web pages may send requests (CORS); *: any",
     FIELD(head.allowed_origins)},
    {"max-connections", 0, SL_OPTION_INT, "4096", "N",
     "most connections of HTTP clients; at most three quarters of the descriptor limit", FIELD(connections.max), 1,
     1000000},
    {"max-requests", 0, SL_OPTION_INT, "256", "N", "most answers in progress; more are refused with 429",
     FIELD(max_requests), 1, 10000},
    {"max-body", 0, SL_OPTION_SIZE, "16M", "BYTES", "longest body of a request, except an imported document",
     FIELD(max_body_bytes), 1024, 1e10},
    {"body-memory", 0, SL_OPTION_SIZE, "256M", "BYTES", "memory for the bodies of all incoming requests",
     FIELD(body_memory_bytes), 1 << 20, 1e12},
    {"first-timeout", 0, SL_OPTION_DURATION, "10s", "TIME",
     "time for the head of a connection's first request; 1s while three quarters of --max-connections are in use",
     FIELD(connections.first_ms), 100, 86400000},
    {"idle-timeout", 0, SL_OPTION_DURATION, "60s", "TIME",
     "time between two requests of a connection; 1s while three quarters of --max-connections are in use",
     FIELD(connections.idle_ms), 1000, 86400000},
    {"body-timeout", 0, SL_OPTION_DURATION, "60s", "TIME", "time for a request's body to arrive", FIELD(body_ms), 100,
     86400000},
    {"reader-timeout", 0, SL_OPTION_DURATION, "30s", "TIME",
     "a client that reads nothing of its answer for this time counts as lost", FIELD(reader_ms), 100, 86400000},
    {"ping", 0, SL_OPTION_DURATION, "15s", "TIME", "time between two pings on an idle stream", FIELD(ping_ms), 100,
     86400000},
    {"deadline", 0, SL_OPTION_DURATION, "10m", "TIME", "deadline of requests without deadline_ms", FIELD(deadline_ms),
     1, 604800000},
    {"grace", 0, SL_OPTION_DURATION, "30s", "TIME",
     "time for answers in progress after SIGTERM; a second signal ends it", SL_FIELD(options, grace_ms), 0, 86400000},
    SL_PROGRAM_OPTIONS(options, common),
};

static const struct sl_program program = {
    .name = "sluice-gateway",
    .usage = "[options]",
    .summary = "OpenAI's HTTP in front of a Sluice cluster: chat and text completions, streamed or whole.",
    .epilog = "Prints one line, `ready http=HOST:PORT admin=HOST:PORT`, on standard output when it serves.",
    SL_OPTIONS(options),
};

struct stopper {
    sigset_t signals;
    struct sl_gateway *gateway;
    atomic_bool over;
};

static void *wait_for_more(void *arg) {
    struct stopper *stopper = arg;
    int number;
    if (sigwait(&stopper->signals, &number) == 0 && !atomic_load(&stopper->over)) {
        sl_gateway_hurry(stopper->gateway);
    }
    return NULL;
}

static enum sl_status stop(struct stopper *stopper, int64_t grace_ms, struct sl_error *err) {
    pthread_t thread;
    enum sl_status status = sl_thread_start("signals", wait_for_more, stopper, &thread, err);
    sl_gateway_drain(stopper->gateway, status == SL_OK ? grace_ms : 0);
    if (status == SL_OK) {
        atomic_store(&stopper->over, true);
        pthread_kill(thread, SIGTERM);
        pthread_join(thread, NULL);
    }
    sl_gateway_destroy(&stopper->gateway);
    return status;
}

static enum sl_status serve(const struct options *chosen, struct sl_error *err) {
    struct stopper stopper = {.gateway = NULL};
    sigemptyset(&stopper.signals);
    sigaddset(&stopper.signals, SIGTERM);
    sigaddset(&stopper.signals, SIGINT);
    pthread_sigmask(SIG_BLOCK, &stopper.signals, NULL); // before any thread is started, so that all inherit the mask
    signal(SIGPIPE, SIG_IGN);

    sl_rpc_init();
    sl_rpc_read_little_ahead();
    const struct sl_otlp_config spans = {
        .collector = chosen->common.otlp, .share = chosen->common.otlp_share, .service = "sluice-gateway"};
    struct sl_otlp *otlp;
    enum sl_status status = sl_otlp_start(&spans, &otlp, err);
    SL_THEN(status, sl_gateway_start(&chosen->gateway, &stopper.gateway, err));
    if (status == SL_OK) {
        const char *admin = sl_gateway_admin_address(stopper.gateway);
        printf("ready http=%s%s%s\n", sl_gateway_address(stopper.gateway), admin[0] ? " admin=" : "", admin);
        fflush(stdout);
        int number;
        sigwait(&stopper.signals, &number);
        sl_log_info("gateway", "%s: stopping", strsignal(number));
        status = stop(&stopper, chosen->grace_ms, err);
    }
    sl_otlp_stop(&otlp);
    sl_rpc_shutdown();
    return status;
}

// Leaves descriptors for the admin port and for calls to coordinators, even if --max-connections asks for more.
static void bound_connections(struct sl_gateway_config *gateway) {
    const int most = sl_descriptors_for_clients();
    if (gateway->connections.max > most) {
        sl_log_warn("gateway",
                    "--max-connections %" PRId64 ": %d are accepted, three quarters of the limit of %d "
                    "descriptors (ulimit -n)",
                    gateway->connections.max, most, sl_descriptors_limit());
        gateway->connections.max = most;
    }
}

int main(int argc, char **argv) {
    struct options chosen;
    memset(&chosen, 0, sizeof chosen);
    int code;
    if (!sl_program_begin(&program, argc, argv, &chosen, &chosen.common, &code)) {
        return code;
    }
    struct sl_error err = {0};
    const enum sl_status checked = sl_gateway_config_check(&chosen.gateway, &err);
    if (checked != SL_OK || chosen.common.check) {
        return sl_program_end(&program, checked, &err);
    }
    chosen.gateway.admin_listen = chosen.common.admin_listen;
    sl_log_set_process("gateway");
    sl_json_memory_install();
    bound_connections(&chosen.gateway);
    return sl_program_end(&program, serve(&chosen, &err), &err);
}
