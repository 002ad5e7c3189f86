// SPDX-License-Identifier: Apache-2.0
// Purpose: the longest common subsequence of two names.
#include "lab/eval/tasks/nearest.h"

#include <string.h>

#define MAX_NAME 64

void sl_nearest_consider(struct sl_nearest *nearest, const char *name) {
    size_t row[MAX_NAME + 1] = {0}, n = strlen(name), n_wanted = strlen(nearest->wanted);
    if (n > MAX_NAME || n_wanted > MAX_NAME || n_wanted == 0) {
        return;
    }
    for (size_t i = 0; i < n_wanted; i++) {
        size_t diagonal = 0;
        for (size_t j = 0; j < n; j++) {
            size_t above = row[j + 1];
            row[j + 1] = nearest->wanted[i] == name[j] ? diagonal + 1 : above > row[j] ? above : row[j];
            diagonal = above;
        }
    }
    size_t alike = 2000 * row[n] / (n + n_wanted);
    if (alike >= 600 && alike > nearest->alike) {
        nearest->best = name;
        nearest->alike = alike;
    }
}

enum sl_status sl_nearest_fail(const struct sl_nearest *nearest, const char *what, struct sl_error *err) {
    return sl_fail(err, SL_ERR_INVALID, "there is no %s \"%.64s\"%s%s%s", what, nearest->wanted,
                   nearest->best ? "; did you mean \"" : "", nearest->best ? nearest->best : "",
                   nearest->best ? "\"?" : "");
}
