// SPDX-License-Identifier: Apache-2.0
// Purpose: Python processes with the packages of lab/sluice_eval.
#pragma once

#include <sys/types.h>

#include "base/status.h"

// Makes the packages, installed or of this checkout, known to Python processes that this one becomes or starts.
enum sl_status sl_python_set_path(struct sl_error *err);

/*
 * Starts `python3 -B -m MODULE`, with up to two arguments (NULL: none), in a process group of its own, so that Ctrl-C reaches
 * only this process. Modules of the present folder do not count. input and output become its standard input and output; -1:
 * this process's own. SL_ERR_UNSUPPORTED: no python3 in PATH.
 */
enum sl_status sl_python_start(const char *const words[3], int input, int output, pid_t *pid_out, struct sl_error *err);
