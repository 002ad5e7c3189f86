// SPDX-License-Identifier: Apache-2.0
// Purpose: a command of `sluice doc` that has a file of its own.
#pragma once

int sl_command_doc_keep(int argc, char **argv); // `sluice doc keep`; returns the exit code
