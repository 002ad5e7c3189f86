// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the recipe of a job, from its text to one that fits the model at hand. The only way by which a service gets
 *          a recipe, so that coordinator, prefill, decode and `sluice run --local` agree on every layer of it.
 */
#pragma once

#include "engine/compress/plan/plan.h"
#include "engine/compress/recipe/recipe.h"
#include "engine/kvcache/session.h"
#include "engine/model/model.h"

/*
 * Parse, put the model's layers in place of those that it profiles (sl_recipe_resolve()), and check what the recipe
 * asks of the model. SL_ERR_INVALID: the text, or what does not fit the model's layers and windows. SL_ERR_PRECONDITION: the model
 * has no retaining heads; err names the file and the tool that makes it.
 */
enum sl_status sl_job_recipe(const char *text, const struct sl_model_config *model, struct sl_recipe *recipe_out,
                             struct sl_error *err);

// What a job gets that names no recipe: half of the bytes, and no answer lost that could be measured (docs/quality.md).
// Where this model's heads cannot be quantized, the full cache.
const char *sl_job_default_recipe(const struct sl_model_config *model);

/*
 * Whether a session that came in a capsule is laid out as its recipe's plan says: its fingerprints tell where it comes
 * from, not that its pages hold the states and positions that the recipe's work reads and writes in place.
 * SL_ERR_PEER_CORRUPT: it is not.
 */
enum sl_status sl_job_check_session(const struct sl_plan *plan, const struct sl_session *session, struct sl_error *err);
