// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: recipes as canonical text. One text per recipe, which reads back as the same recipe.
 *
 * Design: a preset's name stands for all axes that presets set; otherwise every axis that is not at its default is
 *         written, in the order in which people read a recipe. The long form writes every axis there is.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "compress/recipe/internal.h"

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

// The shortest text that reads back as the same number.
static void put_number(struct writer *w, double number) {
    char text[32];
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, number);
        if (strtod(text, NULL) == number) {
            break;
        }
    }
    put(w, "%s", text);
}

static bool has_amount(const struct sl_amount *amount) {
    return amount->slots > 0 || amount->ratio > 0;
}

static void put_amount(struct writer *w, const struct sl_amount *amount) {
    if (amount->slots > 0) {
        put(w, "%" PRId64, amount->slots);
    } else {
        put_number(w, amount->ratio);
    }
}

// N and N-M, joined by '+'. True when anything was written.
static bool put_layers(struct writer *w, const struct sl_layers *layers) {
    const char *plus = "";
    for (int l = 0; l < SL_MAX_LAYERS; l++) {
        if (!sl_layers_has(layers, l)) {
            continue;
        }
        put(w, "%s%d", plus, l);
        plus = "+";
        int from = l;
        while (l + 1 < SL_MAX_LAYERS && sl_layers_has(layers, l + 1)) {
            l++;
        }
        if (l > from) {
            put(w, "-%d", l);
        }
    }
    return *plus != '\0';
}

// --- presets -----------------------------------------------------------------------------------------------------

static bool same_amount(const struct sl_amount *a, const struct sl_amount *b) {
    return a->slots == b->slots && a->ratio == b->ratio;
}

static bool same_layers(const struct sl_layers *a, const struct sl_layers *b) {
    return memcmp(a->bits, b->bits, sizeof a->bits) == 0;
}

// All that a preset sets, whatever the budget is.
static bool same_method(const struct sl_recipe *a, const struct sl_recipe *b) {
    return a->score == b->score && a->value == b->value && a->sinks == b->sinks &&
           same_amount(&a->recent, &b->recent) && a->std == b->std && a->stabilizers == b->stabilizers &&
           a->tail == b->tail && a->window == b->window && a->pool == b->pool && a->pool_kernel == b->pool_kernel &&
           sl_recipe_evicts(a) == sl_recipe_evicts(b) && a->layers == b->layers &&
           same_layers(&a->exempt, &b->exempt) && a->exempt_last == b->exempt_last && a->heads == b->heads &&
           a->when == b->when && a->evicted == b->evicted && a->merge_beta == b->merge_beta &&
           same_layers(&a->offload, &b->offload) && a->offload_from == b->offload_from &&
           a->offload_auto == b->offload_auto && a->topk == b->topk && a->channels == b->channels &&
           a->retrieve == b->retrieve && a->ahead == b->ahead && a->keep == b->keep && a->scan == b->scan &&
           a->replicas == b->replicas && a->positions == b->positions;
}

static bool same_format(const struct sl_recipe *a, const struct sl_recipe *b) {
    bool same = a->format == b->format && a->dense_auto == b->dense_auto && a->dense_format == b->dense_format &&
                a->n_ranges == b->n_ranges;
    for (int i = 0; same && i < a->n_ranges; i++) {
        same = a->ranges[i].from == b->ranges[i].from && a->ranges[i].to == b->ranges[i].to &&
               a->ranges[i].format == b->ranges[i].format;
    }
    return same;
}

// The preset of this method; of several that of this format. NULL when there is none.
static const char *preset_of(const struct sl_recipe *recipe, struct sl_recipe *preset_out) {
    const char *name = NULL;
    for (const struct sl_preset *p = sl_recipe_presets(); p->name != NULL; p++) {
        struct sl_recipe preset;
        if (sl_recipe_parse(p->text, &preset, NULL) == SL_OK && same_method(&preset, recipe) &&
            (name == NULL || same_format(&preset, recipe))) {
            name = p->name;
            *preset_out = preset;
        }
    }
    return name;
}

// --- axes --------------------------------------------------------------------------------------------------------

static void put_scope(struct writer *w, const struct sl_recipe *recipe) {
    const char *before = ",scope=";
    if (recipe->sinks > 0) {
        put(w, "%ssinks:%" PRId64, before, recipe->sinks);
        before = "+";
    }
    if (has_amount(&recipe->recent)) {
        put(w, "%srecent:", before);
        put_amount(w, &recipe->recent);
        before = "+";
    }
    if (recipe->std > 0) {
        put(w, "%sstd:", before);
        put_number(w, recipe->std);
        before = "+";
    }
    if (recipe->stabilizers > 0) {
        put(w, "%sstabilizers:%" PRId64, before, recipe->stabilizers);
        before = "+";
    }
    if (recipe->tail > 0) {
        put(w, "%stail:%" PRId64, before, recipe->tail);
    }
}

static void put_budget(struct writer *w, const struct sl_recipe *recipe) {
    put(w, ",budget=");
    if (sl_recipe_evicts(recipe)) {
        put_amount(w, &recipe->budget);
    } else {
        put(w, "off");
    }
}

static void put_when(struct writer *w, unsigned when) {
    const char *before = ",when=";
    for (const struct sl_axis_value *v = sl_names_when; v->name != NULL; v++) {
        if (when & (unsigned)v->number) {
            put(w, "%s%s", before, v->name);
            before = "+";
        }
    }
}

static void put_exempt(struct writer *w, const struct sl_recipe *recipe, bool every_axis) {
    bool any = sl_layers_any(&recipe->exempt);
    if (any || recipe->exempt_last || every_axis) {
        put(w, ",exempt=");
        put_layers(w, &recipe->exempt);
        put(w, "%s", recipe->exempt_last ? (any ? "+last" : "last") : (any ? "" : "none"));
    }
}

static void put_format(struct writer *w, const struct sl_recipe *recipe) {
    put(w, ",format=%s", sl_kv_format_name(recipe->format));
    for (int i = 0; i < recipe->n_ranges; i++) {
        put(w, "/%d-", recipe->ranges[i].from);
        if (recipe->ranges[i].to >= 0) {
            put(w, "%d", recipe->ranges[i].to);
        }
        put(w, ":%s", sl_kv_format_name(recipe->ranges[i].format));
    }
    if (recipe->dense_auto) {
        put(w, "/dense:%s", sl_kv_format_name(recipe->dense_format));
    }
}

// A named value, when it is not the default.
static void put_named(struct writer *w, bool every_axis, const char *axis, const struct sl_axis_value *values,
                      int number, int usual) {
    if (every_axis || number != usual) {
        put(w, ",%s=%s", axis, sl_axis_value_name(values, number));
    }
}

static void put_place(struct writer *w, const struct sl_recipe *recipe, bool every_axis) {
    if (!sl_recipe_offloads(recipe)) {
        put(w, "%s", every_axis ? ",place=resident" : "");
        return;
    }
    put(w, ",place=offload/");
    if (recipe->offload_auto) {
        put(w, "sparse");
    }
    bool any = put_layers(w, &recipe->offload);
    if (recipe->offload_from >= 0) {
        put(w, "%s%d-", any ? "+" : "", recipe->offload_from);
    }
}

static void put_retrieval(struct writer *w, const struct sl_recipe *recipe, const struct sl_recipe *usual, bool all) {
    if (recipe->topk == 0) {
        return;
    }
    put_named(w, all, "retrieve", sl_names_retrieve, (int)recipe->retrieve, (int)usual->retrieve);
    if (all || recipe->ahead != usual->ahead) {
        put(w, ",ahead=%d", recipe->ahead);
    }
    put(w, ",topk=%" PRId64, recipe->topk);
    if (all || recipe->keep != recipe->topk) {
        put(w, ",keep=%" PRId64, recipe->keep);
    }
    put(w, ",channels=%d", recipe->channels);
    put_named(w, all, "scan", sl_names_scan, (int)recipe->scan, (int)usual->scan);
    if (all || recipe->replicas != usual->replicas) {
        put(w, ",replicas=%d", recipe->replicas);
    }
}

// The axes that presets set, in front of the format and behind it.
static void put_method(struct writer *w, const struct sl_recipe *recipe, const struct sl_recipe *usual, bool all) {
    put(w, "score=%s", sl_axis_value_name(sl_names_score, (int)recipe->score));
    put_named(w, all, "value", sl_names_value, (int)recipe->value, (int)usual->value);
    put_scope(w, recipe);
    if (all || recipe->window != usual->window) {
        put(w, ",window=%d", recipe->window);
    }
    if (all || recipe->pool != usual->pool || recipe->pool_kernel != usual->pool_kernel) {
        put(w, ",pool=%s", sl_axis_value_name(sl_names_pool, (int)recipe->pool));
        if (recipe->pool != SL_POOL_NONE) {
            put(w, ":%d", recipe->pool_kernel);
        }
    }
    if (all || sl_recipe_evicts(recipe)) {
        put_budget(w, recipe);
    }
    put_named(w, all, "layers", sl_names_layers, (int)recipe->layers, (int)usual->layers);
    put_exempt(w, recipe, all);
    put_named(w, all, "heads", sl_names_heads, (int)recipe->heads, (int)usual->heads);
    put_when(w, recipe->when);
    put_named(w, all, "evicted", sl_names_evicted, (int)recipe->evicted, (int)usual->evicted);
    if (recipe->merge_beta != usual->merge_beta) {
        put(w, ":");
        put_number(w, recipe->merge_beta);
    }
    put_place(w, recipe, all);
    put_retrieval(w, recipe, usual, all);
    put_named(w, all, "positions", sl_names_positions, (int)recipe->positions, (int)usual->positions);
}

char *sl_recipe_write(const struct sl_recipe *recipe, bool every_axis, char *buf, size_t buf_bytes) {
    struct writer w = {buf, buf_bytes, 0};
    struct sl_recipe usual = sl_recipe_defaults(), preset = usual;
    const char *name = every_axis ? NULL : preset_of(recipe, &preset);
    if (name != NULL) {
        put(&w, "%s", name);
        if (!same_amount(&preset.budget, &recipe->budget)) {
            put_budget(&w, recipe);
        }
        usual = preset;
    } else {
        put_method(&w, recipe, &usual, every_axis);
    }
    if (every_axis || recipe->seed != usual.seed) {
        put(&w, ",seed=%" PRIu64, recipe->seed);
    }
    if (every_axis || !same_format(recipe, &usual)) {
        put_format(&w, recipe);
    }
    if (every_axis || recipe->chunk_tokens != usual.chunk_tokens) {
        put(&w, ",chunk=%d", recipe->chunk_tokens);
    }
    return buf;
}

char *sl_recipe_format(const struct sl_recipe *recipe, char *buf, size_t buf_bytes) {
    return sl_recipe_write(recipe, false, buf, buf_bytes);
}
