// SPDX-License-Identifier: Apache-2.0
// Purpose: what the files of local runs share: a loaded model with its engine and arena.
#pragma once

#include "engine/runner/local.h"
#include "engine/runner/trunk.h"
#include "engine/runtime/runtime.h"

struct sl_local {
    struct sl_runtime runtime;
    struct sl_trunks *trunks; // NULL: none are kept
    int max_chunk_tokens;
};
