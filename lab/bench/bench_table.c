// SPDX-License-Identifier: Apache-2.0
// Purpose: the table of benches.
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/cli/tool.h"
#include "lab/bench/bench.h"
#include "base/options/describe.h"

static const struct {
    const char *name;
    const struct sl_bench *bench; // NULL: the Python package sluice_bench
    const char *summary;
} benches[] = {
    {"engine", &sl_bench_engine, "prefill and decode against this machine's arithmetic and memory"},
    {"cells", &sl_bench_cells, "single cells of prefill and decode; what lab/bench/peers compares with others"},
    {"kernels", &sl_bench_kernels, "every operation of a device against its memory or its arithmetic"},
    {"memory", &sl_bench_memory, "the most that a prompt takes of a device's memory, without a device"},
    {"group", &sl_bench_group, "what it costs ranks of one model to have each other's activations"},
    {"compress", &sl_bench_compress, "prefill under each recipe against prefill with the full cache"},
    {"ship", &sl_bench_ship, "capsules between two processes against ucx_perftest"},
    {"retrieve", &sl_bench_retrieve, "offloaded layers: the scan, latency over each transport, bytes a step"},
    {"decode", &sl_bench_decode, "steps of decode with layers in a kvstore against steps with the full cache"},
    {"ttft", &sl_bench_ttft, "time to first token: the cluster against one process doing both phases"},
    {"mixed", &sl_bench_mixed, "short prompts beside a long one, against the same short prompts alone"},
    {"evict", &sl_bench_evict, "a trace replayed against a store's memory, for each eviction policy and size"},
    {"cluster", NULL, "requests at given rates to OpenAI-compatible servers: latencies and goodput; also `serve`"},
};

static bool describe_row(size_t i, const char **name_out, const char **summary_out) {
    bool there = i < sizeof benches / sizeof benches[0];
    *name_out = there ? benches[i].name : NULL;
    *summary_out = there ? benches[i].summary : NULL;
    return there;
}

static void print_usage(FILE *file) {
    fprintf(file, "Usage: sluice bench BENCH [options]\n\nBenches:\n");
    for (size_t i = 0; i < sizeof benches / sizeof benches[0]; i++) {
        fprintf(file, "  %-10s %s\n", benches[i].name, benches[i].summary);
    }
    fprintf(file, "\n`sluice bench BENCH --help` describes the options; --json prints one JSON object a line.\n");
}

// Runs the package, installed or of this checkout, in place of this process. argv[0] is "cluster". Returns on failure.
static int run_load_generator(int argc, char **argv) {
    char bin[PATH_MAX] = "", *paths = NULL, *slash;
    const char *others = getenv("PYTHONPATH");
    char **words = calloc((size_t)argc + 4, sizeof *words);
    if (words && readlink("/proc/self/exe", bin, sizeof bin - 1) > 0 && (slash = strrchr(bin, '/')) != NULL) {
        *slash = '\0';
        if (asprintf(&paths, "%s/../share/sluice/python:%s/../../lab/sluice_eval%s%s", bin, bin,
                     others && others[0] ? ":" : "", others ? others : "") > 0 &&
            setenv("PYTHONPATH", paths, 1) == 0) {
            memcpy(words, (char *[]){"python3", "-B", "-m", "sluice_bench"}, 4 * sizeof *words);
            memcpy(words + 4, argv + 1, (size_t)(argc - 1) * sizeof *words);
            execvp(words[0], words);
        }
    }
    fprintf(stderr, "sluice bench cluster: it needs python3, which cannot be started: %s\n", strerror(errno));
    free(paths);
    free(words);
    return SL_EXIT_FAILED;
}

int sl_bench_main(int argc, char **argv) {
    for (size_t i = 0; argc > 1 && i < sizeof benches / sizeof benches[0]; i++) {
        if (benches[i].bench != NULL && strcmp(benches[i].name, argv[1]) == 0) {
            return sl_bench_run(benches[i].bench, argc - 1, argv + 1, false);
        }
    }
    if (argc > 1 && (strcmp(argv[1], "cluster") == 0 || strcmp(argv[1], "serve") == 0)) { // vLLM's name
        return run_load_generator(argc - 1, argv + 1);
    }
    if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        print_usage(stdout);
        return 0;
    }
    if (sl_describe_asked(argc, argv)) {
        sl_describe_commands("sluice bench", "Measure this machine, the engine, the fabric.", describe_row);
        return 0;
    }
    print_usage(stderr);
    return 2;
}
