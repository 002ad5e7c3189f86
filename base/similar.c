// SPDX-License-Identifier: Apache-2.0
#include "base/similar.h"

#include <ctype.h>
#include <string.h>

enum { MAX_BYTES = 31, MOST = 2 };

static int least(int a, int b, int c) {
    int ab = a < b ? a : b;
    return ab < c ? ab : c;
}

static int distance_of(const char *a, size_t n_a, const char *b, size_t n_b) {
    int rows[3][MAX_BYTES + 1]; // rows for prefixes of a: two before, one before, the current one
    int *before = rows[0], *last = rows[1], *now = rows[2];
    for (size_t j = 0; j <= n_b; j++) {
        last[j] = (int)j;
    }
    for (size_t i = 1; i <= n_a; i++) {
        now[0] = (int)i;
        for (size_t j = 1; j <= n_b; j++) {
            int c = tolower((unsigned char)a[i - 1]), d = tolower((unsigned char)b[j - 1]);
            now[j] = least(last[j] + 1, now[j - 1] + 1, last[j - 1] + (c != d));
            if (i > 1 && j > 1 && c == tolower((unsigned char)b[j - 2]) && d == tolower((unsigned char)a[i - 2]) &&
                before[j - 2] + 1 < now[j]) {
                now[j] = before[j - 2] + 1;
            }
        }
        int *free_row = before;
        before = last;
        last = now;
        now = free_row;
    }
    return last[n_b];
}

void sl_similar_offer(struct sl_similar *best, const char *name) {
    size_t n_word = strlen(best->word), n_name = strlen(name);
    if (n_word > MAX_BYTES || n_name > MAX_BYTES) {
        return;
    }
    int distance = distance_of(best->word, n_word, name, n_name);
    int most = (int)n_word / 3 < MOST ? (int)n_word / 3 : MOST;
    if (distance <= most && (!best->name || distance < best->distance)) {
        best->name = name;
        best->distance = distance;
    }
}
