// SPDX-License-Identifier: Apache-2.0
#include "engine/offload/retriever/hot_cache.h"

#include <stdlib.h>

uint32_t sl_hot_cache_places(const struct sl_plan *plan, int64_t n_prompt) {
    const struct sl_recipe *recipe = &plan->recipe;
    bool is_choice = n_prompt > recipe->sinks + recipe->recent.slots + recipe->topk;
    return is_choice ? (uint32_t)sl_plan_row_places(plan) : 0;
}

enum sl_status sl_hot_cache_init(struct sl_hot_cache *cache, uint32_t n_places, struct sl_error *err) {
    *cache = (struct sl_hot_cache){.is_wanted = calloc(n_places, sizeof *cache->is_wanted)};
    if (cache->is_wanted == NULL || !sl_row_places_init(&cache->places, n_places)) {
        sl_hot_cache_cleanup(cache);
        return sl_fail(err, SL_ERR_EXHAUSTED, "hot cache: no memory for %u places", n_places);
    }
    return SL_OK;
}

void sl_hot_cache_cleanup(struct sl_hot_cache *cache) {
    sl_row_places_cleanup(&cache->places);
    free(cache->is_wanted);
    *cache = (struct sl_hot_cache){0};
}

void sl_hot_cache_forget(struct sl_hot_cache *cache) {
    sl_row_places_forget(&cache->places);
}

void sl_hot_cache_want(struct sl_hot_cache *cache, struct sl_row_claim *claim) {
    sl_row_places_claim(&cache->places, claim);
    for (uint32_t i = 0; i < claim->n; i++) {
        cache->is_wanted[claim->places[i]] = true;
    }
    for (uint32_t p = 0; p < cache->places.n_places; p++) {
        if (cache->is_wanted[p]) {
            sl_row_places_put_last(&cache->places, p); // by ascending place
            cache->is_wanted[p] = false;
        }
    }
}
