// SPDX-License-Identifier: Apache-2.0
// Purpose: plots the progress of a training run.
#pragma once

#include "lab/train/trainer.h"

// Plots loss and overlap by step, with their running means. SL_ERR_IO; SL_ERR_UNSUPPORTED: gnuplot is not installed.
enum sl_status sl_training_curve_draw(const struct sl_trainer *trainer, const char *title, const char *path,
                                      struct sl_error *err);
