// SPDX-License-Identifier: Apache-2.0
#include "gateway/served.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/locked.h"
#include "base/log.h"
#include "base/thread.h"

enum { ASK_MS = 1000, ASK_AGAIN_MS = 100, CALL_MS = 2000 }; // ASK_AGAIN_MS: while no model is ready

struct sl_served {
    struct sl_client *client;
    pthread_t thread;
    pthread_mutex_t mutex; // guards the fields below
    pthread_cond_t changed;
    bool stopping, is_logged; // is_logged: the log has an entry about it
    struct sl_served_model model;
};

static void ask(struct sl_served *served) {
    Sluice__V1__ModelReply *reply = NULL;
    struct sl_error err = {0};
    enum sl_status status = sl_client_model(served->client, sl_deadline_in_ms(CALL_MS), &reply, &err);
    SL_LOCKED(&served->mutex);
    struct sl_served_model *model = &served->model;
    bool was_ready = model->ready, ready = status == SL_OK && reply->ready;
    if (status == SL_OK) {
        snprintf(model->name, sizeof model->name, "%s", reply->name);
        snprintf(model->default_recipe, sizeof model->default_recipe, "%s", reply->default_recipe);
        model->takes_chats = reply->takes_chats;
        model->max_positions = reply->max_positions;
        model->fingerprint = reply->fingerprint;
        sluice__v1__model_reply__free_unpacked(reply, NULL);
    }
    snprintf(model->why, sizeof model->why, "%s", status != SL_OK ? err.text : ready ? "" : "no workers are ready");
    if (was_ready != ready || !served->is_logged) {
        served->is_logged = true;
        sl_log_info("gateway", "model=%s ready=%d %s", model->name, ready, model->why);
    }
    model->known |= status == SL_OK;
    model->answers = status == SL_OK;
    model->ready = ready;
    model->asked_ns = sl_now_ns();
}

static void *ask_always(void *arg) {
    struct sl_served *served = arg;
    pthread_mutex_lock(&served->mutex);
    while (!served->stopping) {
        pthread_mutex_unlock(&served->mutex);
        ask(served);
        pthread_mutex_lock(&served->mutex);
        int64_t again_ns = sl_deadline_in_ms(served->model.ready ? ASK_MS : ASK_AGAIN_MS);
        while (!served->stopping && sl_cond_wait_until(&served->changed, &served->mutex, again_ns) == SL_OK) {
        }
    }
    pthread_mutex_unlock(&served->mutex);
    return NULL;
}

enum sl_status sl_served_create(struct sl_client *client, struct sl_served **served_out, struct sl_error *err) {
    struct sl_served *served = calloc(1, sizeof *served);
    SL_FAIL_IF(!served, err, SL_ERR_EXHAUSTED, "no memory for a gateway");
    served->client = client;
    served->model.asked_ns = sl_now_ns();
    pthread_mutex_init(&served->mutex, NULL);
    sl_cond_init(&served->changed);
    enum sl_status status = sl_thread_start("served", ask_always, served, &served->thread, err);
    if (status != SL_OK) {
        pthread_cond_destroy(&served->changed);
        pthread_mutex_destroy(&served->mutex);
        free(served);
        return status;
    }
    *served_out = served;
    return SL_OK;
}

void sl_served_destroy(struct sl_served **served_ptr) {
    struct sl_served *served = *served_ptr;
    if (!served) {
        return;
    }
    pthread_mutex_lock(&served->mutex);
    served->stopping = true;
    pthread_cond_signal(&served->changed);
    pthread_mutex_unlock(&served->mutex);
    pthread_join(served->thread, NULL);
    pthread_cond_destroy(&served->changed);
    pthread_mutex_destroy(&served->mutex);
    free(served);
    *served_ptr = NULL;
}

struct sl_served_model sl_served_model(struct sl_served *served) {
    SL_LOCKED(&served->mutex);
    return served->model;
}
