// SPDX-License-Identifier: Apache-2.0
#include "coordinator/jobs/tokenizing.h"

#include <assert.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/fiber/fiber.h"
#include "base/locked.h"
#include "base/processors.h"
#include "engine/text/tokenizer/tokenizer.h"

#define SLICE_NS (5 * SL_NS_PER_MS)

struct sl_tokenizing {
    pthread_mutex_t mutex;
    int n_turns, n_free;
    struct sl_tokenizing_turn *first, **last; // those that wait, in the order in which they came
    int64_t time_ns;                          // of the tenant that got the last turn
    struct sl_tokenizing_stats stats;
};

enum sl_status sl_tokenizing_create(int n_turns, struct sl_tokenizing **tokenizing_out, struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_tokenizing, tokenizing, err, "no memory for turns of tokenizing");
    pthread_mutex_init(&tokenizing->mutex, NULL);
    tokenizing->n_turns = tokenizing->n_free = n_turns > 0 ? n_turns : sl_processors_count();
    tokenizing->last = &tokenizing->first;
    *tokenizing_out = tokenizing;
    return SL_OK;
}

void sl_tokenizing_destroy(struct sl_tokenizing **tokenizing_inout) {
    SL_TAKE_OR_RETURN(tokenizing, tokenizing_inout);
    assert(tokenizing->first == NULL);
    pthread_mutex_destroy(&tokenizing->mutex);
    free(tokenizing);
}

// Takes a turn out of the line. Lock held.
static void take_out(struct sl_tokenizing *tokenizing, struct sl_tokenizing_turn **at) {
    struct sl_tokenizing_turn *turn = *at;
    *at = turn->next;
    if (tokenizing->last == &turn->next) {
        tokenizing->last = at;
    }
}

// Finds the request, of the tenants that have less than their share of turns, whose tenant has used least time. Lock held.
static struct sl_tokenizing_turn **find_next(struct sl_tokenizing *tokenizing) {
    struct sl_tokenizing_turn **best = NULL;
    for (struct sl_tokenizing_turn **at = &tokenizing->first; *at != NULL; at = &(*at)->next) {
        const struct sl_tenant *tenant = (*at)->tenant;
        if (tenant->n_turns < sl_tenant_share(tenant, tokenizing->n_turns) &&
            (best == NULL || tenant->tokenizing_ns < (*best)->tenant->tokenizing_ns)) {
            best = at;
        }
    }
    return best;
}

// Gives the free turns, in advance for a slice. Lock held.
static void grant(struct sl_tokenizing *tokenizing) {
    struct sl_tokenizing_turn **best;
    while (tokenizing->n_free > 0 && (best = find_next(tokenizing)) != NULL) {
        struct sl_tokenizing_turn *turn = *best;
        take_out(tokenizing, best);
        tokenizing->n_free--;
        tokenizing->time_ns = turn->tenant->tokenizing_ns;
        turn->tenant->tokenizing_ns += SLICE_NS;
        turn->tenant->n_turns++;
        turn->has_turn = true;
        sl_bell_ring_held(&turn->granted, 1);
    }
}

// Takes a turn back, and counts the time that it lasted. Lock held.
static void give_back(struct sl_tokenizing *tokenizing, struct sl_tokenizing_turn *turn) {
    turn->tenant->tokenizing_ns += sl_now_ns() - turn->since_ns - SLICE_NS;
    turn->has_turn = false;
    turn->tenant->n_turns--;
    tokenizing->n_free++;
}

// Waits in the line for a turn. Lock held.
static enum sl_status wait_in_line(struct sl_tokenizing *tokenizing, struct sl_tokenizing_turn *turn) {
    turn->next = NULL;
    *tokenizing->last = turn;
    tokenizing->last = &turn->next;
    grant(tokenizing);
    tokenizing->stats.n_waits += !turn->has_turn;
    while (!turn->has_turn) {
        if (sl_bell_wait(&turn->granted, &tokenizing->mutex, turn->deadline_ns) != SL_OK && !turn->has_turn) {
            struct sl_tokenizing_turn **at = &tokenizing->first;
            while (*at != turn) {
                at = &(*at)->next;
            }
            take_out(tokenizing, at);
            tokenizing->stats.n_expired++;
            return SL_ERR_DEADLINE;
        }
    }
    turn->since_ns = sl_now_ns();
    return SL_OK;
}

// Called while this thread tokenizes, several times in a slice.
static enum sl_status share_turn(void *arg) {
    struct sl_tokenizing_turn *turn = arg;
    struct sl_tokenizing *tokenizing = turn->tokenizing;
    const int64_t now_ns = sl_now_ns();
    sl_fiber_compute();
    if (now_ns < turn->deadline_ns && now_ns - turn->since_ns < SLICE_NS) {
        return SL_OK;
    }
    enum sl_status status = SL_OK;
    SL_LOCKED(&tokenizing->mutex);
    if (now_ns >= turn->deadline_ns) {
        tokenizing->stats.n_expired++;
        status = SL_ERR_DEADLINE;
    } else if (tokenizing->first != NULL) {
        give_back(tokenizing, turn);
        status = wait_in_line(tokenizing, turn);
    }
    return status;
}

static void leave(struct sl_tokenizing_turn *turn) {
    struct sl_tokenizing *tokenizing = turn->tokenizing;
    pthread_mutex_lock(&tokenizing->mutex);
    if (turn->has_turn) {
        give_back(tokenizing, turn);
        grant(tokenizing);
    }
    turn->tenant->n_tokenizing--;
    pthread_mutex_unlock(&tokenizing->mutex);
    sl_tenant_give(&turn->tenant);
}

enum sl_status sl_tokenizing_begin(struct sl_tokenizing *tokenizing, struct sl_tenants *tenants, const char *tenant,
                                   int64_t deadline_ns, struct sl_tokenizing_turn *turn_out, struct sl_error *err) {
    *turn_out = (struct sl_tokenizing_turn){.tokenizing = tokenizing, .deadline_ns = deadline_ns};
    SL_TRY(sl_tenants_take(tenants, tenant, &turn_out->tenant, err));
    pthread_mutex_lock(&tokenizing->mutex);
    struct sl_tenant *its = turn_out->tenant;
    if (its->n_tokenizing++ == 0 && its->tokenizing_ns < tokenizing->time_ns) {
        its->tokenizing_ns = tokenizing->time_ns;
    }
    enum sl_status status = wait_in_line(tokenizing, turn_out);
    pthread_mutex_unlock(&tokenizing->mutex);
    if (status != SL_OK) {
        leave(turn_out);
        return sl_fail(err, status, "the deadline passed before the text was tokenized");
    }
    sl_tokenizer_set_pause(share_turn, turn_out);
    return SL_OK;
}

void sl_tokenizing_end(struct sl_tokenizing_turn *turn) {
    sl_tokenizer_set_pause(NULL, NULL);
    leave(turn);
}

void sl_tokenizing_get_stats(struct sl_tokenizing *tokenizing, struct sl_tokenizing_stats *stats_out) {
    SL_LOCKED(&tokenizing->mutex);
    *stats_out = tokenizing->stats;
}
