// SPDX-License-Identifier: Apache-2.0
// Purpose: what the files of compress/ share about recipes and nobody else needs.
#ifndef SL_COMPRESS_RECIPE_INTERNAL_H
#define SL_COMPRESS_RECIPE_INTERNAL_H

#include "compress/recipe.h"

#define SL_RECIPE_DEFAULT_CHUNK 512
#define SL_RECIPE_MAX_CHUNK     8192
#define SL_RECIPE_MAX_SLOTS     (1LL << 24) // a slot index is a score (recency): it must be exact as f32

struct sl_recipe sl_recipe_defaults(void);

// Do the axes fit each other? Whatever can be said without a model and a prompt; plan.c does the rest.
enum sl_status sl_recipe_check(const struct sl_recipe *recipe, struct sl_error *err);

// The newest slots that scope=recent protects when `budget_slots` may stay.
int64_t sl_recipe_recent_slots(const struct sl_recipe *recipe, int64_t budget_slots);

// every_axis: also write the axes that have their default value.
char *sl_recipe_write(const struct sl_recipe *recipe, bool every_axis, char *buf, size_t buf_bytes);

#endif
