// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: libFuzzer target for recipes, which come with every job: whatever the text, it is refused with a reason or
 *          means the same when written and read again; and fitted to a model and a prompt it gives sizes that agree.
 *
 * Design: the input is the text of a recipe; after a zero byte may follow a model and a prompt, a byte each: layers,
 *         KV heads, head_dim / 8, log2 of the prompt (the upper bits: how far above it), and then the dense layers of
 *         the model's profile.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/compress/plan/plan.h"
#include "engine/compress/recipe/internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void require(bool holds) {
    if (!holds) {
        abort();
    }
}

static void check_text(const struct sl_recipe *recipe, const char *text) {
    char short_form[SL_RECIPE_TEXT_BYTES], again[SL_RECIPE_TEXT_BYTES];
    struct sl_recipe parsed;
    struct sl_error err;
    require(sl_recipe_parse(text, &parsed, &err) == SL_OK);
    require(sl_recipe_fingerprint(&parsed) == sl_recipe_fingerprint(recipe));
    sl_recipe_format(recipe, short_form, sizeof short_form);
    require(strcmp(sl_recipe_format(&parsed, again, sizeof again), short_form) == 0);
}

static void check_written(const struct sl_recipe *recipe) {
    char text[SL_RECIPE_TEXT_BYTES];
    check_text(recipe, sl_recipe_format(recipe, text, sizeof text));
    check_text(recipe, sl_recipe_write(recipe, true, text, sizeof text));
}

static void check_plan(const struct sl_recipe *recipe, const struct sl_kv_geometry *geometry, int64_t n_prompt,
                       bool local) {
    struct sl_plan plan;
    struct sl_error err = {0};
    enum sl_status status = (local ? sl_plan_make_local : sl_plan_make)(recipe, geometry, n_prompt, 0, &plan, &err);
    if (status != SL_OK) {
        require(err.text[0] != '\0');
        return;
    }
    require(plan.n_prompt == n_prompt && plan.max_slots >= 1 && plan.capsule_bytes > 0);
    require(plan.prefill_peak_bytes >= plan.capsule_bytes / 2);
    require(sl_plan_held_slots(&plan) <= n_prompt && sl_plan_resident_slots(&plan) <= n_prompt);
    require(sl_recipe_offloads(recipe) == (sl_plan_row_places(&plan) > 0));
    require(sl_recipe_offloads(recipe) == (sl_plan_hot_cache_bytes(&plan) > 0));
    require(sl_recipe_offloads(recipe) == (sl_plan_remote_kv_bytes(&plan) > 0));
    for (int l = 0; l < geometry->n_layers; l++) {
        int64_t slots = sl_plan_layer_slots(&plan, l, 0), more = sl_plan_layer_slots(&plan, l, 100);
        require(slots >= !sl_plan_is_offloaded(&plan, l) && slots <= n_prompt && slots <= plan.max_slots &&
                more >= slots && more <= slots + 100);
    }
    require(sl_plan_decode_bytes(&plan, 0) >= plan.capsule_bytes);
    require(sl_plan_decode_bytes(&plan, 100) >= sl_plan_decode_bytes(&plan, 0));
}

static void check_model(struct sl_recipe recipe, const uint8_t *data, size_t size) {
    if (size < 4) {
        return;
    }
    struct sl_kv_geometry geometry = {data[0], data[1], 8 * data[2]};
    int64_t n_prompt = ((int64_t)1 << (data[3] % 26)) + data[3] / 26;
    struct sl_layers dense = {{0}};
    struct sl_error err = {0};
    for (size_t i = 4; i < size; i++) {
        sl_layers_add(&dense, data[i]);
    }
    enum sl_status status = sl_recipe_resolve(&recipe, size > 4 ? &dense : NULL, geometry.n_layers, &err);
    if (status != SL_OK) {
        require(err.text[0] != '\0');
        return;
    }
    uint64_t fingerprint = sl_recipe_fingerprint(&recipe);
    require(sl_recipe_resolve(&recipe, size > 4 ? &dense : NULL, geometry.n_layers, &err) == SL_OK);
    require(sl_recipe_fingerprint(&recipe) == fingerprint);
    check_written(&recipe);
    check_plan(&recipe, &geometry, n_prompt, true);
    check_plan(&recipe, &geometry, n_prompt, false);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *text = malloc(size + 1);
    require(text != NULL);
    memcpy(text, data, size);
    text[size] = '\0';
    size_t text_bytes = strlen(text);
    struct sl_recipe recipe;
    struct sl_error err = {0};
    if (sl_recipe_parse(text, &recipe, &err) != SL_OK) {
        require(err.text[0] != '\0');
    } else {
        check_written(&recipe);
        if (text_bytes < size) {
            check_model(recipe, data + text_bytes + 1, size - text_bytes - 1);
        }
    }
    free(text);
    return 0;
}
