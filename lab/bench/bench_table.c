// SPDX-License-Identifier: Apache-2.0
// Purpose: the table of benches, and how to run one of them.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client/cli/tool.h"
#include "lab/bench/bench.h"
#include "lab/result.h"
#include "base/options/describe.h"

static const struct {
    const char *name;
    const struct sl_bench *bench;
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

static enum sl_status parse(const struct sl_bench *bench, int argc, char **argv, void *state, struct sl_error *err) {
    const struct sl_program program = {.name = bench->name,
                                       .usage = bench->usage,
                                       .summary = bench->summary,
                                       .options = bench->options,
                                       .n_options = bench->n_options};
    int first;
    enum sl_status status = sl_config_parse(&program, argc, argv, state, &first, err);
    if (status == SL_OK && first < argc) {
        status = sl_fail(err, SL_ERR_INVALID, "unexpected argument: %s", argv[first]);
    }
    return status == SL_OK && bench->check ? bench->check(state, err) : status;
}

static enum sl_status run_in(const struct sl_bench *bench, void *state, struct sl_error *err) {
    if (bench->signals == 0) {
        return bench->run(state, err);
    }
    struct sl_signals *signals = (struct sl_signals *)((char *)state + bench->signals);
    enum sl_status status = sl_signals_init(signals, err); // before threads start
    if (status == SL_OK) {
        status = bench->run(state, err);
        sl_signals_cleanup(signals);
    }
    return status;
}

static int run(const struct sl_bench *bench, int argc, char **argv) {
    struct sl_error err = {0};
    void *state = calloc(1, bench->bytes); // holds arrays of every run: too large for a stack
    enum sl_status status =
        state ? parse(bench, argc, argv, state, &err) : sl_fail(&err, SL_ERR_EXHAUSTED, "out of memory");
    int code = status == SL_ERR_CANCELLED ? SL_EXIT_OK : SL_EXIT_USAGE; // --help was printed
    if (status == SL_OK) {
        status = run_in(bench, state, &err);
        sl_bench_progress(NULL);
        code = sl_exit_of(status);
    }
    if (code != SL_EXIT_OK) {
        fprintf(stderr, "%s: %s\n", bench->name, err.text);
    }
    free(state);
    return code;
}

int sl_bench_main(int argc, char **argv) {
    for (size_t i = 0; argc > 1 && i < sizeof benches / sizeof benches[0]; i++) {
        if (strcmp(benches[i].name, argv[1]) == 0) {
            return run(benches[i].bench, argc - 1, argv + 1);
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
