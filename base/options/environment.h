// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: which variables of the environment are options. Of the servers all are: SLUICE_MAX_JOBS is --max-jobs, and one environment
 *          is for several of them. Of the tool's commands those few are that say where the cluster is and what computes: a
 *          SLUICE_PROMPT that somebody has forgotten must not be what the next command reads.
 *          And all names that there are, for a file of options that is one for all programs: a program has no table but its own.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/similar.h"

// Whether this program ("sluice-decode", "sluice run") takes the option of this name from the environment.
bool sl_environment_takes(const char *program, const char *option);
// Whether some server has an option of this name.
bool sl_environment_knows(const char *option);

// Whether some program or command has it.
bool sl_known_option(const char *name);
// "sluice-decode", "sluice run": whether there is one of this name. *similar, begun by the caller, is offered all.
bool sl_known_program(const char *name, struct sl_similar *similar);

// "max-batch" -> "SLUICE_MAX_BATCH"
void sl_environment_name(const char *option, char *name, size_t name_bytes);

// Call warn_fn for every variable SLUICE_* that nobody knows, with a sentence that says what may have been meant.
void sl_environment_check(void (*warn_fn)(const char *program, const char *text), const char *program);
