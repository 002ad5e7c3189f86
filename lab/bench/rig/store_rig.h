// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: a real kvstore for a bench, filled with random rows, which `sluice bench decode` queries. The store is the
 *          executable beside this one; the rig ships to it and queries it through the same calls as a prefill and a
 *          decode worker.
 */
#pragma once

#include "base/child.h"
#include "client/cli/tool.h"
#include "net/offload/remote/remote_source.h"
#include "net/rpc/rpc.h"

struct sl_store_rig {
    struct sl_child child;
    char address[128]; // gRPC
    struct sl_fabric *fabric;
    struct sl_connections *connections;
    struct sl_rpc_channel *channel;
    void *region; // pages to ship
    size_t region_bytes;
    Sluice__V1__Annex *remote_kv;
    Sluice__V1__AnnexShare share; // points into remote KV
    Sluice__V1__StoreShare place;
};

// Starts the process; forks, so call it before this process has threads. arena: "6G". Close it after failures, too.
enum sl_status sl_store_rig_start(struct sl_store_rig *rig, const char *transport, const char *arena,
                                  struct sl_signals *signals, struct sl_error *err);
// Does the second part, after which there may be threads.
enum sl_status sl_store_rig_connect(struct sl_store_rig *rig, const char *transport, struct sl_error *err);

struct sl_store_filling {
    int n_offloaded_heads, head_dim;
    int64_t n_tokens;       // a multiple of 64
    int64_t segment_tokens; // likewise
    enum sl_kv_format rows, scan;
};
/*
 * Ships random pages in f16 and waits until they can be queried. seconds_out: time taken. Afterwards
 * sl_store_rig_source() returns sources for queries. One filling at a time: an earlier one is released first.
 */
enum sl_status sl_store_rig_fill(struct sl_store_rig *rig, const struct sl_store_filling *filling,
                                 struct sl_signals *signals, double *seconds_out, struct sl_error *err);
enum sl_status sl_store_rig_source(struct sl_store_rig *rig, const struct sl_plan *plan, struct sl_source **source_out,
                                   struct sl_error *err);
void sl_store_rig_close(struct sl_store_rig *rig);

// Parses lengths of prompts from "8192,32768": ascending multiples of SL_PAGE_SLOTS, for an option --tokens.
// SL_ERR_INVALID.
enum sl_status sl_store_rig_lengths(const char *text, int64_t *lengths_out, int max_lengths, int *n_out,
                                    struct sl_error *err);

// Writes the f16 bits of `count` numbers of variance 1 (uniform), the same for the same seed.
void sl_random_halves(uint16_t *out, size_t count, uint64_t seed);
