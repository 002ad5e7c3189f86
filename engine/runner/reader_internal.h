// SPDX-License-Identifier: Apache-2.0
// Purpose: the state of a prompt that a pass reads, shared by reader.c and reading.c.
#pragma once

#include "engine/runner/reader.h"

// The second reading of the prompt (engine/runner/repeat.h).
struct sl_repeat {
    int32_t *instructions[2]; // before the first segment; before later ones, and before the tokens that precede them
    int64_t n_instructions[2];
    int32_t *rows;       // [chunk_tokens] of the current segment
    int64_t segment;     // tokens of the prompt that a pass repeats
    int64_t first, done; // tokens of the prompt where it begins, and that have been repeated
    int64_t began_ns, ns;
};

struct sl_reader {
    const struct sl_runtime *runtime;
    struct sl_plan *plan;             // owned
    struct sl_session *session;       // owned
    struct sl_compressor *compressor; // owned
    struct sl_pass_wants wants;       // extra results of the forward pass
    const int32_t *tokens;
    bool attends_elsewhere;
    bool last;      // the prompt ends with the current pass
    bool repeating; // it has been read and is repeated
    struct sl_repeat repeat;
    bool finished;             // every layer is final
    bool final[SL_MAX_LAYERS]; // per layer: its pages will not change any more
    int n_taken;               // layers returned by sl_reader_take_final()
    size_t peak_bytes;
    // set by sl_reader_feed(); n_fed 0: read the next chunk
    int n_fed;
    float *all_logits;
    struct sl_join joins[SL_MAX_JOINS]; // [n_joins], the first n_joined of which are done
    int n_joins, n_joined;
    enum sl_status status;
    struct sl_error err;
};
