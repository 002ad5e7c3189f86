// SPDX-License-Identifier: Apache-2.0
#include "gateway/gateway.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/locked.h"
#include "base/log.h"
#include "base/thread.h"
#include "base/version.h"
#include "gateway/exchange.h"
#include "gateway/metrics.h"
#include "net/admin/listen.h"
#include "net/trace/otlp/otlp.h"

enum {
    HEAD_BYTES = 32 << 10, // limit of one request's line and headers
    STOPPED_MS = 15000,    // for answers that were asked to end: cancelling a job may take ten seconds
};

// TLS 1.2 and 1.3, with forward secrecy and authenticated encryption only.
static const char PRIORITIES[] =
    "SECURE128:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2:-RSA:-CIPHER-ALL:+AES-256-GCM:+AES-128-GCM:"
    "+CHACHA20-POLY1305:%SERVER_PRECEDENCE:%SAFE_RENEGOTIATION";

// ---- create ---------------------------------------------------------------------------------------------------------

static bool is_https(const struct sl_gateway_config *config) {
    return config->https_cert && config->https_cert[0] != '\0';
}

enum sl_status sl_gateway_config_check(const struct sl_gateway_config *config, struct sl_error *err) {
    bool has_key = config->https_key && config->https_key[0] != '\0', has_certificates;
    SL_FAIL_IF(is_https(config) != has_key, err, SL_ERR_INVALID, "--https-cert and --https-key belong together");
    SL_TRY(sl_tls_files_given(&config->tls, &has_certificates, err));
    return sl_head_rules_check(config->head.allowed_hosts, config->head.allowed_origins, err);
}

static enum sl_status open_certificate(struct sl_gateway *gateway, struct sl_error *err) {
    const struct sl_gateway_config *config = &gateway->config;
    if (!is_https(config)) {
        return SL_OK;
    }
    return sl_https_certificate_open(config->https_cert, config->https_key, &gateway->certificate, err);
}

static void log_line(void *, const char *format, va_list args) {
    char line[256];
    vsnprintf(line, sizeof line, format, args);
    line[strcspn(line, "\n")] = '\0';
    sl_log_debug("http", "%s", line);
}

static enum sl_status start_daemon(struct sl_gateway *gateway, struct sl_error *err) {
    const struct sl_gateway_config *config = &gateway->config;
    int fd;
    const struct sl_http_place place = {.option = "--listen",
                                        .text = config->listen,
                                        .has_certificates = is_https(config),
                                        .insecure = config->insecure};
    SL_TRY(sl_http_listen(&place, &fd, gateway->address, sizeof gateway->address, err));
    struct MHD_OptionItem https[] = {{MHD_OPTION_HTTPS_CERT_CALLBACK2, 0, (void *)sl_https_give_certificate},
                                     {MHD_OPTION_HTTPS_PRIORITIES, 0, (void *)PRIORITIES},
                                     {MHD_OPTION_END, 0, NULL}};
    struct MHD_OptionItem none[] = {{MHD_OPTION_END, 0, NULL}};
    unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG |
                     (is_https(config) ? MHD_USE_TLS : 0);
    gateway->daemon =
        MHD_start_daemon(flags, 0, NULL, NULL, sl_exchange_handle, gateway, MHD_OPTION_EXTERNAL_LOGGER, log_line, NULL,
                         MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_STRICT_FOR_CLIENT, 1, MHD_OPTION_URI_LOG_CALLBACK,
                         sl_exchange_create, gateway, MHD_OPTION_NOTIFY_COMPLETED, sl_exchange_over, gateway,
                         MHD_OPTION_NOTIFY_CONNECTION, sl_http_connections_see, gateway->connections,
                         MHD_OPTION_CONNECTION_LIMIT, (unsigned)config->connections.max, MHD_OPTION_CONNECTION_TIMEOUT,
                         (unsigned)((config->connections.idle_ms + 999) / 1000), MHD_OPTION_CONNECTION_MEMORY_LIMIT,
                         (size_t)HEAD_BYTES, MHD_OPTION_ARRAY, is_https(config) ? https : none, MHD_OPTION_END);
    if (!gateway->daemon) {
        close(fd);
        return sl_fail(err, SL_ERR_INVALID, "the HTTP server does not start");
    }
    return SL_OK;
}

void sl_gateway_destroy(struct sl_gateway **gateway_ptr) {
    struct sl_gateway *gateway = *gateway_ptr;
    *gateway_ptr = NULL;
    sl_admin_close(&gateway->admin); // close it before the state that its probes read
    sl_board_stop(gateway->board);
    if (gateway->daemon) {
        MHD_stop_daemon(gateway->daemon);
    }
    sl_http_connections_close(&gateway->connections);
    sl_board_destroy(&gateway->board);
    sl_https_certificate_close(&gateway->certificate);
    if (gateway->listening != MHD_INVALID_SOCKET) {
        close(gateway->listening);
    }
    sl_served_destroy(&gateway->served);
    sl_limits_destroy(&gateway->limits);
    sl_tenants_close(&gateway->tenants);
    sl_client_close(&gateway->client);
    sl_intake_turn_cleanup(&gateway->turn);
    pthread_cond_destroy(&gateway->changed);
    pthread_mutex_destroy(&gateway->mutex);
    free(gateway);
}

enum sl_status sl_gateway_start(const struct sl_gateway_config *config, struct sl_gateway **gateway_out,
                                struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_gateway, gateway, err, "no memory for a gateway");
    gateway->config = *config;
    gateway->config.head.listen = config->listen;
    gateway->config.head.needs_key = config->tenants.keys[0] != '\0' || config->tenants.token_keys[0] != '\0';
    gateway->config.connections.is_https = is_https(config);
    gateway->listening = MHD_INVALID_SOCKET;
    gateway->started_s = (int64_t)time(NULL);
    pthread_mutex_init(&gateway->mutex, NULL);
    sl_cond_init(&gateway->changed);
    sl_intake_turn_init(&gateway->turn);
    enum sl_status status = sl_admin_open(config->admin_listen, SL_VERSION, &gateway->admin, err);
    if (status == SL_OK) {
        sl_admin_add_metrics(gateway->admin, sl_otlp_write_metrics, NULL);
        status = open_certificate(gateway, err);
    }
    SL_THEN(status, sl_client_connect(config->coordinator, &gateway->config.tls, &gateway->client, err));
    SL_THEN(status, sl_tenants_open(&config->tenants, config->coordinator, &gateway->config.tls, gateway->client,
                                    &gateway->tenants, err));
    SL_THEN(status, sl_limits_create(&gateway->limits, err));
    SL_THEN(status, sl_served_create(gateway->client, &gateway->served, err));
    gateway->config.connections.context = gateway->certificate;
    SL_THEN(status, sl_http_connections_open(&gateway->config.connections, &gateway->connections, err));
    SL_THEN(status, sl_status_page_make(&gateway->page, err));
    SL_THEN(status, sl_board_create(gateway->served, &gateway->board, err));
    SL_THEN(status, start_daemon(gateway, err));
    SL_TRY_OR(status, sl_gateway_destroy(&gateway));
    sl_gateway_add_probes(gateway);
    sl_log_info("gateway", "listening on %s, coordinator %s", gateway->address, config->coordinator);
    *gateway_out = gateway;
    return SL_OK;
}

const char *sl_gateway_address(const struct sl_gateway *gateway) {
    return gateway->address;
}

const char *sl_gateway_admin_address(const struct sl_gateway *gateway) {
    return sl_admin_address(gateway->admin);
}

// ---- stop -----------------------------------------------------------------------------------------------------------

void sl_gateway_hurry(struct sl_gateway *gateway) {
    SL_LOCKED(&gateway->mutex);
    gateway->hurrying = true;
    pthread_cond_signal(&gateway->changed);
}

// Returns true if threads still produce answers, or the HTTP daemon still sends one.
static bool has_answers(const struct sl_gateway *gateway) {
    return gateway->n_answers > 0 || gateway->answering;
}

void sl_gateway_drain(struct sl_gateway *gateway, int64_t grace_ms) {
    gateway->listening = MHD_quiesce_daemon(gateway->daemon);
    shutdown(gateway->listening, SHUT_RD); // no new connections; the descriptor stays open while MHD may use it
    pthread_mutex_lock(&gateway->mutex);
    gateway->stopping = true;
    int64_t end_ns = sl_deadline_in_ms(grace_ms);
    while (has_answers(gateway) && !gateway->hurrying &&
           sl_cond_wait_until(&gateway->changed, &gateway->mutex, end_ns) == SL_OK) {
    }
    sl_exchange_stop_all(gateway);
    // Answers that still run use memory that we would free; their own deadlines end them.
    end_ns = sl_deadline_in_ms(STOPPED_MS);
    while (has_answers(gateway) && sl_cond_wait_until(&gateway->changed, &gateway->mutex, end_ns) == SL_OK) {
    }
    int n_left = gateway->n_answers;
    pthread_mutex_unlock(&gateway->mutex);
    if (n_left > 0) {
        sl_log_error("gateway", "%d answers have not ended: leaving with them", n_left);
        _exit(1);
    }
}
