// SPDX-License-Identifier: Apache-2.0
// Purpose: jobs and workers as tables for people.
#pragma once

#include <stdio.h>

#include "proto/sluice/v1/cluster.pb-c.h"
#include "proto/sluice/v1/inference.pb-c.h"

const char *sl_job_state_name(Sluice__V1__JobState state);

void sl_jobs_print(Sluice__V1__Job *const *jobs, size_t n_jobs, FILE *file);
void sl_workers_print(const Sluice__V1__WorkersReply *reply, FILE *file);
