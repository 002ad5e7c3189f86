// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the second reading of a prompt, for recipes with sl_recipe_repeats() (KVzip, algorithm 1): when the prompt has
 *          been read, it is repeated to the model segment by segment, behind an instruction, as if the model had written
 *          it:
 *
 *     slots   the prompt .................... | instruction | segment i of the prompt
 *
 *          The rows attend to the whole prompt, and their attention becomes the scores of its slots; their own slots are
 *          dropped after every segment. A segment is what fits into a chunk behind its instruction. Slots that
 *          scope=sinks keeps are not repeated.
 * Design: engine/runner/reading.c runs the passes as it runs those of chunks, so prompts share passes in both readings.
 */
#pragma once

#include "engine/runner/reader.h"

// Encodes the instructions. SL_ERR_INVALID: chunks are too short for them, or the model has too few positions.
// SL_ERR_PRECONDITION: the runtime has no tokenizer.
enum sl_status sl_repeat_open(struct sl_reader *reader, struct sl_error *err);
void sl_repeat_close(struct sl_reader *reader);

// The prompt has been read: begins the second reading.
void sl_repeat_begin(struct sl_reader *reader);

// Returns the rows of the next segment with its instruction; 0: all of the prompt has been repeated.
int64_t sl_repeat_next_rows(const struct sl_reader *reader);
// Returns these rows' tokens, which stay valid until the next call.
const int32_t *sl_repeat_tokens(struct sl_reader *reader);
// Drops the segment's slots after its pass.
enum sl_status sl_repeat_end_segment(struct sl_reader *reader, struct sl_error *err);
