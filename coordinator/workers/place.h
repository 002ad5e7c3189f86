// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: decides where a prompt is read: here, by the worker that then writes its answer, or there, by a prefill
 *          worker that ships the KV. A pure function: the same offers and rates give the same answer.
 *
 * Design: the place where the first token is expected sooner wins:
 *
 *     here     (tokens in line + unread tokens) * (2 if the worker is writing answers) / rate of reading
 *     there    (tokens in line + unread tokens) / rate of reading + bytes of the capsule / rate of ships
 *
 *         A worker that writes answers gives them half of its time. Layers are shipped while later ones are read, so the
 *         rate of ships is that of the time that they add after reading. A rate that is not known yet costs nothing. Of
 *         equal places, here wins: nothing travels.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

// Measured over the last prompts; 0: not known yet.
struct sl_place_rates {
    double tokens_per_s; // read by a worker that does nothing else
    double bytes_per_s;  // of ships, after the last chunk
};

struct sl_place_offer {
    bool possible;         // a worker has room now
    int64_t unread_tokens; // of the prompt that the worker has not read before
    int64_t line_tokens;   // that it still reads for other jobs
    int64_t other_jobs;    // here: that it runs
    int64_t ship_bytes;    // there: of the capsule, at most
};

#define SL_PLACE_WHY_BYTES 160

// Returns true for `here`; at least one place is possible. why_out: the reason, in words for the job's log.
bool sl_place_is_here(const struct sl_place_offer *here, const struct sl_place_offer *there,
                      const struct sl_place_rates *rates, char why_out[SL_PLACE_WHY_BYTES]);

/*
 * Returns how long a job waits for its document to come back from a store's disk: as long as reading the document takes, but so
 * that it can still be read within left_ms. If it cannot be read within left_ms in any case, the job waits all of it. read_ms
 * 0, not known: 0.
 */
int64_t sl_place_restore_ms(double read_ms, int64_t left_ms);

// Includes the measurement of one prompt, of tokens or of bytes, in a rate. Ignores values that a clock cannot have given.
void sl_place_note(double *rate_inout, int64_t amount, double ms);
