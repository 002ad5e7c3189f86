// SPDX-License-Identifier: Apache-2.0
// Purpose: the prefill worker inside an aggregated worker: it wakes the engine's thread, and hands over what it has read.
#include "base/locked.h"
#include "decode/internal.h"

static void wake(void *arg) {
    struct sl_decode *decode = arg;
    SL_LOCKED(&decode->mutex);
    decode->woken = true;
    pthread_cond_signal(&decode->wake);
}

static bool drop(void *arg) {
    return sl_kept_drop_oldest(&((struct sl_decode *)arg)->kept);
}

static enum sl_status take(void *arg, const struct sl_capsule_id *id, struct sl_session **session_inout,
                           size_t promised_bytes, char lease_id_out[SL_LEASE_ID_BYTES], struct sl_error *err) {
    struct sl_decode *decode = arg;
    return sl_kept_hand_over(&decode->kept, decode->node.ledger, id, session_inout, promised_bytes, lease_id_out, err);
}

enum sl_status sl_decode_open_here(struct sl_decode *decode, const struct sl_prefill_limits *limits,
                                   struct sl_error *err) {
    const struct sl_prefill_host host = {.wake_fn = wake, .drop_fn = drop, .take_fn = take, .arg = decode};
    decode->node.info.reads = true;
    return sl_prefill_open(limits, &decode->node, &host, &decode->prefill, err);
}
