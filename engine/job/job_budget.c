// SPDX-License-Identifier: Apache-2.0
#include "engine/job/job_budget.h"

#include <inttypes.h>
#include <stdlib.h>

#include "engine/compress/plan/plan.h"
#include "engine/kvcache/session.h"

// Returns the KV bytes of the worker that writes n_new tokens, as admission counts them.
static int64_t bytes_of(const struct sl_plan *plan, int64_t n_new) {
    return (int64_t)sl_plan_decode_bytes(plan, n_new + 1); // it reads the last prompt token as well
}

// Returns the most new tokens, low to high, within `bytes`; `low` where not even that fits.
static int64_t most_within(const struct sl_plan *plan, int64_t bytes, int64_t low, int64_t high) {
    while (low < high) {
        int64_t middle = low + (high - low + 1) / 2;
        if (bytes_of(plan, middle) <= bytes) {
            low = middle;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

// Returns the most new tokens, 1 to `most`, that stay within a set of RoPE frequencies.
static int64_t most_in_set(const struct sl_job_budget *asked, int set, int64_t most) {
    int64_t low = 1;
    while (low < most) {
        int64_t middle = low + (most - low + 1) / 2;
        if (sl_model_rope_set(asked->model, asked->n_tokens + middle) <= set) {
            low = middle;
        } else {
            most = middle - 1;
        }
    }
    return low;
}

static enum sl_status make_plan(const struct sl_job_budget *asked, struct sl_plan *plan, struct sl_error *err) {
    struct sl_kv_geometry geometry = sl_model_geometry(asked->model);
    int64_t n_read = asked->n_tokens - 1;
    return asked->in_one_process || n_read < 1
               ? sl_plan_make_local(asked->recipe, &geometry, n_read > 0 ? n_read : 1, 0, plan, err)
               : sl_plan_make(asked->recipe, &geometry, n_read, 0, plan, err);
}

enum sl_status sl_job_budget(const struct sl_job_budget *asked, int64_t *n_new_out, struct sl_error *err) {
    int64_t room = asked->model->max_positions - asked->n_tokens;
    if (room < 1) {
        sl_fail(err, SL_ERR_INVALID,
                "%" PRId64 " prompt tokens leave no room for an answer in the model's %" PRId64 " positions",
                asked->n_tokens, asked->model->max_positions);
        sl_error_blame(err, SL_REASON_PROMPT_TOO_LONG, "");
        return SL_ERR_INVALID;
    }
    int64_t usual = room < SL_DEFAULT_NEW_TOKENS ? room : SL_DEFAULT_NEW_TOKENS;
    bool shares = asked->is_chat && asked->known == 0 && asked->arena_bytes > 0;
    int64_t wanted = asked->known > 0 ? asked->known : shares ? room : usual;
    int set = asked->rope_set != NULL ? *asked->rope_set : sl_model_rope_set(asked->model, asked->n_tokens + usual);
    int64_t n = wanted < room ? wanted : room;
    n = asked->known > 0 ? n : most_in_set(asked, set, n);
    if (asked->arena_bytes > 0) {
        struct sl_plan *plan = malloc(sizeof *plan); // tens of kilobytes
        SL_FAIL_IF(plan == NULL, err, SL_ERR_EXHAUSTED, "no memory for a plan");
        enum sl_status status = make_plan(asked, plan, err);
        if (status == SL_OK) {
            int64_t prompt_bytes = bytes_of(plan, 0), free_bytes = asked->arena_bytes - prompt_bytes;
            if (shares && free_bytes > 0) {
                n = most_within(plan, prompt_bytes + free_bytes / asked->share, usual < n ? usual : n, n);
            }
            n = most_within(plan, asked->arena_bytes, 1, n);
        }
        free(plan);
        SL_TRY(status);
    }
    *n_new_out = n;
    return SL_OK;
}
