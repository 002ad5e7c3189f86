// SPDX-License-Identifier: Apache-2.0
// Purpose: see costs.h.
#include "lab/simulate/costs.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/runner/reader.h"

#define LEAST_S 1e-9 // no operation takes less

// Returns the line i such that v lies between lines i and i + 1, or beyond the last.
static int line_before(const double *lines, int n, double v) {
    int i = 0;
    while (i + 2 < n && v >= lines[i + 1]) {
        i++;
    }
    return i;
}

static double between(double x, double x0, double x1, double a, double b) {
    return a + (b - a) * (x - x0) / (x1 - x0);
}

static double along_y(const struct sl_cost_grid *grid, int i, double y) {
    const double *row = grid->values + i * grid->ny;
    int j = line_before(grid->y, grid->ny, y);
    return grid->ny == 1 ? row[0] : between(y, grid->y[j], grid->y[j + 1], row[j], row[j + 1]);
}

static double grid_at(const struct sl_cost_grid *grid, double x, double y) {
    int i = line_before(grid->x, grid->nx, x);
    double value = along_y(grid, i, y);
    value = grid->nx == 1 ? value : between(x, grid->x[i], grid->x[i + 1], value, along_y(grid, i + 1, y));
    return fmax(value, LEAST_S);
}

// --- loading -----------------------------------------------------------------------------------------------------------

// Inserts the line in order, where it is not there yet. Returns false if there are too many.
static bool add_line(double *lines, int *n, double v) {
    int i = 0;
    while (i < *n && lines[i] < v) {
        i++;
    }
    if (i < *n && lines[i] == v) {
        return true;
    }
    if (*n == SL_COSTS_MAX_LINES) {
        return false;
    }
    memmove(lines + i + 1, lines + i, (size_t)(*n - i) * sizeof *lines);
    lines[i] = v;
    ++*n;
    return true;
}

static int index_of(const double *lines, double v) {
    int i = 0;
    while (lines[i] != v) {
        i++;
    }
    return i;
}

// Reads [x, y, ms], or without y [x, ms].
static bool read_row(const json_t *row, size_t n, double found[3]) {
    bool good = json_is_array(row) && json_array_size(row) == n;
    for (size_t i = 0; good && i < n; i++) {
        found[i == 1 && n == 2 ? 2 : i] = json_number_value(json_array_get(row, i));
        good = json_is_number(json_array_get(row, i));
    }
    return good && found[0] >= 1 && found[0] < 1e9 && found[1] >= 0 && found[1] < 1e9 && found[2] > 0 && found[2] < 1e9;
}

static enum sl_status read_grid(const char *what, const json_t *list, size_t n_numbers, struct sl_cost_grid *grid,
                                struct sl_error *err) {
    size_t i;
    const json_t *row;
    double found[3] = {0};
    *grid = (struct sl_cost_grid){0};
    json_array_foreach(list, i, row) {
        SL_FAIL_IF(!read_row(row, n_numbers, found), err, SL_ERR_INVALID,
                   "%s, row %zu: expected %zu numbers, the first at least 1 and the last a time above 0", what, i + 1,
                   n_numbers);
        SL_FAIL_IF(!add_line(grid->x, &grid->nx, found[0]) || !add_line(grid->y, &grid->ny, found[1]), err,
                   SL_ERR_INVALID, "%s: more than %d different numbers in one column", what, SL_COSTS_MAX_LINES);
    }
    SL_FAIL_IF(grid->nx == 0 || (size_t)(grid->nx * grid->ny) != json_array_size(list), err, SL_ERR_INVALID,
               "%s: %zu rows are not a grid of %d by %d", what, json_array_size(list), grid->nx, grid->ny);
    json_array_foreach(list, i, row) {
        (void)read_row(row, n_numbers, found);
        grid->values[index_of(grid->x, found[0]) * grid->ny + index_of(grid->y, found[1])] = found[2] / 1e3;
    }
    for (int k = 0; k < grid->nx * grid->ny; k++) {
        SL_FAIL_IF(!(grid->values[k] > 0), err, SL_ERR_INVALID, "%s: there is no row for %g, %g", what,
                   grid->x[k / grid->ny], grid->y[k % grid->ny]);
    }
    return SL_OK;
}

static enum sl_status no_recipe(const char *recipe, const json_t *decode, struct sl_error *err) {
    char names[256] = "";
    const char *name;
    json_t *ignored;
    json_object_foreach((json_t *)decode, name, ignored) {
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", used > 0 ? "; " : "", name);
    }
    return sl_fail(err, SL_ERR_INVALID, "it has no steps of %s: calibrate with --recipe, or choose of: %s", recipe,
                   names);
}

static enum sl_status read_table(const json_t *table, const char *recipe, struct sl_costs *costs,
                                 struct sl_error *err) {
    json_error_t why;
    const char *machine, *shape = "";
    json_int_t rows;
    json_t *prefill, *decode, *reading = NULL, *prompts;
    double latency_ms, lookup_ms, call_ms;
    if (json_unpack_ex((json_t *)table, &why, 0, "{s:s, s?s, s:I, s:o, s?o, s:o, s:{s:F, s:F}, s:{s:F}, s:F}",
                       "machine", &machine, "shape", &shape, "rows", &rows, "prefill", &prefill, "reading", &reading,
                       "decode", &decode, "ship", "bytes_per_s", &costs->ship_bytes_per_s, "latency_ms", &latency_ms,
                       "store", "lookup_ms", &lookup_ms, "call_ms", &call_ms)) {
        return sl_fail(err, SL_ERR_INVALID, "%s", why.text);
    }
    SL_FAIL_IF(!(costs->ship_bytes_per_s > 0) || !(latency_ms >= 0) || !(lookup_ms >= 0) || !(call_ms >= 0) || rows < 1,
               err, SL_ERR_INVALID, "rows and ship.bytes_per_s must be above 0, the other times at least 0");
    snprintf(costs->machine, sizeof costs->machine, "%s", machine);
    snprintf(costs->shape, sizeof costs->shape, "%s", shape);
    costs->rows = rows;
    costs->ship_latency_s = latency_ms / 1e3;
    costs->lookup_s = lookup_ms / 1e3;
    costs->call_s = call_ms / 1e3;
    const json_t *steps = json_object_get(decode, recipe);
    if (!steps) {
        return no_recipe(recipe, decode, err);
    }
    enum sl_status status = read_grid("prefill", prefill, 3, &costs->prefill, err);
    SL_THEN(status, read_grid("decode", steps, 3, &costs->decode, err));
    if (status == SL_OK && (prompts = json_object_get(reading, recipe)) != NULL) {
        status = read_grid("reading", prompts, 2, &costs->reading, err);
    }
    return status;
}

enum sl_status sl_costs_load(const char *path, const char *recipe, struct sl_costs *costs_out, struct sl_error *err) {
    json_error_t why;
    struct sl_costs costs = {0};
    errno = 0;
    json_t *table = json_load_file(path, JSON_REJECT_DUPLICATES, &why);
    enum sl_status status = SL_OK;
    if (!table) {
        status = errno == ENOENT
                     ? sl_fail(err, SL_ERR_NOT_FOUND, "%s: no such file; `sluice bench calibrate` writes it", path)
                     : sl_fail(err, SL_ERR_INVALID, "%s:%d: %s", path, why.line, why.text);
    } else if ((status = read_table(table, recipe, &costs, err)) != SL_OK) {
        sl_error_prefix(err, path);
    } else {
        *costs_out = costs;
    }
    json_decref(table);
    return status;
}

void sl_costs_shape(const struct sl_model_config *m, char shape_out[96]) {
    snprintf(shape_out, 96, "%d layers of %d and %d, %d of %d heads of %d, %d tokens", m->n_layers, m->hidden,
             m->intermediate, m->n_kv_heads, m->n_heads, m->head_dim, m->n_vocab);
}

// --- times -------------------------------------------------------------------------------------------------------------

double sl_costs_read_s(const struct sl_costs *costs, double tokens, double context) {
    return grid_at(&costs->prefill, tokens, context);
}

int64_t sl_costs_next_chunk(const struct sl_costs *costs, const struct sl_costs_cut *cut, int64_t done, int64_t n) {
    int64_t chunk = cut->freely ? sl_reader_chunk_at(cut->chunk, done, cut->half, costs->rows) : cut->chunk;
    int64_t end = (done / chunk + 1) * chunk;
    return (end < n ? end : n) - done;
}

static double passes_s(const struct sl_costs *costs, const struct sl_costs_cut *cut, int64_t n) {
    double s = 0;
    for (int64_t done = 0, chunk; done < n; done += chunk) {
        chunk = sl_costs_next_chunk(costs, cut, done, n);
        s += sl_costs_read_s(costs, (double)chunk, (double)done);
    }
    return s;
}

void sl_costs_fit_reading(struct sl_costs *costs, const struct sl_costs_cut *cut) {
    for (int i = 0; i < costs->reading.nx; i++) {
        costs->reading.values[i] /= passes_s(costs, cut, (int64_t)costs->reading.x[i]);
    }
}

double sl_costs_factor(const struct sl_costs *costs, double n) {
    const struct sl_cost_grid *grid = &costs->reading;
    n = grid->nx > 0 ? fmin(fmax(n, grid->x[0]), grid->x[grid->nx - 1]) : n;
    return grid->nx > 0 ? grid_at(grid, n, 0) : 1;
}

double sl_costs_prompt_s(const struct sl_costs *costs, const struct sl_costs_cut *cut, int64_t n) {
    return passes_s(costs, cut, n) * sl_costs_factor(costs, (double)n);
}

double sl_costs_step_s(const struct sl_costs *costs, double batch, double context) {
    return grid_at(&costs->decode, batch, context);
}
