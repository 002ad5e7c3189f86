// SPDX-License-Identifier: Apache-2.0
#include "gateway/access/limits.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/locked.h"

enum { N_HEADS = 4096, N_BUCKETS = 2, SWEEP_AT_LEAST = 1024 };

static const double NS_PER_MINUTE = 60e9;

struct limited {
    uint8_t id[32];          // id of the key; random, so that some of its bits serve as its hash
    double level[N_BUCKETS]; // below 0: in debt
    double most[N_BUCKETS];  // a minute's quantity; 0: there is no such limit
    int64_t filled_ns;       // time that the levels are valid for
    struct limited *next;
};

struct sl_limits {
    atomic_llong n_refused[SL_N_LIMITS];
    pthread_mutex_t mutex; // guards the fields below
    struct limited *heads[N_HEADS];
    int64_t n, sweep_at; // sweep when n is sweep_at, but not before sweep_ns
    int64_t sweep_ns;
};

enum sl_status sl_limits_create(struct sl_limits **limits_out, struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_limits, limits, err, "no memory for limits");
    pthread_mutex_init(&limits->mutex, NULL);
    limits->sweep_at = SWEEP_AT_LEAST;
    *limits_out = limits;
    return SL_OK;
}

static void fill(struct limited *one, int64_t now_ns) {
    double minutes = now_ns > one->filled_ns ? (double)(now_ns - one->filled_ns) / NS_PER_MINUTE : 0;
    for (int i = 0; i < N_BUCKETS; i++) {
        one->level[i] = fmin(one->most[i], one->level[i] + minutes * one->most[i]);
    }
    one->filled_ns = now_ns > one->filled_ns ? now_ns : one->filled_ns;
}

static bool is_full(const struct limited *one) {
    bool full = true;
    for (int i = 0; i < N_BUCKETS; i++) {
        full = full && one->level[i] >= one->most[i];
    }
    return full;
}

static void sweep(struct sl_limits *limits, int64_t now_ns) {
    for (int i = 0; i < N_HEADS; i++) {
        for (struct limited **at = &limits->heads[i]; *at;) {
            struct limited *one = *at;
            fill(one, now_ns);
            if (is_full(one)) {
                *at = one->next;
                free(one);
                limits->n--;
            } else {
                at = &one->next;
            }
        }
    }
    limits->sweep_at = limits->n * 2 < SWEEP_AT_LEAST   ? SWEEP_AT_LEAST
                       : limits->n * 2 < SL_MAX_LIMITED ? limits->n * 2
                                                        : SL_MAX_LIMITED;
    limits->sweep_ns = limits->n < SL_MAX_LIMITED ? now_ns : now_ns + SL_NS_PER_S;
}

void sl_limits_destroy(struct sl_limits **limits_ptr) {
    SL_TAKE_OR_RETURN(limits, limits_ptr);
    for (int i = 0; i < N_HEADS; i++) {
        while (limits->heads[i]) {
            struct limited *one = limits->heads[i];
            limits->heads[i] = one->next;
            free(one);
        }
    }
    pthread_mutex_destroy(&limits->mutex);
    free(limits);
}

static double most_of(int64_t per_minute) {
    return per_minute == INT64_MAX ? 0 : (double)per_minute;
}

static void set_limits(struct limited *one, const struct sl_api_key *who, bool is_new) {
    const double most[N_BUCKETS] = {most_of(who->requests_per_minute), most_of(who->tokens_per_minute)};
    for (int i = 0; i < N_BUCKETS; i++) {
        bool begins = is_new || one->most[i] == 0 || most[i] == 0;
        one->most[i] = most[i];
        one->level[i] = begins || one->level[i] > most[i] ? most[i] : one->level[i];
    }
}

// Returns the key's buckets, filled until now; NULL: no memory, or they do not exist and no new ones are wanted.
static struct limited *find(struct sl_limits *limits, const struct sl_api_key *who, int64_t now_ns, bool make) {
    uint32_t place;
    memcpy(&place, who->hash, sizeof place);
    struct limited **head = &limits->heads[place % N_HEADS], *one = *head;
    while (one && memcmp(one->id, who->hash, sizeof one->id) != 0) {
        one = one->next;
    }
    if (one) {
        fill(one, now_ns);
        set_limits(one, who, false);
        return one;
    }
    if (make && limits->n >= limits->sweep_at && now_ns >= limits->sweep_ns) {
        sweep(limits, now_ns);
    }
    one = make && limits->n < SL_MAX_LIMITED ? calloc(1, sizeof *one) : NULL;
    if (one) {
        memcpy(one->id, who->hash, sizeof one->id);
        one->filled_ns = now_ns;
        set_limits(one, who, true);
        one->next = *head;
        *head = one;
        limits->n++;
    }
    return one;
}

static struct sl_rate_limit tell(const struct limited *one, enum sl_limit what) {
    double level = one->level[what], most = one->most[what];
    struct sl_rate_limit limit = {.limit = (int64_t)most};
    if (most > 0) {
        limit.remaining = level > 0 ? (int64_t)(level + 1e-6) : 0;
        limit.reset_ms = (int64_t)ceil((most - level) / most * 60000);
    }
    return limit;
}

static bool is_limited(const struct sl_api_key *who) {
    return who->requests_per_minute != INT64_MAX || who->tokens_per_minute != INT64_MAX;
}

enum sl_status sl_limits_take(struct sl_limits *limits, const struct sl_api_key *who, enum sl_limit what, int64_t n,
                              int64_t now_ns, struct sl_rate_limits *limits_out, int64_t *retry_ms_out) {
    *limits_out = (struct sl_rate_limits){.requests = {0}};
    if (!is_limited(who)) {
        return SL_OK;
    }
    enum sl_status status = SL_OK;
    pthread_mutex_lock(&limits->mutex);
    struct limited *one = find(limits, who, now_ns, true);
    if (!one) {
        *retry_ms_out = 1000;
        status = SL_ERR_EXHAUSTED;
    } else if (one->most[what] > 0) {
        double wanted = fmin((double)n, one->most[what]), missing = wanted - one->level[what];
        if (missing > 1e-6) { // tolerance for rounding of many small steps
            *retry_ms_out = (int64_t)ceil(missing / one->most[what] * 60000);
            status = SL_ERR_EXHAUSTED;
        } else {
            one->level[what] -= (double)n;
        }
    }
    if (one) {
        *limits_out = (struct sl_rate_limits){tell(one, SL_LIMIT_REQUESTS), tell(one, SL_LIMIT_TOKENS)};
    }
    pthread_mutex_unlock(&limits->mutex);
    if (status != SL_OK) {
        sl_limits_count_refused(limits, what);
    }
    return status;
}

void sl_limits_give_back(struct sl_limits *limits, const struct sl_api_key *who, enum sl_limit what, int64_t n,
                         int64_t now_ns) {
    if (!is_limited(who) || n == 0) {
        return;
    }
    SL_LOCKED(&limits->mutex);
    // Buckets that were forgotten are full, but this charge may put them in debt.
    struct limited *one = find(limits, who, now_ns, n < 0);
    if (one && one->most[what] > 0) {
        one->level[what] = fmin(one->most[what], one->level[what] + (double)n);
    }
}

void sl_limits_count_refused(struct sl_limits *limits, enum sl_limit what) {
    atomic_fetch_add(&limits->n_refused[what], 1);
}

int64_t sl_limits_n_refused(struct sl_limits *limits, enum sl_limit what) {
    return atomic_load(&limits->n_refused[what]);
}

int64_t sl_limits_n_buckets(struct sl_limits *limits) {
    SL_LOCKED(&limits->mutex);
    return limits->n;
}
