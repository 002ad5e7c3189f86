// SPDX-License-Identifier: Apache-2.0
// Purpose: trained heads as the file that engine/model/retaining.c loads: retaining_heads.safetensors.
#pragma once

#include "lab/train/heads.h"

#define SL_HEADS_FILE "retaining_heads.safetensors" // beside the model

// Writes layers.<i>.w1 and .w2 in this type, whole or not at all. SL_ERR_INVALID: a parameter is not finite;
// SL_ERR_IO.
enum sl_status sl_heads_write(struct sl_heads *heads, const char *path, enum sl_dtype dtype, struct sl_error *err);
