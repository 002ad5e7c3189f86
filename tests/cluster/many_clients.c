// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: clients that ask one after the other, each on a thread of its own, for capacity.py.
 *
 *     many_clients grpc|http HOST:PORT N SECONDS TOKENS
 *
 * Prints {"answers", "failures", "seconds", "p50_ms", "p99_ms"}, of answers from the request to the last byte. Over gRPC by Generate, a
 * channel for 32 clients; over HTTP by whole completions, a connection each, kept.
 */
#include <netdb.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "proto/methods.h"
#include "proto/sluice/v1/inference.pb-c.h"
#include "net/rpc/rpc.h"

#define MAX_CLIENTS 4096
#define PER_CHANNEL 32
#define MAX_ANSWERS 100000 // of a client
#define PROMPT      "The licences for most software are designed to take away your freedom to share and change it."

static char host[256], port[16];
static int n_tokens;
static int64_t end_ns;
static atomic_long n_failures;

struct client {
    struct sl_rpc_channel *channel;
    int fd;
    float *ms; // of its answers
    int n;
};

static bool ask_grpc(struct client *client) {
    Sluice__V1__GenerateRequest request = SLUICE__V1__GENERATE_REQUEST__INIT;
    request.prompt_case = SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT;
    request.text = (char *)PROMPT;
    request.max_new_tokens_present_case = SLUICE__V1__GENERATE_REQUEST__MAX_NEW_TOKENS_PRESENT_MAX_NEW_TOKENS;
    request.max_new_tokens = n_tokens;
    request.ignore_eos = true;
    struct sl_error err = {0};
    struct sl_rpc_stream *stream = NULL;
    if (sl_rpc_stream_open(client->channel, &sl_method_inference_generate, &request.base, sl_deadline_in_ms(60000),
                           NULL, &stream, &err) != SL_OK) {
        return false;
    }
    bool finished = false;
    while (!finished) {
        ProtobufCMessage *message;
        enum sl_status status = sl_rpc_stream_next(stream, 1000, &message, &err);
        if (status == SL_AGAIN) {
            continue;
        }
        if (status != SL_OK) {
            break;
        }
        const Sluice__V1__Event *event = (const Sluice__V1__Event *)message;
        finished = event->what_case == SLUICE__V1__EVENT__WHAT_FINISHED && event->finished->status_code == 0;
        protobuf_c_message_free_unpacked(message, NULL);
    }
    sl_rpc_stream_close(&stream);
    return finished;
}

static int connect_to(void) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found = NULL;
    int fd = -1;
    if (getaddrinfo(host, port, &hints, &found) == 0) {
        fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen) != 0) {
            close(fd);
            fd = -1;
        }
        freeaddrinfo(found);
    }
    return fd;
}

// Until a whole reply with a Content-Length is there.
static bool read_reply(int fd) {
    char reply[65536];
    size_t n = 0, whole = sizeof reply;
    while (n < whole) {
        ssize_t got = recv(fd, reply + n, sizeof reply - 1 - n, 0);
        if (got <= 0) {
            return false;
        }
        n += (size_t)got;
        reply[n] = '\0';
        const char *body = strstr(reply, "\r\n\r\n"), *length = strcasestr(reply, "\r\nContent-Length: ");
        if (body && length) {
            whole = (size_t)(body + 4 - reply) + strtoul(length + 18, NULL, 10);
        }
    }
    return strncmp(reply, "HTTP/1.1 200", 12) == 0;
}

static bool ask_http(struct client *client) {
    char body[512], head[256];
    int n_body = snprintf(body, sizeof body,
                          "{\"prompt\": \"" PROMPT "\", \"max_tokens\": %d, \"ignore_eos\": true, \"temperature\": 0}",
                          n_tokens);
    int n_head = snprintf(
        head, sizeof head,
        "POST /v1/completions HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n",
        host, n_body);
    client->fd = client->fd >= 0 ? client->fd : connect_to();
    bool answered = client->fd >= 0 && send(client->fd, head, (size_t)n_head, MSG_NOSIGNAL | MSG_MORE) == n_head &&
                    send(client->fd, body, (size_t)n_body, MSG_NOSIGNAL) == n_body && read_reply(client->fd);
    if (!answered && client->fd >= 0) {
        close(client->fd);
        client->fd = -1;
    }
    return answered;
}

static void *ask_on(void *arg) {
    struct client *client = arg;
    while (client->n < MAX_ANSWERS) {
        int64_t begin_ns = sl_now_ns();
        if (begin_ns >= end_ns) {
            break;
        }
        bool answered = client->channel ? ask_grpc(client) : ask_http(client);
        if (answered) {
            client->ms[client->n++] = (float)(sl_now_ns() - begin_ns) / SL_NS_PER_MS;
        } else {
            atomic_fetch_add(&n_failures, 1);
            sl_sleep_ms(10);
        }
    }
    return NULL;
}

static int compare(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return x < y ? -1 : x > y;
}

static void tell(struct client *clients, int n, double seconds) {
    size_t n_all = 0, at = 0;
    for (int i = 0; i < n; i++) {
        n_all += (size_t)clients[i].n;
    }
    float *all = calloc(n_all + 1, sizeof *all);
    for (int i = 0; i < n; i++) {
        memcpy(all + at, clients[i].ms, (size_t)clients[i].n * sizeof *all);
        at += (size_t)clients[i].n;
    }
    qsort(all, n_all, sizeof *all, compare);
    printf("{\"answers\": %zu, \"failures\": %ld, \"seconds\": %.2f, \"p50_ms\": %.1f, \"p99_ms\": %.1f}\n", n_all,
           atomic_load(&n_failures), seconds, n_all > 0 ? all[n_all / 2] : 0,
           n_all > 0 ? all[(n_all - 1) * 99 / 100] : 0);
    free(all);
}

int main(int argc, char **argv) {
    int n = argc == 6 ? atoi(argv[3]) : 0;
    const char *colon = argc == 6 ? strrchr(argv[2], ':') : NULL;
    if (n < 1 || n > MAX_CLIENTS || !colon || (size_t)(colon - argv[2]) >= sizeof host || strlen(colon) > sizeof port) {
        fprintf(stderr, "usage: %s grpc|http HOST:PORT N SECONDS TOKENS\n", argv[0]);
        return 2;
    }
    snprintf(host, sizeof host, "%.*s", (int)(colon - argv[2]), argv[2]);
    snprintf(port, sizeof port, "%s", colon + 1);
    n_tokens = atoi(argv[5]);
    (void)sl_log_configure("warn", NULL);
    sl_rpc_init();
    static struct client clients[MAX_CLIENTS];
    static pthread_t threads[MAX_CLIENTS];
    static struct sl_rpc_channel *channels[MAX_CLIENTS / PER_CHANNEL + 1];
    int64_t begin_ns = sl_now_ns();
    end_ns = begin_ns + (int64_t)(atof(argv[4]) * (double)SL_NS_PER_S);
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 1 << 20);
    for (int i = 0; i < n; i++) {
        clients[i].fd = -1;
        clients[i].ms = calloc(MAX_ANSWERS, sizeof(float));
        if (strcmp(argv[1], "grpc") == 0) {
            if (i % PER_CHANNEL == 0 &&
                sl_rpc_channel_create(argv[2], NULL, SL_ROLE_ANY, &channels[i / PER_CHANNEL], NULL) != SL_OK) {
                return 1;
            }
            clients[i].channel = channels[i / PER_CHANNEL];
        }
        if (!clients[i].ms || pthread_create(&threads[i], &small, ask_on, &clients[i]) != 0) {
            return 1;
        }
    }
    for (int i = 0; i < n; i++) {
        pthread_join(threads[i], NULL);
    }
    tell(clients, n, (double)(sl_now_ns() - begin_ns) / SL_NS_PER_S);
    for (int i = 0; i < n; i++) {
        free(clients[i].ms);
        if (clients[i].fd >= 0) {
            close(clients[i].fd);
        }
    }
    for (size_t i = 0; i < sizeof channels / sizeof *channels; i++) {
        sl_rpc_channel_destroy(&channels[i]);
    }
    sl_rpc_shutdown();
    return 0;
}
