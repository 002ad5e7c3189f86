// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: puts tokens of one session after those of another, without a forward pass: capsules that were read apart become
 *          the beginning of one prompt.
 *
 * Design: a key that was rotated for position p becomes that of position p + n by a rotation by n, because RoPE's rotations
 *         add up. Values, and keys that are rotated at every use, stay as they are. Rows are written in the working format,
 *         and packed with the rest at the prompt's end; so a quantized page is quantized twice.
 *         The tokens have never attended to those that now precede them. A caller reads the first of them again, by making
 *         the part begin later; every token that no part covers is read as usual.
 * Not here: rows that attend while later slots exist (CacheBlend's choice of tokens): attention is causal by slot.
 * Threads: those of the reader.
 */
#pragma once

#include "engine/runner/reader.h"

#define SL_JOIN_TOKENS 256 // that one sl_reader_join() copies at most

// Returns SL_ERR_UNSUPPORTED if a runtime cannot join: the host must read the device's memory, and there must be one rank.
enum sl_status sl_join_check_device(const struct sl_runtime *runtime, struct sl_error *err);

/*
 * Checks the parts of a reader's configuration. SL_ERR_INVALID: they overlap, or end after the prompt's last token but one.
 * SL_ERR_UNSUPPORTED: a recipe that evicts, offloads or keeps scores, other frequencies, or the device.
 */
enum sl_status sl_join_check(const struct sl_reader_config *config, const struct sl_session *session,
                             struct sl_error *err);

// Returns whether the next tokens are those of a part: the caller then calls sl_reader_join() and begins no pass.
bool sl_reader_joins(const struct sl_reader *reader);
// Copies tokens of the current part. SL_ERR_EXHAUSTED: nothing has changed.
enum sl_status sl_reader_join(struct sl_reader *reader, struct sl_error *err);
