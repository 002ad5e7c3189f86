// SPDX-License-Identifier: Apache-2.0
// Purpose: what Linux says of this process, under the names that Prometheus' own libraries have for it.
#pragma once

#include <stdio.h>

void sl_process_write_metrics(FILE *page); // what cannot be read is left out
