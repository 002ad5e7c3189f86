// SPDX-License-Identifier: Apache-2.0
// Purpose: draws requests of conversations, with the blocks that they share; see workload.h.
#include <math.h>
#include <stdlib.h>

#include "lab/simulate/workload.h"
#include "lab/random.h"

#define RATE          2.0
#define N_SHARED      4   // shared beginnings, of 2, 4, 6 and 8 blocks
#define N_ACTIVE      64  // conversations that may go on
#define MEAN_OWN      12  // blocks that a conversation begins with
#define MAX_ADDED     4   // blocks that a turn adds
#define MAX_BLOCKS    200 // a longer conversation does not go on
#define TURN_PERCENT  50  // of the requests go on
#define OUTPUT_TOKENS 256

struct conversation {
    int64_t n_blocks;
    int64_t blocks[MAX_BLOCKS + MAX_ADDED];
};

struct drawing {
    struct sl_random random;
    struct conversation active[N_ACTIVE];
    int64_t n_begun, next_id;
    double at_s;
};

static void add_blocks(struct drawing *d, struct conversation *conversation, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        conversation->blocks[conversation->n_blocks++] = d->next_id++;
    }
}

static struct conversation *begin(struct drawing *d) {
    struct conversation *conversation = &d->active[d->n_begun++ % N_ACTIVE];
    int64_t shared = (int64_t)sl_random_below(&d->random, N_SHARED);
    conversation->n_blocks = 0;
    for (int64_t i = 0; i < 2 * (shared + 1); i++) {
        conversation->blocks[conversation->n_blocks++] = -1 - (shared * 2 * N_SHARED + i);
    }
    int64_t own = 1 + (int64_t)(-log(sl_random_uniform(&d->random)) * MEAN_OWN);
    int64_t most = MAX_BLOCKS - conversation->n_blocks;
    add_blocks(d, conversation, own < most ? own : most);
    return conversation;
}

static struct conversation *next_turn(struct drawing *d) {
    int64_t n_active = d->n_begun < N_ACTIVE ? d->n_begun : N_ACTIVE;
    if (n_active == 0 || sl_random_below(&d->random, 100) >= TURN_PERCENT) {
        return begin(d);
    }
    struct conversation *conversation = &d->active[sl_random_below(&d->random, (uint64_t)n_active)];
    if (conversation->n_blocks >= MAX_BLOCKS) {
        return begin(d);
    }
    add_blocks(d, conversation, 1 + (int64_t)sl_random_below(&d->random, MAX_ADDED));
    return conversation;
}

// Appends the request: the conversation's whole blocks, and one that is not full, which the next turn replaces.
static bool append(struct drawing *d, struct sl_workload *workload, const struct conversation *conversation) {
    size_t n = (size_t)(workload->n_blocks + conversation->n_blocks + 1);
    int64_t *blocks = realloc(workload->blocks, n * sizeof *blocks);
    if (!blocks) {
        return false;
    }
    workload->blocks = blocks;
    struct sl_workload_arrival *arrival = &workload->arrivals[workload->n++];
    *arrival = (struct sl_workload_arrival){d->at_s, 0, OUTPUT_TOKENS, workload->n_blocks, conversation->n_blocks + 1};
    arrival->n_prompt =
        conversation->n_blocks * SL_TRACE_BLOCK + 1 + (int64_t)sl_random_below(&d->random, SL_TRACE_BLOCK - 1);
    for (int64_t i = 0; i < conversation->n_blocks; i++) {
        blocks[workload->n_blocks++] = conversation->blocks[i];
    }
    blocks[workload->n_blocks++] = d->next_id++;
    d->at_s -= log(sl_random_uniform(&d->random)) / RATE;
    return true;
}

enum sl_status sl_workload_draw_conversations(int64_t n, uint64_t seed, struct sl_workload *workload_out,
                                              struct sl_error *err) {
    struct sl_workload workload = {.arrivals = calloc((size_t)n, sizeof *workload.arrivals)};
    struct drawing *d = calloc(1, sizeof *d);
    bool ok = workload.arrivals && d;
    if (ok) {
        d->random = sl_random_start("conversations", seed, 0);
    }
    while (ok && workload.n < n) {
        ok = append(d, &workload, next_turn(d));
    }
    workload.seconds = ok && d->at_s > 0 ? d->at_s : 1;
    free(d);
    SL_FAIL_OR(!ok, sl_workload_cleanup(&workload), err, SL_ERR_EXHAUSTED, "no memory for a workload");
    *workload_out = workload;
    return SL_OK;
}
