// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the engine's thread of a simulated worker: it reads prompts by prefill/schedule.h, layer by layer, and writes
 *          answers in steps, as prefill/engine_thread.c and decode/engine_thread.c do.
 *
 * Design: a turn reads a layer of one pass, or writes a step. While one prompt alone is read, a turn is many layers; a
 *         prompt that arrives cuts it after the layer that is being computed. A worker of both roles reads, between two
 *         steps, for as long as the last step took.
 */
#pragma once

#include "engine/runner/reading.h"
#include "engine/runner/writing.h"
#include "lab/simulate/costs.h"
#include "lab/simulate/events.h"
#include "prefill/schedule.h"

#define SL_SIM_MAX_OPEN   64 // as of a prefill worker
#define SL_SIM_MAX_PASSES 3

struct sl_sim_model {
    const struct sl_costs *costs;
    int n_layers;
    struct sl_costs_cut cut;
};

struct sl_sim_prompt {
    int64_t ticket, n_tokens, n_done, chunk; // chunk: of its pass; 0: it is in none
    double factor;                           // of the time of its passes, under its recipe
    double began_s;                          // its first pass; 0: not yet
    struct sl_sim_prompt *next;              // in line
    void *job;
};

struct sl_sim_answer {
    int64_t n_left;
    double context, growth; // tokens that a step attends to, and how many more after it
    double first_s, last_s; // tokens; first_s 0: none yet
    struct sl_sim_answer *next;
    void *job;
};

struct sl_sim_pass {
    struct sl_sim_prompt *prompts[SL_READING_MAX_PROMPTS];
    int n, layers_left;
    double layer_s;
};

struct sl_sim_engine {
    const struct sl_sim_model *model;
    struct sl_sim_events *events;
    // Called when the first layer of the last chunk is final, when all is read, and for a token, with n_left after it
    void (*final_fn)(struct sl_sim_engine *engine, struct sl_sim_prompt *prompt, double at_s);
    void (*read_fn)(struct sl_sim_engine *engine, struct sl_sim_prompt *prompt, double at_s);
    void (*token_fn)(struct sl_sim_engine *engine, struct sl_sim_answer *answer, double at_s);
    // Reading
    struct sl_schedule schedule;
    struct sl_sim_prompt *open[SL_SIM_MAX_OPEN], *line, **line_end;
    int n_open;
    int64_t n_arrived;
    struct sl_sim_pass passes[SL_SIM_MAX_PASSES], *running; // running: the pass of this turn; NULL: none
    int n_layers;                                           // of this turn
    // Writing
    struct sl_sim_answer *active[SL_WRITING_MAX_ANSWERS], *inbox, **inbox_end;
    int n_active;
    double context, growth; // sums over the active answers
    double step_s;          // of the last step
    bool steps;             // this turn is a step
    double until_s;         // prompts are read until then; 0: from the next turn on
    // The turn
    bool busy;
    double began_s, busy_s; // busy_s: so far
    uint64_t tag;
};

void sl_sim_engine_init(struct sl_sim_engine *engine, const struct sl_sim_model *model, struct sl_sim_events *events);
void sl_sim_engine_read(struct sl_sim_engine *engine, struct sl_sim_prompt *prompt, double at_s);
void sl_sim_engine_write(struct sl_sim_engine *engine, struct sl_sim_answer *answer, double at_s);
