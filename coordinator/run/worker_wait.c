// SPDX-License-Identifier: Apache-2.0
#include "coordinator/run/worker_wait.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"

#define TELL_AFTER_MS 2000 // watchers are not told of shorter waits

static void tell(struct sl_job *job, const struct sl_error *why) {
    char text[sizeof(why->text) + 32];
    snprintf(text, sizeof(text), "waits for a worker: %s", why->text);
    Sluice__V1__Notice notice = SLUICE__V1__NOTICE__INIT;
    notice.text = text;
    sl_log_info("job", "job=%s %s", job->id, text);
    sl_job_tell_progress(job, SLUICE__V1__EVENT__WHAT_NOTICE, &notice.base);
}

bool sl_worker_wait_ends(struct sl_worker_wait *wait, struct sl_job *job, int64_t limit_ms,
                         const struct sl_error *why) {
    int64_t now_ns = sl_now_ns();
    if (wait->since_ns == 0) {
        wait->since_ns = now_ns;
    }
    wait->why = *why;
    int64_t waited_ms = (now_ns - wait->since_ns) / SL_NS_PER_MS;
    if (waited_ms >= TELL_AFTER_MS && !wait->told) {
        tell(job, why);
        wait->told = true;
    }
    return !job->spec.own_deadline && waited_ms > limit_ms;
}

enum sl_status sl_worker_wait_explain(const struct sl_worker_wait *wait, enum sl_status status, struct sl_error *err) {
    return status == SL_ERR_DEADLINE && wait->since_ns != 0
               ? sl_fail(err, status, "the job's deadline has passed while it waited for a worker: %.300s",
                         wait->why.text)
               : status;
}
