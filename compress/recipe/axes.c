// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the axes of recipes: how the value of each is read from text.
 *
 * Design: every axis is a row of a table, and the named values of an axis are a table too (compress/recipe/names.c).
 *         Axes that hold numbers have a parse function instead of values.
 * Not here: words, presets, and which axes fit each other (compress/recipe/text.c, compress/recipe/check.c).
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compress/recipe/internal.h"

// --- numbers -----------------------------------------------------------------------------------------------------

static bool all_digits(const char *text) {
    return *text != '\0' && text[strspn(text, "0123456789")] == '\0';
}

// A decimal integer in [min, max]. `what` is the left-hand side for the message, e.g. "scope=sinks:".
static enum sl_status parse_count(const char *what, const char *text, int64_t min, int64_t max, int64_t *count_out,
                                  struct sl_error *err) {
    int64_t count = -1;
    if (all_digits(text) && strlen(text) <= 18) { // 18 digits fit into an int64_t
        count = strtoll(text, NULL, 10);
    }
    if (count < min || count > max) {
        return sl_fail(err, SL_ERR_INVALID, "recipe: %s%.40s: expected a whole number from %" PRId64 " to %" PRId64,
                       what, text, min, max);
    }
    *count_out = count;
    return SL_OK;
}

// A decimal number above 0 and below 1 (or 1 itself). Only what such a number is made of: strtod() would also take nan,
// inf and hexadecimal.
static bool parse_ratio(const char *text, bool one_too, double *ratio_out) {
    char *end = NULL;
    double ratio = text[strspn(text, "0123456789.eE+-")] == '\0' ? strtod(text, &end) : 0;
    if (end == NULL || end == text || *end != '\0' || !(ratio > 0 && (ratio < 1 || (one_too && ratio == 1)))) {
        return false;
    }
    *ratio_out = ratio;
    return true;
}

// Digits alone are slots, anything else must be a ratio.
static enum sl_status parse_amount(const char *what, const char *text, struct sl_amount *amount_out,
                                   struct sl_error *err) {
    struct sl_amount amount = {0};
    if (all_digits(text)) {
        enum sl_status status = parse_count(what, text, 1, SL_RECIPE_MAX_SLOTS, &amount.slots, err);
        if (status != SL_OK) {
            return status;
        }
    } else if (!parse_ratio(text, false, &amount.ratio)) {
        return sl_fail(err, SL_ERR_INVALID,
                       "recipe: %s%.40s: expected a number of slots (1 or more) or a ratio (above 0 and below 1)", what,
                       text);
    }
    *amount_out = amount;
    return SL_OK;
}

static enum sl_status parse_int(const char *what, const char *text, int min, int max, int *out, struct sl_error *err) {
    int64_t count = 0;
    enum sl_status status = parse_count(what, text, min, max, &count, err);
    if (status == SL_OK) {
        *out = (int)count;
    }
    return status;
}

// --- layers ------------------------------------------------------------------------------------------------------

// FROM-TO, cut up in place; either may be missing (to: -1).
static enum sl_status parse_range(const char *axis, char *text, char *dash, int *from_out, int *to_out,
                                  struct sl_error *err) {
    char what[40];
    enum sl_status status = SL_OK;
    *dash = '\0';
    *from_out = 0;
    *to_out = -1;
    if (*text != '\0') {
        snprintf(what, sizeof what, "%s: first layer ", axis);
        status = parse_int(what, text, 0, SL_MAX_LAYERS - 1, from_out, err);
    }
    if (status == SL_OK && dash[1] != '\0') {
        snprintf(what, sizeof what, "%s: last layer ", axis);
        status = parse_int(what, dash + 1, *from_out, SL_MAX_LAYERS - 1, to_out, err);
    }
    return status;
}

/*
 * Layers joined by '+': N, FROM-TO, -TO; then FROM- where there is a place for it (open_out, -1 for none) and "last"
 * where there is one (last_out).
 */
static enum sl_status parse_layers(const char *axis, const char *text, struct sl_layers *layers_out, int *open_out,
                                   bool *last_out, struct sl_error *err) {
    char copy[SL_RECIPE_TEXT_BYTES];
    snprintf(copy, sizeof copy, "%s", text);
    struct sl_layers layers = {0};
    int open = -1;
    bool last = false;
    for (char *rest = copy; rest != NULL;) {
        char *part = strsep(&rest, "+"), *dash = strchr(part, '-');
        int from = 0, to = -1;
        if (last_out != NULL && strcmp(part, "last") == 0) {
            last = true;
            continue;
        }
        if (dash == NULL ? !all_digits(part) : (open_out == NULL || part == dash) && dash[1] == '\0') {
            return sl_fail(err, SL_ERR_INVALID, "recipe: %s=...%.40s: expected layers joined by '+': N, N-M%s", axis,
                           part, open_out != NULL ? " or N-" : " or last");
        }
        enum sl_status status;
        if (dash != NULL) {
            status = parse_range(axis, part, dash, &from, &to, err);
        } else {
            char what[40];
            snprintf(what, sizeof what, "%s: layer ", axis);
            status = parse_int(what, part, 0, SL_MAX_LAYERS - 1, &from, err);
            to = from;
        }
        if (status != SL_OK) {
            return status;
        }
        if (to < 0) {
            open = open < 0 || from < open ? from : open;
        }
        for (int l = from; l <= to; l++) {
            sl_layers_add(&layers, l);
        }
    }
    for (int l = open; l >= 0 && l < SL_MAX_LAYERS; l++) { // said once is enough
        layers.bits[l / 64] &= ~(1ull << (l % 64));
    }
    *layers_out = layers;
    if (open_out != NULL) {
        *open_out = open;
    }
    if (last_out != NULL) {
        *last_out = last;
    }
    return SL_OK;
}

// --- axes --------------------------------------------------------------------------------------------------------

// The axes that hold one of an enum and nothing else.
#define APPLY_ENUM(axis, field, type)                                                                                  \
    static enum sl_status apply_##axis(struct sl_recipe *recipe, const struct sl_axis_value *value,                    \
                                       const char *argument, struct sl_error *err) {                                   \
        (void)argument, (void)err;                                                                                     \
        recipe->field = (type)value->number;                                                                           \
        return SL_OK;                                                                                                  \
    }
APPLY_ENUM(score, score, enum sl_score)
APPLY_ENUM(value, value, enum sl_value)
APPLY_ENUM(layers, layers, enum sl_split_layers)
APPLY_ENUM(heads, heads, enum sl_split_heads)
APPLY_ENUM(retrieve, retrieve, enum sl_retrieve)
APPLY_ENUM(scan, scan, enum sl_scan)
APPLY_ENUM(positions, positions, enum sl_position_mode)

static void clear_scope(struct sl_recipe *recipe) {
    recipe->sinks = recipe->stabilizers = recipe->tail = 0;
    recipe->recent = (struct sl_amount){0};
    recipe->std = 0;
}

static enum sl_status apply_scope(struct sl_recipe *recipe, const struct sl_axis_value *value, const char *argument,
                                  struct sl_error *err) {
    char what[40];
    snprintf(what, sizeof what, "scope=%s:", value->name);
    int64_t *count = NULL;
    switch (value->number) {
    case SL_SCOPE_RECENT:
        return parse_amount(what, argument, &recipe->recent, err);
    case SL_SCOPE_STD:
        return parse_ratio(argument, false, &recipe->std)
                   ? SL_OK
                   : sl_fail(err, SL_ERR_INVALID, "recipe: %s%.40s: expected a ratio (above 0 and below 1)", what,
                             argument);
    case SL_SCOPE_SINKS:
        count = &recipe->sinks;
        break;
    case SL_SCOPE_STABILIZERS:
        count = &recipe->stabilizers;
        break;
    default:
        count = &recipe->tail;
        break;
    }
    return parse_count(what, argument, 1, SL_RECIPE_MAX_SLOTS, count, err);
}

static enum sl_status parse_window(struct sl_recipe *recipe, const char *text, struct sl_error *err) {
    return parse_int("window=", text, 1, SL_RECIPE_MAX_CHUNK, &recipe->window, err);
}

static enum sl_status apply_pool(struct sl_recipe *recipe, const struct sl_axis_value *value, const char *argument,
                                 struct sl_error *err) {
    int kernel = 1;
    if (value->number != SL_POOL_NONE) {
        char what[16];
        snprintf(what, sizeof what, "pool=%s:", value->name);
        enum sl_status status = parse_int(what, argument, 3, SL_RECIPE_MAX_POOL, &kernel, err);
        if (status != SL_OK) {
            return status;
        }
        if (kernel % 2 == 0) {
            return sl_fail(err, SL_ERR_INVALID, "recipe: %s%d has no middle; use an odd number, e.g. %s%d", what,
                           kernel, what, kernel + 1);
        }
    }
    recipe->pool = (enum sl_pool)value->number;
    recipe->pool_kernel = kernel;
    return SL_OK;
}

static enum sl_status parse_seed(struct sl_recipe *recipe, const char *text, struct sl_error *err) {
    errno = 0;
    uint64_t seed = all_digits(text) ? strtoull(text, NULL, 10) : 0;
    if (!all_digits(text) || errno != 0) {
        return sl_fail(err, SL_ERR_INVALID, "recipe: seed=%.40s: expected a whole number from 0 to %" PRIu64, text,
                       UINT64_MAX);
    }
    recipe->seed = seed;
    return SL_OK;
}

static enum sl_status parse_budget(struct sl_recipe *recipe, const char *text, struct sl_error *err) {
    if (strcmp(text, "off") == 0) {
        recipe->budget = (struct sl_amount){0};
        return SL_OK;
    }
    return parse_amount("budget=", text, &recipe->budget, err);
}

static enum sl_status parse_exempt(struct sl_recipe *recipe, const char *text, struct sl_error *err) {
    if (strcmp(text, "none") == 0) {
        memset(&recipe->exempt, 0, sizeof recipe->exempt);
        recipe->exempt_last = false;
        return SL_OK;
    }
    return parse_layers("exempt", text, &recipe->exempt, NULL, &recipe->exempt_last, err);
}

static void clear_when(struct sl_recipe *recipe) {
    recipe->when = 0;
}

static enum sl_status apply_when(struct sl_recipe *recipe, const struct sl_axis_value *value, const char *argument,
                                 struct sl_error *err) {
    (void)argument, (void)err;
    recipe->when |= (unsigned)value->number;
    if (recipe->when & SL_WHEN_CHUNK) {
        recipe->when &= ~(unsigned)SL_WHEN_END; // the last chunk is a chunk: "chunk+end" says nothing more
    }
    return SL_OK;
}

static enum sl_status apply_evicted(struct sl_recipe *recipe, const struct sl_axis_value *value, const char *argument,
                                    struct sl_error *err) {
    double beta = SL_RECIPE_DEFAULT_BETA;
    if (argument != NULL && !parse_ratio(argument, true, &beta)) {
        return sl_fail(err, SL_ERR_INVALID, "recipe: evicted=merge:%.40s: expected a weight above 0 and up to 1",
                       argument);
    }
    recipe->evicted = (enum sl_evicted)value->number;
    recipe->merge_beta = beta;
    return SL_OK;
}

static enum sl_status parse_format_name(const char *text, enum sl_kv_format *format_out, struct sl_error *err) {
    if (sl_kv_format_parse(text, format_out) == SL_OK) {
        return SL_OK;
    }
    return sl_fail(err, SL_ERR_INVALID,
                   "recipe: format=%.40s is unknown; formats: f32, f16, bf16, int8, int4, int2, int1, or per layer: "
                   "f16/0-1:int4/2-:int2, f16/dense:int2",
                   text);
}

// One "FROM-TO:FORMAT" or "dense:FORMAT", cut up in place.
static enum sl_status parse_format_range(struct sl_recipe *recipe, char *text, struct sl_error *err) {
    char *colon = strchr(text, ':'), *dash = strchr(text, '-');
    if (recipe->dense_auto) {
        return sl_fail(err, SL_ERR_INVALID, "recipe: format=.../dense:...: nothing may follow dense; name it last");
    }
    if (colon != NULL && (size_t)(colon - text) == strlen("dense") && strncmp(text, "dense", strlen("dense")) == 0) {
        recipe->dense_auto = true;
        return parse_format_name(colon + 1, &recipe->dense_format, err);
    }
    if (colon == NULL || dash == NULL || dash > colon) {
        return sl_fail(err, SL_ERR_INVALID,
                       "recipe: format=.../%.40s: expected FROM-TO:FORMAT, e.g. 2-5:int4, 2-:int4 or -5:int4, or "
                       "dense:FORMAT",
                       text);
    }
    if (recipe->n_ranges == SL_MAX_FORMAT_RANGES) {
        return sl_fail(err, SL_ERR_INVALID, "recipe: format has more than %d layer ranges", SL_MAX_FORMAT_RANGES);
    }
    *colon = '\0';
    int from = 0, to = -1;
    enum sl_kv_format format = SL_KV_F16;
    enum sl_status status = parse_range("format", text, dash, &from, &to, err);
    if (status == SL_OK) {
        status = parse_format_name(colon + 1, &format, err);
    }
    if (status == SL_OK) {
        int i = recipe->n_ranges++;
        recipe->ranges[i].from = from;
        recipe->ranges[i].to = to;
        recipe->ranges[i].format = format;
    }
    return status;
}

static void clear_format(struct sl_recipe *recipe) {
    memset(recipe->ranges, 0, sizeof recipe->ranges);
    recipe->n_ranges = 0;
    recipe->dense_auto = false;
    recipe->dense_format = (enum sl_kv_format)0;
}

static enum sl_status parse_format(struct sl_recipe *recipe, const char *text, struct sl_error *err) {
    char copy[SL_RECIPE_TEXT_BYTES];
    snprintf(copy, sizeof copy, "%s", text);
    clear_format(recipe);
    char *rest = copy;
    enum sl_status status = parse_format_name(strsep(&rest, "/"), &recipe->format, err);
    while (status == SL_OK && rest != NULL) {
        status = parse_format_range(recipe, strsep(&rest, "/"), err);
    }
    return status;
}

static enum sl_status parse_bits(struct sl_recipe *recipe, const char *text, struct sl_error *err) {
    for (enum sl_kv_format format = 0; format < SL_KV_N_FORMATS; format++) {
        char bits[12];
        snprintf(bits, sizeof bits, "%d", sl_kv_format_bits(format));
        if (sl_kv_format_is_quantized(format) && strcmp(text, bits) == 0) {
            clear_format(recipe);
            recipe->format = SL_KV_F16;
            recipe->dense_auto = true;
            recipe->dense_format = format;
            return SL_OK;
        }
    }
    return sl_fail(err, SL_ERR_INVALID, "recipe: bits=%.40s: expected 1, 2, 4 or 8", text);
}

static void clear_place(struct sl_recipe *recipe) {
    memset(&recipe->offload, 0, sizeof recipe->offload);
    recipe->offload_from = -1;
    recipe->offload_auto = false;
}

static enum sl_status apply_place(struct sl_recipe *recipe, const struct sl_axis_value *value, const char *argument,
                                  struct sl_error *err) {
    clear_place(recipe);
    if (value->number == 0) { // resident: nothing is fetched any more
        sl_recipe_forget_retrieval(recipe);
        return SL_OK;
    }
    if (strcmp(argument, "sparse") == 0) {
        recipe->offload_auto = true;
        return SL_OK;
    }
    return parse_layers("place", argument, &recipe->offload, &recipe->offload_from, NULL, err);
}

static enum sl_status parse_topk(struct sl_recipe *recipe, const char *text, struct sl_error *err) {
    return parse_count("topk=", text, 1, SL_RECIPE_MAX_SLOTS, &recipe->topk, err);
}

static enum sl_status parse_ahead(struct sl_recipe *recipe, const char *text, struct sl_error *err) {
    return parse_int("ahead=", text, 0, 1, &recipe->ahead, err);
}

static enum sl_status parse_keep(struct sl_recipe *recipe, const char *text, struct sl_error *err) {
    return parse_count("keep=", text, 0, SL_RECIPE_MAX_SLOTS, &recipe->keep, err);
}

static enum sl_status parse_replicas(struct sl_recipe *recipe, const char *text, struct sl_error *err) {
    return parse_int("replicas=", text, 1, SL_RECIPE_MAX_REPLICAS, &recipe->replicas, err);
}

static enum sl_status parse_channels(struct sl_recipe *recipe, const char *text, struct sl_error *err) {
    return parse_int("channels=", text, 1, SL_RECIPE_MAX_CHANNELS, &recipe->channels, err);
}

static enum sl_status parse_chunk(struct sl_recipe *recipe, const char *text, struct sl_error *err) {
    int64_t chunk = 0;
    enum sl_status status = parse_count("chunk=", text, SL_PAGE_SLOTS, SL_RECIPE_MAX_CHUNK, &chunk, err);
    if (status != SL_OK) {
        return status;
    }
    if (chunk % SL_PAGE_SLOTS != 0) {
        return sl_fail(err, SL_ERR_INVALID, "recipe: chunk=%" PRId64 " is not a multiple of %d; try chunk=%" PRId64,
                       chunk, SL_PAGE_SLOTS, chunk / SL_PAGE_SLOTS * SL_PAGE_SLOTS);
    }
    recipe->chunk_tokens = (int)chunk;
    return SL_OK;
}

// To add an axis: a row here, in the order in which people read a recipe, a field of struct sl_recipe, and a line in
// compress/recipe/write.c.
const struct sl_axis sl_recipe_axes[] = {
    {"score", sl_names_score, false, NULL, apply_score, NULL},
    {"value", sl_names_value, false, NULL, apply_value, NULL},
    {"scope", sl_names_scope, true, clear_scope, apply_scope, NULL},
    {"window", NULL, false, NULL, NULL, parse_window},
    {"pool", sl_names_pool, false, NULL, apply_pool, NULL},
    {"seed", NULL, false, NULL, NULL, parse_seed},
    {"budget", NULL, false, NULL, NULL, parse_budget},
    {"layers", sl_names_layers, false, NULL, apply_layers, NULL},
    {"exempt", NULL, false, NULL, NULL, parse_exempt},
    {"heads", sl_names_heads, false, NULL, apply_heads, NULL},
    {"when", sl_names_when, true, clear_when, apply_when, NULL},
    {"evicted", sl_names_evicted, false, NULL, apply_evicted, NULL},
    {"format", NULL, false, NULL, NULL, parse_format},
    {"bits", NULL, false, NULL, NULL, parse_bits},
    {"place", sl_names_place, false, NULL, apply_place, NULL},
    {"retrieve", sl_names_retrieve, false, NULL, apply_retrieve, NULL},
    {"ahead", NULL, false, NULL, NULL, parse_ahead},
    {"topk", NULL, false, NULL, NULL, parse_topk},
    {"keep", NULL, false, NULL, NULL, parse_keep},
    {"channels", NULL, false, NULL, NULL, parse_channels},
    {"scan", sl_names_scan, false, NULL, apply_scan, NULL},
    {"replicas", NULL, false, NULL, NULL, parse_replicas},
    {"positions", sl_names_positions, false, NULL, apply_positions, NULL},
    {"chunk", NULL, false, NULL, NULL, parse_chunk},
    {NULL, NULL, false, NULL, NULL, NULL},
};
