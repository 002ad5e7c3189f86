// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: tracks which token's row is in which of an offloaded head's numbered places, and which place is reused next:
 *          the one wanted longest ago.
 *
 * Design: a table token -> place (open addressing, linear probing, at most half full) and a list of the used places,
 *         the one wanted longest ago first. Tokens that are wanted together are claimed together: their places leave
 *         the list, so that none of them is reused for another, and are appended to the list one by one, in the
 *         caller's order.
 *         Every step is O(1).
 * Threads: one at a time.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sl_row_place {
    uint32_t token;
    uint32_t older, newer; // in the list
};

struct sl_row_places {
    uint32_t n_places; // 0: none, or no memory
    uint32_t n_used;   // of those, used so far
    uint32_t oldest, newest;
    uint32_t mask;               // of table
    uint32_t *table;             // [mask + 1] of places
    struct sl_row_place *places; // [n_places], in the allocation of `table`
};

// Initializes all places as empty. False: no memory.
bool sl_row_places_init(struct sl_row_places *places, uint32_t n_places);
void sl_row_places_cleanup(struct sl_row_places *places); // accepts zeros, leaves zeros
void sl_row_places_forget(struct sl_row_places *places);  // all places become unused
size_t sl_row_places_bytes(const struct sl_row_places *places);

// Tokens that are wanted together, and where they are.
struct sl_row_claim {
    const uint32_t *tokens; // [n] distinct
    uint32_t n;             // at most n_places
    uint32_t *places;       // out: [n]
    uint32_t *fresh;        // out: [n_fresh] ascending indices of the tokens that had no place; room for n
    uint32_t n_fresh;       // out
};

/*
 * Claims places: places[i] is the place of tokens[i] from now on. A token without a place gets one that was never used
 * (the lowest first), else the one wanted longest ago. The caller must then call sl_row_places_put_last() for all n.
 */
void sl_row_places_claim(struct sl_row_places *places, struct sl_row_claim *claim);
// Makes a claimed place the most recently wanted.
void sl_row_places_put_last(struct sl_row_places *places, uint32_t place);
