// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: reports loading progress of a model.
 *
 * Design: a thread polls two counters: the loaded bytes, and the tasks of the teams that load them. The tasks show
 *         progress within a matrix of gigabytes. It reports only when a counter has changed, so no report means no
 *         progress.
 * Threads: begin and end run in the thread that loads; reports come from a separate thread.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include "base/loop.h"
#include "base/team.h"
#include "engine/model/model.h"

// Takes a report: bytes of the model's file, of which total_bytes may include tensors that are not needed. Returns false
// to stop the loading, which then ends with SL_ERR_CANCELLED after the current layer.
typedef bool (*sl_loading_fn)(void *arg, size_t done_bytes, size_t total_bytes);

struct sl_loading_config {
    const char *model;            // for the log
    struct sl_team *const *teams; // [n_teams] that load; entries may be NULL
    size_t n_teams;
    sl_loading_fn report_fn; // NULL: the log alone
    void *arg;
};

struct sl_loading {
    struct sl_loading_config config;
    struct sl_model_progress progress; // of sl_model_load()
    struct sl_loop loop;
};

// Starts reporting: to report_fn at most four times a second, and to the log every five seconds, from the first
// second on. Copies `config`; what it points to must stay valid until sl_loading_end(). SL_ERR_EXHAUSTED: no thread.
enum sl_status sl_loading_begin(struct sl_loading *loading, const struct sl_loading_config *config,
                                struct sl_error *err);

// Waits for a report in progress. No report comes afterwards.
void sl_loading_end(struct sl_loading *loading);
