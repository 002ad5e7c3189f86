// SPDX-License-Identifier: Apache-2.0
// Purpose: a macro that unrolls a loop of constant length.
#pragma once

// Put this before a loop over registers: it must be unrolled completely, or the array that it indexes goes to memory.
#if defined(__clang__)
#define SL_UNROLL _Pragma("unroll")
#else
#define SL_UNROLL _Pragma("GCC unroll 16")
#endif
