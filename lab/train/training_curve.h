// SPDX-License-Identifier: Apache-2.0
// Purpose: how a run of training went, as a picture.
#pragma once

#include "lab/train/trainer.h"

// Loss and overlap by step, with their running means. SL_ERR_IO; SL_ERR_UNSUPPORTED: there is no gnuplot here.
enum sl_status sl_training_curve_draw(const struct sl_trainer *trainer, const char *title, const char *path,
                                      struct sl_error *err);
