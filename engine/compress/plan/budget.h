// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: divides a budget over layers. Arithmetic on host arrays, no tensors. ops->budgets divides it over the
 *          heads of a layer.
 *
 * Invariants: the shares of every division sum to the total exactly, and no share exceeds its upper bound.
 */
#pragma once

#include <stdint.h>

#include "engine/compress/recipe/recipe.h"

/*
 * Divides `total` slots in proportion to weights[n] (>= 0, finite; all zero: equally), at least `least` and at most
 * `most` each. The excess of a clipped share goes to the others in proportion (water-filling). Rounds by largest
 * remainder, ties by index. Requires n * least <= total <= n * most.
 */
void sl_budget_divide(int64_t total, const double *weights, int n, int64_t least, int64_t most, int64_t *shares_out);

/*
 * PyramidKV: shares fall linearly from the first layer to the last. With mean budget b, the last layer gets b / beta
 * and the first 2b - b / beta (beta = 20).
 */
void sl_budget_pyramid(int64_t total, int n_layers, int64_t least, int64_t most, int64_t *shares_out);

/*
 * Computes D2O's weights (section 3.2): softmax_l(-x_l) of the layers' attention density. `variances`
 * [n_layers][n_heads]: unbiased variance over slots of the column sums of attention. Three readings of x_l:
 *     SL_LAYERS_D2O         per layer: mean of the variances after min-max normalization over its heads
 *                           ((v - min) / (max - min + 1e-6))
 *     SL_LAYERS_D2O_RAW     mean variance of the layer's heads, not normalized (log-sum-exp: it can underflow to 0 but
 *                           never become NaN)
 *     SL_LAYERS_D2O_MINMAX  mean variance, min-max normalized over the layers
 */
void sl_budget_d2o_weights(enum sl_split_layers reading, const double *variances, int n_layers, int n_heads,
                           double *weights_out);
