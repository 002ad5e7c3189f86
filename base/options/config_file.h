// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: options from a file, the same for all programs (--config FILE):
 *
 *     coordinator: 10.0.0.1:7600        of every program that has it
 *     log: warn
 *     sluice-decode:                    of one program alone, or of one command
 *       arena: 24G
 *     sluice run:
 *       recipe: h2o,budget=0.2
 *       question: [what?, when?]        of an option that may be given several times
 *
 * Design: YAML by libyaml; a mapping of names to values, and of programs to such mappings. Anchors and aliases are refused.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/status.h"

struct sl_config_line {
    char *name, *value;
    int line;
    bool own; // stands under the program's name; else it may be another program's
};

struct sl_config_file {
    struct sl_config_line *lines; // in their order; of a list, one for every item
    size_t n;
};

// What the file says for `program`, e.g. "sluice run". SL_ERR_INVALID: with the line. The caller cleans up.
enum sl_status sl_config_file_read(const char *path, const char *program, struct sl_config_file *file_out,
                                   struct sl_error *err);
void sl_config_file_cleanup(struct sl_config_file *file);
