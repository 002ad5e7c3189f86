// SPDX-License-Identifier: Apache-2.0
// Purpose: see network.h. A transfer that begins or ends changes the rates of those that share a link with it.
#include "lab/simulate/network.h"

#include <math.h>

static void end(void *arg, double at_s, uint64_t tag);

// Updates the rate, and when the transfer will end.
static void set_rate(struct sl_sim_transfer *t, double at_s) {
    const struct sl_sim_network *network = t->network;
    int n_sharing = network->only_out || t->from->n_out > t->to->n_in ? t->from->n_out : t->to->n_in;
    double rate = network->bytes_per_s / n_sharing;
    if (rate != t->rate) {
        t->left_bytes = fmax(t->left_bytes - t->rate * (at_s - t->since_s), 0);
        t->since_s = at_s;
        t->rate = rate;
        sl_sim_at(network->events, at_s + t->left_bytes / rate, end, t, ++t->tag);
    }
}

static void set_rates(struct sl_sim_link *from, struct sl_sim_link *to, double at_s) {
    for (struct sl_sim_transfer *t = from->out; t; t = t->next_out) {
        set_rate(t, at_s);
    }
    for (struct sl_sim_transfer *t = to->in; t; t = t->next_in) {
        set_rate(t, at_s);
    }
}

static void end(void *arg, double at_s, uint64_t tag) {
    struct sl_sim_transfer *t = arg;
    if (tag != t->tag) {
        return;
    }
    struct sl_sim_link *from = t->from, *to = t->to;
    t->tag++;
    *t->at_out = t->next_out;
    *t->at_in = t->next_in;
    if (t->next_out) {
        t->next_out->at_out = t->at_out;
    }
    if (t->next_in) {
        t->next_in->at_in = t->at_in;
    }
    from->n_out--;
    to->n_in--;
    set_rates(from, to, at_s);
    t->end_fn(t->arg, at_s + t->network->latency_s);
}

void sl_sim_send(struct sl_sim_transfer *t, double bytes, double at_s) {
    t->left_bytes = bytes;
    t->rate = 0;
    t->since_s = at_s;
    t->next_out = t->from->out;
    t->next_in = t->to->in;
    t->at_out = &t->from->out;
    t->at_in = &t->to->in;
    if (t->next_out) {
        t->next_out->at_out = &t->next_out;
    }
    if (t->next_in) {
        t->next_in->at_in = &t->next_in;
    }
    t->from->out = t;
    t->to->in = t;
    t->from->n_out++;
    t->to->n_in++;
    set_rates(t->from, t->to, at_s);
}
