// SPDX-License-Identifier: Apache-2.0
// Purpose: the tool's commands that use a cluster or run a job in this process. See client/cli/tool.h.
#pragma once

#include <stdbool.h>

int sl_command_run(int argc, char **argv);
int sl_command_up(int argc, char **argv);
int sl_command_down(int argc, char **argv);
int sl_command_status(int argc, char **argv);
int sl_command_doc(int argc, char **argv);
int sl_command_doc_ask(int argc, char **argv); // of `sluice doc`
int sl_command_doc_export(int argc, char **argv);
int sl_command_doc_import(int argc, char **argv);
int sl_command_submit(int argc, char **argv);
int sl_command_watch(int argc, char **argv);
int sl_command_cancel(int argc, char **argv);
int sl_command_jobs(int argc, char **argv);
int sl_command_compare(int argc, char **argv);
int sl_command_top(int argc, char **argv);
int sl_command_workers(int argc, char **argv);
int sl_command_drain(int argc, char **argv);
int sl_command_recipes(int argc, char **argv);
