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

static bool memory_fails(void) {
    return left >= 0 && left-- == 0;
}

#include "tests/memory_calls.h" // uses it
