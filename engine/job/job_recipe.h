// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the recipe of a job, from its text to one that fits the model. All services get recipes only through this
 *          file, so coordinator, prefill, decode and `sluice run --local` agree on every layer of it.
 */
#pragma once

#include "engine/compress/plan/plan.h"
#include "engine/compress/recipe/recipe.h"
#include "engine/kvcache/session.h"
#include "engine/model/model.h"

/*
 * Parses the text, resolves it to the model's layers (sl_recipe_resolve()), and checks the recipe's requirements on
 * the model. SL_ERR_INVALID: the text is wrong, or does not fit the model's layers and windows. SL_ERR_PRECONDITION:
 * the model has no retaining heads; err names the file and the tool that makes it.
 */
enum sl_status sl_job_recipe(const char *text, const struct sl_model_config *model, struct sl_recipe *recipe_out,
                             struct sl_error *err);

// Returns the default recipe: half of the bytes, with no measured loss of answers (docs/quality.md). Returns the full
// cache if this model's heads cannot be quantized.
const char *sl_job_default_recipe(const struct sl_model_config *model);

/*
 * Checks that a session that came in a capsule has the layout of its recipe's plan. Its fingerprints identify its
 * origin, but not that its pages hold the states and positions that the recipe reads and writes in place.
 * SL_ERR_PEER_CORRUPT: the layouts differ.
 */
enum sl_status sl_job_check_session(const struct sl_plan *plan, const struct sl_session *session, struct sl_error *err);
