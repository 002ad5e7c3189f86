// SPDX-License-Identifier: Apache-2.0
// Purpose: `sluice eval` and its evaluations (lab/measure/measure.h).
#pragma once

int sl_command_eval(int argc,
                    char **argv); // finds the evaluation and runs it; returns an exit code (client/cli/tool.h)
