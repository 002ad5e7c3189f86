// SPDX-License-Identifier: Apache-2.0
// Purpose: cuBLASLt as a library of products (table/driver.h), loaded at run time: nothing links it.
#pragma once

#include "engine/tensor/cuda/table/driver.h"

/*
 * Returns the library at `path`, or for NULL where the loader finds it, on the thread's device; one at a time. Returns
 * NULL when it cannot be loaded, lacks a function, or is another version than the header of this build; the text says
 * which.
 */
const struct gpu_library *sl_cublaslt_open(const char *path, struct sl_error *err);
void sl_cublaslt_close(void);
