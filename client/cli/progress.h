// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the progress of a job as one line of text that fits the terminal:
 *              prefill [==============>           ]  57%  9216/16384 tokens  resident 6.0 MiB
 * Design: rendering is a pure function of the state and the width, so that tests can check it; writing it to a terminal
 *         adds a carriage return and a clear-to-end.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "proto/sluice/v1/inference.pb-c.h"

struct sl_progress {
    const char *phase;   // "queued", "prefill", "ship", "loading NAME"; "" before the first event
    int64_t done, total; // total 0: not known yet
    bool bytes;          // done and total are bytes, not tokens
    const char *unit;    // unit of done and total if not bytes; NULL: tokens
    char note[96];       // "resident 6.0 MiB"
};

// Updates the state from an event. False: the line does not change.
bool sl_progress_update(struct sl_progress *progress, const Sluice__V1__Event *event);

// Renders the line, at most `width` characters: the bar shrinks first, then parts are left out from the right. Returns
// buf.
char *sl_progress_render(const struct sl_progress *progress, int width, char *buf, size_t buf_bytes);

// Writes the phase "loading NAME" of a model, with the last part of its path. Returns buf.
#define SL_LOADING_PHASE_BYTES 64
char *sl_progress_loading_phase(const char *model, char *buf, size_t buf_bytes);

// Writes the progress as a line of its own, for a file: "sluice run: loading smollm2: 43% of 88.6 MiB, NOTE".
void sl_progress_print(const struct sl_progress *progress, const char *command, FILE *file);
// Returns true if a file is due for a line: one second after the first call, then every five seconds. *next_ns_inout is
// 0 before the first call.
bool sl_progress_is_due(int64_t *next_ns_inout, int64_t now_ns);

void sl_progress_draw(const struct sl_progress *progress, int width, FILE *terminal);
void sl_progress_clear(FILE *terminal);

// Draws and clears the line of a phase on standard error, if that is a terminal.
void sl_progress_show(const char *phase, int64_t done, int64_t total);
void sl_progress_hide(void);
