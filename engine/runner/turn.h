// SPDX-License-Identifier: Apache-2.0
// Purpose: plans a further turn of a conversation, which is read after the tokens that its session holds: in one
// process and in a decode worker.
#pragma once

#include "engine/compress/plan/plan.h"
#include "engine/model/model.h"

/*
 * Makes the plan of all tokens up to `end`, in the form that the reader takes; session: holds the first of them, or
 * NULL. If a session can no longer evict, because the layers to evict from are quantized or the prompt that a score would
 * repeat is gone, the plan evicts nothing.
 */
enum sl_status sl_turn_plan(const struct sl_recipe *recipe, const struct sl_model_config *model, int64_t end,
                            int rope_set, const struct sl_session *session, struct sl_plan *plan_out,
                            struct sl_error *err);
