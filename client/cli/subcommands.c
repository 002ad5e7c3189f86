// SPDX-License-Identifier: Apache-2.0
#include "client/cli/subcommands.h"

#include <stdio.h>
#include <string.h>

#include "base/options/exit.h"
#include "base/similar.h"

static int print_usage(const struct sl_subcommands *commands, FILE *file, int code) {
    fputs(commands->head, file);
    for (size_t i = 0; i < commands->n; i++) {
        fprintf(file, "  %-*s %s\n", commands->width, commands->list[i].name, commands->list[i].summary);
    }
    fputs(commands->tail, file);
    return code;
}

int sl_subcommands_run(const struct sl_subcommands *commands, int argc, char **argv) {
    if (argc < 2) {
        return print_usage(commands, stderr, SL_EXIT_USAGE);
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        return print_usage(commands, stdout, SL_EXIT_OK);
    }
    if (sl_describe_asked(argc, argv)) {
        sl_describe_commands(commands->name, commands->summary, commands->list, commands->n);
        return SL_EXIT_OK;
    }
    struct sl_similar meant = {.word = argv[1]};
    for (size_t i = 0; i < commands->n; i++) {
        const struct sl_subcommand *command = &commands->list[i];
        if (strcmp(command->name, argv[1]) == 0) {
            return command->run(argc - 1, argv + 1);
        }
        sl_similar_offer(&meant, command->name);
    }
    fprintf(stderr, "%s: unknown %s '%s'%s%s; see %s --help\n", commands->name, commands->word, argv[1],
            meant.name ? ": did you mean " : "", meant.name ? meant.name : "", commands->name);
    return SL_EXIT_USAGE;
}
