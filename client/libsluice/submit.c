// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: submits a request, in parts if it is long, and repeats this until it succeeds: with its key it is one job.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "client/libsluice/sluice_internal.h"
#include "proto/methods.h"

enum { PART_BYTES = 1 << 20, MESSAGE_BYTES = 4 << 20 }; // of a part of a prompt; limit of one message
// For one coordinator: a lost reply costs at most a second. For several: retry until another one leads.
enum { ATTEMPTS = 5, FIRST_PAUSE_MS = 50, LONGEST_PAUSE_MS = 200, ELECTION_MS = 15000 };

// Cuts a request into parts of at most PART_BYTES of its prompt.
struct cutter {
    Sluice__V1__GenerateRequest part;
    Sluice__V1__TokenIds ids; // ids of the current part
    char text[PART_BYTES + 1];
    const Sluice__V1__GenerateRequest *whole;
    size_t at, n; // position in the prompt and its size, in bytes or ids
};

static size_t prompt_bytes(const Sluice__V1__GenerateRequest *request) {
    switch (request->prompt_case) {
    case SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT:
        return strlen(request->text);
    case SLUICE__V1__GENERATE_REQUEST__PROMPT_TOKENS:
        return request->tokens->n_ids * sizeof *request->tokens->ids;
    default: // chats are sent in one part
        return 0;
    }
}

// Returns the length of a part that does not end in the middle of a character: bytes 10xxxxxx continue one.
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

static enum sl_status submit_in_parts(struct sl_rpc_channel *channel, const Sluice__V1__GenerateRequest *request,
                                      int64_t deadline_ns, ProtobufCMessage **reply_out, struct sl_error *err) {
    struct cutter *cutter = malloc(sizeof *cutter);
    SL_FAIL_IF(!cutter, err, SL_ERR_EXHAUSTED, "client: out of memory");
    bool is_text = request->prompt_case == SLUICE__V1__GENERATE_REQUEST__PROMPT_TEXT;
    cutter->whole = request;
    cutter->at = 0;
    cutter->n = is_text ? strlen(request->text) : request->tokens->n_ids;
    enum sl_status status =
        sl_rpc_upload(channel, &sl_method_inference_submit_in_parts, next_part, cutter, deadline_ns, reply_out, err);
    free(cutter);
    return status;
}

// Rejects a chat that does not fit one message: the connection's own refusal looks like a server without room.
static enum sl_status check_chat(const Sluice__V1__GenerateRequest *request, struct sl_error *err) {
    const size_t n = request->prompt_case == SLUICE__V1__GENERATE_REQUEST__PROMPT_CHAT
                         ? protobuf_c_message_get_packed_size(&request->base)
                         : 0;
    if (n <= MESSAGE_BYTES) {
        return SL_OK;
    }
    sl_fail(err, SL_ERR_INVALID, "chat: the messages have %zu bytes, at most %d", n, MESSAGE_BYTES);
    sl_error_blame(err, SL_REASON_PROMPT_TOO_LONG, "");
    return SL_ERR_INVALID;
}

static enum sl_status submit_once(struct sl_client *client, const Sluice__V1__GenerateRequest *request,
                                  int64_t deadline_ns, struct sl_submitted *submitted_out, struct sl_error *err) {
    ProtobufCMessage *message;
    struct sl_submitted submitted = {0};
    SL_TRY(check_chat(request, err));
    SL_TRY(sl_client_find_leader(client, deadline_ns, &submitted.coordinator, err));
    struct sl_rpc_channel *channel = client->channels[submitted.coordinator];
    SL_TRY(prompt_bytes(request) > PART_BYTES
               ? submit_in_parts(channel, request, deadline_ns, &message, err)
               : sl_rpc_unary(channel, &sl_method_inference_submit, &request->base, deadline_ns, NULL, &message, err));
    Sluice__V1__SubmitReply *reply = (Sluice__V1__SubmitReply *)message;
    enum sl_status status = SL_OK;
    size_t n = strlen(reply->job_id);
    if (n == 0 || n >= SL_JOB_ID_BYTES) {
        status = sl_fail(err, SL_ERR_INTERNAL, "the coordinator answered with a job id of %zu bytes", n);
    } else {
        memcpy(submitted.job_id, reply->job_id, n + 1);
        submitted.recipe = strdup(reply->recipe);
        const Sluice__V1__Accepted *accepted = reply->accepted;
        if (accepted) { // an older coordinator does not report it
            submitted.has_seed =
                accepted->sampling && accepted->sampling->seed_present_case == SLUICE__V1__SAMPLING__SEED_PRESENT_SEED;
            submitted.seed = submitted.has_seed ? accepted->sampling->seed : 0;
            submitted.max_new_tokens = accepted->max_new_tokens;
        }
        *submitted_out = submitted;
    }
    sluice__v1__submit_reply__free_unpacked(reply, NULL);
    return status;
}

enum sl_status sl_give_key(Sluice__V1__GenerateRequest *request, char key[SL_KEY_BYTES], struct sl_error *err) {
    uint64_t random[2];
    if (request->idempotency_key[0] != '\0') {
        return SL_OK;
    }
    SL_FAIL_IF(getrandom(random, sizeof random, 0) != (ssize_t)sizeof random, err, SL_ERR_IO, "no random numbers: %s",
               strerror(errno));
    snprintf(key, SL_KEY_BYTES, "%016" PRIx64 "%016" PRIx64, random[0], random[1]);
    request->idempotency_key = key;
    return SL_OK;
}

enum sl_status sl_submit(struct sl_client *client, const Sluice__V1__GenerateRequest *request, int64_t deadline_ns,
                         struct sl_submitted *submitted_out, struct sl_error *err) {
    bool several = client->coordinators.n > 1;
    int64_t pause_ms = FIRST_PAUSE_MS, give_up_ns = sl_deadline_in_ms(ELECTION_MS);
    for (int attempt = 1;; attempt++) {
        enum sl_status status = submit_once(client, request, deadline_ns, submitted_out, err);
        if (status != SL_ERR_PEER_LOST || sl_deadline_left_ms(deadline_ns) <= pause_ms ||
            (several ? sl_deadline_left_ms(give_up_ns) == 0 : attempt == ATTEMPTS)) {
            return status;
        }
        sl_sleep_ms(pause_ms);
        pause_ms = several && pause_ms * 2 > LONGEST_PAUSE_MS ? LONGEST_PAUSE_MS : pause_ms * 2;
    }
}

enum sl_status sl_client_submit(struct sl_client *client, const Sluice__V1__GenerateRequest *request,
                                int64_t deadline_ns, char job_id_out[SL_JOB_ID_BYTES], struct sl_error *err) {
    Sluice__V1__GenerateRequest keyed = *request;
    char key[SL_KEY_BYTES];
    struct sl_submitted submitted;
    SL_TRY(sl_give_key(&keyed, key, err));
    SL_TRY(sl_submit(client, &keyed, deadline_ns, &submitted, err));
    strcpy(job_id_out, submitted.job_id);
    free(submitted.recipe);
    return SL_OK;
}
