// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the declarative description of how a session's KV is compressed; five papers as points of one space.
 *
 * Text form: comma-separated words, each a preset's name or axis=value; later words override earlier ones:
 *     full | h2o,budget=1024 | streamingllm,budget=0.25,format=int4 |
 * score=aas,scope=sinks:4+recent:0.5,budget=512,when=chunk
 *
 *   axis       values                                                              built
 *   score      none random recency aas aqas ltas mas snapkv cis                    none recency aas
 *   value      off caote fastcaote                                                 off
 *   scope      '+'-joined: sinks:N recent:N|RATIO std:RATIO stabilizers:N tail:N   sinks recent
 *   budget     off, slots (an integer >= 1) or a ratio of the prompt (0 < r < 1)   all
 *   layers     uniform d2o pyramid                                                 uniform
 *   heads      uniform adaptive                                                    uniform
 *   when       '+'-joined: chunk end step                                          chunk end
 *   evicted    drop merge                                                          drop
 *   format     f32 f16 bf16 int8 int4 int2 int1, or per layer: f16/0-1:int4/2-:int2   all
 *   place      resident, offload/LAYERS                                            resident
 *   retrieve   near pull                                                           -
 *   positions  original slot                                                       both
 *   chunk      prompt tokens per forward pass of prefill (a multiple of 64)        all
 *
 * A preset sets every axis of eviction (score to evicted, positions), named in its text or not; format and chunk stay.
 *
 * "format=A/FROM-TO:B" gives layers FROM..TO (either may be left out) format B and all others format A; of ranges that
 * overlap the last one counts.
 *
 * A ratio in scope is a share of the budget. Where a ratio of a short prompt would not be above what scope protects,
 * the budget is one slot above it.
 *
 * What is not built is refused by name, with what exists; impossible combinations are refused with the axis and the
 * reason when the recipe is parsed (or fitted to a model), before any work.
 */
#ifndef SL_COMPRESS_RECIPE_H
#define SL_COMPRESS_RECIPE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"
#include "kvcache/session.h"

enum sl_score { SL_SCORE_NONE, SL_SCORE_RECENCY, SL_SCORE_AAS };
enum sl_when { SL_WHEN_CHUNK = 1, SL_WHEN_END = 2 };

// A number of slots, or a share of something else.
struct sl_amount {
    int64_t slots;
    double ratio; // used when slots is 0 and ratio is not
};

#define SL_MAX_FORMAT_RANGES 16

struct sl_recipe {
    enum sl_score score;
    int64_t sinks;            // scope: the first slots
    struct sl_amount recent;  // scope: the newest slots; a ratio is of the budget
    struct sl_amount budget;  // slots per (layer, KV head); both 0: nothing is evicted
    unsigned when;            // enum sl_when, or-ed
    enum sl_kv_format format; // of layers that no range names
    struct {
        int from, to; // inclusive; to < 0: the last layer
        enum sl_kv_format format;
    } ranges[SL_MAX_FORMAT_RANGES];
    int n_ranges;
    enum sl_position_mode positions;
    int chunk_tokens;
};

// "full,..." Defaults: score none, no budget, format f16, positions original, chunk 512.
enum sl_status sl_recipe_parse(const char *text, struct sl_recipe *recipe_out, struct sl_error *err);

// Canonical text: parses to an equal recipe, and names the preset that evicts alike, if there is one. Returns buf.
#define SL_RECIPE_TEXT_BYTES 512
char *sl_recipe_format(const struct sl_recipe *recipe, char *buf, size_t buf_bytes);

// Equal recipes have equal fingerprints on every machine. chunk_tokens counts only where it changes the cache
// (evicting).
uint64_t sl_recipe_fingerprint(const struct sl_recipe *recipe);

static inline bool sl_recipe_evicts(const struct sl_recipe *recipe) {
    return recipe->budget.slots > 0 || recipe->budget.ratio > 0;
}

// One line for --help and docs: name and canonical text of each preset; the last has a NULL name.
struct sl_preset {
    const char *name, *text, *summary;
    bool built;
};
const struct sl_preset *sl_recipe_presets(void);

/*
 * A recipe together with a model and a prompt: what follows from the three, in numbers. Admission, session creation and
 * the size of a grant all come from here, so they cannot disagree. SL_ERR_INVALID: budget not above what the scope
 * protects, a layer range beyond the model, a head_dim that the format cannot group.
 */
struct sl_plan {
    struct sl_recipe recipe;
    struct sl_kv_geometry geometry;
    int64_t n_prompt;                          // tokens that prefill will read
    int64_t budget_slots;                      // per (layer, KV head); n_prompt when nothing is evicted
    int64_t recent_slots;                      // protected, newest; at most budget_slots
    int64_t max_slots;                         // per head during prefill: budget + chunk, or n_prompt
    size_t capsule_bytes;                      // upper bound of the body
    size_t prefill_peak_bytes;                 // upper bound of arena use during prefill
    struct sl_page_layout work[SL_MAX_LAYERS]; // layouts for sl_session_config
    struct sl_page_layout packed[SL_MAX_LAYERS];
};
enum sl_status sl_plan_make(const struct sl_recipe *recipe, const struct sl_kv_geometry *geometry, int64_t n_prompt,
                            struct sl_plan *plan_out, struct sl_error *err);

// Bytes that a decode worker needs for the capsule and n_new tokens after it: what admission counts.
size_t sl_plan_decode_bytes(const struct sl_plan *plan, int64_t n_new);

#endif
