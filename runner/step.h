// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: one step of all sequences: the forward pass, and what their recipes do in it. The loop of everything that reads
 *          or writes: prefill, decode, conversations, measurements.
 */
#pragma once

#include "runner/sequence.h"

#define SL_STEP_MAX_SEQUENCES 256

/*
 * Every sequence reads its input; logits and choices are there where the input wants them.
 * A failure of one sequence's recipe is in its `status`, spoils no other, and is no failure of the step. Anything else that
 * is returned is the end of all of them: statuses of sl_pass_begin() (nothing has happened) and sl_pass_append().
 */
enum sl_status sl_step(const struct sl_runtime *runtime, struct sl_sequence *const *sequences, int n_sequences,
                       struct sl_error *err);

// A session that was resumed complete needs no step, only the finishing touches: pack what is not, hand every layer on.
// The status is the sequence's, too.
enum sl_status sl_step_finish_reading(const struct sl_runtime *runtime, struct sl_sequence *sequence);
