// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: measures the quantization error of a model's weights, before anything is computed with them.
 *
 * Design: uses the rows as read from the files, so a model that was loaded in any format will do. Each row's sums
 *         have their own entry: the result does not depend on the team.
 */
#include <stdlib.h>

#include "engine/model/model_internal.h"
#include "engine/tensor/weights.h"

struct row_sums {
    double error, square; // sum (x - x^)^2, sum x^2
};

struct task {
    struct sl_matrix w; // a copy in the requested format
    struct row_sums *rows;
};

static void measure_rows(void *arg, int64_t begin, int64_t end, int member) {
    const struct task *task = arg;
    const struct sl_matrix *w = &task->w;
    (void)member;
    for (int64_t j = begin; j < end; j++) {
        const unsigned char *row = sl_weight_row(w, j);
        struct row_sums sums = {0};
        for (int64_t g = 0; g < sl_weight_groups(w->k); g++) {
            int8_t codes[SL_WEIGHT_GROUP];
            uint16_t scale;
            int n = sl_weight_quantize_group(w, j, g, codes, &scale);
            for (int i = 0; i < n; i++) {
                double x = (double)sl_weight_element(row, w->dtype, g * SL_WEIGHT_GROUP + i);
                double error = x - (double)sl_f16_to_f32(scale) * codes[i];
                sums.error += error * error;
                sums.square += x * x;
            }
        }
        task->rows[j] = sums;
    }
}

static enum sl_status add_rows(const struct sl_matrix *matrix, struct sl_team *team, struct row_sums *total,
                               struct sl_error *err) {
    struct task task = {*matrix, calloc((size_t)matrix->n, sizeof *task.rows)};
    SL_FAIL_IF(task.rows == NULL, err, SL_ERR_EXHAUSTED, "out of memory");
    sl_team_run(team, matrix->n, 16, measure_rows, &task);
    for (int64_t j = 0; j < matrix->n; j++) {
        total->error += task.rows[j].error;
        total->square += task.rows[j].square;
    }
    free(task.rows);
    return SL_OK;
}

static enum sl_status add_matrix(const struct sl_model *model, int layer, int which, enum sl_weight_format format,
                                 struct sl_team *team, struct row_sums *total, struct sl_error *err) {
    struct sl_model_source source;
    enum sl_status status = sl_model_matrix_open(model, layer, which, format, &source, err);
    SL_THEN(status, add_rows(&source.matrix, team, total, err));
    sl_model_matrix_close(model, &source);
    return status;
}

enum sl_status sl_model_weight_error(const struct sl_model *model, enum sl_weight_format format, struct sl_team *team,
                                     double *relative_out, struct sl_error *err) {
    struct row_sums total = {0};
    enum sl_status status = SL_OK;
    for (int l = 0; l < model->config.n_layers && format != SL_WEIGHT_STORED; l++) {
        for (int i = 0; i < SL_N_LAYER_MATRICES && status == SL_OK; i++) {
            status = add_matrix(model, l, i, format, team, &total, err);
        }
    }
    if (status == SL_OK && format != SL_WEIGHT_STORED) {
        status = add_matrix(model, -1, 0, format, team, &total, err);
    }
    if (status == SL_OK) {
        *relative_out = total.square > 0.0 ? total.error / total.square : 0.0;
    }
    return status;
}
