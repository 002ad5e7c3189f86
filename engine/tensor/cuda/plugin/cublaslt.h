// SPDX-License-Identifier: Apache-2.0
// Purpose: cuBLASLt as a library of products (table/driver.h), loaded where it is: nothing links it.
#pragma once

#include "engine/tensor/cuda/table/driver.h"

/*
 * The library at `path`, NULL: where the loader finds it, on the thread's device; one at a time. NULL: it cannot be loaded, lacks a function, or is
 * another version than the header that this was built with; says which.
 */
const struct gpu_library *sl_cublaslt_open(const char *path, struct sl_error *err);
void sl_cublaslt_close(void);
