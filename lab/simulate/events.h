// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the virtual clock of a simulation: events in the order of their times; of equal times, in the order in which
 *          they were added.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct sl_sim_event {
    double at_s;
    uint64_t number; // of all events so far
    void (*run_fn)(void *arg, double at_s, uint64_t tag);
    void *arg;
    uint64_t tag; // the receiver ignores an event whose tag is no longer its own
};

struct sl_sim_events { // zero-initialized
    struct sl_sim_event *heap;
    size_t n, n_allocated;
    uint64_t n_ever;
    double now_s;
    bool out_of_memory; // sticky
};

void sl_sim_at(struct sl_sim_events *events, double at_s, void (*run_fn)(void *arg, double at_s, uint64_t tag),
               void *arg, uint64_t tag);
// Runs the next event if it comes before until_s. Returns false if there is none.
bool sl_sim_run_next(struct sl_sim_events *events, double until_s);
void sl_sim_events_cleanup(struct sl_sim_events *events);
