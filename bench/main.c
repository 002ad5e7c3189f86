// SPDX-License-Identifier: Apache-2.0
// Purpose: run one bench, or list them.
#include <stdio.h>
#include <string.h>

#include "bench/bench.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
} benches[] = {
    {"engine", sl_bench_engine, "prefill and decode against this machine's arithmetic and memory"},
    {"ship", sl_bench_ship, "capsules between two processes against ucx_perftest"},
};

int main(int argc, char **argv) {
    for (size_t i = 0; argc > 1 && i < sizeof benches / sizeof benches[0]; i++) {
        if (strcmp(benches[i].name, argv[1]) == 0) {
            return benches[i].run(argc - 1, argv + 1);
        }
    }
    fprintf(stderr, "usage: sluice-bench BENCH [options]\n\n");
    for (size_t i = 0; i < sizeof benches / sizeof benches[0]; i++) {
        fprintf(stderr, "  %-10s %s\n", benches[i].name, benches[i].summary);
    }
    return 2;
}
