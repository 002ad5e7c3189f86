// SPDX-License-Identifier: Apache-2.0
// Purpose: values of recipes that are layers: those that are exempt, and those that are offloaded.
#include <stdio.h>
#include <string.h>

#include "engine/compress/recipe/internal.h"

int sl_layers_last(const struct sl_layers *layers) {
    int i = SL_MAX_LAYERS / 64 - 1;
    while (i >= 0 && layers->bits[i] == 0) {
        i--;
    }
    return i < 0 ? -1 : 64 * i + 63 - __builtin_clzll(layers->bits[i]);
}

// --- text --------------------------------------------------------------------------------------------------------

static enum sl_status parse_layer(const char *axis, const char *which, const char *text, int min, int *layer_out,
                                  struct sl_error *err) {
    char what[40];
    uint64_t layer = 0;
    snprintf(what, sizeof what, "%s: %slayer ", axis, which);
    enum sl_status status = sl_parse_count(what, text, (uint64_t)min, SL_MAX_LAYERS - 1, &layer, err);
    *layer_out = (int)layer;
    return status;
}

enum sl_status sl_parse_range(const char *axis, char *text, char *dash, int *from_out, int *to_out,
                              struct sl_error *err) {
    enum sl_status status = SL_OK;
    *dash = '\0';
    *from_out = 0;
    *to_out = -1;
    if (*text != '\0') {
        status = parse_layer(axis, "first ", text, 0, from_out, err);
    }
    if (status == SL_OK && dash[1] != '\0') {
        status = parse_layer(axis, "last ", dash + 1, *from_out, to_out, err);
    }
    return status;
}

/*
 * Parses layers joined by '+': N, FROM-TO, -TO; also FROM- if the value may be open (open_out, -1 for none) and
 * "last" if the value may have it (last_out).
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
        SL_FAIL_IF(dash == NULL ? !sl_is_digits(part) : (open_out == NULL || part == dash) && dash[1] == '\0', err,
                   SL_ERR_INVALID, "recipe: %s=...%.40s: expected layers joined by '+': N, N-M%s", axis, part,
                   open_out != NULL ? " or N-" : " or last");
        SL_TRY(dash != NULL ? sl_parse_range(axis, part, dash, &from, &to, err)
                            : parse_layer(axis, "", part, 0, &from, err));
        to = dash == NULL ? from : to;
        if (to < 0) {
            open = open < 0 || from < open ? from : open;
        }
        for (int l = from; l <= to; l++) {
            sl_layers_add(&layers, l);
        }
    }
    for (int l = open; l >= 0 && l < SL_MAX_LAYERS; l++) { // the open end already covers these layers
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

// Writes N and N-M, joined by '+'. Returns true if anything was written.
static bool put_layers(const struct sl_layers *layers, struct sl_text_buffer *out) {
    const char *plus = "";
    for (int l = 0; l < SL_MAX_LAYERS; l++) {
        if (!sl_layers_has(layers, l)) {
            continue;
        }
        sl_text_buffer_put(out, "%s%d", plus, l);
        plus = "+";
        int from = l;
        while (l + 1 < SL_MAX_LAYERS && sl_layers_has(layers, l + 1)) {
            l++;
        }
        if (l > from) {
            sl_text_buffer_put(out, "-%d", l);
        }
    }
    return *plus != '\0';
}

// --- exempt ------------------------------------------------------------------------------------------------------

static enum sl_status parse_exempt(const struct sl_field *field, const char *, const char *text,
                                   struct sl_recipe *recipe, struct sl_error *err) {
    if (strcmp(text, "none") == 0) {
        sl_field_copy(field, recipe, &sl_recipe_default);
        return SL_OK;
    }
    return parse_layers("exempt", text, &recipe->exempt, NULL, &recipe->exempt_last, err);
}

static void put_exempt(const struct sl_field *, const struct sl_recipe *recipe, struct sl_text_buffer *out) {
    bool any = put_layers(&recipe->exempt, out);
    sl_text_buffer_put(out, "%s", recipe->exempt_last ? (any ? "+last" : "last") : (any ? "" : "none"));
}

const struct sl_kind sl_kind_exempt = {"none LAYERS last", ':', parse_exempt, put_exempt};

// --- place -------------------------------------------------------------------------------------------------------

// Resets everything about offloading: nothing is fetched.
static enum sl_status parse_resident(const struct sl_field *field, const char *, const char *, struct sl_recipe *recipe,
                                     struct sl_error *) {
    sl_field_copy(field, recipe, &sl_recipe_default);
    return SL_OK;
}

static enum sl_status parse_offload(const struct sl_field *, const char *, const char *text, struct sl_recipe *recipe,
                                    struct sl_error *err) {
    if (strcmp(text, "sparse") == 0) {
        recipe->offload_auto = true;
        return SL_OK;
    }
    return parse_layers("place", text, &recipe->offload, &recipe->offload_from, NULL, err);
}

static void put_offload(const struct sl_field *, const struct sl_recipe *recipe, struct sl_text_buffer *out) {
    sl_text_buffer_put(out, "%s", recipe->offload_auto ? "sparse" : "");
    bool any = put_layers(&recipe->offload, out);
    if (recipe->offload_from >= 0) {
        sl_text_buffer_put(out, "%s%d-", any ? "+" : "", recipe->offload_from);
    }
}

const struct sl_kind sl_kind_resident = {"", 0, parse_resident, NULL};
const struct sl_kind sl_kind_offload = {"LAYERS", '/', parse_offload, put_offload};
