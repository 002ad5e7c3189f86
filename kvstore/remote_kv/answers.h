// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: reusable memory for answers: a question costs no malloc, and the transport need not register the same memory
 *          twice.
 *
 * Design: blocks of a power of two, kept in one list per size, the last returned first. A returned block is freed if
 *         the lists would hold more than kept_bytes. The bytes that are lent at a time are bounded too.
 * Threads: any number; one lock, held briefly.
 */
#pragma once

#include <stddef.h>

#include "base/status.h"

struct sl_answers;

// Creates the pool. At most most_bytes are lent at a time; of returned blocks it keeps kept_bytes.
enum sl_status sl_answers_create(size_t most_bytes, size_t kept_bytes, struct sl_answers **answers_out,
                                 struct sl_error *err);
void sl_answers_destroy(struct sl_answers **answers); // after everything was given back. Accepts NULL, nulls

void *sl_answers_take(struct sl_answers *answers,
                      size_t bytes); // aligned to 64 bytes; NULL: no memory, or too much is lent
void sl_answers_give(void *answer);  // from sl_answers_take()
