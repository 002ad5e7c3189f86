// SPDX-License-Identifier: Apache-2.0
// Purpose: the table of benches.
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/model_place.h"
#include "client/cli/subcommands.h"
#include "client/cli/tool.h"
#include "lab/bench/bench.h"
#include "lab/bench/coordinator/coordinator_benches.h"
#include "lab/bench/store/store_bench.h"
#include "lab/python.h"

// Runs the bench whose name is argv[0].
static int run_bench(int argc, char **argv) {
    static const struct sl_bench *const all[] = {
        &sl_bench_engine, &sl_bench_cells,  &sl_bench_calibrate, &sl_bench_kernels, &sl_bench_memory,  &sl_bench_ships,
        &sl_bench_store,  &sl_bench_decode, &sl_bench_evict,     &sl_bench_jobs,    &sl_bench_waiting, &sl_bench_tiers};
    size_t i = 0;
    while (strcmp(all[i]->name + strlen("sluice bench "), argv[0]) != 0) { // the table has no other names
        i++;
    }
    return sl_bench_run(all[i], argc, argv);
}

// Runs a bench in Python, installed or of this checkout, in place of this process. argv[0] is its name. Returns on failure.
static int run_python(int argc, char **argv) {
    static const struct {
        const char *name, *module;
    } all[] = {{"cluster", "sluice_bench"},
               {"compress", "sluice_bench.compress"},
               {"coordinator", "sluice_bench.coordinator"},
               {"documents", "sluice_bench.asked"},
               {"hollow", "sluice_bench.hollow"},
               {"mixed", "sluice_bench.mixed"},
               {"ship", "sluice_bench.ship"},
               {"ttft", "sluice_bench.ttft"}};
    struct sl_error err = {0};
    char bin[PATH_MAX], **words = calloc((size_t)argc + 4, sizeof *words);
    size_t i = 0;
    while (strcmp(all[i].name, argv[0]) != 0) { // the table has no other names
        i++;
    }
    if (words && sl_python_set_path(&err) == SL_OK && sl_program_folder(bin, &err) == SL_OK) {
        setenv("SLUICE_BIN", bin, 1); // what it starts is of this build
        memcpy(words, (char *[]){"python3", "-B", "-m", (char *)all[i].module}, 4 * sizeof *words);
        memcpy(words + 4, argv + 1, (size_t)(argc - 1) * sizeof *words);
        execvp(words[0], words);
    }
    fprintf(stderr, "sluice bench %s: it needs python3, which cannot be started: %s\n", argv[0],
            err.text[0] ? err.text : strerror(errno));
    free(words);
    return SL_EXIT_FAILED;
}

static const struct sl_subcommand benches[] = {
    {"engine", "prefill and decode against this machine's arithmetic and memory", run_bench},
    {"cells", "single cells of prefill and decode; what lab/bench/peers compares with others", run_bench},
    {"calibrate", "the table of times for `sluice simulate` and `sluice plan`", run_bench},
    {"kernels", "every operation of a device against its memory or its arithmetic", run_bench},
    {"tiers", "every tier of this processor for every kind of weights: whether the fastest is chosen", run_bench},
    {"memory", "the most that a prompt takes of a device's memory, without a device", run_bench},
    {"compress", "prefill under each recipe against prefill with the full cache", run_python},
    {"ship", "capsules between two processes against ucx_perftest", run_python},
    {"ships", "capsules between two processes for every line on standard input; what `ship` starts", run_bench},
    {"store", "a kvstore against Redis: capsules put and got, long prompts looked up, memory an entry", run_bench},
    {"decode", "steps of decode with layers in a kvstore against steps with the full cache", run_bench},
    {"ttft", "time to first token: the cluster against one process doing both phases", run_python},
    {"mixed", "short prompts beside a long one, against the same short prompts alone", run_python},
    {"evict", "a trace replayed against a store's memory, for each eviction policy and size", run_bench},
    {"coordinator", "the coordinator alone: workers that only wait, up to 10,000 jobs at once", run_python},
    {"jobs", "clients of a coordinator; what `coordinator` starts", run_bench},
    {"waiting", "workers that only wait; what `coordinator` starts", run_bench},
    {"cluster", "requests at given rates to OpenAI-compatible servers: latencies and goodput; also `serve`",
     run_python},
    {"documents", "many questions about one long text, kept as a document or read again: time, bytes, right answers",
     run_python},
    {"hollow", "a model without weights, for many workers on one machine: --tier timed:NAME", run_python},
};

static const struct sl_subcommands table = {
    .name = "sluice bench",
    .word = "bench",
    .summary = "Measure this machine, the engine, the fabric.",
    .head = "Usage: sluice bench BENCH [options]\n\nBenches:\n",
    .tail = "\n`sluice bench BENCH --help` describes the options; --json prints one JSON object a line.\n",
    .width = 10,
    .list = benches,
    .n = sizeof benches / sizeof *benches,
};

int sl_bench_main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "serve") == 0) { // vLLM's name
        argv[1] = (char *)"cluster";
    }
    return sl_subcommands_run(&table, argc, argv);
}
