// SPDX-License-Identifier: Apache-2.0
// Purpose: see scarce.h.
#include "tests/unit/scarce.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

static _Thread_local int left = -1; // allocations until the one that fails; -1: none does

void scarce_begin(int n) {
    left = n;
}

bool scarce_end(void) {
    bool failed = left < 0;
    left = -1;
    return failed;
}

int assert_refused_without_memory(scarce_make_fn make, void *arg) {
    for (int n = 0;; n++) {
        struct sl_error err = {0};
        scarce_begin(n);
        enum sl_status status = make(arg, &err);
        if (!scarce_end()) {
            if (status != SL_OK) {
                fail_msg("with all memory it says %d: %s", (int)status, err.text);
            }
            return n;
        }
        if (status != SL_ERR_EXHAUSTED) {
            fail_msg("allocation %d failed, and it says %d: %s", n, (int)status, err.text);
        }
    }
}

#define MEMORY_CALL(type, name, parameters, arguments)                                                                 \
    type __real_##name parameters;                                                                                     \
    type __wrap_##name parameters;                                                                                     \
    type __wrap_##name parameters {                                                                                    \
        if (left >= 0 && left-- == 0) {                                                                                \
            errno = ENOMEM;                                                                                            \
            return NULL;                                                                                               \
        }                                                                                                              \
        return __real_##name arguments;                                                                                \
    }

MEMORY_CALL(void *, malloc, (size_t n), (n))
MEMORY_CALL(void *, calloc, (size_t n, size_t bytes), (n, bytes))
MEMORY_CALL(void *, realloc, (void *block, size_t n), (block, n))
MEMORY_CALL(void *, aligned_alloc, (size_t alignment, size_t n), (alignment, n))
MEMORY_CALL(char *, strdup, (const char *text), (text))
MEMORY_CALL(char *, strndup, (const char *text, size_t n), (text, n))
