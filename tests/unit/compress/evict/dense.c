// SPDX-License-Identifier: Apache-2.0
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include "dense.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// --- attention -----------------------------------------------------------------------------------------------------

static double dot(const struct drive *drive, int layer, int64_t query, int query_head, int64_t key, int head) {
    double sum = 0;
    for (int c = 0; c < drive->plan.geometry.head_dim; c++) {
        sum += (double)drive_element(drive, DRIVE_Q, layer, query, query_head, c) *
               (double)drive_element(drive, DRIVE_K, layer, key, head, c);
    }
    return sum;
}

// One row: softmax over the slots that are not younger than the query.
static int attend_row(const struct drive *drive, int layer, int head, int g, int64_t query,
                      const struct dense_head *dense, double *a) {
    int n = 0;
    double max = -INFINITY, sum = 0;
    for (; n < dense->n && dense->position[n] <= query; n++) {
        a[n] = (double)drive->scale * dot(drive, layer, query, head * drive->group + g, dense->position[n], head);
        max = fmax(max, a[n]);
    }
    for (int j = 0; j < n; j++) {
        a[j] = exp(a[j] - max);
        sum += a[j];
    }
    for (int j = 0; j < n; j++) {
        a[j] /= sum;
    }
    return n;
}

static int rows_of(const struct sl_recipe *recipe, int m) {
    return recipe->score == SL_SCORE_LTAS                           ? 1
           : recipe->score == SL_SCORE_SNAPKV && recipe->window < m ? recipe->window
                                                                    : m;
}

void dense_read(const struct drive *drive, int layer, int head, int m, struct dense_head *dense) {
    for (int r = 0; r < m; r++) {
        int j = dense->n++;
        assert_true(dense->n <= DENSE_SLOTS);
        dense->position[j] = drive->n_read + r;
        dense->sum[j] = dense->square[j] = dense->above[j] = 0;
        dense->importance[j] = (double)drive_element(drive, DRIVE_IMPORTANCE, layer, drive->n_read + r, head, 0);
    }
    memset(dense->rows, 0, sizeof dense->rows);
    int n_rows = rows_of(&drive->plan.recipe, m);
    for (int r = 0; r < m; r++) {
        double mean[DENSE_SLOTS] = {0}, a[DENSE_SLOTS];
        int n = 0;
        for (int g = 0; g < drive->group; g++) {
            n = attend_row(drive, layer, head, g, drive->n_read + r, dense, a);
            for (int j = 0; j < n; j++) {
                mean[j] += a[j] / drive->group;
                dense->rows[g][j] += r >= m - n_rows ? a[j] : 0;
            }
        }
        for (int j = 0; j < n; j++) {
            dense->sum[j] += mean[j];
            dense->square[j] += mean[j] * mean[j];
            dense->above[j] += n > 1 && mean[j] > 1.0 / n; // one slot has the mean
        }
    }
}

// --- scores --------------------------------------------------------------------------------------------------------

// SnapKV: neighbours among the slots before the window.
static void pool(const struct sl_recipe *recipe, const struct dense_head *dense, const double *row, double *out) {
    int n = dense->n - recipe->window, half = recipe->pool_kernel / 2;
    memcpy(out, row, (size_t)dense->n * sizeof *out);
    for (int j = 0; j < n && recipe->score == SL_SCORE_SNAPKV && recipe->pool != SL_POOL_NONE; j++) {
        double sum = 0, max = -INFINITY;
        for (int i = j - half; i <= j + half; i++) {
            sum += i >= 0 && i < n ? row[i] : 0;
            max = i >= 0 && i < n ? fmax(max, row[i]) : max;
        }
        out[j] = recipe->pool == SL_POOL_AVG ? sum / recipe->pool_kernel : max;
    }
}

// CAOTE, eq. 21; FastCAOTE: the mean value in place of the output.
static void change(const struct drive *drive, int layer, int head, const struct dense_head *dense,
                   const double *weights, bool mean, double *out) {
    int d = drive->plan.geometry.head_dim;
    double total = 0, center[64] = {0};
    for (int j = 0; j < dense->n; j++) {
        total += weights[j];
    }
    for (int j = 0; j < dense->n; j++) {
        double a = mean ? 1.0 / dense->n : weights[j] / total;
        for (int c = 0; c < d; c++) {
            center[c] += a * (double)drive_element(drive, DRIVE_V, layer, dense->position[j], head, c);
        }
    }
    for (int j = 0; j < dense->n; j++) {
        double a = weights[j] / total, square = 0;
        for (int c = 0; c < d; c++) {
            double x = center[c] - (double)drive_element(drive, DRIVE_V, layer, dense->position[j], head, c);
            square += x * x;
        }
        out[j] = a / fmax(1 - a, 1e-6) * sqrt(square);
    }
}

static double base_score(const struct drive *drive, const struct dense_head *dense, int64_t n_tokens, int j) {
    double pooled[DENSE_SLOTS], mean = 0;
    switch (drive->plan.recipe.score) {
    case SL_SCORE_RECENCY:
        return (double)dense->position[j];
    case SL_SCORE_AAS:
        return dense->sum[j];
    case SL_SCORE_AQAS:
        return dense->above[j];
    case SL_SCORE_MAS:
        return dense->sum[j] / (double)(n_tokens - dense->position[j]);
    case SL_SCORE_CIS:
        return dense->importance[j];
    case SL_SCORE_LTAS:
    case SL_SCORE_SNAPKV:
        for (int g = 0; g < drive->group; g++) {
            pool(&drive->plan.recipe, dense, dense->rows[g], pooled);
            mean += pooled[j] / drive->group;
        }
        return mean;
    default:
        fail_msg("the dense reference has no such score");
        return 0;
    }
}

void dense_rank(const struct drive *drive, int layer, int head, const struct dense_head *dense, int64_t n_tokens,
                struct dense_ranking *ranking) {
    const struct sl_recipe *recipe = &drive->plan.recipe;
    bool mean = recipe->value == SL_VALUE_FASTCAOTE || recipe->value == SL_VALUE_FASTCAOTE_HEADS;
    bool heads = recipe->value == SL_VALUE_CAOTE_HEADS || recipe->value == SL_VALUE_FASTCAOTE_HEADS;
    for (int j = 0; j < dense->n; j++) {
        double seen = (double)(n_tokens - dense->position[j]), average = dense->sum[j] / seen;
        ranking->score[j] = base_score(drive, dense, n_tokens, j);
        // The oldest of equal counts goes, the newest of all others.
        ranking->tie[j] = (double)(recipe->score == SL_SCORE_AQAS ? j : -j);
        ranking->deviation[j] = sqrt(fmax(dense->square[j] / seen - average * average, 0));
    }
    if (recipe->value == SL_VALUE_OFF) {
        return;
    }
    double weights[DENSE_SLOTS], one[DENSE_SLOTS], squares[DENSE_SLOTS] = {0};
    memcpy(ranking->tie, ranking->score, sizeof ranking->tie);
    if (!heads) {
        change(drive, layer, head, dense, ranking->tie, mean, ranking->score);
        return;
    }
    for (int g = 0; g < drive->group; g++) {
        pool(recipe, dense, dense->rows[g], weights);
        change(drive, layer, head, dense, weights, mean, one);
        for (int j = 0; j < dense->n; j++) {
            squares[j] += one[j] * one[j];
        }
    }
    for (int j = 0; j < dense->n; j++) {
        ranking->score[j] = sqrt(squares[j]);
    }
}

// --- protection ----------------------------------------------------------------------------------------------------

static void protect(double *values, int64_t n, int64_t sinks, int64_t newest) {
    for (int64_t j = 0; j < n; j++) {
        values[j] = j < sinks || j >= n - newest ? INFINITY : values[j];
    }
}

void dense_protect(const struct drive *drive, const struct dense_head *dense, int64_t budget, int64_t stabilizers,
                   int64_t tail, struct dense_ranking *ranking) {
    const struct sl_recipe *recipe = &drive->plan.recipe;
    int64_t recent = recipe->recent.slots > 0 ? recipe->recent.slots : (int64_t)(recipe->recent.ratio * (double)budget);
    if (recipe->std > 0) { // RoCo: what is not among the k smallest deviations is spared
        int64_t r = (int64_t)(recipe->std * (double)budget), n = dense->n;
        int64_t k = n - r - recipe->sinks > n - budget ? n - r - recipe->sinks : n - budget;
        protect(ranking->deviation, n, recipe->sinks, recent);
        for (int64_t spared = 0; spared < n - k; spared++) {
            int most = 0;
            for (int j = 1; j < dense->n; j++) {
                most = ranking->deviation[j] > ranking->deviation[most] ? j : most;
            }
            ranking->deviation[most] = -1;
            ranking->score[most] = INFINITY;
        }
    }
    protect(ranking->score, dense->n, recipe->sinks, tail + (recent > stabilizers ? recent : stabilizers));
}

// --- what stayed -----------------------------------------------------------------------------------------------------

void dense_follow(const struct drive *drive, int layer, int head, const struct dense_ranking *ranking,
                  struct dense_head *dense) {
    int64_t positions[DENSE_SLOTS];
    struct sl_kv kv = drive_kv(drive, layer, head);
    int n = dense->n, kept[DENSE_SLOTS] = {0}, worst = -1, n_kept = (int)kv.n_slots;
    assert_true(n_kept <= n);
    drive->ops->read_positions(&kv, positions);
    for (int i = 0, j = 0; i < n_kept; i++) {
        while (j < n && dense->position[j] < positions[i]) {
            j++;
        }
        assert_true(j < n && dense->position[j] == positions[i]);
        kept[j] = 1;
        if (worst < 0 || ranking->score[j] < ranking->score[worst] ||
            (ranking->score[j] == ranking->score[worst] && ranking->tie[j] < ranking->tie[worst])) {
            worst = j;
        }
    }
    for (int j = 0; j < n; j++) {
        if (kept[j]) {
            continue;
        }
        double lost = ranking->score[j], held = ranking->score[worst];
        bool wrong = lost == held ? ranking->tie[j] > ranking->tie[worst] : lost > held + 1e-4 * fabs(lost);
        if (wrong || isinf(lost)) {
            fail_msg("layer %d head %d: position %d went with %.9g (tie %.9g), position %d stayed with %.9g (%.9g)",
                     layer, head, (int)dense->position[j], lost, ranking->tie[j], (int)dense->position[worst], held,
                     ranking->tie[worst]);
        }
    }
    dense->n = 0;
    for (int j = 0; j < n; j++) {
        if (kept[j]) {
            int to = dense->n++;
            dense->position[to] = dense->position[j];
            dense->sum[to] = dense->sum[j];
            dense->square[to] = dense->square[j];
            dense->above[to] = dense->above[j];
            dense->importance[to] = dense->importance[j];
        }
    }
}
