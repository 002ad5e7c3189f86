// SPDX-License-Identifier: Apache-2.0
// Purpose: finds the Python packages of lab/sluice_eval.
#pragma once

#include "base/status.h"

// Makes the packages, installed or of this checkout, known to Python processes that this one becomes or starts.
enum sl_status sl_python_set_path(struct sl_error *err);
