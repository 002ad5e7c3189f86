// SPDX-License-Identifier: Apache-2.0
// Purpose: the engine in reading order: text, arithmetic, model, choice.
#ifndef SL_ENGINE_ENGINE_H
#define SL_ENGINE_ENGINE_H

#include "engine/forward.h"
#include "engine/model.h"
#include "engine/ops.h"
#include "engine/sampler.h"
#include "engine/tokenizer.h"

#endif
