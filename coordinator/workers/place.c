// SPDX-License-Identifier: Apache-2.0
#include "coordinator/workers/place.h"

#include <inttypes.h>
#include <stdio.h>

#define WEIGHT      0.2 // of a new measurement
#define LEAST_MS    0.5 // shorter times say more about the clock
#define MAX_READ_MS 1e9

// Returns the time of reading, or without a rate a number of tokens.
static double read_s(const struct sl_place_offer *offer, const struct sl_place_rates *rates) {
    double tokens = (double)offer->line_tokens + (double)offer->unread_tokens;
    return rates->tokens_per_s > 0 ? tokens / rates->tokens_per_s : tokens;
}

static double ship_s(const struct sl_place_offer *there, const struct sl_place_rates *rates) {
    return rates->bytes_per_s > 0 && rates->tokens_per_s > 0 ? (double)there->ship_bytes / rates->bytes_per_s : 0;
}

bool sl_place_is_here(const struct sl_place_offer *here, const struct sl_place_offer *there,
                      const struct sl_place_rates *rates, char why_out[SL_PLACE_WHY_BYTES]) {
    if (!here->possible || !there->possible) {
        snprintf(why_out, SL_PLACE_WHY_BYTES, "%s",
                 here->possible ? "no prefill worker with a decode worker has room" : "no aggregated worker has room");
        return here->possible;
    }
    double here_s = read_s(here, rates) * (here->other_jobs > 0 ? 2 : 1);
    double shipping_s = ship_s(there, rates), there_s = read_s(there, rates) + shipping_s;
    if (rates->tokens_per_s > 0) {
        snprintf(why_out, SL_PLACE_WHY_BYTES,
                 "%.2f s here (%" PRId64 " tokens in line, %" PRId64 " other jobs), %.2f s there (%" PRId64
                 " tokens in line, %.2f s to ship)",
                 here_s, here->line_tokens, here->other_jobs, there_s, there->line_tokens, shipping_s);
    } else {
        snprintf(why_out, SL_PLACE_WHY_BYTES,
                 "no rate is measured yet; %" PRId64 " tokens in line and %" PRId64 " other jobs here, %" PRId64
                 " tokens in line there",
                 here->line_tokens, here->other_jobs, there->line_tokens);
    }
    return here_s <= there_s;
}

int64_t sl_place_restore_ms(double read_ms, int64_t left_ms) {
    if (!(read_ms > 0 && read_ms < MAX_READ_MS) || left_ms <= 0) {
        return 0;
    }
    int64_t most_ms = left_ms > (int64_t)read_ms ? left_ms - (int64_t)read_ms : left_ms;
    return most_ms < (int64_t)read_ms ? most_ms : (int64_t)read_ms;
}

void sl_place_note(double *rate_inout, int64_t amount, double ms) {
    if (amount < 1 || !(ms >= LEAST_MS && ms < MAX_READ_MS)) {
        return;
    }
    double rate = (double)amount / ms * 1000;
    *rate_inout = *rate_inout > 0 ? (1 - WEIGHT) * *rate_inout + WEIGHT * rate : rate;
}
