// SPDX-License-Identifier: Apache-2.0
#include "lab/bench/rig/cell.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/tensor/timed/timed.h"
#include "lab/bench/rig/drawn.h"
#include "lab/bench/rig/synthetic.h"
#include "lab/random.h"

#define MAX_TOKENS   1000000 // limit of a prompt or a depth
#define FILL_ROWS    (32 * SL_PAGE_SLOTS)
#define MOST_HEADS   64  // KV heads of a layer that are filled at once
#define WARM_UP_READ 512 // tokens of a prompt
#define WARM_UP_STEP 2   // tokens of an answer

enum sl_status sl_cell_parse(const char *text, struct sl_cell *cell_out, struct sl_error *err) {
    struct sl_cell cell = {.batch = 1};
    int used = -1;
    if (sscanf(text, "prefill:%9" SCNd64 "%n", &cell.n, &used) == 1 && text[used] == '\0') {
        cell.prefill = true;
    } else if (sscanf(text, "decode:%9" SCNd64 "%n", &cell.n, &used) != 1 ||
               (text[used] != '\0' && (sscanf(text, "decode:%*9dx%9d%n", &cell.batch, &used) != 1 || text[used]))) {
        return sl_fail(err, SL_ERR_INVALID, "--cell %s: expected prefill:TOKENS or decode:DEPTHxBATCH", text);
    }
    SL_FAIL_IF(
        cell.n < (cell.prefill ? 1 : 0) || cell.n > MAX_TOKENS || cell.batch < 1 || cell.batch > SL_CELL_MAX_BATCH, err,
        SL_ERR_INVALID, "--cell %s: at most %d tokens and %d sessions", text, MAX_TOKENS, SL_CELL_MAX_BATCH);
    snprintf(cell.name, sizeof cell.name, "%s", text);
    *cell_out = cell;
    return SL_OK;
}

// --- sessions of a cell --------------------------------------------------------------------------------------------

// Returns the most slots that a head of this cell will hold.
static int64_t slots_needed(const struct sl_rig *rig) {
    int64_t steps = rig->config.n_steps > WARM_UP_STEP ? rig->config.n_steps : WARM_UP_STEP;
    return rig->cell.prefill ? rig->cell.n : rig->cell.n + steps;
}

static void close_filling(struct sl_rig *rig) {
    if (rig->filling.rows != NULL) {
        sl_device_free(rig->runtime.device, SL_MEMORY_SHARED, rig->filling.rows);
        sl_device_free(rig->runtime.device, SL_MEMORY_SHARED, rig->filling.positions);
    }
    rig->filling = (struct sl_rig_filling){0};
}

// Opens filling for at least this many slots. It stays until the cell is closed: thousands of layers are filled from
// it.
static enum sl_status open_filling(struct sl_rig *rig, const struct sl_kv_geometry *geometry, int64_t n_slots,
                                   struct sl_error *err) {
    struct sl_rig_filling *f = &rig->filling;
    if (n_slots <= f->n_slots) {
        return SL_OK;
    }
    close_filling(rig);
    size_t n = FILL_ROWS * (size_t)geometry->n_kv_heads * (size_t)geometry->head_dim;
    f->rows = sl_device_alloc(rig->runtime.device, SL_MEMORY_SHARED, n * sizeof *f->rows);
    f->positions = sl_device_alloc(rig->runtime.device, SL_MEMORY_SHARED, (size_t)n_slots * sizeof *f->positions);
    SL_FAIL_OR(f->rows == NULL || f->positions == NULL, close_filling(rig), err, SL_ERR_EXHAUSTED, "out of memory");
    f->n_slots = n_slots;
    uint64_t random = 1;
    for (size_t i = 0; i < n; i++) {
        f->rows[i] = sl_random_unit(&random);
    }
    for (int64_t j = 0; j < n_slots; j++) {
        f->positions[j] = j;
    }
    return SL_OK;
}

// Writes slots [first, first + m) of all heads of a layer, which has pages for them.
static enum sl_status fill_slots(const struct sl_rig *rig, const struct sl_session *session, int layer, int64_t first,
                                 int m, struct sl_error *err) {
    const struct sl_runtime *r = &rig->runtime;
    const struct sl_layer *cache = &session->layers[layer];
    int n = session->geometry.n_kv_heads, d = session->geometry.head_dim;
    struct sl_kv kv[MOST_HEADS];
    for (int h = 0; h < n; h++) {
        kv[h] = (struct sl_kv){cache->heads[h].pages, 0, (uint32_t)(first + m), &cache->work, &cache->packed};
    }
    struct sl_attend call = {.k = rig->filling.rows,
                             .v = rig->filling.rows,
                             .m = m,
                             .n_heads = n,
                             .head_dim = d,
                             .heads = {.kv = kv, .n = n},
                             .positions = rig->filling.positions + first};
    SL_TRY(r->ops->publish(r->stream, &call.heads, err));
    r->ops->append(r->stream, &call, 1);
    return SL_OK;
}

enum sl_status sl_rig_fill_layer(struct sl_rig *rig, struct sl_session *session, int layer, int64_t n_slots,
                                 struct sl_error *err) {
    const struct sl_kv_geometry *geometry = &session->geometry;
    SL_FAIL_IF(geometry->n_kv_heads > MOST_HEADS, err, SL_ERR_UNSUPPORTED, "%d KV heads: at most %d are filled",
               geometry->n_kv_heads, MOST_HEADS);
    SL_FAIL_IF(sl_session_reserve(session, layer, (int)n_slots) != SL_OK, err, SL_ERR_EXHAUSTED,
               "no room for layer %d in its own arena", layer);
    enum sl_status status = open_filling(rig, geometry, n_slots, err);
    for (int64_t first = 0; first < n_slots && status == SL_OK; first += FILL_ROWS) {
        int64_t left = n_slots - first;
        status = fill_slots(rig, session, layer, first, (int)(left < FILL_ROWS ? left : FILL_ROWS), err);
    }
    for (int h = 0; h < geometry->n_kv_heads && status == SL_OK; h++) {
        sl_session_set_slots(session, layer, h, (uint32_t)n_slots);
    }
    return status == SL_OK ? sl_stream_wait(rig->runtime.stream, err) : status;
}

enum sl_status sl_rig_open_arena(struct sl_rig *rig, size_t bytes, struct sl_error *err) {
    struct sl_device *device = rig->runtime.device;
    rig->least_room = SIZE_MAX;
    if (device->ops->one_memory) {
        return sl_arena_create_mapped(bytes, &rig->arena, err);
    }
    rig->device_memory = sl_device_alloc(device, SL_MEMORY_DEVICE, bytes + SL_ARENA_UNIT);
    SL_FAIL_IF(rig->device_memory == NULL, err, SL_ERR_EXHAUSTED, "%s: the device has no room for %zu bytes",
               rig->cell.name, bytes);
    uintptr_t base = ((uintptr_t)rig->device_memory + SL_ARENA_UNIT - 1) / SL_ARENA_UNIT * SL_ARENA_UNIT;
    return sl_arena_create((void *)base, bytes, &rig->arena, err);
}

void sl_rig_look_at_memory(struct sl_rig *rig) {
    size_t room = rig->room > 0 ? sl_device_room(rig->runtime.device) : 0;
    rig->least_room = room < rig->least_room ? room : rig->least_room;
}

size_t sl_rig_most_bytes(const struct sl_rig *rig) {
    return rig->room > rig->least_room ? rig->room - rig->least_room : 0;
}

static enum sl_status make_sessions(struct sl_rig *rig, struct sl_error *err) {
    struct sl_kv_geometry geometry = sl_model_geometry(rig->runtime.config);
    struct sl_page_layout page;
    enum sl_status status = sl_page_layout_init(&page, SL_KV_F16, geometry.head_dim, 0, false);
    SL_FAIL_IF(status != SL_OK, err, status, "no page layout for head_dim %d", geometry.head_dim);
    size_t pages = (size_t)rig->cell.batch * (size_t)geometry.n_layers * (size_t)geometry.n_kv_heads *
                       sl_pages_for(slots_needed(rig)) +
                   1; // one for the arena's rounding
    status = sl_rig_open_arena(
        rig, (pages * (page.bytes + SL_ARENA_UNIT) + SL_ARENA_UNIT - 1) / SL_ARENA_UNIT * SL_ARENA_UNIT, err);
    for (int s = 0; s < rig->cell.batch && status == SL_OK; s++) {
        status = sl_session_create_plain(&geometry, SL_KV_F16, SL_POSITION_ORIGINAL, slots_needed(rig), rig->arena,
                                         &rig->sessions[s], err);
        for (int l = 0; l < geometry.n_layers && status == SL_OK && !rig->cell.prefill; l++) {
            status = sl_rig_fill_layer(rig, rig->sessions[s], l, rig->cell.n, err);
        }
        if (status == SL_OK && !rig->cell.prefill) {
            rig->sessions[s]->n_tokens = rig->cell.n;
        }
    }
    return status;
}

enum sl_status sl_rig_make_tokens(struct sl_rig *rig, struct sl_error *err) {
    const struct sl_model_config *c = rig->runtime.config;
    const struct sl_cell *cell = &rig->cell;
    SL_FAIL_IF(slots_needed(rig) > c->max_positions, err, SL_ERR_RANGE,
               "%s: the model was made for %" PRId64 " positions", cell->name, c->max_positions);
    int64_t n = cell->n > rig->config.chunk ? cell->n : rig->config.chunk;
    rig->tokens = calloc((size_t)n, sizeof *rig->tokens);
    SL_FAIL_IF(rig->tokens == NULL, err, SL_ERR_EXHAUSTED, "out of memory");
    for (int64_t i = 0; i < n; i++) {
        rig->tokens[i] = (int32_t)((uint64_t)i * 2654435761u % (uint64_t)c->n_vocab);
    }
    return SL_OK;
}

enum sl_status sl_rig_open_cell(struct sl_rig *rig, const struct sl_cell *cell, struct sl_error *err) {
    rig->cell = *cell;
    SL_TRY(sl_rig_make_tokens(rig, err));
    return make_sessions(rig, err);
}

void sl_rig_close_cell(struct sl_rig *rig) {
    for (int s = 0; s < SL_CELL_MAX_BATCH; s++) {
        sl_session_destroy(&rig->sessions[s]);
    }
    sl_arena_destroy(&rig->arena);
    close_filling(rig);
    if (rig->runtime.device != NULL) {
        sl_device_free(rig->runtime.device, SL_MEMORY_DEVICE, rig->device_memory);
    }
    rig->device_memory = NULL;
    free(rig->tokens);
    rig->tokens = NULL;
}

// --- runs ----------------------------------------------------------------------------------------------------------

static enum sl_status forward(struct sl_rig *rig, struct sl_input *inputs, int n_inputs, struct sl_error *err) {
    struct sl_pass_wants wants = {.reading = rig->cell.prefill};
    struct sl_pass pass;
    enum sl_status status = sl_signals_check(rig->config.signals, err);
    SL_THEN(status, sl_pass_begin(sl_engine_activations(rig->runtime.engine), inputs, n_inputs, wants, &pass, err));
    for (int layer = 0; layer < rig->runtime.config->n_layers && status == SL_OK; layer++) {
        status = sl_pass_attend(&pass, layer, err);
        if (status == SL_OK) {
            sl_pass_finish(&pass);
        }
    }
    return status == SL_OK ? sl_pass_end(&pass, err) : status;
}

static enum sl_status read_prompt(struct sl_rig *rig, int64_t n, struct sl_error *err) {
    enum sl_status status = SL_OK;
    for (int64_t i = 0; i < n && status == SL_OK; i += rig->config.chunk) {
        int count = (int)(n - i < rig->config.chunk ? n - i : rig->config.chunk);
        struct sl_input input = {.session = rig->sessions[0],
                                 .tokens = rig->tokens + i,
                                 .n_tokens = count,
                                 .logits = i + count == n ? rig->logits : NULL};
        status = forward(rig, &input, 1, err);
    }
    return status;
}

// Feeds tokens. Their ids do not affect the time: every session writes its own number, once per step.
static enum sl_status write_tokens(struct sl_rig *rig, int64_t n_steps, struct sl_error *err) {
    int64_t n_vocab = rig->runtime.config->n_vocab;
    enum sl_status status = SL_OK;
    for (int64_t i = 0; i < n_steps && status == SL_OK; i++) {
        struct sl_input inputs[SL_CELL_MAX_BATCH];
        for (int s = 0; s < rig->cell.batch; s++) {
            inputs[s] = (struct sl_input){.session = rig->sessions[s],
                                          .tokens = rig->tokens + s,
                                          .n_tokens = 1,
                                          .logits = rig->logits + s * n_vocab};
        }
        status = forward(rig, inputs, rig->cell.batch, err);
    }
    return status;
}

int64_t sl_rig_tokens(const struct sl_rig *rig) {
    return rig->cell.prefill ? rig->cell.n : rig->config.n_steps * rig->cell.batch;
}

// Runs `n` tokens of the cell's prompt or `n` steps, then restores the initial state.
static enum sl_status run(struct sl_rig *rig, int64_t n, double *seconds_out, struct sl_error *err) {
    int64_t begin = sl_timed_now_ns();
    enum sl_status status = rig->cell.prefill ? read_prompt(rig, n, err) : write_tokens(rig, n, err);
    *seconds_out = (double)(sl_timed_now_ns() - begin) / 1e9;
    sl_rig_look_at_memory(rig);
    for (int s = 0; s < rig->cell.batch && status == SL_OK; s++) {
        status = sl_session_truncate(rig->sessions[s], rig->cell.prefill ? 0 : rig->cell.n, err);
    }
    return status;
}

enum sl_status sl_rig_read_after(struct sl_rig *rig, int n_tokens, double *seconds_out, struct sl_error *err) {
    struct sl_input input = {.session = rig->sessions[0], .tokens = rig->tokens, .n_tokens = n_tokens, .logits = NULL};
    int64_t begin = sl_timed_now_ns();
    enum sl_status status = forward(rig, &input, 1, err);
    *seconds_out = (double)(sl_timed_now_ns() - begin) / 1e9;
    return status == SL_OK ? sl_session_truncate(rig->sessions[0], rig->cell.n, err) : status;
}

enum sl_status sl_rig_warm_up(struct sl_rig *rig, struct sl_error *err) {
    double seconds;
    int64_t tokens = rig->cell.n < WARM_UP_READ ? rig->cell.n : WARM_UP_READ;
    return run(rig, rig->cell.prefill ? tokens : WARM_UP_STEP, &seconds, err);
}

enum sl_status sl_rig_run(struct sl_rig *rig, double *seconds_out, struct sl_error *err) {
    return run(rig, rig->cell.prefill ? rig->cell.n : rig->config.n_steps, seconds_out, err);
}

// --- the model -----------------------------------------------------------------------------------------------------

static void open_config(const struct sl_rig_config *config, struct sl_runtime_config *out) {
    *out = (struct sl_runtime_config){.model_dir = config->model_dir,
                                      .tier = config->tier,
                                      .share_weights = config->geometry == NULL, // as workers do
                                      .ops = config->ops,
                                      .device = config->device,
                                      .host_reader = config->host_reader,
                                      .weights = config->weights,
                                      .team = config->team,
                                      .ranks = config->ranks,
                                      .threads = config->threads,
                                      .pin = config->pin,
                                      .max_rows = config->chunk,
                                      .tokenizer = config->tokenizer && config->model_dir != NULL,
                                      .loading_fn = sl_signals_loading,
                                      .loading_arg = config->signals};
}

// Checks the device without a model: its free memory, and whether it computes random weights.
static enum sl_status look_at_device(struct sl_rig *rig, struct sl_runtime_config config, bool *draws_out,
                                     struct sl_error *err) {
    struct sl_runtime bare;
    config.model_dir = NULL;
    config.max_rows = 0;
    config.tokenizer = false;
    SL_TRY(sl_runtime_open(&config, &bare, err));
    *draws_out = bare.ops->draw != NULL && config.weights == SL_WEIGHT_STORED;
    rig->room = bare.device->ops->one_memory ? 0 : sl_device_room(bare.device);
    sl_runtime_close(&bare);
    return SL_OK;
}

static enum sl_status open_random(const struct sl_rig_config *config, struct sl_runtime_config *runtime, bool draws,
                                  struct sl_runtime *runtime_out, struct sl_error *err) {
    char folder[SL_SYNTHETIC_PATH_BYTES];
    SL_TRY(sl_synthetic_create(config->geometry, draws ? SL_SYNTHETIC_DRAWN : SL_SYNTHETIC_WRITTEN, config->signals,
                               folder, err));
    sl_drawn_begin(config->geometry);
    runtime->model_dir = folder;
    runtime->instead = draws ? sl_drawn_instead : NULL;
    enum sl_status status = sl_runtime_open(runtime, runtime_out, err);
    sl_synthetic_remove(folder); // the mapping stays valid
    return status;
}

enum sl_status sl_rig_open(const struct sl_rig_config *config, struct sl_rig *rig_out, struct sl_error *err) {
    struct sl_rig *rig = rig_out;
    *rig = (struct sl_rig){.config = *config};
    struct sl_runtime_config runtime;
    open_config(config, &runtime);
    bool draws = false;
    SL_TRY(config->ranks > 1 ? SL_OK : look_at_device(rig, runtime, &draws, err));
    SL_TRY(config->geometry != NULL ? open_random(config, &runtime, draws, &rig->runtime, err)
                                    : sl_runtime_open(&runtime, &rig->runtime, err));
    SL_TRY(sl_signals_check(config->signals, err));
    rig->logits = calloc((size_t)rig->runtime.config->n_vocab, SL_CELL_MAX_BATCH * sizeof *rig->logits);
    return rig->logits != NULL ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "out of memory for logits");
}

void sl_rig_close(struct sl_rig *rig) {
    free(rig->logits);
    rig->logits = NULL;
    sl_runtime_close(&rig->runtime);
}
