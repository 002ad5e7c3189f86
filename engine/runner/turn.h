// SPDX-License-Identifier: Apache-2.0
// Purpose: how a further turn of a conversation is read, behind what its session holds: in one process and in a decode worker.
#pragma once

#include "engine/compress/plan/plan.h"
#include "engine/model/model.h"

/*
 * The plan of all tokens up to `end`, as the reader takes it; session: what holds the first of them, or NULL. A session that can no longer
 * evict, because what should be evicted from is quantized, is planned as if its recipe never had.
 */
enum sl_status sl_turn_plan(const struct sl_recipe *recipe, const struct sl_model_config *model, int64_t end,
                            int rope_set, const struct sl_session *session, struct sl_plan *plan_out,
                            struct sl_error *err);
