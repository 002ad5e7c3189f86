// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the engine cell by cell, for a program that measures somebody else by turns (bench/peers).
 *
 *   prefill:N      reading a prompt of N tokens in chunks, logits of the last
 *   decode:DxB     B sessions of D tokens write one token each a step, all in one forward pass, logits of each
 *
 * Design: sessions at a depth are not read but made: random rows go into their pages by ops->append(), because what
 *         attention costs does not depend on the values. After every run they are cut back to that depth. Loading,
 *         making sessions and a short run to warm up are not measured. With --paced a cell says when
 *         it is ready and every run waits for a line on standard input, so that of two programs only one works; the end
 *         of standard input ends the bench.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/config.h"
#include "bench/bench.h"
#include "engine/model.h"

#define MAX_RUNS     101
#define MAX_BATCH    64
#define MAX_TOKENS   1000000 // of a prompt or a depth
#define FILL_ROWS    SL_PAGE_SLOTS
#define WARM_UP_READ 512 // tokens of a prompt
#define WARM_UP_STEP 2   // tokens of an answer

struct options {
    const char *model, *weights, *tier, *logits;
    struct sl_option_list cells;
    int64_t threads, runs, chunk, tokens;
    bool paced, json;
};

static const struct sl_option option_table[] = {
    {"model", 'm', SL_OPTION_STRING, "models/demo", "DIR", "model folder", offsetof(struct options, model), 0, 0},
    {"weights", 0, SL_OPTION_STRING, "stored", "FORMAT", "stored, int8 or int4", offsetof(struct options, weights), 0,
     0},
    {"cell", 'c', SL_OPTION_LIST, NULL, "CELL", "prefill:TOKENS or decode:DEPTHxBATCH; may be given several times",
     offsetof(struct options, cells), 0, 0},
    {"runs", 'r', SL_OPTION_INT, "5", "N", "runs of every cell", offsetof(struct options, runs), 1, MAX_RUNS},
    {"tokens", 'n', SL_OPTION_INT, "16", "N", "steps of a decode run", offsetof(struct options, tokens), 1, 4096},
    {"chunk", 0, SL_OPTION_INT, "512", "N", "tokens of a prompt that are read at once", offsetof(struct options, chunk),
     MAX_BATCH, 1 << 16},
    {"tier", 0, SL_OPTION_STRING, "auto", "NAME", "kernels to use", offsetof(struct options, tier), 0, 0},
    {"threads", 't', SL_OPTION_INT, "0", "N", "threads; 0: one per processor", offsetof(struct options, threads), 0,
     1024},
    {"logits", 0, SL_OPTION_STRING, NULL, "FILE", "write the logits after each prompt there, as f32",
     offsetof(struct options, logits), 0, 0},
    {"paced", 0, SL_OPTION_FLAG, "no", NULL,
     "say when a cell is ready, wait for a line on standard input before every run, print every run",
     offsetof(struct options, paced), 0, 0},
    {"json", 0, SL_OPTION_FLAG, "no", NULL, "one JSON object a line", offsetof(struct options, json), 0, 0},
};

static const struct sl_program program = {
    .name = "sluice bench cells",
    .usage = "--cell CELL [options]",
    .summary = "Measure single cells of the engine: one prompt length, or one depth and batch.",
    .options = option_table,
    .n_options = sizeof option_table / sizeof option_table[0],
};

struct cell {
    const char *name; // as given
    bool prefill;
    int64_t n; // prompt or depth, tokens
    int batch; // sessions; 1 for prefill
};

struct bench {
    const struct options *options;
    enum sl_weight_format weights;
    const struct sl_ops *ops;
    struct sl_team *team;
    struct sl_model *model;
    struct sl_engine *engine;
    float *logits; // [MAX_BATCH][n_vocab]
    // of the cell at hand
    struct cell cell;
    void *memory;
    struct sl_arena *arena;
    struct sl_session *sessions[MAX_BATCH];
    int32_t *tokens; // [max(cell.n, 1)]
};

static enum sl_status parse_cell(const char *text, struct cell *cell_out, struct sl_error *err) {
    struct cell cell = {.name = text, .batch = 1};
    int used = -1;
    if (sscanf(text, "prefill:%9" SCNd64 "%n", &cell.n, &used) == 1 && text[used] == '\0') {
        cell.prefill = true;
    } else if (sscanf(text, "decode:%9" SCNd64 "%n", &cell.n, &used) != 1 ||
               (text[used] != '\0' && (sscanf(text, "decode:%*9dx%9d%n", &cell.batch, &used) != 1 || text[used]))) {
        return sl_fail(err, SL_ERR_INVALID, "--cell %s: expected prefill:TOKENS or decode:DEPTHxBATCH", text);
    }
    if (cell.n < (cell.prefill ? 1 : 0) || cell.n > MAX_TOKENS || cell.batch < 1 || cell.batch > MAX_BATCH) {
        return sl_fail(err, SL_ERR_INVALID, "--cell %s: at most %d tokens and %d sessions", text, MAX_TOKENS,
                       MAX_BATCH);
    }
    *cell_out = cell;
    return SL_OK;
}

// --- sessions of a cell --------------------------------------------------------------------------------------------

// Slots that a head of this cell will hold at most.
static int64_t slots_needed(const struct bench *b) {
    int64_t steps = b->options->tokens > WARM_UP_STEP ? b->options->tokens : WARM_UP_STEP;
    return b->cell.prefill ? b->cell.n : b->cell.n + steps;
}

// Uniform with variance 1, as keys and values behind a norm are: [count].
static void random_rows(float *rows, size_t count) {
    uint64_t random = 1;
    for (size_t i = 0; i < count; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        rows[i] = ((float)(random >> 40) * 0x1p-24f - 0.5f) * 3.4641016f;
    }
}

// Slots [0, cell.n) of every head from `rows` [FILL_ROWS][head_dim].
static enum sl_status fill_session(const struct bench *b, struct sl_session *session, const float *rows,
                                   struct sl_error *err) {
    int head_dim = session->geometry.head_dim;
    for (int layer = 0; layer < session->geometry.n_layers; layer++) {
        struct sl_layer *cache = &session->layers[layer];
        if (sl_session_reserve(session, layer, (int)b->cell.n) != SL_OK) {
            return sl_fail(err, SL_ERR_EXHAUSTED, "no room for %s in its own arena", b->cell.name);
        }
        for (int h = 0; h < session->geometry.n_kv_heads; h++) {
            struct sl_head *head = &cache->heads[h];
            struct sl_kv kv = {head->pages, 0, 0, &cache->work, &cache->packed};
            while (kv.n_slots < b->cell.n) {
                int64_t left = b->cell.n - kv.n_slots;
                int m = left < FILL_ROWS ? (int)left : FILL_ROWS;
                b->ops->append(&kv, rows, rows, head_dim, m, NULL);
                kv.n_slots += (uint32_t)m;
            }
            sl_session_set_slots(session, layer, h, kv.n_slots);
        }
    }
    session->n_tokens = b->cell.n;
    return SL_OK;
}

static enum sl_status make_sessions(struct bench *b, struct sl_error *err) {
    struct sl_kv_geometry geometry = sl_model_geometry(sl_model_get_config(b->model));
    struct sl_page_layout layouts[SL_MAX_LAYERS];
    for (int l = 0; l < geometry.n_layers; l++) {
        enum sl_status status = sl_page_layout_init(&layouts[l], SL_KV_F16, geometry.head_dim, 0, false);
        if (status != SL_OK) {
            return sl_fail(err, status, "no page layout for head_dim %d", geometry.head_dim);
        }
    }
    size_t heads = (size_t)geometry.n_layers * (size_t)geometry.n_kv_heads;
    size_t page = (layouts[0].bytes + SL_ARENA_UNIT - 1) / SL_ARENA_UNIT * SL_ARENA_UNIT;
    size_t pages = (size_t)b->cell.batch * heads * sl_pages_for(slots_needed(b)) + 1; // one for the arena's rounding
    b->memory = aligned_alloc(SL_ARENA_UNIT, pages * page);
    float *rows = malloc(sizeof(float) * FILL_ROWS * (size_t)geometry.head_dim);
    if (b->memory == NULL || rows == NULL) {
        free(rows);
        return sl_fail(err, SL_ERR_EXHAUSTED, "out of memory for the %zu bytes of %s", pages * page, b->cell.name);
    }
    random_rows(rows, (size_t)FILL_ROWS * (size_t)geometry.head_dim);
    enum sl_status status = sl_arena_create(b->memory, pages * page, &b->arena, err);
    struct sl_session_config config = {geometry, SL_POSITION_ORIGINAL, slots_needed(b), layouts, layouts};
    for (int s = 0; s < b->cell.batch && status == SL_OK; s++) {
        status = sl_session_create(&config, b->arena, &b->sessions[s], err);
        if (status == SL_OK && !b->cell.prefill) {
            status = fill_session(b, b->sessions[s], rows, err);
        }
    }
    free(rows);
    return status;
}

static enum sl_status open_cell(struct bench *b, const struct cell *cell, struct sl_error *err) {
    const struct sl_model_config *c = sl_model_get_config(b->model);
    b->cell = *cell;
    if (slots_needed(b) > c->max_positions) {
        return sl_fail(err, SL_ERR_RANGE, "%s: the model was made for %" PRId64 " positions", cell->name,
                       c->max_positions);
    }
    int64_t n = cell->n > MAX_BATCH ? cell->n : MAX_BATCH;
    b->tokens = calloc((size_t)n, sizeof *b->tokens);
    if (b->tokens == NULL) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
    }
    for (int64_t i = 0; i < n; i++) {
        b->tokens[i] = (int32_t)((uint64_t)i * 2654435761u % (uint64_t)c->n_vocab);
    }
    return make_sessions(b, err);
}

static void close_cell(struct bench *b) {
    for (int s = 0; s < MAX_BATCH; s++) {
        sl_session_destroy(&b->sessions[s]);
    }
    sl_arena_destroy(&b->arena);
    free(b->memory);
    free(b->tokens);
    b->memory = NULL;
    b->tokens = NULL;
}

// --- runs ----------------------------------------------------------------------------------------------------------

static enum sl_status read_prompt(struct bench *b, int64_t n, struct sl_error *err) {
    enum sl_status status = SL_OK;
    for (int64_t i = 0; i < n && status == SL_OK; i += b->options->chunk) {
        int count = (int)(n - i < b->options->chunk ? n - i : b->options->chunk);
        struct sl_segment segment = {b->sessions[0], b->tokens + i, count, i + count == n ? b->logits : NULL, NULL};
        status = sl_engine_forward(b->engine, &segment, 1, NULL, err);
    }
    return status;
}

// Which tokens are written costs nothing: every session writes its own number, as many times as there are steps.
static enum sl_status write_tokens(struct bench *b, int64_t n_steps, struct sl_error *err) {
    int64_t n_vocab = sl_model_get_config(b->model)->n_vocab;
    enum sl_status status = SL_OK;
    for (int64_t i = 0; i < n_steps && status == SL_OK; i++) {
        struct sl_segment segments[MAX_BATCH];
        for (int s = 0; s < b->cell.batch; s++) {
            segments[s] = (struct sl_segment){b->sessions[s], b->tokens + s, 1, b->logits + s * n_vocab, NULL};
        }
        status = sl_engine_forward(b->engine, segments, b->cell.batch, NULL, err);
    }
    return status;
}

// As much of the cell as `n` tokens of its prompt or `n` steps, then back to where it began.
static enum sl_status run_cell(struct bench *b, int64_t n, double *tokens_per_s_out, struct sl_error *err) {
    int64_t begin = sl_now_ns();
    enum sl_status status = b->cell.prefill ? read_prompt(b, n, err) : write_tokens(b, n, err);
    double seconds = (double)(sl_now_ns() - begin) / 1e9;
    for (int s = 0; s < b->cell.batch && status == SL_OK; s++) {
        status = sl_session_truncate(b->sessions[s], b->cell.prefill ? 0 : b->cell.n, err);
    }
    *tokens_per_s_out = (double)(n * b->cell.batch) / seconds;
    return status;
}

// False at the end of standard input: whoever sets the pace has seen enough.
static bool wait_for_line(void) {
    int c;
    do {
        c = getchar();
    } while (c != '\n' && c != EOF);
    return c == '\n';
}

static void print_rate(const struct bench *b, double tokens_per_s) {
    struct sl_bench_result result = {.bench = "cells", .test = b->cell.name, .value = tokens_per_s, .unit = "tokens/s"};
    sl_bench_print(&result, b->options->json);
}

static enum sl_status measure_cell(struct bench *b, struct sl_error *err) {
    double rates[MAX_RUNS];
    int64_t warm_up = !b->cell.prefill ? WARM_UP_STEP : b->cell.n < WARM_UP_READ ? b->cell.n : WARM_UP_READ;
    enum sl_status status = run_cell(b, warm_up, &rates[0], err);
    if (status == SL_OK && b->options->paced) {
        printf("{\"bench\": \"cells\", \"case\": \"%s\", \"ready\": true}\n", b->cell.name);
        fflush(stdout);
    }
    for (int64_t run = 0; run < b->options->runs && status == SL_OK; run++) {
        sl_bench_progress("%s: run %" PRId64 " of %" PRId64, b->cell.name, run + 1, b->options->runs);
        if (b->options->paced && !wait_for_line()) {
            return SL_OK;
        }
        status = run_cell(b, b->cell.prefill ? b->cell.n : b->options->tokens, &rates[run], err);
        if (status == SL_OK && b->options->paced) {
            print_rate(b, rates[run]);
        }
    }
    if (status == SL_OK && !b->options->paced) {
        print_rate(b, sl_bench_median(rates, (size_t)b->options->runs));
    }
    return status;
}

static enum sl_status save_logits(const struct bench *b, struct sl_error *err) {
    size_t n_vocab = (size_t)sl_model_get_config(b->model)->n_vocab;
    FILE *file = fopen(b->options->logits, "wb");
    bool saved = file != NULL && fwrite(b->logits, sizeof *b->logits, n_vocab, file) == n_vocab;
    saved &= file != NULL && fclose(file) == 0;
    return saved ? SL_OK : sl_fail(err, SL_ERR_IO, "%s: cannot write the logits: %m", b->options->logits);
}

// --- the whole -----------------------------------------------------------------------------------------------------

static void print_header(const struct bench *b) {
    double weight_mb = (double)sl_model_weight_bytes(b->model) / 1e6;
    double memory_mb = (double)sl_model_memory_bytes(b->model) / 1e6;
    if (!b->options->json) {
        printf("%s: %.1f MB of weights, %.1f MB in memory, tier %s, %d threads\n", b->options->model, weight_mb,
               memory_mb, b->ops->name, sl_team_size(b->team));
    } else {
        json_t *line = json_pack("{s:s, s:s, s:f, s:f, s:s, s:i, s:I}", "bench", "cells", "model", b->options->model,
                                 "weight_mb", weight_mb, "memory_mb", memory_mb, "tier", b->ops->name, "threads",
                                 sl_team_size(b->team), "chunk", b->options->chunk);
        json_dumpf(line, stdout, JSON_REAL_PRECISION(6));
        putchar('\n');
        json_decref(line);
    }
    fflush(stdout);
}

static enum sl_status open_model(struct bench *b, struct sl_error *err) {
    const struct options *options = b->options;
    enum sl_status status = sl_ops_select(options->tier, &b->ops, err);
    if (status == SL_OK) {
        status = sl_team_create((int)options->threads, &b->team, err);
    }
    if (status == SL_OK) {
        status = sl_model_load(options->model, b->ops, b->weights, b->team, &b->model, err);
    }
    if (status == SL_OK) {
        status = sl_engine_create(b->model, b->team, (int)options->chunk, &b->engine, err);
    }
    if (status == SL_OK) {
        b->logits = calloc((size_t)sl_model_get_config(b->model)->n_vocab, MAX_BATCH * sizeof *b->logits);
        status = b->logits != NULL ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "out of memory for logits");
    }
    return status;
}

static enum sl_status measure(struct bench *b, const struct cell *cells, int n_cells, struct sl_error *err) {
    enum sl_status status = open_model(b, err);
    if (status == SL_OK) {
        print_header(b);
    }
    for (int i = 0; i < n_cells && status == SL_OK && !feof(stdin); i++) {
        status = open_cell(b, &cells[i], err);
        if (status == SL_OK) {
            status = measure_cell(b, err);
        }
        if (status == SL_OK && cells[i].prefill && b->options->logits != NULL) {
            status = save_logits(b, err);
        }
        close_cell(b);
    }
    free(b->logits);
    sl_engine_destroy(&b->engine);
    sl_model_destroy(&b->model);
    sl_team_destroy(&b->team);
    return status;
}

int sl_bench_cells(int argc, char **argv) {
    struct options options = {0};
    struct bench b = {.options = &options};
    struct cell cells[SL_MAX_OPTION_LIST];
    struct sl_error err = {0};
    int first;
    enum sl_status status = sl_config_parse(&program, argc, argv, &options, &first, &err);
    if (status == SL_ERR_CANCELLED) {
        return 0;
    }
    if (status == SL_OK && first < argc) {
        status = sl_fail(&err, SL_ERR_INVALID, "unexpected argument: %s", argv[first]);
    }
    if (status == SL_OK && options.cells.n == 0) {
        status = sl_fail(&err, SL_ERR_INVALID, "no --cell given");
    }
    if (status == SL_OK) {
        status = sl_weight_format_parse(options.weights, &b.weights, &err);
    }
    for (int i = 0; i < options.cells.n && status == SL_OK; i++) {
        status = parse_cell(options.cells.items[i], &cells[i], &err);
    }
    if (status != SL_OK) {
        fprintf(stderr, "%s: %s\n", program.name, err.text);
        return 2;
    }
    status = measure(&b, cells, options.cells.n, &err);
    sl_bench_progress(NULL);
    if (status != SL_OK) {
        fprintf(stderr, "%s: %s\n", program.name, err.text);
        return 1;
    }
    return 0;
}
