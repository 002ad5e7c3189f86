// SPDX-License-Identifier: Apache-2.0
// Purpose: the memory that a job needs of the cluster, by the plan of its recipe. Pure arithmetic.
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "coordinator/workers/route.h"
#include "engine/compress/recipe/recipe.h"
#include "engine/offload/remote_kv/segment_head.h"

// The memory that a job needs of the cluster.
struct sl_demand {
    int64_t n_prefill_tokens; // all of the prompt but the last token; 0: nothing to prefill
    int64_t capsule_bytes;    // upper bound of the capsule's body
    int64_t decode_bytes;     // of the decode worker: capsule, last prompt token, output
    int64_t prefill_bytes;    // of the prefill worker, at its worst
    int64_t travelling_bytes; // of its staging memory in addition to the capsule: offloaded layers on their way
    struct sl_route_offloaded_heads offloaded; // what kvstores hold; none where the recipe does not offload
    enum sl_kv_format scan;                    // the format in which they search it
    int64_t offloaded_unit;                    // prefill reads on after a multiple of this many of its tokens
    double read_ms;       // reading took this long when the prompt's document was added; 0: not known
    int64_t stored_bytes; // of an offloaded head, that stores with the prompt's document have: jobs on it share them
    bool in_one_store;    // the job reads a document: the store of its capsule gets all offloaded heads, or it fails
};

/*
 * The last prompt token is read by the decode worker, which samples the first output token from it: the capsule covers
 * n_prompt - 1 tokens. A prompt of one token has no capsule.
 */
enum sl_status sl_demand_make(const struct sl_recipe *recipe, const struct sl_kv_geometry *geometry, int64_t n_prompt,
                              int64_t max_new_tokens, struct sl_demand *demand_out, struct sl_error *err);

// Computes what all segments of a document's offloaded layers share (engine/offload/remote_kv/segment_head.h); the
// recipe offloads. model_fingerprint: of the document's capsule.
enum sl_status sl_demand_family(const struct sl_recipe *recipe, const struct sl_kv_geometry *geometry, int64_t n_prompt,
                                uint64_t model_fingerprint, struct sl_kv_family *family_out, struct sl_error *err);

/*
 * Computes the demand of a turn on its session of kept_bytes: n_new tokens more, while they are not compressed. A turn
 * prefills nothing. The capsule does not count as data in transit: it may be on the worker already.
 */
enum sl_status sl_demand_make_turn(const struct sl_recipe *recipe, const struct sl_kv_geometry *geometry,
                                   int64_t kept_bytes, int64_t n_new, struct sl_demand *demand_out,
                                   struct sl_error *err);
