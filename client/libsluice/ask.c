// SPDX-License-Identifier: Apache-2.0
// Purpose: returns an answer as text only, for programs that need no more.
#include "client/libsluice/sluice_internal.h"

struct asking {
    void (*on_text)(void *arg, const char *text);
    void *arg;
    enum sl_status status; // status of the job
    struct sl_error *err;
};

static void take(void *arg, const Sluice__V1__Event *event) {
    struct asking *asking = arg;
    if (event->what_case == SLUICE__V1__EVENT__WHAT_TOKEN) {
        if (event->token->text[0] != '\0') { // empty while a token is a part of a character
            asking->on_text(asking->arg, event->token->text);
        }
    } else if (event->what_case == SLUICE__V1__EVENT__WHAT_FINISHED && event->finished->status_code != 0) {
        asking->status = sl_fail(asking->err, sl_rpc_status_of_code(event->finished->status_code), "%s",
                                 event->finished->status_text);
    }
}

enum sl_status sl_client_ask(struct sl_client *client, const Sluice__V1__GenerateRequest *request, int64_t deadline_ns,
                             void (*on_text)(void *arg, const char *text), void *arg, struct sl_error *err) {
    char job_id[SL_JOB_ID_BYTES];
    struct asking asking = {.on_text = on_text, .arg = arg, .err = err};
    struct sl_watch watch = {.deadline_ns = deadline_ns, .on_event = take, .arg = &asking};
    enum sl_status status = sl_client_generate(client, request, &watch, job_id, err);
    return status == SL_OK ? asking.status : status;
}
