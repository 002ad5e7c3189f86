// SPDX-License-Identifier: Apache-2.0
// Purpose: `sluice eval`: the table of evaluations, and how to run one of them.
#include <stdio.h>
#include <string.h>

#include "client/cli/subcommands.h"
#include "client/cli/tool.h"
#include "lab/measure/measure.h"

// To add one: a function in its own file (lab/measure/measure.h), and a row here.
static const struct sl_subcommand evals[] = {
    {"fidelity", "what recipes do to attention and predictions, beside the full cache", sl_command_eval_fidelity},
    {"perplexity", "how texts are predicted that stream through a cache of a budget", sl_command_eval_perplexity},
    {"weights", "what quantized weights do to predictions, beside the stored ones", sl_command_eval_weights},
};

// Evaluations that lab/sluice_eval has now.
static const struct { const char *name, *command; } moved[] = {{"suites", "run"}, {"grid", "grid"}, {"make", "dump"}};

#define SUMMARY "How much attention and predictions change under compressed caches, in numbers."

static const struct sl_subcommands table = {
    .name = "sluice eval",
    .word = "evaluation",
    .summary = SUMMARY,
    .head = "Usage: sluice eval EVALUATION [options]\n" SUMMARY "\n\nEvaluations:\n",
    .tail = "\nQuestions to a model (tasks, data sets): `python3 -m sluice_eval run` (docs/EVALUATION.md).\n"
            "`sluice eval EVALUATION --help` describes the options.\n" SL_EXIT_CODES_HELP "\n",
    .width = 10,
    .list = evals,
    .n = sizeof evals / sizeof *evals,
};

int sl_command_eval(int argc, char **argv) {
    for (size_t i = 0; argc > 1 && i < sizeof moved / sizeof moved[0]; i++) {
        if (strcmp(moved[i].name, argv[1]) == 0) {
            fprintf(stderr, "sluice eval: '%s' is now `python3 -m sluice_eval %s` (docs/EVALUATION.md)\n", argv[1],
                    moved[i].command);
            return SL_EXIT_USAGE;
        }
    }
    return sl_subcommands_run(&table, argc, argv);
}
