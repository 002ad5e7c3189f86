// SPDX-License-Identifier: Apache-2.0
// Purpose: see tested.h.
#include "tests/kernels/tested.h"

#include <stdio.h>
#include <stdlib.h>

#include "engine/tensor/cpu/tiers.h"

const char *const *tested(void) {
    return sl_ops_tiers();
}

const struct sl_ops *tier(const char *name) {
    const struct sl_ops *ops;
    struct sl_error err;
    if (sl_ops_select(name, &ops, &err) != SL_OK) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    return ops;
}

void tested_room(size_t bytes) {
    (void)bytes; // calls are given the host's own memory
}

bool is_device(const char *name) {
    (void)name;
    return false;
}

bool is_emulated(const char *name) {
    (void)name;
    return false;
}
