// SPDX-License-Identifier: Apache-2.0
// Purpose: the formats of slots as values of recipes: one for all layers, or by ranges of them.
#include <stdio.h>
#include <string.h>

#include "engine/compress/recipe/internal.h"

static enum sl_status parse_name(const char *text, enum sl_kv_format *format_out, struct sl_error *err) {
    if (sl_kv_format_parse(text, format_out) == SL_OK) {
        return SL_OK;
    }
    char names[80] = "";
    struct sl_text_buffer all = {names, sizeof names, 0};
    for (int i = 0; i < SL_KV_N_FORMATS; i++) {
        sl_text_buffer_put(&all, "%s, ", sl_kv_format_name((enum sl_kv_format)i));
    }
    return sl_fail(
        err, SL_ERR_INVALID,
        "recipe: format=%.40s is unknown; formats: %sa pair such as k4v2 (bits of keys and of values: two of 16, "
        "8, 4, 3 and 2), or per layer: f16/0-1:int4/2-:int2, f16/dense:int2",
        text, names);
}

// Parses one "FROM-TO:FORMAT" or "dense:FORMAT"; cuts the text up in place.
static enum sl_status parse_range(struct sl_recipe *recipe, char *text, struct sl_error *err) {
    char *colon = strchr(text, ':'), *dash = strchr(text, '-');
    SL_FAIL_IF(recipe->dense_auto, err, SL_ERR_INVALID,
               "recipe: format=.../dense:...: nothing may follow dense; name it last");
    if (colon != NULL && (size_t)(colon - text) == strlen("dense") && strncmp(text, "dense", strlen("dense")) == 0) {
        recipe->dense_auto = true;
        return parse_name(colon + 1, &recipe->dense_format, err);
    }
    SL_FAIL_IF(colon == NULL || dash == NULL || dash > colon, err, SL_ERR_INVALID,
               "recipe: format=.../%.40s: expected FROM-TO:FORMAT, e.g. 2-5:int4, 2-:int4 or -5:int4, or "
               "dense:FORMAT",
               text);
    SL_FAIL_IF(recipe->n_ranges == SL_MAX_FORMAT_RANGES, err, SL_ERR_INVALID,
               "recipe: format has more than %d layer ranges", SL_MAX_FORMAT_RANGES);
    *colon = '\0';
    struct sl_format_range *range = &recipe->ranges[recipe->n_ranges++];
    SL_TRY(sl_parse_range("format", text, dash, &range->from, &range->to, err));
    return parse_name(colon + 1, &range->format, err);
}

static enum sl_status parse_format(const struct sl_field *field, const char *, const char *text,
                                   struct sl_recipe *recipe, struct sl_error *err) {
    char copy[SL_RECIPE_TEXT_BYTES];
    snprintf(copy, sizeof copy, "%s", text);
    sl_field_copy(field, recipe, &sl_recipe_default);
    char *rest = copy;
    enum sl_status status = parse_name(strsep(&rest, "/"), &recipe->format, err);
    while (status == SL_OK && rest != NULL) {
        status = parse_range(recipe, strsep(&rest, "/"), err);
    }
    return status;
}

static void put_format(const struct sl_field *, const struct sl_recipe *recipe, struct sl_text_buffer *out) {
    sl_text_buffer_put(out, "%s", sl_kv_format_name(recipe->format));
    for (int i = 0; i < recipe->n_ranges; i++) {
        sl_text_buffer_put(out, "/%d-", recipe->ranges[i].from);
        if (recipe->ranges[i].to >= 0) {
            sl_text_buffer_put(out, "%d", recipe->ranges[i].to);
        }
        sl_text_buffer_put(out, ":%s", sl_kv_format_name(recipe->ranges[i].format));
    }
    if (recipe->dense_auto) {
        sl_text_buffer_put(out, "/dense:%s", sl_kv_format_name(recipe->dense_format));
    }
}

// bits=B is short for format=f16/dense:intB.
static enum sl_status parse_bits(const struct sl_field *field, const char *what, const char *text,
                                 struct sl_recipe *recipe, struct sl_error *err) {
    for (enum sl_kv_format format = 0; format < SL_KV_N_FORMATS; format++) {
        char bits[12];
        snprintf(bits, sizeof bits, "%d", sl_kv_format_bits(format));
        if (sl_kv_format_is_quantized(format) && strcmp(text, bits) == 0) {
            sl_field_copy(field, recipe, &sl_recipe_default);
            recipe->dense_auto = true;
            recipe->dense_format = format;
            return SL_OK;
        }
    }
    return sl_fail(err, SL_ERR_INVALID, "recipe: %s%.40s: expected 1, 2, 3, 4 or 8", what, text);
}

const struct sl_kind sl_kind_format = {"FORMAT FORMAT/LAYERS:FORMAT", ':', parse_format, put_format};
const struct sl_kind sl_kind_bits = {"1 2 3 4 8", ':', parse_bits, NULL};
