// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: retrieve/source.h over the fabric: annexes in kvstores, asked by lines that all sessions of a worker share.
 * Threads: the table of lines is for any thread; a source is the engine's thread's.
 */
#ifndef SL_SERVICE_REMOTE_SOURCE_H
#define SL_SERVICE_REMOTE_SOURCE_H

#include "fabric/fetch.h"
#include "proto/sluice/v1/worker.pb-c.h"
#include "retrieve/source.h"

// Lines to stores by (address, epoch), kept while somebody uses them.
struct sl_lines;
enum sl_status sl_lines_create(struct sl_fabric *fabric, struct sl_lines **lines_out, struct sl_error *err);
void sl_lines_destroy(struct sl_lines **lines);
enum sl_status sl_lines_take(struct sl_lines *lines, const char *address, uint64_t epoch, struct sl_line **line_out,
                             struct sl_error *err);
void sl_lines_give(struct sl_lines *lines, struct sl_line **line); // accepts NULL, nulls
// The same of a line whose peer was lost: who takes next gets a new one.
void sl_lines_give_cut(struct sl_lines *lines, struct sl_line **line);

// SL_ERR_INVALID: the shares do not cover every lane. SL_ERR_UNSUPPORTED: more than SL_MAX_SHARES.
enum sl_status sl_remote_source_create(struct sl_lines *lines, Sluice__V1__AnnexShare *const *shares, size_t n_shares,
                                       int n_lanes, struct sl_source **source_out, struct sl_error *err);

#endif
