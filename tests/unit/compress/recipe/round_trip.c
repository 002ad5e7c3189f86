// SPDX-License-Identifier: Apache-2.0
// Purpose: see round_trip.h.
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include "round_trip.h"

#include "engine/compress/recipe/internal.h"

struct sl_recipe parsed_recipe(const char *text) {
    struct sl_recipe recipe;
    struct sl_error err;
    if (sl_recipe_parse(text, &recipe, &err) != SL_OK) {
        fail_msg("%s: %s", text, err.text);
    }
    return recipe;
}

static void assert_amount_equal(const struct sl_amount *a, const struct sl_amount *b) {
    assert_int_equal(a->slots, b->slots);
    assert_true(a->ratio == b->ratio);
}

static void assert_layers_equal(const struct sl_layers *a, const struct sl_layers *b) {
    assert_memory_equal(a->bits, b->bits, sizeof a->bits);
}

void assert_recipe_equal(const struct sl_recipe *a, const struct sl_recipe *b) {
    assert_int_equal(a->score, b->score);
    assert_int_equal(a->value, b->value);
    assert_int_equal(a->sinks, b->sinks);
    assert_amount_equal(&a->recent, &b->recent);
    assert_true(a->std == b->std);
    assert_int_equal(a->stabilizers, b->stabilizers);
    assert_int_equal(a->tail, b->tail);
    assert_int_equal(a->window, b->window);
    assert_int_equal(a->pool, b->pool);
    assert_int_equal(a->pool_kernel, b->pool_kernel);
    assert_true(a->seed == b->seed);
    assert_amount_equal(&a->budget, &b->budget);
    assert_int_equal(a->layers, b->layers);
    assert_layers_equal(&a->exempt, &b->exempt);
    assert_int_equal(a->exempt_last, b->exempt_last);
    assert_int_equal(a->heads, b->heads);
    assert_int_equal(a->when, b->when);
    assert_int_equal(a->evicted, b->evicted);
    assert_true(a->merge_beta == b->merge_beta);
    assert_int_equal(a->format, b->format);
    assert_int_equal(a->n_ranges, b->n_ranges);
    for (int i = 0; i < a->n_ranges; i++) {
        assert_int_equal(a->ranges[i].from, b->ranges[i].from);
        assert_int_equal(a->ranges[i].to, b->ranges[i].to);
        assert_int_equal(a->ranges[i].format, b->ranges[i].format);
    }
    assert_int_equal(a->dense_auto, b->dense_auto);
    assert_int_equal(a->dense_format, b->dense_format);
    assert_layers_equal(&a->offload, &b->offload);
    assert_int_equal(a->offload_from, b->offload_from);
    assert_int_equal(a->offload_auto, b->offload_auto);
    assert_int_equal(a->topk, b->topk);
    assert_int_equal(a->channels, b->channels);
    assert_int_equal(a->retrieve, b->retrieve);
    assert_int_equal(a->ahead, b->ahead);
    assert_int_equal(a->keep, b->keep);
    assert_int_equal(a->scan, b->scan);
    assert_int_equal(a->replicas, b->replicas);
    assert_int_equal(a->positions, b->positions);
    assert_int_equal(a->chunk_tokens, b->chunk_tokens);
}

void assert_round_trip(const struct sl_recipe *recipe) {
    char text[SL_RECIPE_TEXT_BYTES], again[SL_RECIPE_TEXT_BYTES];
    sl_recipe_format(recipe, text, sizeof text);
    struct sl_recipe parsed = parsed_recipe(text);
    assert_recipe_equal(recipe, &parsed);
    assert_string_equal(sl_recipe_format(&parsed, again, sizeof again), text);
    assert_true(sl_recipe_fingerprint(recipe) == sl_recipe_fingerprint(&parsed));
    sl_recipe_write(recipe, true, text, sizeof text); // the long form means the same
    parsed = parsed_recipe(text);
    assert_recipe_equal(recipe, &parsed);
}
