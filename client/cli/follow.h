// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: shows a job while it runs: the answer on standard output as it arrives, progress on standard error if that
 *          is a terminal, and the statistics as a small table at the end; or everything as JSON lines.
 */
#pragma once

#include <stdbool.h>

#include "client/cli/progress.h"
#include "client/cli/tool.h"
#include "client/libsluice/sluice.h"

struct sl_follow {
    const char *command; // for error messages: "run"
    bool json, quiet;    // quiet: only the answer
    bool brief;          // no statistics
    bool cost;           // one line about tokens, bytes and time instead of the statistics
    FILE *out, *err;
    const char *coordinator; // NULL: no coordinator is used
    bool no_chat;            // the model got no chat: an empty answer is explained by that
    int width;               // width of err's terminal; 0: not a terminal, so progress is shown of loading alone
    const char *model;       // path or name of the model that is loaded, for its progress
    struct sl_signals *signals;
    // Looks at an event before it is shown, and returns false to have it not shown; adds a reason to stop. Both may be NULL.
    bool (*look_fn)(void *arg, const Sluice__V1__Event *event);
    bool (*also_stopped)(void *arg);
    void *also_arg;

    struct sl_progress progress;
    int64_t drawn_ns, next_line_ns;
    bool progress_shown, answer_shown, reconnecting;
    bool output_failed; // e.g. the reader of a pipe has exited
    bool finished;
    int exit_code; // valid once finished
};

// Returns what a command shows on its standard output and standard error. `signals` stop it; NULL: none does.
struct sl_follow sl_follow_of(const char *command, const struct sl_tool_config *tool, bool quiet,
                              struct sl_signals *signals);

// Sets the callbacks of a watch.
void sl_follow_attach(struct sl_follow *follow, struct sl_watch *watch);

// Shows how much of a model is loaded (sl_loading_fn; arg: the sl_follow), in lines where err is not a terminal, until a
// signal comes. The thread of the other callbacks waits meanwhile.
bool sl_follow_loading(void *follow, size_t done_bytes, size_t total_bytes);

// Clears the progress line after the watch has returned `status`, reports an error, and returns the exit code.
int sl_follow_end(struct sl_follow *follow, enum sl_status status, const struct sl_error *err);

// Returns the bytes of the capsule that another process sent; 0 if one worker, or one process, did both phases.
int64_t sl_statistics_shipped_bytes(const Sluice__V1__Statistics *statistics);

void sl_statistics_print(const Sluice__V1__Statistics *statistics, FILE *file);
