// SPDX-License-Identifier: Apache-2.0
// Purpose: the table of benches.
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "client/cli/tool.h"
#include "lab/bench/bench.h"
#include "lab/bench/coordinator/bench_coordinator.h"
#include "lab/bench/store/store_bench.h"
#include "lab/python.h"
#include "base/options/describe.h"

static const struct sl_bench bench_store = {
    .name = "sluice bench store",
    .usage = "[options]",
    .summary = "Measure a kvstore against Redis: PUT and GET of capsules; and the look-up of long prompts.",
    .options = sl_store_bench_options,
    .n_options = SL_STORE_BENCH_N_OPTIONS,
    .bytes = sizeof(struct sl_store_bench),
    .signals = offsetof(struct sl_store_bench, signals),
    .run = sl_store_bench_run,
};

static const struct {
    const char *name;
    const struct sl_bench *bench;
    const char *module; // of the Python package sluice_bench, where there is no such bench here
    const char *summary;
} benches[] = {
    {"engine", &sl_bench_engine, NULL, "prefill and decode against this machine's arithmetic and memory"},
    {"cells", &sl_bench_cells, NULL, "single cells of prefill and decode; what lab/bench/peers compares with others"},
    {"calibrate", &sl_bench_calibrate, NULL, "the table of times for `sluice simulate` and `sluice plan`"},
    {"kernels", &sl_bench_kernels, NULL, "every operation of a device against its memory or its arithmetic"},
    {"memory", &sl_bench_memory, NULL, "the most that a prompt takes of a device's memory, without a device"},
    {"group", &sl_bench_group, NULL, "what it costs ranks of one model to have each other's activations"},
    {"compress", &sl_bench_compress, NULL, "prefill under each recipe against prefill with the full cache"},
    {"ship", &sl_bench_ship, NULL, "capsules between two processes against ucx_perftest"},
    {"store", &bench_store, NULL,
     "a kvstore against Redis: capsules put and got, long prompts looked up, memory an entry"},
    {"retrieve", &sl_bench_retrieve, NULL, "offloaded layers: the scan, latency over each transport, bytes a step"},
    {"decode", &sl_bench_decode, NULL, "steps of decode with layers in a kvstore against steps with the full cache"},
    {"ttft", &sl_bench_ttft, NULL, "time to first token: the cluster against one process doing both phases"},
    {"mixed", &sl_bench_mixed, NULL, "short prompts beside a long one, against the same short prompts alone"},
    {"evict", &sl_bench_evict, NULL, "a trace replayed against a store's memory, for each eviction policy and size"},
    {"coordinator", &sl_bench_coordinator, NULL,
     "the coordinator alone: workers that only wait, up to 10,000 jobs at once"},
    {"cluster", NULL, "sluice_bench",
     "requests at given rates to OpenAI-compatible servers: latencies and goodput; also `serve`"},
    {"documents", NULL, "sluice_bench.asked",
     "many questions about one long text, kept as a document or read again: time, bytes, right answers"},
    {"hollow", NULL, "sluice_bench.hollow",
     "a model without weights, for many workers on one machine: --tier timed:NAME"},
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

// Runs the module, installed or of this checkout, in place of this process. argv[0] is the bench. Returns on failure.
static int run_module(const char *module, int argc, char **argv) {
    struct sl_error err = {0};
    char **words = calloc((size_t)argc + 4, sizeof *words);
    if (words && sl_python_set_path(&err) == SL_OK) {
        memcpy(words, (char *[]){"python3", "-B", "-m", (char *)module}, 4 * sizeof *words);
        memcpy(words + 4, argv + 1, (size_t)(argc - 1) * sizeof *words);
        execvp(words[0], words);
    }
    fprintf(stderr, "sluice bench %s: it needs python3, which cannot be started: %s\n", argv[0],
            err.text[0] ? err.text : strerror(errno));
    free(words);
    return SL_EXIT_FAILED;
}

int sl_bench_main(int argc, char **argv) {
    const char *name = argc > 1 && strcmp(argv[1], "serve") == 0 ? "cluster" : argv[1]; // vLLM's name
    for (size_t i = 0; argc > 1 && i < sizeof benches / sizeof benches[0]; i++) {
        if (strcmp(benches[i].name, name) == 0) {
            return benches[i].bench ? sl_bench_run(benches[i].bench, argc - 1, argv + 1, false)
                                    : run_module(benches[i].module, argc - 1, argv + 1);
        }
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
