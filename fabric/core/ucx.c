// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: everything that is peculiar to UCX 1.13: its configuration, its status codes, its process-wide habits.
 *
 * Design: settings go through ucp_config_modify(), most of those of the transports too. Two of them UCX 1.13 takes
 *         neither that way (it says "invalid configuration") nor from an environment prefix of our own; they are put
 *         into the environment, where a value that is there already wins.
 *
 * Memory hooks are only needed by registration caches of RDMA devices; elsewhere they are turned off, because they
 * rewrite munmap() under the feet of the sanitizers.
 */
#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucm/api/ucm.h>
#include <ucs/debug/debug.h>
#include <ucs/debug/log_def.h>

#include "base/log.h"
#include "fabric/core/core.h"

enum sl_status sl_ucx_status(ucs_status_t status) {
    switch (status) {
    case UCS_OK:
        return SL_OK;
    case UCS_INPROGRESS:
        return SL_INPROGRESS;
    case UCS_ERR_NO_MEMORY:
    case UCS_ERR_NO_RESOURCE:
    case UCS_ERR_EXCEEDS_LIMIT:
        return SL_ERR_EXHAUSTED;
    case UCS_ERR_BUSY:
    case UCS_ERR_ALREADY_EXISTS:
        return SL_ERR_EXISTS;
    case UCS_ERR_NO_DEVICE:
    case UCS_ERR_UNSUPPORTED:
    case UCS_ERR_NOT_IMPLEMENTED:
        return SL_ERR_UNSUPPORTED;
    case UCS_ERR_INVALID_PARAM:
    case UCS_ERR_INVALID_ADDR:
        return SL_ERR_INVALID;
    case UCS_ERR_CANCELED:
        return SL_ERR_CANCELLED;
    case UCS_ERR_UNREACHABLE:
    case UCS_ERR_REJECTED:
    case UCS_ERR_NOT_CONNECTED:
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_ENDPOINT_TIMEOUT:
    case UCS_ERR_TIMED_OUT:
        return SL_ERR_PEER_LOST;
    case UCS_ERR_IO_ERROR:
    case UCS_ERR_SHMEM_SEGMENT:
        return SL_ERR_IO;
    default:
        return UCS_IS_LINK_ERROR(status) || UCS_IS_ENDPOINT_ERROR(status) ? SL_ERR_PEER_LOST : SL_ERR_INTERNAL;
    }
}

// "HOST:PORT" or "[HOST]:PORT".
static enum sl_status split_address(const char *address, char *host_out, size_t host_bytes, const char **port_out,
                                    struct sl_error *err) {
    const char *colon = strrchr(address, ':');
    if (!colon || colon == address || !colon[1]) {
        return sl_fail(err, SL_ERR_INVALID, "fabric address \"%s\": expected HOST:PORT", address);
    }
    const char *host = address;
    size_t n = (size_t)(colon - address);
    if (host[0] == '[' && host[n - 1] == ']') {
        host++;
        n -= 2;
    }
    if (n == 0 || n >= host_bytes) {
        return sl_fail(err, SL_ERR_INVALID, "fabric address \"%s\": the host name is empty or too long", address);
    }
    memcpy(host_out, host, n);
    host_out[n] = '\0';
    *port_out = colon + 1;
    return SL_OK;
}

enum sl_status sl_ucx_resolve(const char *address, struct sockaddr_storage *sockaddr_out, socklen_t *bytes_out,
                              struct sl_error *err) {
    char host[128];
    const char *port = NULL;
    enum sl_status status = split_address(address, host, sizeof host, &port, err);
    if (status != SL_OK) {
        return status;
    }
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *found = NULL;
    int rc = getaddrinfo(host, port, &hints, &found);
    if (rc != 0) {
        return sl_fail(err, SL_ERR_INVALID, "fabric address \"%s\": %s", address, gai_strerror(rc));
    }
    memset(sockaddr_out, 0, sizeof *sockaddr_out);
    memcpy(sockaddr_out, found->ai_addr, found->ai_addrlen);
    *bytes_out = found->ai_addrlen;
    freeaddrinfo(found);
    return SL_OK;
}

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

// The network interface that has the listening address: UCX would else stripe over every interface of the host.
enum sl_status sl_ucx_find_device(struct sl_fabric *fabric, struct sl_error *err) {
    const char *port = NULL;
    enum sl_status status =
        split_address(fabric->listen_text, fabric->listen_host, sizeof fabric->listen_host, &port, err);
    if (status == SL_OK) {
        status = sl_ucx_resolve(fabric->listen_text, &fabric->listen, &fabric->listen_bytes, err);
    }
    if (status != SL_OK) {
        return status;
    }
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all) != 0) {
        return sl_fail(err, SL_ERR_IO, "cannot list the network interfaces");
    }
    bool loopback = fabric->listen.ss_family == AF_INET &&
                    ntohl(((struct sockaddr_in *)&fabric->listen)->sin_addr.s_addr) >> 24 == 127;
    status = SL_ERR_INVALID;
    for (struct ifaddrs *at = all; at && status != SL_OK; at = at->ifa_next) {
        if (at->ifa_addr && (same_host(at->ifa_addr, &fabric->listen) || (loopback && !strcmp(at->ifa_name, "lo")))) {
            snprintf(fabric->device, sizeof fabric->device, "%s", at->ifa_name);
            status = SL_OK;
        }
    }
    freeifaddrs(all);
    if (status != SL_OK) {
        return sl_fail(err, status,
                       "fabric address \"%s\": no network interface here has it; give the address that "
                       "peers connect to",
                       fabric->listen_text);
    }
    return SL_OK;
}

static ucs_log_func_rc_t log_of_ucx(const char *file, unsigned line, const char *function, ucs_log_level_t level,
                                    const ucs_log_component_config_t *component, const char *message, va_list args) {
    (void)file, (void)line, (void)function, (void)component;
    char text[512];
    vsnprintf(text, sizeof text, message, args);
    if (level <= UCS_LOG_LEVEL_WARN) { // what it says of lost connections is said better by us
        sl_log_debug("ucx", "%s", text);
    }
    return UCS_LOG_FUNC_RC_STOP;
}

static void tame(void) {
    ucs_log_push_handler(log_of_ucx);
    static const int signals[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
    for (size_t i = 0; i < sizeof signals / sizeof *signals; i++) {
        ucs_debug_disable_signal(signals[i]); // crashes are reported by whoever the program chose
    }
    setenv("UCX_POSIX_ERROR_HANDLING", "y", 0); // else an endpoint that reports failures never uses shared memory
    setenv("UCX_TCP_CM_REUSEADDR", "y", 0);     // else a restart at the same port fails for a minute
}

struct setting {
    const char *name, *value;
};

static enum sl_status configure(const struct sl_fabric *fabric, enum sl_transport transport, const char *tls,
                                ucp_config_t **config_out, struct sl_error *err) {
    ucp_config_t *config = NULL;
    ucs_status_t ucs = ucp_config_read(NULL, NULL, &config);
    if (ucs != UCS_OK) {
        return sl_fail(err, sl_ucx_status(ucs), "UCX configuration: %s", ucs_status_string(ucs));
    }
    const struct setting settings[] = {
        {"TLS", tls},
        {"NET_DEVICES", transport != SL_TRANSPORT_RDMA && fabric->device[0] ? fabric->device : "all"},
        {"SOCKADDR_TLS_PRIORITY", transport == SL_TRANSPORT_RDMA ? "rdmacm,tcp" : "tcp"},
        {"KEEPALIVE_INTERVAL", "1s"},
        {"TX_SEG_SIZE", "64K"}, // tcp: 8 KiB by default, which is twice the system calls
        {"RX_SEG_SIZE", "256K"},
        {"KEEPIDLE", "1s"},
        {"KEEPINTVL", "500ms"},
        {"KEEPCNT", "3"},
        {"MAX_EAGER_RAILS", "1"},
        {"MAX_RNDV_RAILS", "1"},
        // Over tcp the receiver's answer to a rendezvous lets the sender write the socket straight from the pieces.
        {"RNDV_SCHEME", transport == SL_TRANSPORT_TCP ? "put_zcopy" : "auto"},
    };
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        ucs = ucp_config_modify(config, settings[i].name, settings[i].value);
        if (ucs != UCS_OK) {
            ucp_config_release(config);
            return sl_fail(err, SL_ERR_INTERNAL, "UCX refuses %s=%s: %s", settings[i].name, settings[i].value,
                           ucs_status_string(ucs));
        }
    }
    *config_out = config;
    return SL_OK;
}

static enum sl_status init_context(const struct sl_fabric *fabric, enum sl_transport transport, const char *tls,
                                   ucp_context_h *context_out, struct sl_error *err) {
    ucp_config_t *config = NULL;
    enum sl_status status = configure(fabric, transport, tls, &config, err);
    if (status != SL_OK) {
        return status;
    }
    ucp_params_t params = {.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME,
                           .features = UCP_FEATURE_AM | UCP_FEATURE_RMA | UCP_FEATURE_WAKEUP,
                           .name = "sluice"};
    ucs_status_t ucs = ucp_init(&params, config, context_out);
    ucp_config_release(config);
    if (ucs != UCS_OK) {
        return sl_fail(err, sl_ucx_status(ucs), "UCX has none of the transports %s here: %s", tls,
                       ucs_status_string(ucs));
    }
    return SL_OK;
}

static enum sl_status start_context(struct sl_fabric *fabric, struct sl_error *err) {
    static const char *const rdma_only = "rc,dc";
    static const char *const tls[] = {[SL_TRANSPORT_AUTO] = "all",
                                      [SL_TRANSPORT_SHM] = "posix,self,tcp", // tcp: to find each other
                                      [SL_TRANSPORT_TCP] = "tcp,self",
                                      [SL_TRANSPORT_RDMA] = "rc,dc,ud,self,tcp"};
    enum sl_transport transport = fabric->transport;
    ucp_context_h probe = NULL;
    // Asked for nothing but RDMA, UCX says whether there is any.
    if (transport == SL_TRANSPORT_RDMA || transport == SL_TRANSPORT_AUTO) {
        enum sl_status status = init_context(fabric, SL_TRANSPORT_RDMA, rdma_only, &probe, err);
        if (status == SL_OK) {
            ucp_cleanup(probe);
        } else if (transport == SL_TRANSPORT_RDMA) {
            return sl_fail(err, SL_ERR_UNSUPPORTED, "transport rdma: no RDMA device that UCX can use on this host");
        }
        fabric->has_rdma = status == SL_OK;
        if (transport == SL_TRANSPORT_AUTO) {
            const char *list = status == SL_OK ? "rc,dc,ud,posix,self,tcp" : tls[SL_TRANSPORT_SHM];
            return init_context(fabric, status == SL_OK ? SL_TRANSPORT_RDMA : SL_TRANSPORT_AUTO, list, &fabric->context,
                                err);
        }
    }
    return init_context(fabric, transport, tls[transport], &fabric->context, err);
}

// Asked of a context with all transports: those of CUDA are no use without what we list, but UCX has them or has not.
bool sl_ucx_knows_cuda(const struct sl_fabric *fabric) {
    ucp_context_h probe = NULL;
    if (init_context(fabric, fabric->transport, "all", &probe, NULL) != SL_OK) {
        return false;
    }
    ucp_context_attr_t attr = {.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES};
    bool known = ucp_context_query(probe, &attr) == UCS_OK && (attr.memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA)) != 0;
    ucp_cleanup(probe);
    return known;
}

enum sl_status sl_ucx_start(struct sl_fabric *fabric, struct sl_error *err) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, tame);
    if (fabric->transport == SL_TRANSPORT_TCP || fabric->transport == SL_TRANSPORT_SHM) {
        ucm_global_opts.enable_events = 0;
    }
    enum sl_status status = start_context(fabric, err);
    if (status != SL_OK) {
        return status;
    }
    ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                  .thread_mode = UCS_THREAD_MODE_SINGLE};
    ucs_status_t ucs = ucp_worker_create(fabric->context, &params, &fabric->worker);
    if (ucs == UCS_OK) {
        ucs = ucp_worker_get_efd(fabric->worker, &fabric->worker_fd);
    }
    if (ucs != UCS_OK) {
        status = sl_fail(err, sl_ucx_status(ucs), "UCX worker: %s", ucs_status_string(ucs));
    }
    return status;
}

enum sl_status sl_ucx_handle(struct sl_fabric *fabric, enum sl_wire_id id, ucp_am_recv_callback_t run, void *arg,
                             struct sl_error *err) {
    ucp_am_handler_param_t param = {.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                                                  UCP_AM_HANDLER_PARAM_FIELD_ARG | UCP_AM_HANDLER_PARAM_FIELD_FLAGS,
                                    .id = id,
                                    .flags = UCP_AM_FLAG_WHOLE_MSG,
                                    .cb = run,
                                    .arg = arg};
    ucs_status_t ucs = ucp_worker_set_am_recv_handler(fabric->worker, &param);
    return ucs == UCS_OK ? SL_OK : sl_fail(err, SL_ERR_INTERNAL, "UCX handler: %s", ucs_status_string(ucs));
}

enum sl_status sl_ucx_listen(struct sl_fabric *fabric, ucp_listener_conn_callback_t on_connection,
                             struct sl_error *err) {
    ucp_listener_params_t params = {.field_mask =
                                        UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER,
                                    .sockaddr = {(struct sockaddr *)&fabric->listen, fabric->listen_bytes},
                                    .conn_handler = {on_connection, fabric}};
    ucs_status_t ucs = ucp_listener_create(fabric->worker, &params, &fabric->listener);
    if (ucs != UCS_OK) {
        return sl_fail(err, sl_ucx_status(ucs), "cannot listen on %s: %s", fabric->listen_text,
                       ucs == UCS_ERR_BUSY ? "the port is in use" : ucs_status_string(ucs));
    }
    ucp_listener_attr_t attr = {.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR};
    ucs = ucp_listener_query(fabric->listener, &attr);
    if (ucs != UCS_OK) {
        return sl_fail(err, sl_ucx_status(ucs), "listener: %s", ucs_status_string(ucs));
    }
    unsigned port = ntohs(attr.sockaddr.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&attr.sockaddr)->sin6_port
                                                              : ((struct sockaddr_in *)&attr.sockaddr)->sin_port);
    const char *format = strchr(fabric->listen_host, ':') ? "[%s]:%u" : "%s:%u";
    snprintf(fabric->address, sizeof fabric->address, format, fabric->listen_host, port);
    return SL_OK;
}

void sl_ucx_stop(struct sl_fabric *fabric) {
    if (fabric->listener) {
        ucp_listener_destroy(fabric->listener);
        fabric->listener = NULL;
    }
    if (fabric->worker) {
        ucp_worker_destroy(fabric->worker);
        fabric->worker = NULL;
    }
    if (fabric->context) {
        ucp_cleanup(fabric->context);
        fabric->context = NULL;
    }
}

/*
 * The transport that carries one-sided writes of an endpoint. UCX 1.13 has no query for it, but prints it: a line such
 * as "lane[1]: 0:rc_mlx5/mlx5_0:1.0 md[0] -> ... rma#0 am". tcp counts only when nothing better is there.
 */
void sl_ucx_transport(ucp_ep_h ep, char *name_out, size_t name_bytes) {
    char *text = NULL;
    size_t bytes = 0;
    snprintf(name_out, name_bytes, "unknown");
    FILE *file = open_memstream(&text, &bytes);
    if (!file) {
        return;
    }
    ucp_ep_print_info(ep, file);
    fclose(file);
    static const char *const best_first[] = {":rc_", ":dc_", ":posix/", ":self/", ":tcp/"};
    for (size_t i = 0; i < sizeof best_first / sizeof *best_first; i++) {
        const char *at = strstr(text, best_first[i]);
        if (at) {
            snprintf(name_out, name_bytes, "%.*s", (int)strcspn(at + 1, "/ \n"), at + 1);
            break;
        }
    }
    free(text);
}
