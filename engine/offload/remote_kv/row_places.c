// SPDX-License-Identifier: Apache-2.0
#include "engine/offload/remote_kv/row_places.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define NONE UINT32_MAX // end of the list; an empty entry of the table

static size_t bytes_of(uint32_t n_places, uint32_t n_entries) {
    return n_entries * sizeof(uint32_t) + n_places * sizeof(struct sl_row_place);
}

bool sl_row_places_init(struct sl_row_places *places, uint32_t n_places) {
    uint32_t n_entries = 2;
    while (n_entries < 2 * n_places) {
        n_entries *= 2;
    }
    char *memory = malloc(bytes_of(n_places, n_entries));
    if (memory == NULL) {
        return false;
    }
    *places = (struct sl_row_places){.n_places = n_places, .mask = n_entries - 1, .table = (uint32_t *)memory};
    places->places = (struct sl_row_place *)(memory + n_entries * sizeof(uint32_t));
    sl_row_places_forget(places);
    return true;
}

void sl_row_places_cleanup(struct sl_row_places *places) {
    free(places->table);
    *places = (struct sl_row_places){0};
}

void sl_row_places_forget(struct sl_row_places *places) {
    memset(places->table, 0xff, ((size_t)places->mask + 1) * sizeof *places->table); // NONE everywhere
    places->n_used = 0;
    places->oldest = places->newest = NONE;
}

size_t sl_row_places_bytes(const struct sl_row_places *places) {
    return places->table != NULL ? bytes_of(places->n_places, places->mask + 1) : 0;
}

// --- token -> place ------------------------------------------------------------------------------------------------

static uint32_t home(const struct sl_row_places *p, uint32_t token) {
    return (uint32_t)(token * 0x9e3779b97f4a7c15u >> 32) & p->mask;
}

// Returns the table entry of the token's place, or the empty entry where it would be.
static uint32_t find_entry(const struct sl_row_places *p, uint32_t token) {
    uint32_t entry = home(p, token);
    while (p->table[entry] != NONE && p->places[p->table[entry]].token != token) {
        entry = (entry + 1) & p->mask;
    }
    return entry;
}

// Removes a token; later entries move up as long as each is still found from its home.
static void remove_token(struct sl_row_places *p, uint32_t token) {
    uint32_t hole = find_entry(p, token), mask = p->mask;
    for (uint32_t entry = (hole + 1) & mask; p->table[entry] != NONE; entry = (entry + 1) & mask) {
        uint32_t from_home = (entry - home(p, p->places[p->table[entry]].token)) & mask;
        if (from_home >= ((entry - hole) & mask)) {
            p->table[hole] = p->table[entry];
            hole = entry;
        }
    }
    p->table[hole] = NONE;
}

// --- the list ------------------------------------------------------------------------------------------------------

static void take_out(struct sl_row_places *p, uint32_t index) {
    const struct sl_row_place *place = &p->places[index];
    *(place->older != NONE ? &p->places[place->older].newer : &p->oldest) = place->newer;
    *(place->newer != NONE ? &p->places[place->newer].older : &p->newest) = place->older;
}

void sl_row_places_put_last(struct sl_row_places *places, uint32_t place) {
    places->places[place].older = places->newest;
    places->places[place].newer = NONE;
    *(places->newest != NONE ? &places->places[places->newest].newer : &places->oldest) = place;
    places->newest = place;
}

// --- claims --------------------------------------------------------------------------------------------------------

// Gives a place to a token that has none: one that was never used, or the oldest.
static uint32_t give_place(struct sl_row_places *p, uint32_t token) {
    uint32_t index = p->oldest;
    if (p->n_used < p->n_places) {
        index = p->n_used++;
    } else {
        take_out(p, index);
        remove_token(p, p->places[index].token);
    }
    p->places[index].token = token;
    p->table[find_entry(p, token)] = index;
    return index;
}

void sl_row_places_claim(struct sl_row_places *places, struct sl_row_claim *claim) {
    assert(claim->n <= places->n_places);
    for (uint32_t i = 0; i < claim->n; i++) {
        claim->places[i] = places->table[find_entry(places, claim->tokens[i])];
        if (claim->places[i] != NONE) {
            take_out(places, claim->places[i]);
        }
    }
    claim->n_fresh = 0;
    for (uint32_t i = 0; i < claim->n; i++) {
        if (claim->places[i] == NONE) {
            claim->places[i] = give_place(places, claim->tokens[i]);
            claim->fresh[claim->n_fresh++] = i;
        }
    }
}
