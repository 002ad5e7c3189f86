// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: segments that were put into a device's memory, from their announcement until the grant's owner has verified them there.
 *
 * Design: nobody here can read them, so they are verified in batches behind their arrival: all that were announced while the batch
 *         before was being verified. A batch that is out counts as a receive under way (n_receives), so the grant neither
 *         completes nor is given back meanwhile.
 *
 *      announced: sl_grant_arrived --> waits in grant->arrived --> out: on_arrived --> sl_arrival_end, run_end --> counted, or blamed
 *
 * Threads: the progress thread's, but for sl_arrival_end().
 */
#include <stdlib.h>

#include "fabric/grant.h"

#define MOST_UNVERIFIED 65536 // segments: 32 GiB of those that our senders make

struct arrival {
    struct sl_arrival shown;
    struct sl_command end_command;
    struct sl_grant *grant;
    enum sl_status status;
    uint32_t which;
    struct sl_receive *first; // in the order of shown.at
    struct sl_arrived at[];
};

static void run_end(struct sl_fabric *fabric, struct sl_command *command);

static void free_list(struct sl_receive *first) {
    while (first) {
        struct sl_receive *next = first->next;
        free(first);
        first = next;
    }
}

void sl_grant_drop_arrived(struct sl_grant *grant) {
    free_list(grant->arrived);
    grant->arrived = NULL;
    grant->last = &grant->arrived;
    grant->n_unverified = 0;
}

static void hand_out(struct sl_grant *grant) {
    struct arrival *arrival = malloc(sizeof *arrival + grant->n_unverified * sizeof arrival->at[0]);
    if (!arrival) {
        sl_grant_fail(grant, SL_ERR_EXHAUSTED, "the receiver has no memory to verify segments");
        return;
    }
    *arrival = (struct arrival){.shown = {.at = arrival->at, .n = (uint32_t)grant->n_unverified},
                                .end_command.run = run_end,
                                .grant = grant,
                                .first = grant->arrived};
    struct sl_arrived *at = arrival->at;
    for (const struct sl_receive *receive = grant->arrived; receive; receive = receive->next) {
        *at++ = (struct sl_arrived){.data = grant->device.block + receive->segment.offset,
                                    .part_bytes = receive->part_bytes,
                                    .bytes = receive->segment.bytes,
                                    .digest = receive->segment.digest,
                                    .n_parts = receive->segment.n_parts};
    }
    grant->arrived = NULL;
    grant->last = &grant->arrived;
    grant->n_unverified = 0;
    grant->n_receives++;
    grant->verifying = true;
    grant->on_arrived(grant->arg, &arrival->shown);
}

const char *sl_grant_refuse_arrived(const struct sl_grant *grant, const struct sl_receive *receive) {
    for (uint32_t i = 0; i < receive->segment.n_parts; i++) {
        if (receive->part_bytes[i] == 0) {
            return "a segment has a part without bytes";
        }
    }
    if (receive->segment.bytes > grant->bytes - grant->arrived_bytes || grant->n_unverified == MOST_UNVERIFIED) {
        return "more segments were announced than there can be";
    }
    return NULL;
}

void sl_grant_arrived(struct sl_grant *grant, struct sl_receive *receive) {
    receive->next = NULL;
    *grant->last = receive;
    grant->last = &receive->next;
    grant->n_unverified++;
    grant->n_arrived++;
    grant->arrived_bytes += receive->segment.bytes;
    if (!grant->verifying) { // else they go with the next batch
        hand_out(grant);
    }
}

void sl_arrival_end(struct sl_arrival **shown, enum sl_status status, uint32_t which) {
    struct arrival *arrival = SL_CONTAINER(*shown, struct arrival, shown);
    arrival->status = status;
    arrival->which = which;
    *shown = NULL;
    sl_fabric_post(arrival->grant->fabric, &arrival->end_command);
}

static void end_well(struct sl_grant *grant, const struct arrival *arrival) {
    for (const struct sl_receive *receive = arrival->first; receive; receive = receive->next) {
        sl_grant_count(grant, &receive->segment);
    }
    if (grant->arrived) {
        hand_out(grant);
    } else {
        sl_grant_check_complete(grant);
    }
}

static void run_end(struct sl_fabric *fabric, struct sl_command *command) {
    struct arrival *arrival = SL_CONTAINER(command, struct arrival, end_command);
    struct sl_grant *grant = arrival->grant;
    (void)fabric;
    grant->n_receives--;
    grant->verifying = false;
    if (grant->state != GRANT_CLAIMED) {
        sl_grant_try_release(grant);
    } else if (arrival->status == SL_OK) {
        end_well(grant, arrival);
    } else if (arrival->status == SL_ERR_PEER_CORRUPT && arrival->which < arrival->shown.n) {
        const struct sl_receive *wrong = arrival->first;
        for (uint32_t i = 0; i < arrival->which; i++) {
            wrong = wrong->next;
        }
        sl_grant_blame(grant, &wrong->segment);
    } else {
        sl_grant_fail(grant, arrival->status, "the receiver's device could not verify what arrived");
    }
    free_list(arrival->first);
    free(arrival);
}
