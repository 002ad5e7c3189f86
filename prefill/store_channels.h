// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: channels to kvstores, kept between jobs. Stores come and go in the life of a worker: when MAX are there, the one
 *          that nobody has used for longest makes room.
 * Threads: any number.
 */
#pragma once

#include <stdbool.h>

#include "net/rpc/rpc.h"

#define SL_STORE_CHANNELS_MAX 64

struct sl_store_channels;

// credentials outlive the channels; may be NULL.
enum sl_status sl_store_channels_create(const struct sl_rpc_credentials *credentials,
                                        struct sl_store_channels **channels_out, struct sl_error *err);
void sl_store_channels_destroy(struct sl_store_channels **channels); // all given back; accepts NULL, nulls

// The channel to this store, to be given back. SL_ERR_EXHAUSTED: all of them are in use.
enum sl_status sl_store_channels_take(struct sl_store_channels *channels, const char *address,
                                      struct sl_rpc_channel **channel_out, struct sl_error *err);
void sl_store_channels_give(struct sl_store_channels *channels, struct sl_rpc_channel *channel);

// A store that has failed a fetch is not asked for a while.
void sl_store_channels_avoid(struct sl_store_channels *channels, const char *address, int64_t until_ns);
bool sl_store_channels_is_avoided(struct sl_store_channels *channels, const char *address);

int sl_store_channels_count(struct sl_store_channels *channels);
