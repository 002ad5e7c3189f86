// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: tells which variables of the environment are options. Servers read all of theirs: SLUICE_MAX_JOBS is
 *          --max-jobs, and one environment serves several servers. The tool's commands read only the few that tell
 *          where the cluster is and what computes: a forgotten SLUICE_PROMPT must not become the prompt of the next
 *          command.
 *          Also knows all option names, because one file of options serves all programs and each program only has its
 *          own table.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/similar.h"

// Returns true if this program ("sluice-decode", "sluice run") reads the option of this name from the environment.
bool sl_environment_takes(const char *program, const char *option);

// Returns true if any program or command has an option of this name.
bool sl_known_option(const char *name);
// Returns true if there is a program of this name ("sluice-decode", "sluice run"). Offers all names to *similar, which
// the caller has initialized.
bool sl_known_program(const char *name, struct sl_similar *similar);

// Writes "SLUICE_MAX_BATCH" for "max-batch".
void sl_environment_name(const char *option, char *name, size_t name_bytes);

// Calls warn_fn for every variable SLUICE_* that is unknown, with a sentence that suggests a similar name.
void sl_environment_check(void (*warn_fn)(const char *program, const char *text), const char *program);
