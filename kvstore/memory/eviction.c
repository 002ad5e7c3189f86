// SPDX-License-Identifier: Apache-2.0
// The eviction policies. See eviction.h.
#include "kvstore/memory/eviction.h"

#include <math.h>
#include <string.h>

#define TWICE_AFTER 32768       // tokens after which a token takes twice the time of the first ones
#define AVERAGED    16          // measured times that the average remembers
#define NEW_NS      10000000000 // a capsule that was used just now outranks all others: its next prompt is on its way

double sl_eviction_read_cost(int64_t from, int64_t to) {
    double a = (double)from, b = (double)to;
    return b - a + (b * b - a * a) / (2.0 * TWICE_AFTER);
}

double sl_eviction_ms_per_token(double *average, double read_ms, int64_t read_tokens, int64_t n_tokens) {
    int64_t n_read = read_tokens < n_tokens ? read_tokens : n_tokens;
    if (read_ms > 0 && n_read > 0) {
        double measured = read_ms / sl_eviction_read_cost(n_tokens - n_read, n_tokens);
        *average = *average > 0 ? *average + (measured - *average) / AVERAGED : measured;
        return measured;
    }
    return *average > 0 ? *average : 1;
}

bool sl_eviction_is_lower(const struct sl_eviction_rank *a, const struct sl_eviction_rank *b) {
    return a->first < b->first || (a->first == b->first && a->then < b->then);
}

static struct sl_eviction_rank by_use(const struct sl_eviction_entry *entry) {
    return (struct sl_eviction_rank){0, (double)entry->used_ns};
}

static struct sl_eviction_rank by_ttl(const struct sl_eviction_entry *entry) {
    return (struct sl_eviction_rank){entry->age_ns >= entry->ttl_ns ? 0 : 1, (double)entry->used_ns};
}

static struct sl_eviction_rank by_share(const struct sl_eviction_entry *entry) {
    size_t excess = entry->tenant_bytes > entry->share_bytes ? entry->tenant_bytes - entry->share_bytes : 0;
    return (struct sl_eviction_rank){-(double)excess, (double)entry->used_ns};
}

static struct sl_eviction_rank by_cost(const struct sl_eviction_entry *entry) {
    if (entry->idle_ns < NEW_NS) {
        return (struct sl_eviction_rank){HUGE_VAL, (double)entry->used_ns};
    }
    double ms = entry->ms_per_token * sl_eviction_read_cost(entry->shared_tokens, entry->n_tokens);
    double per_byte = entry->bytes > 0 ? ms / (double)entry->bytes : ms;
    return (struct sl_eviction_rank){per_byte / (double)entry->idle_ns, (double)entry->used_ns};
}

static const struct sl_eviction_policy policies[] = {
    {"lru", "the capsule that was not used for the longest time goes first", by_use, true},
    {"ttl", "capsules stored longer than --ttl ago go first, then the least recently used", by_ttl, false},
    {"share", "tenants that have more than an equal share of the memory lose first, the largest before others",
     by_share, false},
    {"cost",
     "the capsule that frees the most bytes for the time to read its tokens again, times its age, goes first; "
     "one used in the last 10 s goes after all others",
     by_cost, false},
};

const struct sl_eviction_policy *sl_eviction_at(size_t i) {
    return i < sizeof policies / sizeof *policies ? &policies[i] : NULL;
}

const struct sl_eviction_policy *sl_eviction_find(const char *name) {
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
        if (strcmp(policies[i].name, name) == 0) {
            return &policies[i];
        }
    }
    return NULL;
}
