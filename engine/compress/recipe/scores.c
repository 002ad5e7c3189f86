// SPDX-License-Identifier: Apache-2.0
#include "engine/compress/recipe/scores.h"

#include <assert.h>
#include <stdio.h>

static const struct sl_score_traits rows[] = {
#define X(NAME, word, ...) [SL_SCORE_##NAME] = {.name = #word, __VA_ARGS__},
    SL_SCORE_MAP(X)
#undef X
};

const struct sl_score_traits *sl_score_get_traits(enum sl_score score) {
    assert((int)score >= 0 && score < SL_N_SCORES);
    return &rows[score];
}

char *sl_scores_list(bool (*has)(const struct sl_score_traits *traits), char *buf, size_t buf_bytes) {
    int last = -1;
    for (int i = 0; i < SL_N_SCORES; i++) {
        last = has(&rows[i]) ? i : last;
    }
    size_t length = 0;
    buf[0] = '\0';
    for (int i = 0; i <= last; i++) {
        if (has(&rows[i]) && length < buf_bytes) {
            const char *before = length == 0 ? "" : i == last ? " or " : ", ";
            length += (size_t)snprintf(buf + length, buf_bytes - length, "%s%s", before, rows[i].name);
        }
    }
    return buf;
}
