// SPDX-License-Identifier: Apache-2.0
// Purpose: the size of a job's id, the same in the coordinator, which makes ids, and in clients.
#pragma once

#define SL_JOB_ID_BYTES 64 // with the terminating zero
