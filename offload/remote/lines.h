// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: lines that all sessions of a worker share.
 * Threads: any.
 */
#ifndef SL_OFFLOAD_REMOTE_LINES_H
#define SL_OFFLOAD_REMOTE_LINES_H

#include "fabric/ask.h"

// Lines to stores by (address, epoch), kept while somebody uses them.
struct sl_lines;
enum sl_status sl_lines_create(struct sl_fabric *fabric, struct sl_lines **lines_out, struct sl_error *err);
void sl_lines_destroy(struct sl_lines **lines);
enum sl_status sl_lines_take(struct sl_lines *lines, const char *address, uint64_t epoch, struct sl_line **line_out,
                             struct sl_error *err);
void sl_lines_give(struct sl_lines *lines, struct sl_line **line); // accepts NULL, nulls
// The same of a line whose peer was lost: who takes next gets a new one.
void sl_lines_give_cut(struct sl_lines *lines, struct sl_line **line);

#endif
