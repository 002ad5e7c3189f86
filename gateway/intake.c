// SPDX-License-Identifier: Apache-2.0
#include "gateway/intake.h"

#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/locked.h"
#include "base/thread.h"

enum {
    LONG_BODY_BYTES = 1 << 20, // parsed in less than a tenth of a second
    PRIORITY = 10,             // nice value of the thread of a long body: short requests do not wait for it
    TURN_MS = 60000,           // longest wait for all bodies before this one
    POLL_MS = 100,
    BYTES_A_TOKEN = 4,
};

// ---- turns ----------------------------------------------------------------------------------------------------------

void sl_intake_turn_init(struct sl_intake_turn *turn) {
    pthread_mutex_init(&turn->mutex, NULL);
    sl_cond_init(&turn->over);
    turn->taken = false;
}

void sl_intake_turn_cleanup(struct sl_intake_turn *turn) {
    pthread_cond_destroy(&turn->over);
    pthread_mutex_destroy(&turn->mutex);
}

static enum sl_status wait_for_turn(struct sl_intake_turn *turn, bool (*stopped)(void *arg), void *arg,
                                    struct sl_refusal *refusal) {
    int64_t deadline_ns = sl_deadline_in_ms(TURN_MS);
    enum sl_status status = SL_OK;
    SL_LOCKED(&turn->mutex);
    while (turn->taken && status == SL_OK) {
        sl_cond_wait_until(&turn->over, &turn->mutex, sl_deadline_in_ms(POLL_MS));
        if (stopped(arg)) {
            sl_refuse(refusal, 503, "the gateway stops, or the client has disconnected");
            status = SL_ERR_CANCELLED;
        } else if (sl_deadline_left_ms(deadline_ns) == 0) {
            sl_refuse(refusal, 429, "too many long requests are being read");
            status = SL_ERR_EXHAUSTED;
        }
    }
    turn->taken |= status == SL_OK;
    return status;
}

static void end_turn(struct sl_intake_turn *turn) {
    SL_LOCKED(&turn->mutex);
    turn->taken = false;
    pthread_cond_signal(&turn->over);
}

enum sl_status sl_intake_begin(struct sl_intake *intake, bool (*stopped)(void *arg), void *arg,
                               struct sl_refusal *refusal) {
    if (intake->n_body <= LONG_BODY_BYTES) {
        return SL_OK;
    }
    (void)setpriority(PRIO_PROCESS, 0, PRIORITY); // of this thread, which serves no other request
    SL_TRY_OR(wait_for_turn(intake->turn, stopped, arg, refusal), sl_intake_drop(intake));
    return SL_OK;
}

void sl_intake_end(struct sl_intake *intake) {
    if (intake->n_body > LONG_BODY_BYTES) {
        end_turn(intake->turn);
    }
    sl_intake_drop(intake);
}

// ---- parsing --------------------------------------------------------------------------------------------------------

static enum sl_status check_model(const struct sl_served_model *model, const struct sl_openai_request *request,
                                  struct sl_refusal *refusal) {
    if (!model->known) {
        sl_refuse(refusal, 503, "no coordinator has answered yet: %s", model->why);
        return SL_ERR_PEER_LOST;
    }
    if (request->model && strcmp(request->model, model->name) != 0) {
        sl_refuse_unknown(refusal, "model", "there is no model \"%.100s\"; this is \"%.100s\"", request->model,
                          model->name);
        return SL_ERR_NOT_FOUND;
    }
    return SL_OK;
}

// ---- rate limits ----------------------------------------------------------------------------------------------------

static int64_t guess_tokens(const struct sl_openai_request *request) {
    size_t n_bytes = 0, n_tokens = 0;
    for (size_t i = 0; i < request->chat.n_messages; i++) {
        n_bytes += strlen(request->chat.messages[i]->content);
    }
    for (size_t i = 0; i < request->n_prompts; i++) {
        n_bytes += request->prompts[i].text ? strlen(request->prompts[i].text) : 0;
        n_tokens += request->prompts[i].tokens.n_ids;
    }
    return (int64_t)(n_tokens + (n_bytes + BYTES_A_TOKEN - 1) / BYTES_A_TOKEN);
}

enum sl_status sl_intake_charge(struct sl_intake *intake, int64_t n_tokens, struct sl_refusal *refusal) {
    int64_t now_ns = sl_now_ns(), retry_ms = 0;
    enum sl_status status = sl_limits_take(intake->limits, &intake->who, SL_LIMIT_TOKENS, n_tokens, now_ns,
                                           &intake->rate_limits, &retry_ms);
    if (status == SL_OK) {
        intake->n_charged_tokens = n_tokens;
        return SL_OK;
    }
    sl_limits_give_back(intake->limits, &intake->who, SL_LIMIT_REQUESTS, 1, now_ns);
    sl_refuse_for(refusal, retry_ms, "tokens of prompts", intake->who.tokens_per_minute);
    return status;
}

void sl_intake_reconcile(struct sl_intake *intake, int64_t n_tokens) {
    sl_limits_give_back(intake->limits, &intake->who, SL_LIMIT_TOKENS, intake->n_charged_tokens - n_tokens,
                        sl_now_ns());
    intake->n_charged_tokens = n_tokens;
}

// ---- both -----------------------------------------------------------------------------------------------------------

enum sl_status sl_intake_read(struct sl_intake *intake, bool (*stopped)(void *arg), void *arg,
                              struct sl_openai_request **request_out, struct sl_refusal *refusal) {
    struct sl_openai_request *request = NULL;
    enum sl_status status = sl_intake_begin(intake, stopped, arg, refusal);
    if (status == SL_OK) {
        status = sl_openai_request_parse(intake->is_chat, intake->body ? intake->body : "", intake->n_body,
                                         &intake->json, &request, refusal);
        sl_intake_end(intake);
    }
    SL_THEN(status, check_model(&intake->model, request, refusal));
    SL_THEN(status, sl_intake_charge(intake, guess_tokens(request), refusal));
    SL_TRY_OR(status, sl_openai_request_destroy(&request));
    *request_out = request;
    return SL_OK;
}

void sl_intake_cleanup(struct sl_intake *intake) {
    sl_intake_drop(intake);
    sl_json_memory_give_back(&intake->json);
}

void sl_intake_drop(struct sl_intake *intake) {
    if (intake->body_bytes > 0) {
        atomic_fetch_sub(intake->held_bytes, (long long)intake->body_bytes);
    }
    free(intake->body);
    intake->body = NULL;
    intake->n_body = intake->body_bytes = 0;
}
