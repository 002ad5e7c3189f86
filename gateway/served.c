// SPDX-License-Identifier: Apache-2.0
#include "gateway/served.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/locked.h"
#include "base/log.h"
#include "base/loop.h"

enum { ASK_MS = 1000, ASK_AGAIN_MS = 100, CALL_MS = 2000 }; // ASK_AGAIN_MS: while no model is ready

struct sl_served {
    struct sl_client *client;
    struct sl_loop loop; // its mutex guards the fields below
    bool is_logged;      // the log has an entry about it
    struct sl_served_model model;
};

static void ask(struct sl_served *served) {
    Sluice__V1__ModelReply *reply = NULL;
    struct sl_error err = {0};
    enum sl_status status = sl_client_model(served->client, sl_deadline_in_ms(CALL_MS), &reply, &err);
    SL_LOCKED(&served->loop.mutex);
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
    pthread_mutex_lock(&served->loop.mutex);
    while (!served->loop.stopping) {
        pthread_mutex_unlock(&served->loop.mutex);
        ask(served);
        pthread_mutex_lock(&served->loop.mutex);
        sl_loop_sleep(&served->loop, sl_deadline_in_ms(served->model.ready ? ASK_MS : ASK_AGAIN_MS));
    }
    pthread_mutex_unlock(&served->loop.mutex);
    return NULL;
}

enum sl_status sl_served_create(struct sl_client *client, struct sl_served **served_out, struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_served, served, err, "no memory for a gateway");
    served->client = client;
    served->model.asked_ns = sl_now_ns();
    sl_loop_init(&served->loop);
    SL_TRY_OR(sl_loop_start(&served->loop, "served", ask_always, served, err), sl_served_destroy(&served));
    *served_out = served;
    return SL_OK;
}

void sl_served_destroy(struct sl_served **served_ptr) {
    SL_TAKE_OR_RETURN(served, served_ptr);
    sl_loop_cleanup(&served->loop);
    free(served);
}

struct sl_served_model sl_served_model(struct sl_served *served) {
    SL_LOCKED(&served->loop.mutex);
    return served->model;
}
