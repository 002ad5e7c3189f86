// SPDX-License-Identifier: Apache-2.0
// Purpose: the calls of libsluice that are one request and one reply.
#include "libsluice/sluice.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "libsluice/sluice_internal.h"
#include "proto/methods.h"

enum { PART_BYTES = 1 << 20 };              // of a prompt, in one message
enum { ATTEMPTS = 5, FIRST_PAUSE_MS = 50 }; // of a Submit: an answer that was lost costs no more than a second

enum sl_status sl_client_connect(const char *address, const struct sl_tls_files *tls, struct sl_client **client_out,
                                 struct sl_error *err) {
    struct sl_client *client = calloc(1, sizeof *client);
    if (!client) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "client: out of memory");
    }
    enum sl_status status = tls ? sl_rpc_credentials_create(tls, &client->credentials, err) : SL_OK;
    if (status == SL_OK) {
        status = sl_rpc_channel_create(address, client->credentials, SL_ROLE_COORDINATOR, &client->channel, err);
    }
    if (status != SL_OK) {
        sl_client_close(&client);
        return status;
    }
    *client_out = client;
    return SL_OK;
}

void sl_client_close(struct sl_client **client) {
    if (*client) {
        sl_rpc_channel_destroy(&(*client)->channel);
        sl_rpc_credentials_destroy(&(*client)->credentials);
        free(*client);
        *client = NULL;
    }
}

// A request as parts of at most PART_BYTES of its prompt.
struct cutter {
    Sluice__V1__GenerateRequest part;
    Sluice__V1__TokenIds ids; // of the part
    char text[PART_BYTES + 1];
    const Sluice__V1__GenerateRequest *whole;
    size_t at, n; // of the prompt, bytes or ids
};

static size_t prompt_bytes(const Sluice__V1__GenerateRequest *request) {
    switch (request->prompt_case) {
    case SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT:
        return strlen(request->text);
    case SLUICE__V1__GENERATE_REQUEST__PROMPT_TOKENS:
        return request->tokens->n_ids * sizeof *request->tokens->ids;
    default: // chats come whole
        return 0;
    }
}

// Not in the middle of a character: bytes 10xxxxxx go on with one.
static size_t cut_text(const char *text, size_t n) {
    size_t end = n < PART_BYTES ? n : PART_BYTES;
    while (end < n && end > PART_BYTES - 4 && (text[end] & 0xc0) == 0x80) {
        end--;
    }
    return end;
}

static const ProtobufCMessage *next_part(void *arg) {
    struct cutter *cutter = arg;
    const Sluice__V1__GenerateRequest *whole = cutter->whole;
    if (cutter->at == cutter->n) {
        return NULL;
    }
    if (cutter->at == 0) {
        cutter->part = *whole;
    } else {
        sluice__v1__generate_request__init(&cutter->part);
        cutter->part.prompt_case = whole->prompt_case;
    }
    size_t left = cutter->n - cutter->at, n;
    if (whole->prompt_case == SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT) {
        n = cut_text(whole->text + cutter->at, left);
        memcpy(cutter->text, whole->text + cutter->at, n);
        cutter->text[n] = '\0';
        cutter->part.text = cutter->text;
    } else {
        const size_t most = PART_BYTES / sizeof *whole->tokens->ids;
        n = left < most ? left : most;
        sluice__v1__token_ids__init(&cutter->ids);
        cutter->ids.ids = whole->tokens->ids + cutter->at;
        cutter->ids.n_ids = n;
        cutter->part.tokens = &cutter->ids;
    }
    cutter->at += n;
    return &cutter->part.base;
}

static enum sl_status submit_in_parts(struct sl_client *client, const Sluice__V1__GenerateRequest *request,
                                      int64_t deadline_ns, ProtobufCMessage **reply_out, struct sl_error *err) {
    struct cutter *cutter = malloc(sizeof *cutter);
    if (!cutter) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "client: out of memory");
    }
    bool is_text = request->prompt_case == SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT;
    cutter->whole = request;
    cutter->at = 0;
    cutter->n = is_text ? strlen(request->text) : request->tokens->n_ids;
    enum sl_status status = sl_rpc_upload(client->channel, &sl_method_inference_submit_in_parts, next_part, cutter,
                                          deadline_ns, reply_out, err);
    free(cutter);
    return status;
}

static enum sl_status submit_once(struct sl_client *client, const Sluice__V1__GenerateRequest *request,
                                  int64_t deadline_ns, char job_id_out[SL_JOB_ID_BYTES], struct sl_error *err) {
    ProtobufCMessage *message;
    enum sl_status status = prompt_bytes(request) > PART_BYTES
                                ? submit_in_parts(client, request, deadline_ns, &message, err)
                                : sl_rpc_unary(client->channel, &sl_method_inference_submit, &request->base,
                                               deadline_ns, NULL, &message, err);
    if (status != SL_OK) {
        return status;
    }
    Sluice__V1__SubmitReply *reply = (Sluice__V1__SubmitReply *)message;
    size_t n = strlen(reply->job_id);
    if (n == 0 || n >= SL_JOB_ID_BYTES) {
        status = sl_fail(err, SL_ERR_INTERNAL, "the coordinator answered with a job id of %zu bytes", n);
    } else {
        memcpy(job_id_out, reply->job_id, n + 1);
    }
    sluice__v1__submit_reply__free_unpacked(reply, NULL);
    return status;
}

enum sl_status sl_client_submit(struct sl_client *client, const Sluice__V1__GenerateRequest *request,
                                int64_t deadline_ns, char job_id_out[SL_JOB_ID_BYTES], struct sl_error *err) {
    Sluice__V1__GenerateRequest keyed = *request;
    uint64_t random[2];
    char key[2 * sizeof random + 1];
    if (request->idempotency_key[0] == '\0') {
        if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random) {
            return sl_fail(err, SL_ERR_IO, "no random numbers: %s", strerror(errno));
        }
        snprintf(key, sizeof key, "%016" PRIx64 "%016" PRIx64, random[0], random[1]);
        keyed.idempotency_key = key;
    }
    int64_t pause_ms = FIRST_PAUSE_MS;
    for (int attempt = 1;; attempt++) {
        enum sl_status status = submit_once(client, &keyed, deadline_ns, job_id_out, err);
        if (status != SL_ERR_PEER_LOST || attempt == ATTEMPTS || sl_deadline_left_ms(deadline_ns) <= pause_ms) {
            return status;
        }
        sl_sleep_ms(pause_ms);
        pause_ms *= 2;
    }
}

static enum sl_status job_request(struct sl_client *client, const struct sl_rpc_method *method, const char *job_id,
                                  int64_t deadline_ns, Sluice__V1__Job **job_out, struct sl_error *err) {
    Sluice__V1__JobRequest request = SLUICE__V1__JOB_REQUEST__INIT;
    request.job_id = (char *)job_id;
    return sl_rpc_unary(client->channel, method, &request.base, deadline_ns, NULL, (ProtobufCMessage **)job_out, err);
}

enum sl_status sl_client_cancel(struct sl_client *client, const char *job_id, int64_t deadline_ns,
                                Sluice__V1__Job **job_out, struct sl_error *err) {
    return job_request(client, &sl_method_inference_cancel, job_id, deadline_ns, job_out, err);
}

enum sl_status sl_client_get(struct sl_client *client, const char *job_id, int64_t deadline_ns,
                             Sluice__V1__Job **job_out, struct sl_error *err) {
    return job_request(client, &sl_method_inference_get, job_id, deadline_ns, job_out, err);
}

enum sl_status sl_client_list(struct sl_client *client, int32_t limit, int64_t deadline_ns,
                              Sluice__V1__ListReply **reply_out, struct sl_error *err) {
    Sluice__V1__ListRequest request = SLUICE__V1__LIST_REQUEST__INIT;
    request.limit = limit;
    return sl_rpc_unary(client->channel, &sl_method_inference_list, &request.base, deadline_ns, NULL,
                        (ProtobufCMessage **)reply_out, err);
}

enum sl_status sl_client_model(struct sl_client *client, int64_t deadline_ns, Sluice__V1__ModelReply **reply_out,
                               struct sl_error *err) {
    Sluice__V1__ModelRequest request = SLUICE__V1__MODEL_REQUEST__INIT;
    return sl_rpc_unary(client->channel, &sl_method_inference_model, &request.base, deadline_ns, NULL,
                        (ProtobufCMessage **)reply_out, err);
}

enum sl_status sl_client_workers(struct sl_client *client, int64_t deadline_ns, Sluice__V1__WorkersReply **reply_out,
                                 struct sl_error *err) {
    Sluice__V1__WorkersRequest request = SLUICE__V1__WORKERS_REQUEST__INIT;
    return sl_rpc_unary(client->channel, &sl_method_cluster_workers, &request.base, deadline_ns, NULL,
                        (ProtobufCMessage **)reply_out, err);
}

enum sl_status sl_client_drain(struct sl_client *client, const char *worker, bool undo, int64_t deadline_ns,
                               int32_t *jobs_running_out, struct sl_error *err) {
    Sluice__V1__DrainRequest request = SLUICE__V1__DRAIN_REQUEST__INIT;
    request.name = (char *)worker;
    request.undo = undo;
    ProtobufCMessage *message;
    enum sl_status status =
        sl_rpc_unary(client->channel, &sl_method_cluster_drain, &request.base, deadline_ns, NULL, &message, err);
    if (status == SL_OK) {
        *jobs_running_out = ((Sluice__V1__DrainReply *)message)->jobs_running;
        protobuf_c_message_free_unpacked(message, NULL);
    }
    return status;
}
