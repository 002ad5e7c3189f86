// SPDX-License-Identifier: Apache-2.0
// Purpose: `sluice eval`: the table of evaluations, and how to run one of them.
#include <stdio.h>
#include <string.h>

#include "client/cli/tool.h"
#include "lab/eval/eval.h"
#include "lab/measure/measure.h"
#include "base/options/describe.h"

// To add one: a function in its own file (lab/measure/measure.h), and a row here.
static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *summary;
} evals[] = {
    {"fidelity", sl_command_eval_fidelity, "what recipes do to attention and predictions, beside the full cache"},
    {"perplexity", sl_command_eval_perplexity, "how texts are predicted that stream through a cache of a budget"},
    {"weights", sl_command_eval_weights, "what quantized weights do to predictions, beside the stored ones"},
};

// Evaluations that lab/sluice_eval has now.
static const struct { const char *name, *command; } moved[] = {{"suites", "run"}, {"grid", "grid"}, {"make", "dump"}};

#define SUMMARY "How much attention and predictions change under compressed caches, in numbers."

static bool describe_row(size_t i, const char **name_out, const char **summary_out) {
    bool there = i < sizeof evals / sizeof evals[0];
    *name_out = there ? evals[i].name : NULL;
    *summary_out = there ? evals[i].summary : NULL;
    return there;
}

static void print_usage(FILE *file) {
    fprintf(file, "Usage: sluice eval EVALUATION [options]\n" SUMMARY "\n\nEvaluations:\n");
    for (size_t i = 0; i < sizeof evals / sizeof evals[0]; i++) {
        fprintf(file, "  %-10s %s\n", evals[i].name, evals[i].summary);
    }
    fprintf(file, "\nQuestions to a model (tasks, data sets): `python3 -m sluice_eval run` (docs/EVALUATION.md).\n"
                  "`sluice eval EVALUATION --help` describes the options.\n" SL_EXIT_CODES_HELP "\n");
}

int sl_command_eval(int argc, char **argv) {
    for (size_t i = 0; argc > 1 && i < sizeof evals / sizeof evals[0]; i++) {
        if (strcmp(evals[i].name, argv[1]) == 0) {
            return evals[i].run(argc - 1, argv + 1);
        }
    }
    if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) {
        print_usage(stdout);
        return SL_EXIT_OK;
    }
    if (sl_describe_asked(argc, argv)) {
        sl_describe_commands("sluice eval", SUMMARY, describe_row);
        return SL_EXIT_OK;
    }
    for (size_t i = 0; argc > 1 && i < sizeof moved / sizeof moved[0]; i++) {
        if (strcmp(moved[i].name, argv[1]) == 0) {
            fprintf(stderr, "sluice eval: '%s' is now `python3 -m sluice_eval %s` (docs/EVALUATION.md)\n", argv[1],
                    moved[i].command);
            return SL_EXIT_USAGE;
        }
    }
    if (argc > 1) {
        fprintf(stderr, "sluice eval: unknown evaluation '%s'; see sluice eval --help\n", argv[1]);
    } else {
        print_usage(stderr);
    }
    return SL_EXIT_USAGE;
}
