// SPDX-License-Identifier: Apache-2.0
// Purpose: Linux's figures about this process, under the metric names of Prometheus' own client libraries.
#pragma once

#include <stdio.h>

void sl_process_write_metrics(FILE *page); // omits what cannot be read
