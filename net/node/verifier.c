// SPDX-License-Identifier: Apache-2.0
#include "net/node/verifier.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/loop.h"

#define AT_ONCE 512 // segments between two waits

struct sl_verifier {
    struct sl_verifying what;
    uint64_t *digests; // [AT_ONCE] of shared memory
    struct sl_digest_piece pieces[AT_ONCE];
    struct sl_loop loop; // its mutex guards the following
    struct sl_arrival *first, **last;
};

// Makes what the network wrote of an arrival visible to kernels.
static enum sl_status flush(const struct sl_direct *direct, const struct sl_arrival *arrival, struct sl_error *err) {
    const char *begin = arrival->at[0].data, *end = begin;
    for (uint32_t i = 0; i < arrival->n; i++) {
        const char *at = arrival->at[i].data;
        begin = at < begin ? at : begin;
        end = at + arrival->at[i].bytes > end ? at + arrival->at[i].bytes : end;
    }
    size_t offset = (size_t)(begin - direct->block);
    return sl_device_network_flush(direct->device, direct->block + offset, direct->seen + offset, (size_t)(end - begin),
                                   err);
}

static enum sl_status digest(struct sl_verifier *verifier, const struct sl_arrived *at, uint32_t n,
                             struct sl_error *err) {
    const struct sl_runtime *runtime = verifier->what.runtime;
    for (uint32_t i = 0; i < n; i++) {
        verifier->pieces[i] = (struct sl_digest_piece){at[i].data, at[i].part_bytes, at[i].n_parts};
    }
    sl_stream_hold(runtime->stream);
    runtime->ops->digest(runtime->stream, verifier->pieces, n, verifier->digests);
    struct sl_mark done = sl_stream_mark(runtime->stream);
    enum sl_status status = sl_stream_release(runtime->stream, err);
    enum sl_status waited = sl_mark_wait(&done, status == SL_OK ? err : NULL);
    return status == SL_OK ? waited : status;
}

// Verifies an arrival. SL_ERR_PEER_CORRUPT: segment *which_out has a wrong digest.
static enum sl_status verify(struct sl_verifier *verifier, const struct sl_arrival *arrival, uint32_t *which_out,
                             struct sl_error *err) {
    enum sl_status status = flush(verifier->what.direct, arrival, err);
    for (uint32_t first = 0, n; status == SL_OK && first < arrival->n; first += n) {
        n = arrival->n - first < AT_ONCE ? arrival->n - first : AT_ONCE;
        status = digest(verifier, arrival->at + first, n, err);
        for (uint32_t i = 0; status == SL_OK && i < n; i++) {
            *which_out = first + i;
            status = verifier->digests[i] == arrival->at[first + i].digest ? SL_OK : SL_ERR_PEER_CORRUPT;
        }
    }
    return status;
}

static void verify_and_end(struct sl_verifier *verifier, struct sl_arrival *arrival) {
    struct sl_error err = {0};
    uint32_t which = 0;
    enum sl_status status = verify(verifier, arrival, &which, &err);
    if (status != SL_OK && status != SL_ERR_PEER_CORRUPT) {
        sl_log_warn("node", "what has arrived in the device cannot be verified: %s", err.text);
        status = verifier->what.check(verifier->what.arg, status, &err);
    }
    sl_arrival_end(&arrival, status, which);
}

static void *verifier_main(void *arg) {
    struct sl_verifier *verifier = arg;
    pthread_mutex_lock(&verifier->loop.mutex);
    while (!verifier->loop.stopping) {
        struct sl_arrival *arrival = verifier->first;
        if (arrival == NULL) {
            sl_loop_wait(&verifier->loop, SL_NO_DEADLINE);
            continue;
        }
        verifier->first = arrival->next;
        verifier->last = verifier->first != NULL ? verifier->last : &verifier->first;
        pthread_mutex_unlock(&verifier->loop.mutex);
        verify_and_end(verifier, arrival);
        pthread_mutex_lock(&verifier->loop.mutex);
    }
    pthread_mutex_unlock(&verifier->loop.mutex);
    return NULL;
}

enum sl_status sl_verifier_start(const struct sl_verifying *what, struct sl_verifier **verifier_out,
                                 struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_verifier, verifier, err, "no memory to verify what arrives");
    verifier->what = *what;
    verifier->last = &verifier->first;
    sl_loop_init(&verifier->loop);
    verifier->digests = sl_device_alloc(what->runtime->device, SL_MEMORY_SHARED, AT_ONCE * sizeof verifier->digests[0]);
    enum sl_status status = verifier->digests != NULL
                                ? sl_loop_start(&verifier->loop, "verifier", verifier_main, verifier, err)
                                : sl_fail(err, SL_ERR_EXHAUSTED, "no memory to verify what arrives");
    SL_TRY_OR(status, sl_verifier_destroy(&verifier));
    *verifier_out = verifier;
    return SL_OK;
}

void sl_verifier_take(void *arg, struct sl_arrival *arrival) {
    struct sl_verifier *verifier = arg;
    pthread_mutex_lock(&verifier->loop.mutex);
    bool stopping = verifier->loop.stopping;
    if (!stopping) {
        arrival->next = NULL;
        *verifier->last = arrival;
        verifier->last = &arrival->next;
        pthread_cond_signal(&verifier->loop.changed);
    }
    pthread_mutex_unlock(&verifier->loop.mutex);
    if (stopping) {
        sl_arrival_end(&arrival, SL_ERR_CANCELLED, 0);
    }
}

void sl_verifier_stop(struct sl_verifier *verifier) {
    if (verifier == NULL) {
        return;
    }
    sl_loop_stop(&verifier->loop);
    while (verifier->first != NULL) { // no thread adds to it any more
        struct sl_arrival *arrival = verifier->first;
        verifier->first = arrival->next;
        sl_arrival_end(&arrival, SL_ERR_CANCELLED, 0);
    }
}

void sl_verifier_destroy(struct sl_verifier **verifier_inout) {
    SL_TAKE_OR_RETURN(verifier, verifier_inout);
    sl_loop_cleanup(&verifier->loop);
    sl_device_free(verifier->what.runtime->device, SL_MEMORY_SHARED, verifier->digests);
    free(verifier);
}
