// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the rows of offloaded layers that decode has, in numbered places: their memory (near and pull), and which
 *          token is in which place if the asker decides that itself (pull; with near the remote KV decides).
 *
 * Design: the places of an offloaded head are the slots of its pages, in the layer's working layout, so that ops put
 *         rows there and attend to them as to any slots.
 * Places: a wanted token that is missing gets a place that was never used (the lowest first), else the one wanted
 *         longest ago (of those wanted at the same time the lowest place), never one that is wanted now.
 */
#pragma once

#include "engine/compress/plan/plan.h"
#include "engine/compress/recipe/recipe.h"
#include "engine/offload/remote_kv/row_places.h"

// Returns the places of an offloaded head (sl_plan_row_places()); 0: the prompt is so short that every token is
// resident.
uint32_t sl_hot_cache_places(const struct sl_plan *plan, int64_t n_prompt);

struct sl_hot_cache {
    struct sl_row_places places;
    bool *is_wanted; // [n_places] all false between calls
};

enum sl_status sl_hot_cache_init(struct sl_hot_cache *cache, uint32_t n_places, struct sl_error *err);
void sl_hot_cache_cleanup(struct sl_hot_cache *cache); // accepts zeros
void sl_hot_cache_forget(struct sl_hot_cache *cache);  // all places become unused

// Claims places for ascending tokens; the caller must put the rows of the fresh ones there.
void sl_hot_cache_want(struct sl_hot_cache *cache, struct sl_row_claim *claim);
