// SPDX-License-Identifier: Apache-2.0
// Purpose: see tested.h. Tiers amx and amx2 with the tile unit of soft_tiles.c, on processors with AVX512-BF16.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tensor/cpu/attention/fills.h"
#include "engine/tensor/cpu/dense/fills.h"
#include "engine/tensor/cpu/tiers.h"
#include "tests/kernels/tested.h"

enum { SKIPPED = 77 };

static struct sl_ops amx2, amx;

// Fills both tables as engine/tensor/cpu/tiers.c does.
const char *const *tested(void) {
    static const char *const names[] = {"amx2", "amx", NULL};
    const struct sl_ops *base;
    if (amx.name != NULL) {
        return names;
    }
    if (sl_ops_select("avx512bf16", &base, NULL) != SL_OK) {
        printf("skipped: the processor has no AVX512-BF16\n");
        exit(SKIPPED);
    }
    amx2 = *base;
    amx2.name = names[0];
    sl_amx_dense_fill(&amx2);
    sl_amx2_dense_fill(&amx2);
    sl_amx2_kv_fill(&amx2);
    amx = amx2;
    amx.name = names[1];
    sl_amx_dense_fill(&amx);
    sl_amx_kv_fill(&amx);
    return names;
}

const struct sl_ops *tier(const char *name) {
    const struct sl_ops *ops;
    struct sl_error err;
    tested();
    if (strcmp(name, "amx") == 0 || strcmp(name, "amx2") == 0) {
        return strcmp(name, "amx") == 0 ? &amx : &amx2;
    }
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

bool is_emulated(const char *name) { // as slow as an emulated device
    return strncmp(name, "amx", 3) == 0;
}
