// SPDX-License-Identifier: Apache-2.0
// Purpose: how fast one thread scans channels of keys (ops->host.scan), compared with how fast it reads memory.
#pragma once

#include "engine/tensor/ops.h"

struct sl_scan_speed_config {
    const struct sl_ops *ops;
    struct sl_team *team; // a team of one thread
    enum sl_kv_format format;
    int head_dim, n_channels;
    uint32_t n_slots; // of a key index
    int runs;
    struct sl_signals *signals; // one of them ends it with SL_ERR_CANCELLED
};

struct sl_scan_speed {
    double scan_gbps;    // 1e9 bytes of codes a second: medians
    double select_share; // share of finding the topk scores in the time of scan and select
    double read_gbps;    // the same thread's plain sum over memory of the same size
    double ratio;        // median of the runs' own
};

// Measures. topk: of select. SL_ERR_EXHAUSTED: no memory.
enum sl_status sl_scan_speed_measure(const struct sl_scan_speed_config *config, uint32_t topk,
                                     struct sl_scan_speed *speed_out, struct sl_error *err);
