// SPDX-License-Identifier: Apache-2.0
// Purpose: a mutex that is held to the end of a block, whichever way the block is left.
#pragma once

#include <pthread.h>

static inline void sl_locked_end(pthread_mutex_t **mutex) {
    pthread_mutex_unlock(*mutex);
}

// Locks the mutex, until the block ends in which this stands. The value of a `return` is computed before that.
#define SL_LOCKED(mutex)                                                                                               \
    __attribute__((cleanup(sl_locked_end))) pthread_mutex_t *locked_ = (mutex);                                        \
    pthread_mutex_lock(locked_)

// Does one statement under the mutex.
#define SL_WITH_LOCK(mutex, ...)                                                                                       \
    do {                                                                                                               \
        SL_LOCKED(mutex);                                                                                              \
        __VA_ARGS__;                                                                                                   \
    } while (0)
