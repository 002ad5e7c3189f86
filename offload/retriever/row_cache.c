// SPDX-License-Identifier: Apache-2.0
// Which token lies in which place. See row_cache.h.
#include "offload/retriever/row_cache.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

uint32_t sl_hot_cache_places(const struct sl_plan *plan, int64_t n_prompt) {
    const struct sl_recipe *recipe = &plan->recipe;
    bool is_choice = n_prompt > recipe->sinks + recipe->recent.slots + recipe->topk;
    return is_choice ? (uint32_t)sl_plan_row_places(plan) : 0;
}

enum sl_status sl_hot_cache_init(struct sl_hot_cache *cache, uint32_t n_places, struct sl_error *err) {
    *cache = (struct sl_hot_cache){.n_places = n_places};
    cache->tokens = calloc(4 * (size_t)n_places, sizeof *cache->tokens);
    cache->is_wanted = calloc(n_places, sizeof *cache->is_wanted);
    if (cache->tokens == NULL || cache->is_wanted == NULL) {
        sl_hot_cache_cleanup(cache);
        return sl_fail(err, SL_ERR_EXHAUSTED, "hot cache: no memory for %u places", n_places);
    }
    cache->held = cache->tokens + n_places;
    cache->oldest = cache->held + n_places;
    cache->next = cache->oldest + n_places;
    sl_hot_cache_forget(cache);
    return SL_OK;
}

void sl_hot_cache_cleanup(struct sl_hot_cache *cache) {
    free(cache->tokens);
    free(cache->is_wanted);
    *cache = (struct sl_hot_cache){0};
}

void sl_hot_cache_forget(struct sl_hot_cache *cache) {
    cache->n_held = 0;
    for (uint32_t i = 0; i < cache->n_places; i++) {
        cache->oldest[i] = i;
    }
}

// Tokens that lie somewhere get their place; the others' indices go into fresh_out.
static uint32_t find_held(struct sl_hot_cache *c, const uint32_t *tokens, uint32_t n, uint32_t *places_out,
                          uint32_t *fresh_out) {
    uint32_t n_fresh = 0;
    for (uint32_t i = 0, j = 0; i < n; i++) {
        while (j < c->n_held && c->tokens[c->held[j]] < tokens[i]) {
            j++;
        }
        if (j < c->n_held && c->tokens[c->held[j]] == tokens[i]) {
            places_out[i] = c->held[j];
            c->is_wanted[c->held[j]] = true;
        } else {
            fresh_out[n_fresh++] = i;
        }
    }
    return n_fresh;
}

// held[] without the places that are given away, and with those of the fresh tokens: a merge by token.
static void merge_held(struct sl_hot_cache *c, const uint32_t *tokens, const uint32_t *places, const uint32_t *fresh,
                       uint32_t n_fresh, const bool *is_given) {
    uint32_t n = 0, f = 0;
    for (uint32_t j = 0; j < c->n_held; j++) {
        uint32_t place = c->held[j];
        if (is_given[place]) {
            continue;
        }
        for (; f < n_fresh && tokens[fresh[f]] < c->tokens[place]; f++) {
            c->next[n++] = places[fresh[f]];
        }
        c->next[n++] = place;
    }
    for (; f < n_fresh; f++) {
        c->next[n++] = places[fresh[f]];
    }
    uint32_t *held = c->held;
    c->held = c->next;
    c->next = held;
    c->n_held = n;
}

void sl_hot_cache_want(struct sl_hot_cache *cache, const uint32_t *tokens, uint32_t n, uint32_t *places_out,
                       uint32_t *fresh_out, uint32_t *n_fresh_out) {
    struct sl_hot_cache *c = cache;
    assert(n <= c->n_places);
    uint32_t n_fresh = find_held(c, tokens, n, places_out, fresh_out), given = 0, left = 0;
    // What is not wanted stays in order of age, without the eldest, which are given away.
    for (uint32_t i = 0; i < c->n_places; i++) {
        uint32_t place = c->oldest[i];
        if (c->is_wanted[place]) {
            continue;
        }
        if (given < n_fresh) {
            places_out[fresh_out[given++]] = place;
        } else {
            c->oldest[left++] = place;
        }
    }
    assert(given == n_fresh);
    // is_wanted now says which places hold what stays; afterwards, which are wanted: both are needed once.
    bool *stays = c->is_wanted;
    for (uint32_t i = 0; i < left; i++) {
        stays[c->oldest[i]] = true;
    }
    for (uint32_t p = 0; p < c->n_places; p++) {
        stays[p] = !stays[p]; // given away
    }
    merge_held(c, tokens, places_out, fresh_out, n_fresh, stays);
    for (uint32_t i = 0; i < n_fresh; i++) {
        c->tokens[places_out[fresh_out[i]]] = tokens[fresh_out[i]];
    }
    memset(c->is_wanted, false, c->n_places * sizeof *c->is_wanted);
    for (uint32_t i = 0; i < n; i++) {
        c->is_wanted[places_out[i]] = true;
    }
    for (uint32_t p = 0; p < c->n_places; p++) {
        if (c->is_wanted[p]) {
            c->oldest[left++] = p;
            c->is_wanted[p] = false;
        }
    }
    *n_fresh_out = n_fresh;
}
