// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: starts and stops UCX; sets its configuration and its process-wide behavior.
 *
 * Design: settings go through ucp_config_modify(), including most of those of the transports. UCX 1.13 accepts two of
 *         them neither that way (it says "invalid configuration") nor from an environment prefix of our own; these go
 *         into the environment, where an existing value wins.
 *
 * Only registration caches of RDMA devices need memory hooks; elsewhere they are turned off, because they rewrite
 * munmap() while sanitizers use it.
 */
#include "net/fabric/core/ucx.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucm/api/ucm.h>
#include <ucs/debug/debug.h>
#include <ucs/debug/log_def.h>

#include "base/log.h"
#include "net/fabric/core/ucx_internal.h"

static bool same_host(const struct sockaddr *a, const struct sockaddr_storage *b) {
    if (a->sa_family != b->ss_family) {
        return false;
    }
    if (a->sa_family == AF_INET) {
        return ((const struct sockaddr_in *)a)->sin_addr.s_addr == ((const struct sockaddr_in *)b)->sin_addr.s_addr;
    }
    return a->sa_family == AF_INET6 &&
           memcmp(&((const struct sockaddr_in6 *)a)->sin6_addr, &((const struct sockaddr_in6 *)b)->sin6_addr, 16) == 0;
}

// Finds the network interface that has the listening address, for ucx-tcp, which would else use every interface. "all":
// unknown.
static void find_device(const struct sl_fabric *fabric, char *device_out, size_t bytes) {
    struct ifaddrs *all = NULL;
    snprintf(device_out, bytes, "all");
    if (!fabric->listen_text || getifaddrs(&all) != 0) {
        return;
    }
    bool loopback = fabric->listen.ss_family == AF_INET &&
                    ntohl(((const struct sockaddr_in *)&fabric->listen)->sin_addr.s_addr) >> 24 == 127;
    for (struct ifaddrs *at = all; at; at = at->ifa_next) {
        if (at->ifa_addr && (same_host(at->ifa_addr, &fabric->listen) || (loopback && !strcmp(at->ifa_name, "lo")))) {
            snprintf(device_out, bytes, "%s", at->ifa_name);
            break;
        }
    }
    freeifaddrs(all);
}

static ucs_log_func_rc_t log_of_ucx(const char *, unsigned, const char *, ucs_log_level_t level,
                                    const ucs_log_component_config_t *, const char *message, va_list args) {
    char text[512];
    vsnprintf(text, sizeof text, message, args);
    if (level <= UCS_LOG_LEVEL_WARN) { // we report lost connections better ourselves
        sl_log_debug("ucx", "%s", text);
    }
    return UCS_LOG_FUNC_RC_STOP;
}

static void tame(void) {
    ucs_log_push_handler(log_of_ucx);
    static const int signals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        ucs_debug_disable_signal(signals[i]); // the program chooses its own crash handler
    }
    setenv("UCX_POSIX_ERROR_HANDLING", "y", 0); // else an endpoint that reports failures never uses shared memory
}

static pthread_once_t once = PTHREAD_ONCE_INIT;

struct setting {
    const char *name, *value;
};

static enum sl_status configure(const struct sl_fabric *fabric, enum sl_transport transport, const char *tls,
                                ucp_config_t **config_out, struct sl_error *err) {
    ucp_config_t *config = NULL;
    ucs_status_t ucs = ucp_config_read(NULL, NULL, &config);
    SL_FAIL_IF(ucs != UCS_OK, err, sl_ucx_status(ucs), "UCX configuration: %s", ucs_status_string(ucs));
    char device[64] = "all";
    if (transport == SL_TRANSPORT_UCX_TCP) {
        find_device(fabric, device, sizeof device);
    }
    const struct setting settings[] = {
        {"TLS", tls},
        {"NET_DEVICES", device},
        {"KEEPALIVE_INTERVAL", "1s"},
        {"TX_SEG_SIZE", "64K"}, // tcp: the default of 8 KiB takes more than twice the system calls
        {"RX_SEG_SIZE", "256K"},
        {"KEEPIDLE", "1s"},
        {"KEEPINTVL", "500ms"},
        {"KEEPCNT", "3"},
        {"RESOLVE_REMOTE_EP_ID", "y"}, // at once, not at first use: sl_ucx_connect()
        {"MAX_EAGER_RAILS", "1"},
        {"MAX_RNDV_RAILS", "1"},
        // Over tcp the receiver's answer to a rendezvous lets the sender write the pieces to the socket without a copy.
        {"RNDV_SCHEME", transport == SL_TRANSPORT_UCX_TCP ? "put_zcopy" : "auto"},
    };
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        ucs = ucp_config_modify(config, settings[i].name, settings[i].value);
        SL_FAIL_OR(ucs != UCS_OK, ucp_config_release(config), err, SL_ERR_INTERNAL, "UCX refuses %s=%s: %s",
                   settings[i].name, settings[i].value, ucs_status_string(ucs));
    }
    *config_out = config;
    return SL_OK;
}

static enum sl_status init_context(const struct sl_fabric *fabric, enum sl_transport transport, const char *tls,
                                   ucp_context_h *context_out, struct sl_error *err) {
    ucp_config_t *config = NULL;
    SL_TRY(configure(fabric, transport, tls, &config, err));
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME,
                           .features = UCP_FEATURE_AM | UCP_FEATURE_RMA | UCP_FEATURE_WAKEUP,
                           .name = "sluice"};
    ucs_status_t ucs = ucp_init(&params, config, context_out);
    ucp_config_release(config);
    SL_FAIL_IF(ucs != UCS_OK, err, sl_ucx_status(ucs), "UCX has none of the transports %s here: %s", tls,
               ucs_status_string(ucs));
    return SL_OK;
}

// Selects UCX's transports: shared memory for all, RDMA if there is any.
static enum sl_status start_context(struct sl_fabric *fabric, ucp_context_h *context_out, struct sl_error *err) {
    static const char *const rdma_only = "rc,dc", *const shared = "posix,self", *const both = "rc,dc,ud,posix,self",
                             *const both_and_cuda = "rc,dc,ud,posix,self,cuda_copy,gdr_copy";
    enum sl_transport transport = fabric->transport;
    if (transport == SL_TRANSPORT_UCX_TCP || transport == SL_TRANSPORT_SHM) {
        return init_context(fabric, transport, transport == SL_TRANSPORT_SHM ? shared : "tcp,self", context_out, err);
    }
    // UCX says whether there is RDMA if it is asked for nothing else.
    ucp_context_h probe = NULL;
    fabric->has_rdma = init_context(fabric, SL_TRANSPORT_RDMA, rdma_only, &probe, err) == SL_OK;
    if (fabric->has_rdma) {
        ucp_cleanup(probe);
    } else if (transport == SL_TRANSPORT_RDMA) {
        return sl_fail(err, SL_ERR_UNSUPPORTED, "transport rdma: no RDMA device that UCX can use on this host");
    }
    return init_context(fabric, fabric->has_rdma ? SL_TRANSPORT_RDMA : transport,
                        transport == SL_TRANSPORT_RDMA                                           ? "rc,dc,ud,self"
                        : fabric->has_rdma && fabric->device_memory && sl_ucx_knows_cuda(fabric) ? both_and_cuda
                        : fabric->has_rdma                                                       ? both
                                                                                                 : shared,
                        context_out, err);
}

// With the protocols of versions before 1.16, short puts read their memory with the processor.
bool sl_ucx_puts_from_devices(char *version_out, size_t bytes) {
    unsigned major = 0, minor = 0, release = 0;
    ucp_get_version(&major, &minor, &release);
    snprintf(version_out, bytes, "%u.%u.%u", major, minor, release);
    return major > 1 || minor >= 16;
}

// Checks a context with all transports: those of CUDA cannot be used without the ones that we list, but UCX either has
// them or not.
bool sl_ucx_knows_cuda(const struct sl_fabric *fabric) {
    ucp_context_h probe = NULL;
    char version[32];
    if (!sl_ucx_puts_from_devices(version, sizeof version)) {
        return false;
    }
    pthread_once(&once, tame);
    if (init_context(fabric, fabric->transport, "all", &probe, NULL) != SL_OK) {
        return false;
    }
    ucp_context_attr_t attr = {.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES};
    bool known = ucp_context_query(probe, &attr) == UCS_OK && (attr.memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA)) != 0;
    ucp_cleanup(probe);
    return known;
}

static enum sl_status handle(struct sl_fabric *fabric, unsigned id, struct sl_error *err) {
    ucp_am_handler_param_t param = {.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                                                  UCP_AM_HANDLER_PARAM_FIELD_ARG | UCP_AM_HANDLER_PARAM_FIELD_FLAGS,
                                    .id = id,
                                    .flags = UCP_AM_FLAG_WHOLE_MSG,
                                    .cb = sl_ucx_on_message,
                                    .arg = &fabric->bindings[id]};
    ucs_status_t ucs = ucp_worker_set_am_recv_handler(fabric->ucx->worker, &param);
    return ucs == UCS_OK ? SL_OK : sl_fail(err, SL_ERR_INTERNAL, "UCX handler: %s", ucs_status_string(ucs));
}

static enum sl_status start_worker(struct sl_fabric *fabric, struct sl_error *err) {
    struct sl_ucx *ucx = fabric->ucx;
    ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                  .thread_mode = UCS_THREAD_MODE_SINGLE};
    ucs_status_t ucs = ucp_worker_create(ucx->context, &params, &ucx->worker);
    if (ucs == UCS_OK) {
        ucs = ucp_worker_get_efd(ucx->worker, &ucx->fd);
    }
    if (ucs == UCS_OK) {
        ucs = ucp_worker_get_address(ucx->worker, &ucx->address, &ucx->address_bytes);
    }
    SL_FAIL_IF(ucs != UCS_OK, err, sl_ucx_status(ucs), "UCX worker: %s", ucs_status_string(ucs));
    SL_FAIL_IF(ucx->address_bytes > SL_HELLO_ADDRESS_MAX_BYTES, err, SL_ERR_UNSUPPORTED,
               "UCX needs %zu bytes to say where it is; at most %d (UCX_NET_DEVICES)", ucx->address_bytes,
               SL_HELLO_ADDRESS_MAX_BYTES);
    enum sl_status status = SL_OK;
    for (unsigned id = 0; status == SL_OK && id < SL_WIRE_END; id++) {
        if (fabric->bindings[id].handler) {
            status = handle(fabric, id, err);
        }
    }
    return status;
}

enum sl_status sl_ucx_start(struct sl_fabric *fabric, const struct sl_ucx_events *events, struct sl_error *err) {
    if (fabric->transport == SL_TRANSPORT_TCP) {
        return SL_OK;
    }
    pthread_once(&once, tame);
    if (fabric->transport == SL_TRANSPORT_UCX_TCP || fabric->transport == SL_TRANSPORT_SHM) {
        ucm_global_opts.enable_events = 0;
    }
    fabric->ucx = calloc(1, sizeof *fabric->ucx);
    SL_FAIL_IF(!fabric->ucx, err, SL_ERR_EXHAUSTED, "no memory for UCX");
    fabric->ucx->events = events;
    SL_TRY(start_context(fabric, &fabric->ucx->context, err));
    return start_worker(fabric, err);
}

void sl_ucx_stop(struct sl_fabric *fabric) {
    struct sl_ucx *ucx = fabric->ucx;
    if (!ucx) {
        return;
    }
    if (ucx->address) {
        ucp_worker_release_address(ucx->worker, ucx->address);
    }
    if (ucx->worker) {
        ucp_worker_destroy(ucx->worker);
    }
    if (ucx->context) {
        ucp_cleanup(ucx->context);
    }
    free(ucx);
    fabric->ucx = NULL;
}

bool sl_ucx_progress(struct sl_ucx *ucx) {
    bool moved = false;
    for (int i = 0; i < 16 && ucp_worker_progress(ucx->worker) > 0; i++) {
        moved = true;
    }
    return moved;
}

int sl_ucx_arm(struct sl_ucx *ucx) {
    return ucp_worker_arm(ucx->worker) == UCS_OK ? ucx->fd : -1;
}

const void *sl_ucx_address(const struct sl_ucx *ucx, size_t *bytes_out) {
    *bytes_out = ucx->address_bytes;
    return ucx->address;
}
