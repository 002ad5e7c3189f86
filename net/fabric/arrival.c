// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: segments that were put into device memory, from their announcement until the grant's owner has verified them
 *          there.
 *
 * Design: this process cannot read them on the host, so they are verified in batches after their arrival: all that were
 *         announced while the previous batch was being verified. A batch that the owner has counts as a pending receive
 *         (n_receives), so the grant neither completes nor is given back meanwhile.
 *
 *      announced: sl_grant_note_arrived --> waits in grant->arrived --> with the owner: sl_grant_hand_out, on_arrived
 *                 --> sl_arrival_end --> counted, or blamed: on_verified (receive.c)
 *
 * Threads: the progress thread, except sl_arrival_end().
 */
#include <stdlib.h>

#include "net/fabric/grant.h"

#define MOST_UNVERIFIED 65536 // segments: 32 GiB of those that our senders make

static void free_segments(struct sl_receive *first) {
    while (first) {
        struct sl_receive *next = first->next;
        free(first);
        first = next;
    }
}

void sl_grant_drop_arrived(struct sl_grant *grant) {
    free_segments(grant->arrived);
    grant->arrived = NULL;
    grant->last = &grant->arrived;
    grant->n_unverified = 0;
}

bool sl_grant_hand_out(struct sl_grant *grant, void (*on_verified)(struct sl_fabric *, struct sl_command *)) {
    if (grant->verifying || !grant->arrived) { // later ones go with the next batch
        return true;
    }
    struct sl_grant_arrival *arrival = malloc(sizeof *arrival + grant->n_unverified * sizeof arrival->at[0]);
    if (!arrival) {
        return false;
    }
    *arrival = (struct sl_grant_arrival){.shown = {.at = arrival->at, .n = (uint32_t)grant->n_unverified},
                                         .end_command.run = on_verified,
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
    return true;
}

void sl_grant_free_arrival(struct sl_grant_arrival *arrival) {
    free_segments(arrival->first);
    free(arrival);
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

void sl_grant_note_arrived(struct sl_grant *grant, struct sl_receive *receive) {
    receive->next = NULL;
    *grant->last = receive;
    grant->last = &receive->next;
    grant->n_unverified++;
    grant->n_arrived++;
    grant->arrived_bytes += receive->segment.bytes;
}

void sl_arrival_end(struct sl_arrival **shown, enum sl_status status, uint32_t which) {
    struct sl_grant_arrival *arrival = SL_CONTAINER(*shown, struct sl_grant_arrival, shown);
    arrival->status = status;
    arrival->which = which;
    *shown = NULL;
    sl_fabric_post(arrival->grant->fabric, &arrival->end_command);
}
