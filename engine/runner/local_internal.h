// SPDX-License-Identifier: Apache-2.0
// Purpose: the loaded model with its engine and arena, which the files of local runs share.
#pragma once

#include "engine/runner/local.h"
#include "engine/runner/shared_prefix.h"
#include "engine/runtime/runtime.h"

struct sl_local {
    struct sl_runtime runtime;
    struct sl_shared_prefixes *shared_prefixes; // NULL: no prefixes are kept
    int max_chunk_tokens;
};
