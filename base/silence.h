// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: for how long somebody has been silent while somebody listened.
 *
 * Design: whoever judges by silence looks at it every now and then. A look that comes late says that the listener itself stood still: its
 *         process was stopped, its machine was, or others had the processors. What was said meanwhile may not have been read yet, and
 *         a speaker on the same machine stood still as well. So a look adds at most `usual_ns`, and what is beyond nobody listened.
 *         A speaker that has gone is found out all the same, that much later.
 * Threads: of one thread, or under the owner's lock.
 */
#pragma once

#include <stdint.h>

struct sl_silence {
    int64_t heard_ns;  // moved up by what nobody listened
    int64_t looked_ns; // or heard
};

void sl_silence_end(struct sl_silence *silence, int64_t now_ns); // it was heard; the first time, too
// Looked at at least every usual_ns, where nothing stands still.
int64_t sl_silence_look(struct sl_silence *silence, int64_t now_ns, int64_t usual_ns);
