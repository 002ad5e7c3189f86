// SPDX-License-Identifier: Apache-2.0
// Purpose: see staged.h.
#include "node/staged.h"

const char *sl_staged_reason(const struct sl_direct_means *means) {
    return !means->ucx_knows_cuda    ? "UCX here does not know CUDA's memory"
           : !means->has_rdma        ? "no RDMA"
           : !means->network_reaches ? "the device does not let RDMA into its memory"
                                     : "digests are computed by the host";
}
