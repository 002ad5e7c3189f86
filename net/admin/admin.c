// SPDX-License-Identifier: Apache-2.0
#include "net/admin/admin.h"

#include <assert.h>
#include <microhttpd.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "net/admin/form.h"
#include "net/admin/listen.h"
#include "net/admin/process.h"
#include "base/clock.h"
#include "base/locked.h"
#include "base/log.h"
#include "base/metrics.h"

enum {
    MAX_ADDED = 8,
    MAX_CONNECTIONS = 64,
    CROWDED = 48,         // above it, a new connection ends the one that has waited longest
    MAX_OF_ONE_HOST = 16, // so that no host keeps the others out
    IDLE_S = 20,          // longer than most scrapers wait between two scrapes
    HEAD_BYTES = 8 << 10,
    BODY_BYTES = 64 << 10, // a longer request body ends the connection
};

struct source {
    void (*write_fn)(void *arg, FILE *page);
    void *arg;
};

struct request {
    int fd;
    int64_t since_ns; // the connection waits since then
    bool is_used, is_shut, has_head;
    size_t n_body; // bytes of the body so far
    struct sl_http_line line;
};

struct sl_admin {
    char address[128];
    struct request requests[MAX_CONNECTIONS]; // the daemon's thread alone uses them
    int n_requests;
    const char *version;
    struct MHD_Daemon *daemon;
    pthread_mutex_t mutex; // guards what follows
    bool started;
    int n_checks, n_sources;
    struct sl_admin_check checks[MAX_ADDED];
    struct source sources[MAX_ADDED];
};

// ---- the answer -----------------------------------------------------------------------------------------------------

static void write_line(FILE *body, bool verbose, const char *name, const char *words) {
    if (verbose) {
        fprintf(body, "%s: ", name);
    }
    for (; *words; words++) { // a reason may quote text from a peer
        fputc((unsigned char)*words < 0x20 ? ' ' : *words, body);
    }
    fputc('\n', body);
}

// Writes the first failing reason, or with `verbose` every check.
static bool write_probe(struct sl_admin *admin, enum sl_probe probe, bool verbose, FILE *body) {
    bool well = true;
    if (probe == SL_PROBE_READY && !admin->started) {
        write_line(body, verbose, "started", "starting");
        return false;
    }
    for (int i = 0; i < admin->n_checks; i++) {
        const struct sl_admin_check *check = &admin->checks[i];
        bool is_notice = check->probe == SL_PROBE_NOTICE && probe == SL_PROBE_LIVE;
        if ((check->probe != probe && !is_notice) || (!well && !verbose)) {
            continue;
        }
        char why[SL_WHY_BYTES] = "not well";
        bool is_well = check->well_fn(check->arg, why);
        if (verbose || !is_well) {
            write_line(body, verbose, check->name, is_well ? "ok" : why);
        }
        well = well && (is_well || is_notice);
    }
    if (well && !verbose) {
        fputs("ok\n", body);
    }
    return well;
}

static void write_metrics(struct sl_admin *admin, FILE *body) {
    sl_metrics_declare(body, SL_GAUGE, "sluice_build_info", "1, and what is running.");
    sl_metrics_sample(body, "sluice_build_info", 1, "version", admin->version, NULL);
    sl_process_write_metrics(body);
    for (int i = 0; i < admin->n_sources; i++) {
        admin->sources[i].write_fn(admin->sources[i].arg, body);
    }
}

// Writes the answer to `path`. Returns the HTTP status: 404 for an unknown path.
static unsigned write_answer(struct sl_admin *admin, const char *path, bool verbose, FILE *body) {
    bool well = true;
    pthread_mutex_lock(&admin->mutex);
    if (strcmp(path, "/livez") == 0) {
        well = write_probe(admin, SL_PROBE_LIVE, verbose, body);
    } else if (strcmp(path, "/readyz") == 0) {
        well = write_probe(admin, SL_PROBE_READY, verbose, body);
    } else if (strcmp(path, "/startupz") == 0) {
        well = admin->started;
        write_line(body, verbose, "started", well ? "ok" : "starting");
    } else if (strcmp(path, "/metrics") == 0) {
        write_metrics(admin, body);
    } else {
        pthread_mutex_unlock(&admin->mutex);
        fputs("there are /livez, /readyz, /startupz and /metrics\n", body);
        return MHD_HTTP_NOT_FOUND;
    }
    pthread_mutex_unlock(&admin->mutex);
    return well ? MHD_HTTP_OK : MHD_HTTP_SERVICE_UNAVAILABLE;
}

static enum MHD_Result send_text(struct MHD_Connection *connection, unsigned status, char *text, size_t n,
                                 const char *type) {
    struct MHD_Response *response = MHD_create_response_from_buffer(n, text, MHD_RESPMEM_MUST_FREE);
    if (!response) {
        free(text);
        return MHD_NO; // no memory: the connection is closed
    }
    MHD_add_response_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    MHD_add_response_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
    if (status == MHD_HTTP_BAD_REQUEST) { // a proxy may disagree with us on where it ends
        MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
    }
    if (status == MHD_HTTP_METHOD_NOT_ALLOWED) {
        MHD_add_response_header(response, MHD_HTTP_HEADER_ALLOW, "GET, HEAD");
    }
    enum MHD_Result result = MHD_queue_response(connection, status, response);
    MHD_destroy_response(response);
    return result;
}

static void *begin(void *cls, const char *path, struct MHD_Connection *connection) {
    (void)cls;
    struct request *request = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT)->socket_context;
    if (request) {
        request->line = sl_http_line_read(path);
        request->n_body = 0;
        request->has_head = false;
    }
    return request;
}

static void end(void *cls, struct MHD_Connection *connection, void **seen, enum MHD_RequestTerminationCode how) {
    (void)cls, (void)connection, (void)how;
    struct request *request = *seen;
    if (request) {
        request->since_ns = sl_now_ns();
    }
    *seen = NULL;
}

// Takes a place for a connection, or gives it back. A new connection may end one that has waited long, so that idle ones do
// not keep others out.
static void see(void *cls, struct MHD_Connection *connection, void **place, enum MHD_ConnectionNotificationCode code) {
    struct sl_admin *admin = cls;
    if (code == MHD_CONNECTION_NOTIFY_CLOSED) {
        if (*place) {
            ((struct request *)*place)->is_used = false;
            admin->n_requests--;
        }
        return;
    }
    struct request *oldest = NULL, *free_place = NULL;
    for (int i = 0; i < MAX_CONNECTIONS; i++) {
        struct request *other = &admin->requests[i];
        if (!other->is_used) {
            free_place = other;
        } else if (!other->is_shut && (!oldest || other->since_ns < oldest->since_ns)) {
            oldest = other;
        }
    }
    if (free_place) {
        *free_place =
            (struct request){.fd = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd,
                             .since_ns = sl_now_ns(),
                             .is_used = true};
        *place = free_place;
        if (++admin->n_requests > CROWDED && oldest) {
            oldest->is_shut = true;
            shutdown(oldest->fd, SHUT_RDWR); // the daemon handles this like any other end of a connection
        }
    }
}

// Refuses a head that is malformed, or announces chunks: no request to this port needs a body.
static enum MHD_Result judge_head(struct MHD_Connection *connection, const struct request *request,
                                  const char *version) {
    const char *why = sl_http_form_check(connection, &request->line, version);
    if (!why && MHD_lookup_connection_value(connection, MHD_HEADER_KIND, MHD_HTTP_HEADER_TRANSFER_ENCODING)) {
        why = "Transfer-Encoding is not supported";
    }
    if (!why) {
        return MHD_YES;
    }
    char *text = NULL;
    const int n = asprintf(&text, "%s\n", why);
    return n < 0 ? MHD_NO : send_text(connection, MHD_HTTP_BAD_REQUEST, text, (size_t)n, "text/plain; charset=utf-8");
}

static enum MHD_Result handle(void *cls, struct MHD_Connection *connection, const char *url, const char *method,
                              const char *version, const char *body, size_t *body_bytes, void **seen) {
    (void)body;
    struct sl_admin *admin = cls;
    struct request *request = *seen;
    url = sl_http_path(url);
    bool is_get = strcmp(method, MHD_HTTP_METHOD_GET) == 0 || strcmp(method, MHD_HTTP_METHOD_HEAD) == 0;
    if (!request) {
        return MHD_NO;
    }
    if (!request->has_head) {
        request->has_head = true;
        return judge_head(connection, request, version);
    }
    // We ignore a body, but read it: a client that is cut off while it sends one never sees the answer.
    if (*body_bytes > 0) {
        request->n_body += *body_bytes;
        *body_bytes = 0;
        return request->n_body < BODY_BYTES ? MHD_YES : MHD_NO;
    }
    char *text = NULL;
    size_t n = 0;
    FILE *file = open_memstream(&text, &n);
    if (!file) {
        return MHD_NO;
    }
    unsigned status = MHD_HTTP_METHOD_NOT_ALLOWED;
    if (is_get) {
        bool verbose = MHD_get_connection_values(connection, MHD_GET_ARGUMENT_KIND, NULL, NULL) > 0 &&
                       MHD_lookup_connection_value_n(connection, MHD_GET_ARGUMENT_KIND, "verbose", strlen("verbose"),
                                                     NULL, NULL) == MHD_YES;
        status = write_answer(admin, url, verbose, file);
    } else {
        fputs("GET and HEAD alone\n", file);
    }
    if (fclose(file) != 0) {
        free(text);
        return MHD_NO;
    }
    bool is_metrics = status == MHD_HTTP_OK && strcmp(url, "/metrics") == 0;
    return send_text(connection, status, text, n,
                     is_metrics ? "text/plain; version=0.0.4; charset=utf-8" : "text/plain; charset=utf-8");
}

// ---- life -------------------------------------------------------------------------------------------------------------

static void log_line(void *cls, const char *format, va_list args) {
    (void)cls;
    char line[256];
    vsnprintf(line, sizeof line, format, args);
    line[strcspn(line, "\n")] = '\0';
    sl_log_debug("admin", "%s", line);
}

enum sl_status sl_admin_open(const char *listen, const char *version, struct sl_admin **admin_out,
                             struct sl_error *err) {
    *admin_out = NULL;
    if (strcmp(listen, "none") == 0) {
        return SL_OK;
    }
    SL_NEW_OR_FAIL(struct sl_admin, admin, err, "no memory for the admin port");
    admin->version = version;
    pthread_mutex_init(&admin->mutex, NULL);
    int fd = -1;
    const struct sl_http_place place = {.option = "--admin-listen", .text = listen, .for_anybody = true};
    enum sl_status status = sl_http_listen(&place, &fd, admin->address, sizeof admin->address, err);
    if (status == SL_OK) {
        admin->daemon = MHD_start_daemon(
            MHD_USE_EPOLL_INTERNAL_THREAD | MHD_USE_ERROR_LOG, 0, NULL, NULL, handle, admin, MHD_OPTION_EXTERNAL_LOGGER,
            log_line, NULL, MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_URI_LOG_CALLBACK, begin, admin,
            MHD_OPTION_NOTIFY_COMPLETED, end, NULL, MHD_OPTION_NOTIFY_CONNECTION, see, admin,
            MHD_OPTION_CONNECTION_LIMIT, (unsigned)MAX_CONNECTIONS, MHD_OPTION_PER_IP_CONNECTION_LIMIT,
            (unsigned)MAX_OF_ONE_HOST, MHD_OPTION_CONNECTION_TIMEOUT, (unsigned)IDLE_S,
            MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)HEAD_BYTES, MHD_OPTION_END);
        if (!admin->daemon) {
            close(fd);
            status = sl_fail(err, SL_ERR_IO, "--admin-listen %.200s: the HTTP server does not start", listen);
        }
    }
    SL_TRY_OR(status, sl_admin_close(&admin));
    *admin_out = admin;
    return SL_OK;
}

const char *sl_admin_address(const struct sl_admin *admin) {
    return admin ? admin->address : "";
}

void sl_admin_add_check(struct sl_admin *admin, const struct sl_admin_check *check) {
    if (!admin) {
        return;
    }
    SL_LOCKED(&admin->mutex);
    assert(admin->n_checks < MAX_ADDED);
    admin->checks[admin->n_checks++] = *check;
}

void sl_admin_add_metrics(struct sl_admin *admin, void (*write_fn)(void *arg, FILE *page), void *arg) {
    if (!admin) {
        return;
    }
    SL_LOCKED(&admin->mutex);
    assert(admin->n_sources < MAX_ADDED);
    admin->sources[admin->n_sources++] = (struct source){write_fn, arg};
}

void sl_admin_started(struct sl_admin *admin) {
    if (admin) {
        SL_LOCKED(&admin->mutex);
        admin->started = true;
    }
}

void sl_admin_close(struct sl_admin **admin_inout) {
    SL_TAKE_OR_RETURN(admin, admin_inout);
    if (admin->daemon) {
        MHD_stop_daemon(admin->daemon);
    }
    pthread_mutex_destroy(&admin->mutex);
    free(admin);
}
