// SPDX-License-Identifier: Apache-2.0
#include "net/node/staged.h"

#include <stdio.h>

const char *sl_staged_reason(const struct sl_direct_means *means, char *buf, size_t buf_bytes) {
    if (!means->wanted) {
        return "--gpudirect off";
    }
    if (!means->one_device) {
        return "several devices compute one model";
    }
    if (!means->ordinary && !means->ucx_is_new) {
        snprintf(buf, buf_bytes, "UCX here is %s, and 1.16 or newer is needed", means->ucx);
        return buf;
    }
    if (!means->ordinary && !means->ucx_knows_cuda) {
        snprintf(buf, buf_bytes,
                 "UCX %s here does not know CUDA's memory: it was built without CUDA, or finds no driver", means->ucx);
        return buf;
    }
    return !means->ordinary && !means->has_rdma ? "no RDMA"
           : !means->network_reaches            ? "the device does not let RDMA into its memory"
                                                : NULL;
}
