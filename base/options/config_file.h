// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: reads options from a file, the same for all programs (--config FILE):
 *
 *     coordinator: 10.0.0.1:7600        for every program that has the option
 *     log: warn
 *     sluice-decode:                    for one program only, or one command
 *       arena: 24G
 *     sluice run:
 *       recipe: h2o,budget=0.2
 *       question: [what?, when?]        an option that may be given several times
 *
 * Design: libyaml parses the YAML: a mapping of names to values, and of programs to such mappings. Anchors and aliases
 *         are refused.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

struct sl_config_line {
    char *name, *value;
    int line;
    bool own; // under the program's name; otherwise it may be an option of another program
};

struct sl_config_file {
    struct sl_config_line *lines; // in the order of the file; one for every item of a list
    size_t n;
};

// Reads the options for `program`, e.g. "sluice run". SL_ERR_INVALID names the line. The caller cleans up.
enum sl_status sl_config_file_read(const char *path, const char *program, struct sl_config_file *file_out,
                                   struct sl_error *err);
void sl_config_file_cleanup(struct sl_config_file *file);
