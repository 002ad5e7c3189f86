// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: show a job while it runs: the answer on standard output as it comes, progress on the terminal behind
 *          standard error, the statistics as a small table at the end; or everything as JSON lines.
 */
#pragma once

#include <stdbool.h>

#include "client/cli/progress.h"
#include "client/cli/tool.h"
#include "client/libsluice/sluice.h"

struct sl_follow {
    const char *command; // for complaints: "run"
    bool json, quiet;    // quiet: nothing but the answer
    bool brief;          // no statistics
    FILE *out, *err;
    const char *coordinator; // NULL: it is not asked
    bool no_chat;            // the model was given no chat to answer to: said where the answer is empty
    int width;               // of the terminal behind err, 0: not a terminal, no progress
    struct sl_signals *signals;
    bool (*also_stopped)(void *arg); // may be NULL
    void *also_arg;

    struct sl_progress progress;
    int64_t drawn_ns;
    bool progress_shown, answer_shown, reconnecting;
    bool output_failed; // e.g. the reader of a pipe has gone
    bool finished;
    int exit_code; // once finished
};

// Fill the callbacks of a watch.
void sl_follow_attach(struct sl_follow *follow, struct sl_watch *watch);

// Shows how far a model is loaded (sl_loading_fn; arg: the sl_follow). The thread of the other callbacks waits meanwhile.
void sl_follow_loading(void *follow, size_t done_bytes, size_t total_bytes);

// Put the terminal in order after the watch has returned `status`, complain if need be, and return the exit code.
int sl_follow_end(struct sl_follow *follow, enum sl_status status, const struct sl_error *err);

void sl_statistics_print(const Sluice__V1__Statistics *statistics, FILE *file);
