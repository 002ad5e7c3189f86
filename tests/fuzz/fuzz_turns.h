// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: replaces threads, clock and locks of the code that is fuzzed by turns. One thread runs at a time, until it waits, and the next
 *          one is always the same for the same input. Time passes while all threads wait.
 *
 * Design: fibers of the fuzzer's own thread. CMakeLists.txt has the sources under test call these in place of the real ones. A thread that
 *         waits without a deadline for what no other thread will do hangs, and the fuzzer reports that.
 */
#pragma once

#include <stdbool.h>
#include <time.h>

#include "base/thread.h"

void fuzz_require(bool holds);

// Starts the turns, with the caller as the only thread.
void fuzz_turns_begin(int64_t now_ns);
int fuzz_turns_count(void); // that have been started and not joined
void fuzz_pass(void);       // let the others run
void fuzz_wait_ms(int64_t ms);
// Returns the argument of the thread that runs now, if its function is fn; else NULL.
void *fuzz_turn_of(void *(*fn)(void *));

int64_t fuzz_now_ns(void);
int64_t fuzz_deadline_in_ms(int64_t ms);
void fuzz_sleep_ms(int64_t ms);
int fuzz_nanosleep(const struct timespec *time, struct timespec *left);
enum sl_status fuzz_thread_start(const char *name, void *(*fn)(void *), void *arg, pthread_t *thread_out,
                                 struct sl_error *err);
enum sl_status fuzz_cond_wait_until(pthread_cond_t *cond, pthread_mutex_t *mutex, int64_t deadline_ns);
int fuzz_join(pthread_t thread, void **answer);
int fuzz_lock(pthread_mutex_t *mutex);
int fuzz_signal(pthread_cond_t *cond);
