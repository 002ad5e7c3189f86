// SPDX-License-Identifier: Apache-2.0
#include "engine/runner/repeat.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "engine/runner/reader_internal.h"

#define N_REMINDED 8 // tokens before a segment that its instruction names, as in the authors' code

static const char *const instructions[] = {"\n\nRepeat the previous context exactly.\n",
                                           "\n\nRepeat the part of the previous context exactly, starting with "};

enum sl_status sl_repeat_open(struct sl_reader *r, struct sl_error *err) {
    struct sl_repeat *repeat = &r->repeat;
    const struct sl_runtime *runtime = r->runtime;
    int chunk = r->plan->recipe.chunk_tokens;
    const char *score = sl_score_get_traits(r->plan->recipe.score)->name;
    SL_FAIL_IF(!runtime->tokenizer, err, SL_ERR_PRECONDITION,
               "reader: score=%s repeats the prompt with an instruction, and no tokenizer is loaded", score);
    SL_FAIL_IF(r->plan->n_prompt + chunk > runtime->config->max_positions, err, SL_ERR_INVALID,
               "recipe: score=%s repeats the prompt behind itself: %lld tokens and chunk=%d exceed the model's %lld "
               "positions; shorten the prompt, or take another score",
               score, (long long)r->plan->n_prompt, chunk, (long long)runtime->config->max_positions);
    repeat->rows = calloc((size_t)chunk, sizeof *repeat->rows);
    enum sl_status status = repeat->rows ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "reader: out of memory");
    for (int i = 0; status == SL_OK && i < 2; i++) {
        size_t n;
        status = sl_tokenizer_encode(runtime->tokenizer, instructions[i], strlen(instructions[i]), false,
                                     &repeat->instructions[i], &n, err);
        repeat->n_instructions[i] = (int64_t)n;
    }
    repeat->segment = chunk - N_REMINDED - repeat->n_instructions[1];
    if (status == SL_OK && (repeat->segment < N_REMINDED || chunk <= repeat->n_instructions[0])) {
        status = sl_fail(err, SL_ERR_INVALID,
                         "recipe: chunk=%d is too short to repeat a part of the prompt in; raise chunk", chunk);
    }
    return status;
}

void sl_repeat_close(struct sl_reader *r) {
    free(r->repeat.rows);
    free(r->repeat.instructions[0]);
    free(r->repeat.instructions[1]);
}

void sl_repeat_begin(struct sl_reader *r) {
    int64_t sinks = r->plan->recipe.sinks, n = r->plan->n_prompt;
    r->repeat.first = r->repeat.done = sinks < n ? sinks : n;
    r->repeat.began_ns = sl_now_ns();
    r->repeating = true;
    sl_compressor_repeat(r->compressor);
    r->wants.lse = sl_compressor_wants(r->compressor, false).lse;
}

static int64_t segment_tokens(const struct sl_reader *r) {
    int64_t left = r->plan->n_prompt - r->repeat.done;
    return left < r->repeat.segment ? left : r->repeat.segment;
}

int64_t sl_repeat_next_rows(const struct sl_reader *r) {
    const struct sl_repeat *repeat = &r->repeat;
    bool first = repeat->done == repeat->first;
    int64_t n = segment_tokens(r);
    return n == 0 ? 0 : n + (first ? repeat->n_instructions[0] : repeat->n_instructions[1] + N_REMINDED);
}

const int32_t *sl_repeat_tokens(struct sl_reader *r) {
    struct sl_repeat *repeat = &r->repeat;
    bool first = repeat->done == repeat->first;
    int64_t n = repeat->n_instructions[!first], before = first ? 0 : N_REMINDED;
    memcpy(repeat->rows, repeat->instructions[!first], (size_t)n * sizeof *repeat->rows);
    memcpy(repeat->rows + n, r->tokens + repeat->done - before,
           (size_t)(before + segment_tokens(r)) * sizeof *repeat->rows);
    return repeat->rows;
}

enum sl_status sl_repeat_end_segment(struct sl_reader *r, struct sl_error *err) {
    r->repeat.done += segment_tokens(r);
    r->repeat.ns = sl_now_ns() - r->repeat.began_ns;
    if (r->repeat.done == r->plan->n_prompt) {
        sl_log_info("reader", "read %lld tokens a second time in %.0f ms",
                    (long long)(r->repeat.done - r->repeat.first), (double)r->repeat.ns / SL_NS_PER_MS);
    }
    return sl_session_truncate(r->session, r->plan->n_prompt, err);
}
