// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what lies in an asker's places, so that no row is sent twice while it is there.
 *
 * Design: of every lane a table token -> place (open addressing, linear probing, at most half full) and a list of the used
 *         places, the one wanted longest ago first. A request takes the places that it wants out of the list, and puts
 *         them behind all others by ascending token; victims come from the front and so are never wanted now: there are
 *         at least topk places. Every step is O(1). There are no more places than tokens, whatever an asker says.
 * Threads: lanes are independent of each other.
 */
#include <stdlib.h>
#include <string.h>

#include "offload/annex/near_internal.h"

#define NONE UINT32_MAX

struct place {
    uint32_t token;
    uint32_t older, newer; // of the list; NONE at its ends
};

struct lane {
    uint64_t sequence; // of the last request that was answered
    uint32_t asked;    // places that the asker has; 0: it never asked
    uint32_t n_places; // of those, ever used
    uint32_t n_used;
    uint32_t oldest, newest;
    uint32_t mask;        // of table
    uint32_t *table;      // [mask + 1] of places; NONE: empty
    struct place *places; // [n_places], behind table
};

struct sl_near_memory {
    int first_lane, n_lanes;
    int64_t max_tokens;
    _Atomic size_t bytes;
    struct lane lanes[];
};

enum sl_status sl_near_memory_create(const struct sl_annex *annex, struct sl_near_memory **memory_out,
                                     struct sl_error *err) {
    size_t bytes = sizeof(struct sl_near_memory) + (size_t)annex->n_lanes * sizeof(struct lane);
    struct sl_near_memory *m = calloc(1, bytes);
    if (m == NULL) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory of what an asker has of %d lanes", annex->n_lanes);
    }
    m->first_lane = annex->first_lane;
    m->n_lanes = annex->n_lanes;
    m->max_tokens = annex->max_tokens;
    atomic_init(&m->bytes, bytes);
    *memory_out = m;
    return SL_OK;
}

void sl_near_memory_destroy(struct sl_near_memory **memory) {
    struct sl_near_memory *m = *memory;
    if (m == NULL) {
        return;
    }
    for (int i = 0; i < m->n_lanes; i++) {
        free(m->lanes[i].table);
    }
    free(m);
    *memory = NULL;
}

size_t sl_near_memory_bytes(const struct sl_near_memory *memory) {
    return atomic_load_explicit(&memory->bytes, memory_order_relaxed);
}

// --- token -> place ------------------------------------------------------------------------------------------------

static uint32_t home(const struct lane *lane, uint32_t token) {
    return (uint32_t)(token * 0x9e3779b97f4a7c15u >> 32) & lane->mask;
}

// Where the token's place stands in the table, or the empty entry where it would.
static uint32_t find_entry(const struct lane *lane, uint32_t token) {
    uint32_t entry = home(lane, token);
    while (lane->table[entry] != NONE && lane->places[lane->table[entry]].token != token) {
        entry = (entry + 1) & lane->mask;
    }
    return entry;
}

// Entries behind the one that goes move up, as far as each is still found from its home.
static void remove_token(struct lane *lane, uint32_t token) {
    uint32_t hole = find_entry(lane, token), mask = lane->mask;
    for (uint32_t entry = (hole + 1) & mask; lane->table[entry] != NONE; entry = (entry + 1) & mask) {
        uint32_t from_home = (entry - home(lane, lane->places[lane->table[entry]].token)) & mask;
        if (from_home >= ((entry - hole) & mask)) {
            lane->table[hole] = lane->table[entry];
            hole = entry;
        }
    }
    lane->table[hole] = NONE;
}

// --- the list ------------------------------------------------------------------------------------------------------

static void take_out(struct lane *lane, uint32_t index) {
    const struct place *place = &lane->places[index];
    *(place->older != NONE ? &lane->places[place->older].newer : &lane->oldest) = place->newer;
    *(place->newer != NONE ? &lane->places[place->newer].older : &lane->newest) = place->older;
}

static void put_last(struct lane *lane, uint32_t index) {
    lane->places[index].older = lane->newest;
    lane->places[index].newer = NONE;
    *(lane->newest != NONE ? &lane->places[lane->newest].newer : &lane->oldest) = index;
    lane->newest = index;
}

// --- requests ------------------------------------------------------------------------------------------------------

// Nothing lies in any of the places.
static bool begin_anew(struct sl_near_memory *m, struct lane *lane, uint32_t asked) {
    uint32_t n_places = (int64_t)asked < m->max_tokens ? asked : (uint32_t)m->max_tokens, n_entries = 2;
    while (n_entries < 2 * n_places) {
        n_entries *= 2;
    }
    if (lane->asked == 0 || n_places != lane->n_places) {
        size_t table_bytes = n_entries * sizeof *lane->table, bytes = table_bytes + n_places * sizeof *lane->places;
        void *table = malloc(bytes);
        if (table == NULL) {
            return false;
        }
        size_t old = lane->table != NULL
                         ? ((size_t)lane->mask + 1) * sizeof *lane->table + lane->n_places * sizeof *lane->places
                         : 0;
        atomic_fetch_add_explicit(&m->bytes, bytes - old, memory_order_relaxed);
        free(lane->table);
        lane->table = table;
        lane->places = (struct place *)((char *)table + table_bytes);
        lane->n_places = n_places;
        lane->mask = n_entries - 1;
    }
    memset(lane->table, 0xff, n_entries * sizeof *lane->table); // NONE everywhere
    lane->asked = asked;
    lane->n_used = 0;
    lane->oldest = lane->newest = NONE;
    return true;
}

// A place for a token that lies in none: one that was never used, or the oldest.
static uint32_t give_place(struct lane *lane, uint32_t token) {
    uint32_t index = lane->oldest;
    if (lane->n_used < lane->n_places) {
        index = lane->n_used++;
    } else {
        take_out(lane, index);
        remove_token(lane, lane->places[index].token);
    }
    lane->places[index].token = token;
    lane->table[find_entry(lane, token)] = index;
    return index;
}

enum sl_status sl_near_memory_want(struct sl_near_memory *memory, int lane_number,
                                   const struct sl_near_request *request, const uint32_t *tokens, uint32_t n,
                                   uint32_t *places_out, uint32_t *fresh_out, uint32_t *n_new_out,
                                   struct sl_error *err) {
    struct lane *lane = &memory->lanes[lane_number - memory->first_lane];
    bool follows = lane->asked == request->places && request->sequence == lane->sequence + 1;
    if (((request->flags & SL_NEAR_RESET) != 0 || !follows) && !begin_anew(memory, lane, request->places)) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory of what lies in %u places of an asker", request->places);
    }
    for (uint32_t i = 0; i < n; i++) {
        places_out[i] = lane->table[find_entry(lane, tokens[i])];
        if (places_out[i] != NONE) {
            take_out(lane, places_out[i]);
        }
    }
    uint32_t n_new = 0;
    for (uint32_t i = 0; i < n; i++) {
        if (places_out[i] == NONE) {
            places_out[i] = give_place(lane, tokens[i]);
            fresh_out[n_new++] = i;
        }
        put_last(lane, places_out[i]);
    }
    lane->sequence = request->sequence;
    *n_new_out = n_new;
    return SL_OK;
}
