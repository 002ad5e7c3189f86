// SPDX-License-Identifier: Apache-2.0
#include "lab/simulate/engines.h"

#include <math.h>
#include <string.h>

static void turn(void *arg, double at_s, uint64_t tag);

void sl_sim_engine_init(struct sl_sim_engine *engine, const struct sl_sim_model *model, struct sl_sim_events *events) {
    engine->model = model;
    engine->events = events;
    engine->schedule.patience = SL_SCHEDULE_PATIENCE;
    engine->line_end = &engine->line;
    engine->inbox_end = &engine->inbox;
}

// --- reading -----------------------------------------------------------------------------------------------------------

static int64_t next_chunk(const struct sl_sim_model *model, const struct sl_sim_prompt *prompt) {
    return sl_costs_next_chunk(model->costs, &model->cut, prompt->n_done, prompt->n_tokens);
}

static void open_line(struct sl_sim_engine *engine) {
    while (engine->line && engine->n_open < SL_SIM_MAX_OPEN) {
        struct sl_sim_prompt *prompt = engine->line;
        engine->line = prompt->next;
        engine->line_end = engine->line ? engine->line_end : &engine->line;
        engine->open[engine->n_open++] = prompt;
    }
}

static struct sl_sim_pass *free_pass(struct sl_sim_engine *engine) {
    int i = 0;
    while (i < SL_SIM_MAX_PASSES && engine->passes[i].n > 0) {
        i++;
    }
    return i < SL_SIM_MAX_PASSES ? &engine->passes[i] : NULL;
}

static struct sl_sim_pass *pass_of(struct sl_sim_engine *engine, const struct sl_sim_prompt *prompt) {
    struct sl_sim_pass *pass = engine->passes;
    while (pass->n == 0 || pass->prompts[0] != prompt) {
        for (int k = 1; k < pass->n; k++) {
            if (pass->prompts[k] == prompt) {
                return pass;
            }
        }
        pass++;
    }
    return pass;
}

// Returns the prompt whose turn it is; NULL: none.
static struct sl_sim_prompt *choose(struct sl_sim_engine *engine) {
    const struct sl_sim_model *model = engine->model;
    struct sl_schedule_job jobs[SL_SIM_MAX_OPEN];
    int open[SL_SIM_MAX_OPEN], n = 0;
    bool is_full = !free_pass(engine);
    for (int i = 0; i < engine->n_open; i++) {
        const struct sl_sim_prompt *p = engine->open[i];
        if (p->chunk == 0 && is_full) {
            continue;
        }
        int64_t end = p->n_done + (p->chunk > 0 ? p->chunk : next_chunk(model, p));
        jobs[n] = (struct sl_schedule_job){
            .ticket = p->ticket,
            .left = sl_schedule_work(p->n_done, p->n_tokens, p->n_tokens, model->cut.half),
            .next = sl_schedule_work(p->n_done, end, p->n_tokens, model->cut.half) / model->n_layers};
        open[n++] = i;
    }
    int chosen = sl_schedule_next(&engine->schedule, jobs, n);
    return chosen >= 0 ? engine->open[open[chosen]] : NULL;
}

static struct sl_sim_pass *begin_pass(struct sl_sim_engine *engine, struct sl_sim_prompt *first) {
    const struct sl_sim_model *model = engine->model;
    struct sl_sim_pass *pass = free_pass(engine);
    int64_t chunks[SL_SIM_MAX_OPEN];
    int chosen[SL_READING_MAX_PROMPTS];
    for (int i = 0; i < engine->n_open; i++) {
        struct sl_sim_prompt *p = engine->open[i];
        chunks[i] = p->chunk == 0 ? next_chunk(model, p) : 0;
        chosen[0] = p == first ? i : chosen[0];
    }
    pass->n = sl_schedule_fill(chunks, engine->n_open, model->costs->rows, chosen, SL_READING_MAX_PROMPTS);
    double tokens = 0, pairs = 0, factor = 0;
    for (int k = 0; k < pass->n; k++) {
        struct sl_sim_prompt *p = pass->prompts[k] = engine->open[chosen[k]];
        p->chunk = chunks[chosen[k]];
        p->began_s = p->began_s > 0 ? p->began_s : engine->events->now_s;
        tokens += (double)p->chunk;
        pairs += (double)p->chunk * (double)p->n_done;
        factor += p->factor * (double)p->chunk;
    }
    pass->layers_left = model->n_layers;
    pass->layer_s = sl_costs_read_s(model->costs, tokens, pairs / tokens) * factor / tokens / model->n_layers;
    return pass;
}

static bool ends_prompt(const struct sl_sim_pass *pass) {
    bool ends = false;
    for (int k = 0; k < pass->n; k++) {
        ends |= pass->prompts[k]->n_done + pass->prompts[k]->chunk == pass->prompts[k]->n_tokens;
    }
    return ends;
}

// Begins to read a layer, or all layers of a pass that nothing can interrupt but an arrival. Returns how long that takes;
// 0: there is nothing to read.
static double begin_reading(struct sl_sim_engine *engine) {
    open_line(engine);
    struct sl_sim_prompt *prompt = choose(engine);
    if (!prompt) {
        return 0;
    }
    struct sl_sim_pass *pass = prompt->chunk > 0 ? pass_of(engine, prompt) : begin_pass(engine, prompt);
    bool alone = engine->n_open == 1 && engine->n_active == 0 && !engine->inbox;
    bool is_first_final = pass->layers_left == engine->model->n_layers && ends_prompt(pass);
    engine->running = pass;
    engine->n_layers = alone && !is_first_final ? pass->layers_left : 1;
    return engine->n_layers * pass->layer_s;
}

static void close_prompt(struct sl_sim_engine *engine, struct sl_sim_prompt *prompt, double at_s) {
    int i = 0;
    while (engine->open[i] != prompt) {
        i++;
    }
    engine->open[i] = engine->open[--engine->n_open];
    engine->read_fn(engine, prompt, at_s);
}

static void end_reading(struct sl_sim_engine *engine, double at_s) {
    struct sl_sim_pass *pass = engine->running, ended;
    bool is_first = pass->layers_left == engine->model->n_layers;
    engine->running = NULL;
    pass->layers_left -= engine->n_layers;
    for (int k = 0; k < pass->n && is_first; k++) {
        if (pass->prompts[k]->n_done + pass->prompts[k]->chunk == pass->prompts[k]->n_tokens) {
            engine->final_fn(engine, pass->prompts[k], at_s);
        }
    }
    if (pass->layers_left > 0) {
        return;
    }
    ended = *pass;
    pass->n = 0;
    for (int k = 0; k < ended.n; k++) {
        struct sl_sim_prompt *prompt = ended.prompts[k];
        prompt->n_done += prompt->chunk;
        prompt->chunk = 0;
        if (prompt->n_done == prompt->n_tokens) {
            close_prompt(engine, prompt, at_s);
        }
    }
}

// --- writing -----------------------------------------------------------------------------------------------------------

// Begins a step. Returns how long it takes; 0: there is no answer to write.
static double begin_step(struct sl_sim_engine *engine) {
    while (engine->inbox && engine->n_active < SL_WRITING_MAX_ANSWERS) {
        struct sl_sim_answer *answer = engine->inbox;
        engine->inbox = answer->next;
        engine->inbox_end = engine->inbox ? engine->inbox_end : &engine->inbox;
        engine->active[engine->n_active++] = answer;
        engine->context += answer->context;
        engine->growth += answer->growth;
    }
    if (engine->n_active == 0) {
        engine->context = engine->growth = 0; // of rounding
        return 0;
    }
    engine->steps = true;
    engine->step_s = sl_costs_step_s(engine->model->costs, engine->n_active, engine->context / engine->n_active);
    return engine->step_s;
}

static void end_step(struct sl_sim_engine *engine, double at_s) {
    engine->steps = false;
    engine->context += engine->growth;
    for (int i = 0; i < engine->n_active;) {
        struct sl_sim_answer *answer = engine->active[i];
        answer->context += answer->growth;
        answer->n_left--;
        if (answer->n_left == 0) {
            engine->context -= answer->context;
            engine->growth -= answer->growth;
            engine->active[i] = engine->active[--engine->n_active];
        } else {
            i++;
        }
        engine->token_fn(engine, answer, at_s);
    }
}

// --- turns -------------------------------------------------------------------------------------------------------------

// Begins what is next: prompts until the time of the last step has passed, at least a layer; then a step.
static void begin_turn(struct sl_sim_engine *engine, double at_s) {
    double s = 0;
    if (engine->until_s == 0 || (engine->n_active > 0 && at_s < engine->until_s)) {
        s = begin_reading(engine);
    }
    if (s > 0) {
        engine->until_s = engine->until_s == 0 ? at_s + engine->step_s : engine->until_s;
    } else {
        engine->until_s = 0;
        s = begin_step(engine);
    }
    if (s == 0 && (s = begin_reading(engine)) > 0) {
        engine->until_s = at_s + engine->step_s;
    }
    engine->busy = s > 0;
    engine->began_s = at_s;
    if (engine->busy) {
        sl_sim_at(engine->events, at_s + s, turn, engine, ++engine->tag);
    }
}

static void turn(void *arg, double at_s, uint64_t tag) {
    struct sl_sim_engine *engine = arg;
    if (tag != engine->tag) {
        return;
    }
    engine->busy_s += at_s - engine->began_s;
    if (engine->steps) {
        end_step(engine, at_s);
    } else {
        end_reading(engine, at_s);
    }
    begin_turn(engine, at_s);
}

// Ends the turn after the layer that is being computed, so that what has arrived has a turn.
static void cut(struct sl_sim_engine *engine, double at_s) {
    if (engine->running && engine->n_layers > 1) {
        double layer_s = engine->running->layer_s;
        int n = (int)fmin(fmax(ceil((at_s - engine->began_s) / layer_s), 1), engine->n_layers);
        engine->n_layers = n;
        sl_sim_at(engine->events, fmax(engine->began_s + n * layer_s, at_s), turn, engine, ++engine->tag);
    }
}

void sl_sim_engine_read(struct sl_sim_engine *engine, struct sl_sim_prompt *prompt, double at_s) {
    prompt->ticket = ++engine->n_arrived;
    prompt->next = NULL;
    *engine->line_end = prompt;
    engine->line_end = &prompt->next;
    if (engine->busy) {
        cut(engine, at_s);
    } else {
        begin_turn(engine, at_s);
    }
}

void sl_sim_engine_write(struct sl_sim_engine *engine, struct sl_sim_answer *answer, double at_s) {
    answer->next = NULL;
    *engine->inbox_end = answer;
    engine->inbox_end = &answer->next;
    if (engine->busy) {
        cut(engine, at_s);
    } else {
        begin_turn(engine, at_s);
    }
}
