// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: replaces the allocation functions of a program (linker option --wrap): all of them fail while memory_fails() returns true. One
 *          file of a program includes this, after its static bool memory_fails(void).
 */
#pragma once

#include <errno.h>
#include <stddef.h>

#define MEMORY_CALL(type, name, parameters, arguments)                                                                 \
    type __real_##name parameters;                                                                                     \
    type __wrap_##name parameters;                                                                                     \
    type __wrap_##name parameters {                                                                                    \
        if (memory_fails()) {                                                                                          \
            errno = ENOMEM;                                                                                            \
            return NULL;                                                                                               \
        }                                                                                                              \
        return __real_##name arguments;                                                                                \
    }

MEMORY_CALL(void *, malloc, (size_t n), (n))
MEMORY_CALL(void *, calloc, (size_t n, size_t bytes), (n, bytes))
MEMORY_CALL(void *, realloc, (void *block, size_t n), (block, n))
MEMORY_CALL(void *, aligned_alloc, (size_t alignment, size_t n), (alignment, n))
MEMORY_CALL(char *, strdup, (const char *text), (text))
MEMORY_CALL(char *, strndup, (const char *text, size_t n), (text, n))
