// SPDX-License-Identifier: Apache-2.0
// Purpose: `sluice doctor`: says whether this machine is fit for a cluster. See client/cli/tool.h.
#pragma once

int sl_command_doctor(int argc, char **argv);
