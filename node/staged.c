// SPDX-License-Identifier: Apache-2.0
// Purpose: see staged.h.
#include "node/staged.h"

const char *sl_staged_reason(const struct sl_direct_means *means) {
    return !means->wanted                               ? "--gpudirect off"
           : !means->one_device                         ? "several devices compute one model"
           : !means->ordinary && !means->ucx_knows_cuda ? "UCX here does not know CUDA's memory, or is older than 1.16"
           : !means->ordinary && !means->has_rdma       ? "no RDMA"
           : !means->network_reaches                    ? "the device does not let RDMA into its memory"
                                                        : NULL;
}
