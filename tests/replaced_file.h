// SPDX-License-Identifier: Apache-2.0
// Purpose: replaces a file while a process uses it, in the way that tools for keys and certificates do.
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>

static inline void replace_file(const char *path, const char *text, mode_t mode) {
    char new_path[PATH_MAX];
    snprintf(new_path, sizeof new_path, "%s.new", path);
    FILE *file = fopen(new_path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0 && fclose(file) == 0);
    assert_int_equal(chmod(new_path, mode), 0);
    assert_int_equal(rename(new_path, path), 0);
}
