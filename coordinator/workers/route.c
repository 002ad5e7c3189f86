// SPDX-License-Identifier: Apache-2.0
#include "coordinator/workers/route.h"

#include <string.h>

#include "base/hash.h"

// Returns whether a ready worker exists that is not avoided: then avoided ones take no job.
static bool must_avoid(const struct sl_route_view *views, int n_views) {
    for (int i = 0; i < n_views; i++) {
        if (views[i].ready && !views[i].avoid) {
            return true;
        }
    }
    return false;
}

// Returns whether a worker with these claims has room.
static bool has_room(const struct sl_route_view *view, struct sl_route_need need, int64_t claimed_bytes,
                     int64_t claimed_staging_bytes) {
    return need.bytes <= view->capacity_bytes - claimed_bytes &&
           (view->staging_bytes == 0 || need.staging_bytes <= view->staging_bytes - claimed_staging_bytes);
}

static bool can_take(const struct sl_route_view *view, bool no_avoided, struct sl_route_need need) {
    need.bytes -= view->shared_bytes;
    return view->ready && !(no_avoided && view->avoid) && view->jobs < view->max_jobs &&
           has_room(view, need, view->claimed_bytes, view->claimed_staging_bytes);
}

// Compares workers of equal cost: fewer jobs now, then fewer ever, then the name.
static bool ties_before(const struct sl_route_view *a, const struct sl_route_view *b) {
    if (a->jobs != b->jobs) {
        return a->jobs < b->jobs;
    }
    if (a->jobs_ever != b->jobs_ever) {
        return a->jobs_ever < b->jobs_ever;
    }
    return strcmp(a->name, b->name) < 0;
}

// ---- policies ---------------------------------------------------------------------------------------------------

static double affinity_read(const struct sl_route_view *view, int64_t n_tokens, int64_t) {
    double preferred = view->matched_tokens > 0 ? 0.5 : 0; // less than a token: it decides between equal workers alone
    return (double)view->delay_tokens + (double)n_tokens - preferred;
}

// Counts what the worker holds of the need neither as a need nor as a claim of other jobs.
static double affinity_write(const struct sl_route_view *view, int64_t need_bytes) {
    int64_t more_bytes = need_bytes - view->held_bytes, others_bytes = view->claimed_bytes - view->shared_bytes;
    return ((double)others_bytes + (double)more_bytes) / (double)(view->capacity_bytes + 1);
}

static double deadline_read(const struct sl_route_view *view, int64_t n_tokens, int64_t budget_tokens) {
    const int64_t all = view->claimed_tokens + n_tokens;
    return budget_tokens == INT64_MAX ? affinity_read(view, n_tokens, 0)
           : all <= budget_tokens     ? -(double)view->matched_tokens
                                      : (double)all;
}

static double least_loaded_read(const struct sl_route_view *view, int64_t, int64_t) {
    return (double)view->claimed_tokens;
}

static double least_loaded_write(const struct sl_route_view *view, int64_t) {
    return (double)view->claimed_bytes / (double)(view->capacity_bytes + 1);
}

static double round_robin_read(const struct sl_route_view *view, int64_t, int64_t) {
    return (double)view->jobs_ever;
}

static double round_robin_write(const struct sl_route_view *view, int64_t) {
    return (double)view->jobs_ever;
}

// To add one: a row, and a case in tests/unit/coordinator/workers/test_route.c that tells it apart.
const struct sl_route_policy sl_route_policies[] = {
    {"affinity", "where this prompt and those in line wait least for each other; the least full decode worker",
     affinity_read, affinity_write},
    {"deadline", "of the workers that read in time, the one that has read most of the prompt; else the shortest line",
     deadline_read, affinity_write},
    {"least-loaded", "the fewest tokens in line; the fewest bytes in use", least_loaded_read, least_loaded_write},
    {"round-robin", "the fewest jobs so far", round_robin_read, round_robin_write},
    {0},
};

enum sl_status sl_route_policy_find(const char *name, const struct sl_route_policy **policy_out, struct sl_error *err) {
    for (const struct sl_route_policy *policy = sl_route_policies; policy->name != NULL; policy++) {
        if (strcmp(policy->name, name) == 0) {
            *policy_out = policy;
            return SL_OK;
        }
    }
    return sl_fail(err, SL_ERR_INVALID, "--routing %.40s: expected affinity, deadline, least-loaded or round-robin",
                   name);
}

// ---- choices ----------------------------------------------------------------------------------------------------

static double read_cost(const struct sl_route_view *view, const struct sl_route_ask *ask) {
    return ask->policy->read_fn(view, ask->n_tokens, ask->budget_tokens);
}

static double here_cost(const struct sl_route_view *view, const struct sl_route_ask *ask) {
    return read_cost(view, ask) * (view->jobs > 0 ? 2 : 1);
}

static double write_cost(const struct sl_route_view *view, const struct sl_route_ask *ask) {
    return ask->policy->write_fn(view, ask->need.bytes);
}

// Returns the worker that can take the job at the least cost; -1: none can.
static int cheapest(const struct sl_route_view *views, int n_views, const struct sl_route_ask *ask,
                    double (*cost_fn)(const struct sl_route_view *view, const struct sl_route_ask *ask)) {
    bool no_avoided = must_avoid(views, n_views);
    int best = -1;
    double best_cost = 0;
    for (int i = 0; i < n_views; i++) {
        if (!can_take(&views[i], no_avoided, ask->need)) {
            continue;
        }
        double cost = cost_fn(&views[i], ask);
        if (best < 0 || cost < best_cost || (cost == best_cost && ties_before(&views[i], &views[best]))) {
            best = i;
            best_cost = cost;
        }
    }
    return best;
}

int sl_route_prefill(const struct sl_route_view *views, int n_views, const struct sl_route_ask *ask) {
    return cheapest(views, n_views, ask, read_cost);
}

int sl_route_decode(const struct sl_route_view *views, int n_views, const struct sl_route_ask *ask) {
    return cheapest(views, n_views, ask, write_cost);
}

int sl_route_here(const struct sl_route_view *views, int n_views, const struct sl_route_ask *ask) {
    return cheapest(views, n_views, ask, here_cost);
}

// ---- stores -----------------------------------------------------------------------------------------------------

// Returns the allowed store with the largest weight; -1: none is allowed. Avoided stores come last.
static int heaviest(const struct sl_route_view *views, int n_views, uint64_t key, const bool *may) {
    int best = -1;
    uint64_t best_weight = 0;
    for (int i = 0; i < n_views; i++) {
        if (!may[i]) {
            continue;
        }
        uint64_t weight = sl_hash(views[i].name, strlen(views[i].name), key);
        bool better = best < 0 || (views[i].avoid == views[best].avoid ? weight > best_weight : views[best].avoid);
        if (better) {
            best = i;
            best_weight = weight;
        }
    }
    return best;
}

int sl_route_store(const struct sl_route_view *views, int n_views, uint64_t key) {
    bool may[SL_ROUTE_MAX_VIEWS];
    for (int i = 0; i < n_views; i++) {
        may[i] = views[i].ready;
    }
    return heaviest(views, n_views, key, may);
}

// Returns the bytes of remote KVs that may still be claimed of a store.
static int64_t store_room(const struct sl_route_view *view, int64_t claimed_bytes) {
    int64_t room = (int64_t)(SL_STORE_FILL * (double)view->capacity_bytes) - claimed_bytes;
    return view->ready && room > 0 ? room : 0;
}

// Chooses share by share, so that every replica is cut at the same offloaded heads: a request about a share has one
// answer.
int sl_route_shares(const struct sl_route_view *views, int n_views, uint64_t key,
                    const struct sl_route_offloaded_heads *offloaded_heads, bool idle,
                    struct sl_route_share *shares_out, int max_shares) {
    uint16_t fits[SL_ROUTE_MAX_VIEWS]; // offloaded heads
    for (int i = 0; i < n_views; i++) {
        int64_t n = store_room(&views[i], idle ? 0 : views[i].claimed_bytes) / offloaded_heads->bytes;
        fits[i] = (uint16_t)(n < UINT16_MAX ? n : UINT16_MAX);
    }
    int n_shares = 0;
    for (int offloaded_head = 0; offloaded_head < offloaded_heads->n;) {
        bool may[SL_ROUTE_MAX_VIEWS];
        for (int i = 0; i < n_views; i++) {
            may[i] = fits[i] > 0;
        }
        int64_t n = offloaded_heads->n - offloaded_head;
        if (n_shares + offloaded_heads->replicas > max_shares) {
            return -1;
        }
        struct sl_route_share *first = &shares_out[n_shares];
        for (int replica = 0; replica < offloaded_heads->replicas; replica++) {
            int i = heaviest(views, n_views, key, may);
            if (i < 0) {
                return -1;
            }
            may[i] = false;
            n = fits[i] < n ? fits[i] : n;
            first[replica] =
                (struct sl_route_share){.view = i, .first_offloaded_head = offloaded_head, .replica = replica};
        }
        for (int replica = 0; replica < offloaded_heads->replicas; replica++) {
            first[replica].n_offloaded_heads = (int)n;
            fits[first[replica].view] = (uint16_t)(fits[first[replica].view] - n);
        }
        n_shares += offloaded_heads->replicas;
        offloaded_head += (int)n;
    }
    return n_shares;
}

int64_t sl_route_store_room(const struct sl_route_view *views, int n_views) {
    int64_t room = 0;
    for (int i = 0; i < n_views; i++) {
        room += store_room(&views[i], 0);
    }
    return room;
}

int sl_route_count_ready(const struct sl_route_view *views, int n_views) {
    int n_ready = 0;
    for (int i = 0; i < n_views; i++) {
        n_ready += views[i].ready;
    }
    return n_ready;
}

bool sl_route_fits(const struct sl_route_view *views, int n_views, struct sl_route_need need) {
    for (int i = 0; i < n_views; i++) {
        if (views[i].ready && has_room(&views[i], need, 0, 0)) {
            return true;
        }
    }
    return false;
}

int64_t sl_route_largest(const struct sl_route_view *views, int n_views) {
    int64_t largest = 0;
    for (int i = 0; i < n_views; i++) {
        if (views[i].ready && views[i].capacity_bytes > largest) {
            largest = views[i].capacity_bytes;
        }
    }
    return largest;
}
