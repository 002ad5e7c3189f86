// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: parses the JSON of a request's body in bounded memory.
 *
 * Design: an empty object of three bytes, "{},", takes 250 bytes in memory. So jansson allocates by functions that count
 *         what a thread takes while it parses, against the body's own limit and against the memory for all bodies; the
 *         parser ends when one is reached. What is left is counted until the caller gives it back. A list of token ids would
 *         take 50 bytes for each; it is read from the text instead, and jansson sees an empty list.
 * Threads: any; one parses into a memory at a time.
 */
#pragma once

#include <jansson.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "gateway/openai/refusal.h"

enum sl_json_over { SL_JSON_WITHIN, SL_JSON_OVER_ITS_OWN, SL_JSON_OVER_ALL };

struct sl_json_memory { // of one body
    atomic_llong *held; // bytes of all bodies and their JSON
    int64_t most_held;
    int64_t left, used, counted; // bytes: left for this body, used by its JSON, and counted in *held
    enum sl_json_over over;
};

struct sl_json_ids { // the ids of "prompt": [1, 2, 3]; the caller frees them
    int32_t *ids;    // NULL: the prompt is something else
    size_t n;
    size_t n_good; // the first one that is not a token's id, because it is negative or too large; n: all are
};

// Makes jansson count. Call it once, before other threads start.
void sl_json_memory_install(void);

/*
 * Parses a body. flags: jansson's. memory: NULL: unbounded. ids_out: NULL: the list stays in the JSON. Returns NULL on
 * failure: then *refusal is set if memory is the reason (its http_status is 0 otherwise), and *error in any case. The caller
 * releases the JSON and then gives the memory back.
 */
json_t *sl_json_parse(const char *body, size_t n_bytes, size_t flags, struct sl_json_memory *memory,
                      struct sl_json_ids *ids_out, json_error_t *error, struct sl_refusal *refusal);
void sl_json_memory_give_back(struct sl_json_memory *memory);
