// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: recipes as text, both ways.
 *
 * Design: every axis is a row of a table, and the named values of an axis are a table too, with a column that says
 *         whether the value is built. So "not built yet" and "no such thing" are different answers, and both list what
 *         there is. Axes that hold numbers have a parse function instead of values.
 * Trust: text comes from clients. It is bounded and printable before anything else looks at it.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compress/recipe_internal.h"

#define MAX_TEXT_BYTES 1024

struct value {
    const char *name;
    bool built;
    int number; // the axis' enum, or whatever its apply() understands
};

struct axis {
    const char *name;
    const struct value *values; // ends with a NULL name; NULL: parse() reads the whole text
    bool joined;                // several values joined by '+'
    bool arguments;             // every value is name:argument
    void (*clear)(struct sl_recipe *recipe);
    // `argument` is what follows "name:" or NULL. NULL function: the only built value is what happens anyway.
    enum sl_status (*apply)(struct sl_recipe *recipe, const struct value *value, const char *argument,
                            struct sl_error *err);
    enum sl_status (*parse)(struct sl_recipe *recipe, const char *text, struct sl_error *err);
};

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

// Digits alone are slots, anything else must be a ratio: 0 < r < 1.
static enum sl_status parse_amount(const char *what, const char *text, struct sl_amount *amount_out,
                                   struct sl_error *err) {
    if (all_digits(text)) {
        int64_t slots = 0;
        enum sl_status status = parse_count(what, text, 1, SL_RECIPE_MAX_SLOTS, &slots, err);
        if (status == SL_OK) {
            *amount_out = (struct sl_amount){.slots = slots};
        }
        return status;
    }
    // Only what a decimal number is made of: strtod() would also take nan, inf and hexadecimal.
    char *end = NULL;
    double ratio = text[strspn(text, "0123456789.eE+-")] == '\0' ? strtod(text, &end) : 0;
    if (end == NULL || end == text || *end != '\0' || !(ratio > 0 && ratio < 1)) {
        return sl_fail(err, SL_ERR_INVALID,
                       "recipe: %s%.40s: expected a number of slots (1 or more) or a ratio (above 0 and below 1)", what,
                       text);
    }
    *amount_out = (struct sl_amount){.ratio = ratio};
    return SL_OK;
}

// --- axes --------------------------------------------------------------------------------------------------------

static const struct value scores[] = {
    {"none", true, SL_SCORE_NONE},
    {"random", false, 0},
    {"recency", true, SL_SCORE_RECENCY},
    {"aas", true, SL_SCORE_AAS},
    {"aqas", false, 0},
    {"ltas", false, 0},
    {"mas", false, 0},
    {"snapkv", false, 0},
    {"cis", false, 0},
    {NULL, false, 0},
};

static enum sl_status apply_score(struct sl_recipe *recipe, const struct value *value, const char *argument,
                                  struct sl_error *err) {
    (void)argument, (void)err;
    recipe->score = (enum sl_score)value->number;
    return SL_OK;
}

static const struct value values_aware[] = {
    {"off", true, 0}, {"caote", false, 0}, {"fastcaote", false, 0}, {NULL, false, 0}};

enum { SCOPE_SINKS, SCOPE_RECENT };
static const struct value scopes[] = {
    {"sinks", true, SCOPE_SINKS},
    {"recent", true, SCOPE_RECENT},
    {"std", false, 0},
    {"stabilizers", false, 0},
    {"tail", false, 0},
    {NULL, false, 0},
};

static void clear_scope(struct sl_recipe *recipe) {
    recipe->sinks = 0;
    recipe->recent = (struct sl_amount){0};
}

static enum sl_status apply_scope(struct sl_recipe *recipe, const struct value *value, const char *argument,
                                  struct sl_error *err) {
    if (value->number == SCOPE_SINKS) {
        return parse_count("scope=sinks:", argument, 1, SL_RECIPE_MAX_SLOTS, &recipe->sinks, err);
    }
    return parse_amount("scope=recent:", argument, &recipe->recent, err);
}

static enum sl_status parse_budget(struct sl_recipe *recipe, const char *text, struct sl_error *err) {
    if (strcmp(text, "off") == 0) {
        recipe->budget = (struct sl_amount){0};
        return SL_OK;
    }
    return parse_amount("budget=", text, &recipe->budget, err);
}

static const struct value splits_layers[] = {
    {"uniform", true, 0}, {"d2o", false, 0}, {"pyramid", false, 0}, {NULL, false, 0}};
static const struct value splits_heads[] = {{"uniform", true, 0}, {"adaptive", false, 0}, {NULL, false, 0}};

static const struct value whens[] = {
    {"chunk", true, SL_WHEN_CHUNK}, {"end", true, SL_WHEN_END}, {"step", false, 0}, {NULL, false, 0}};

static void clear_when(struct sl_recipe *recipe) {
    recipe->when = 0;
}

static enum sl_status apply_when(struct sl_recipe *recipe, const struct value *value, const char *argument,
                                 struct sl_error *err) {
    (void)argument, (void)err;
    recipe->when |= (unsigned)value->number;
    if (recipe->when & SL_WHEN_CHUNK) {
        recipe->when = SL_WHEN_CHUNK; // the last chunk is a chunk: "chunk+end" says nothing more
    }
    return SL_OK;
}

static const struct value fates[] = {{"drop", true, 0}, {"merge", false, 0}, {NULL, false, 0}};

static enum sl_status parse_format_name(const char *text, enum sl_kv_format *format_out, struct sl_error *err) {
    if (sl_kv_format_parse(text, format_out) == SL_OK) {
        return SL_OK;
    }
    return sl_fail(err, SL_ERR_INVALID,
                   "recipe: format=%.40s is unknown; formats: f32, f16, bf16, int8, int4, int2, int1, or per layer: "
                   "f16/0-1:int4/2-:int2",
                   text);
}

// One "FROM-TO:FORMAT", cut up in place.
static enum sl_status parse_format_range(struct sl_recipe *recipe, char *text, struct sl_error *err) {
    char *colon = strchr(text, ':'), *dash = strchr(text, '-');
    if (colon == NULL || dash == NULL || dash > colon) {
        return sl_fail(err, SL_ERR_INVALID,
                       "recipe: format=.../%.40s: expected FROM-TO:FORMAT, e.g. 2-5:int4, 2-:int4 or -5:int4", text);
    }
    if (recipe->n_ranges == SL_MAX_FORMAT_RANGES) {
        return sl_fail(err, SL_ERR_INVALID, "recipe: format has more than %d layer ranges", SL_MAX_FORMAT_RANGES);
    }
    *dash = *colon = '\0';
    int64_t from = 0, to = -1;
    enum sl_kv_format format;
    enum sl_status status = SL_OK;
    if (*text != '\0') {
        status = parse_count("format: first layer ", text, 0, SL_MAX_LAYERS - 1, &from, err);
    }
    if (status == SL_OK && dash[1] != '\0') {
        status = parse_count("format: last layer ", dash + 1, from, SL_MAX_LAYERS - 1, &to, err);
    }
    if (status == SL_OK) {
        status = parse_format_name(colon + 1, &format, err);
    }
    if (status == SL_OK) {
        int i = recipe->n_ranges++;
        recipe->ranges[i].from = (int)from;
        recipe->ranges[i].to = (int)to;
        recipe->ranges[i].format = format;
    }
    return status;
}

static enum sl_status parse_format(struct sl_recipe *recipe, const char *text, struct sl_error *err) {
    char copy[MAX_TEXT_BYTES];
    snprintf(copy, sizeof copy, "%s", text);
    memset(recipe->ranges, 0, sizeof recipe->ranges);
    recipe->n_ranges = 0;
    char *rest = copy;
    enum sl_status status = parse_format_name(strsep(&rest, "/"), &recipe->format, err);
    while (status == SL_OK && rest != NULL) {
        status = parse_format_range(recipe, strsep(&rest, "/"), err);
    }
    return status;
}

static const struct value places[] = {{"resident", true, 0}, {"offload", false, 0}, {NULL, false, 0}};
static const struct value retrievals[] = {{"near", false, 0}, {"pull", false, 0}, {NULL, false, 0}};

static const struct value position_modes[] = {
    {"original", true, SL_POSITION_ORIGINAL}, {"slot", true, SL_POSITION_SLOT}, {NULL, false, 0}};

static enum sl_status apply_positions(struct sl_recipe *recipe, const struct value *value, const char *argument,
                                      struct sl_error *err) {
    (void)argument, (void)err;
    recipe->positions = (enum sl_position_mode)value->number;
    return SL_OK;
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

// To add a value: a row in its axis' table (built = true once it works). To add an axis: a row here, in the order in
// which people read a recipe, a field of struct sl_recipe, and a line in sl_recipe_write().
static const struct axis axes[] = {
    {"score", scores, false, false, NULL, apply_score, NULL},
    {"value", values_aware, false, false, NULL, NULL, NULL},
    {"scope", scopes, true, true, clear_scope, apply_scope, NULL},
    {"budget", NULL, false, false, NULL, NULL, parse_budget},
    {"layers", splits_layers, false, false, NULL, NULL, NULL},
    {"heads", splits_heads, false, false, NULL, NULL, NULL},
    {"when", whens, true, false, clear_when, apply_when, NULL},
    {"evicted", fates, false, false, NULL, NULL, NULL},
    {"format", NULL, false, false, NULL, NULL, parse_format},
    {"place", places, false, false, NULL, NULL, NULL},
    {"retrieve", retrievals, false, false, NULL, NULL, NULL},
    {"positions", position_modes, false, false, NULL, apply_positions, NULL},
    {"chunk", NULL, false, false, NULL, NULL, parse_chunk},
};
#define N_AXES (sizeof axes / sizeof axes[0])

// --- lists for messages ------------------------------------------------------------------------------------------

struct list {
    char text[256];
    size_t length;
};

static void list_add(struct list *list, const char *name) {
    int n =
        snprintf(list->text + list->length, sizeof list->text - list->length, "%s%s", list->length ? ", " : "", name);
    if (n > 0 && list->length + (size_t)n < sizeof list->text) {
        list->length += (size_t)n;
    }
}

static struct list list_values(const struct value *values, bool only_built) {
    struct list list = {0};
    for (const struct value *v = values; v->name != NULL; v++) {
        if (v->built || !only_built) {
            list_add(&list, v->name);
        }
    }
    return list;
}

static struct list list_presets(bool built) {
    struct list list = {0};
    for (const struct sl_preset *p = sl_recipe_presets(); p->name != NULL; p++) {
        if (p->built == built) {
            list_add(&list, p->name);
        }
    }
    return list;
}

// --- words -------------------------------------------------------------------------------------------------------

static enum sl_status apply_value(struct sl_recipe *recipe, const struct axis *axis, char *text, struct sl_error *err) {
    // "name", "name:argument" or "name/argument"
    size_t name_length = strcspn(text, ":/");
    const struct value *value = axis->values;
    while (value->name != NULL &&
           !(strlen(value->name) == name_length && strncmp(value->name, text, name_length) == 0)) {
        value++;
    }
    if (value->name == NULL) {
        struct list all = list_values(axis->values, false), built = list_values(axis->values, true);
        return sl_fail(err, SL_ERR_INVALID, "recipe: %s=%.40s is unknown; values: %s (built: %s)", axis->name, text,
                       all.text, built.length ? built.text : "none of them");
    }
    if (!value->built) {
        struct list built = list_values(axis->values, true);
        return built.length
                   ? sl_fail(err, SL_ERR_UNSUPPORTED, "recipe: %s=%s is not built yet; built: %s", axis->name,
                             value->name, built.text)
                   : sl_fail(err, SL_ERR_UNSUPPORTED, "recipe: %s=%s is not built yet, nor is any other value of %s",
                             axis->name, value->name, axis->name);
    }
    const char *argument = text[name_length] == '\0' ? NULL : text + name_length + 1;
    if (axis->arguments && (argument == NULL || text[name_length] != ':')) {
        return sl_fail(err, SL_ERR_INVALID, "recipe: %s=%.40s: expected %s:NUMBER", axis->name, text, value->name);
    }
    if (!axis->arguments && argument != NULL) {
        return sl_fail(err, SL_ERR_INVALID, "recipe: %s=%.40s: nothing may follow %s", axis->name, text, value->name);
    }
    return axis->apply != NULL ? axis->apply(recipe, value, argument, err) : SL_OK;
}

static enum sl_status apply_axis(struct sl_recipe *recipe, const char *name, char *text, struct sl_error *err) {
    for (size_t i = 0; i < N_AXES; i++) {
        const struct axis *axis = &axes[i];
        if (strcmp(axis->name, name) != 0) {
            continue;
        }
        if (axis->parse != NULL) {
            return axis->parse(recipe, text, err);
        }
        if (axis->clear != NULL) {
            axis->clear(recipe);
        }
        enum sl_status status = SL_OK;
        for (char *rest = text; status == SL_OK && rest != NULL;) {
            char *part = axis->joined ? strsep(&rest, "+") : rest;
            status = apply_value(recipe, axis, part, err);
            rest = axis->joined ? rest : NULL;
        }
        return status;
    }
    struct list names = {0};
    for (size_t i = 0; i < N_AXES; i++) {
        list_add(&names, axes[i].name);
    }
    return sl_fail(err, SL_ERR_INVALID, "recipe: there is no axis %.40s; axes: %s", name, names.text);
}

static enum sl_status apply_text(struct sl_recipe *recipe, const char *text, struct sl_error *err);

// A preset is a way to evict: it sets every axis of eviction, named in its text or not, and leaves the others alone.
static enum sl_status apply_preset(struct sl_recipe *recipe, const char *name, struct sl_error *err) {
    const struct sl_preset *preset = sl_recipe_presets();
    while (preset->name != NULL && strcmp(preset->name, name) != 0) {
        preset++;
    }
    if (preset->name == NULL || !preset->built) {
        struct list built = list_presets(true), others = list_presets(false);
        return preset->name == NULL
                   ? sl_fail(err, SL_ERR_INVALID,
                             "recipe: %.40s is neither a preset nor axis=value; presets: %s (not built yet: %s)",
                             *name ? name : "an empty word", built.text, others.text)
                   : sl_fail(err, SL_ERR_UNSUPPORTED, "recipe: preset %s is not built yet; built: %s", name,
                             built.text);
    }
    struct sl_recipe defaults = sl_recipe_defaults();
    recipe->score = defaults.score;
    recipe->sinks = defaults.sinks;
    recipe->recent = defaults.recent;
    recipe->budget = defaults.budget;
    recipe->when = defaults.when;
    recipe->positions = defaults.positions;
    return apply_text(recipe, preset->text, err);
}

static enum sl_status apply_text(struct sl_recipe *recipe, const char *text, struct sl_error *err) {
    char copy[MAX_TEXT_BYTES];
    snprintf(copy, sizeof copy, "%s", text);
    enum sl_status status = SL_OK;
    for (char *rest = copy; status == SL_OK && rest != NULL;) {
        char *word = strsep(&rest, ",");
        char *equals = strchr(word, '=');
        if (equals == NULL) {
            status = apply_preset(recipe, word, err);
        } else {
            *equals = '\0';
            status = apply_axis(recipe, word, equals + 1, err);
        }
    }
    return status;
}

enum sl_status sl_recipe_parse(const char *text, struct sl_recipe *recipe_out, struct sl_error *err) {
    size_t length = strnlen(text, MAX_TEXT_BYTES);
    if (length == 0 || length == MAX_TEXT_BYTES) {
        return sl_fail(err, SL_ERR_INVALID, "recipe: %s; e.g. full, or h2o,budget=1024",
                       length == 0 ? "the text is empty" : "the text is longer than 1023 bytes");
    }
    for (size_t i = 0; i < length; i++) {
        if (text[i] < '!' || text[i] > '~') {
            return sl_fail(err, SL_ERR_INVALID,
                           "recipe: byte 0x%02x at offset %zu: a recipe is words joined by commas, without spaces",
                           (unsigned char)text[i], i);
        }
    }
    struct sl_recipe recipe = sl_recipe_defaults();
    enum sl_status status = apply_text(&recipe, text, err);
    if (status == SL_OK) {
        status = sl_recipe_check(&recipe, err);
    }
    if (status == SL_OK) {
        *recipe_out = recipe;
    }
    return status;
}

// --- and back ----------------------------------------------------------------------------------------------------

struct writer {
    char *buf;
    size_t bytes, length;
};

__attribute__((format(printf, 2, 3))) static void put(struct writer *w, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(w->buf + w->length, w->bytes - w->length, format, args);
    va_end(args);
    if (n > 0) {
        w->length += (size_t)n < w->bytes - w->length ? (size_t)n : w->bytes - w->length - 1;
    }
}

static void put_amount(struct writer *w, const struct sl_amount *amount) {
    if (amount->slots > 0) {
        put(w, "%" PRId64, amount->slots);
        return;
    }
    char text[32];
    for (int digits = 1; digits <= 17; digits++) { // the shortest text that reads back as the same number
        snprintf(text, sizeof text, "%.*g", digits, amount->ratio);
        if (strtod(text, NULL) == amount->ratio) {
            break;
        }
    }
    put(w, "%s", text);
}

static const char *value_name(const struct value *values, int number) {
    while (values->name != NULL && !(values->built && values->number == number)) {
        values++;
    }
    return values->name != NULL ? values->name : "?";
}

static bool same_amount(const struct sl_amount *a, const struct sl_amount *b) {
    return a->slots == b->slots && a->ratio == b->ratio;
}

// The built preset that evicts as this recipe does, whatever its budget; NULL when there is none.
static const char *preset_of(const struct sl_recipe *recipe, struct sl_recipe *preset_out) {
    for (const struct sl_preset *p = sl_recipe_presets(); p->name != NULL; p++) {
        if (p->built && sl_recipe_parse(p->text, preset_out, NULL) == SL_OK && preset_out->score == recipe->score &&
            preset_out->sinks == recipe->sinks && same_amount(&preset_out->recent, &recipe->recent) &&
            preset_out->when == recipe->when && preset_out->positions == recipe->positions &&
            sl_recipe_evicts(preset_out) == sl_recipe_evicts(recipe)) {
            return p->name;
        }
    }
    return NULL;
}

// The axes of eviction, one by one.
static void write_eviction(struct writer *w, const struct sl_recipe *recipe, bool every_axis) {
    put(w, "score=%s", value_name(scores, recipe->score));
    if (recipe->sinks > 0 || recipe->recent.slots > 0 || recipe->recent.ratio > 0) {
        put(w, ",scope=");
        if (recipe->sinks > 0) {
            put(w, "sinks:%" PRId64, recipe->sinks);
        }
        if (recipe->recent.slots > 0 || recipe->recent.ratio > 0) {
            put(w, "%srecent:", recipe->sinks > 0 ? "+" : "");
            put_amount(w, &recipe->recent);
        }
    }
    if (sl_recipe_evicts(recipe)) {
        put(w, ",budget=");
        put_amount(w, &recipe->budget);
    } else if (every_axis) {
        put(w, ",budget=off");
    }
    if (recipe->when != 0) {
        put(w, ",when=%s", recipe->when & SL_WHEN_CHUNK ? "chunk" : "end");
    }
}

char *sl_recipe_write(const struct sl_recipe *recipe, bool every_axis, char *buf, size_t buf_bytes) {
    struct writer w = {buf, buf_bytes, 0};
    struct sl_recipe preset;
    const char *name = every_axis ? NULL : preset_of(recipe, &preset);
    if (name != NULL) {
        put(&w, "%s", name);
        if (!same_amount(&preset.budget, &recipe->budget)) {
            put(&w, ",budget=");
            put_amount(&w, &recipe->budget);
        }
    } else {
        write_eviction(&w, recipe, every_axis);
    }
    if (every_axis || recipe->format != sl_recipe_defaults().format || recipe->n_ranges > 0) {
        put(&w, ",format=%s", sl_kv_format_name(recipe->format));
    }
    for (int i = 0; i < recipe->n_ranges; i++) {
        put(&w, "/%d-", recipe->ranges[i].from);
        if (recipe->ranges[i].to >= 0) {
            put(&w, "%d", recipe->ranges[i].to);
        }
        put(&w, ":%s", sl_kv_format_name(recipe->ranges[i].format));
    }
    if (every_axis || (name == NULL && recipe->positions != SL_POSITION_ORIGINAL)) {
        put(&w, ",positions=%s", value_name(position_modes, recipe->positions));
    }
    if (every_axis || recipe->chunk_tokens != SL_RECIPE_DEFAULT_CHUNK) {
        put(&w, ",chunk=%d", recipe->chunk_tokens);
    }
    return buf;
}

char *sl_recipe_format(const struct sl_recipe *recipe, char *buf, size_t buf_bytes) {
    return sl_recipe_write(recipe, false, buf, buf_bytes);
}
