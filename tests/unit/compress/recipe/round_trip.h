// SPDX-License-Identifier: Apache-2.0
// Purpose: for tests: asserts that text and struct are two forms of one recipe, field by field.
#pragma once

#include "engine/compress/recipe/recipe.h"

// Fails the test on any error.
struct sl_recipe parsed_recipe(const char *text);
void assert_recipe_equal(const struct sl_recipe *a, const struct sl_recipe *b);
// parse(write(r)) == r, in the short form and in the long one, and with the same fingerprint.
void assert_round_trip(const struct sl_recipe *recipe);
