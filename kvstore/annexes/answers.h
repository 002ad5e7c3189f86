// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: memory for answers, used again and again: a question costs no malloc, and the transport need not register the
 *          same memory twice.
 *
 * Design: blocks of a power of two, kept in a list for each size, the one given back last first. What is given back beyond
 *         KEPT bytes in all lists is freed; what is out at a time is bounded too.
 * Threads: any number; one lock, held for short.
 */
#pragma once

#include <stddef.h>

#include "base/status.h"

struct sl_answers;

// most_bytes may be out at a time; of what comes back kept_bytes stay.
enum sl_status sl_answers_create(size_t most_bytes, size_t kept_bytes, struct sl_answers **answers_out,
                                 struct sl_error *err);
void sl_answers_destroy(struct sl_answers **answers); // everything has been given back. Accepts NULL, nulls

void *sl_answers_take(struct sl_answers *answers,
                      size_t bytes); // at a multiple of 64; NULL: no memory, or too much out
void sl_answers_give(void *answer);  // of sl_answers_take()
