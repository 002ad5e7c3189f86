// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the links of a simulated cluster. Every node has one, with the same rate in both directions. The transfers of a
 *          node share its link equally; a transfer moves at the smaller share of its two ends.
 */
#pragma once

#include "lab/simulate/events.h"

struct sl_sim_link { // zero-initialized; of one node
    int n_out, n_in;
    struct sl_sim_transfer *out, *in; // lists
};

struct sl_sim_transfer {
    struct sl_sim_network *network;
    struct sl_sim_link *from, *to;
    double left_bytes, rate, since_s; // bytes left at since_s
    struct sl_sim_transfer *next_out, *next_in, **at_out, **at_in;
    uint64_t tag;
    void (*end_fn)(void *arg, double at_s);
    void *arg;
};

struct sl_sim_network {
    struct sl_sim_events *events;
    double bytes_per_s, latency_s;
    bool only_out; // what arrives at a node is not limited, as with --inject pace
};

// Starts the transfer, whose network, from, to, end_fn and arg are set. Its memory stays until end_fn is called.
void sl_sim_send(struct sl_sim_transfer *transfer, double bytes, double at_s);
