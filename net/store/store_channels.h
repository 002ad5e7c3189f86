// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: channels to kvstores, kept between jobs. Stores come and go during the life of a worker: when MAX channels
 *          exist, the one that has been unused for longest is closed for a new one.
 * Threads: any number.
 */
#pragma once

#include <stdbool.h>

#include "net/rpc/rpc.h"

#define SL_STORE_CHANNELS_MAX 64

struct sl_store_channels;

// Creates an empty set. credentials outlive the channels; may be NULL.
enum sl_status sl_store_channels_create(const struct sl_rpc_credentials *credentials,
                                        struct sl_store_channels **channels_out, struct sl_error *err);
// All channels must have been given back; accepts NULL, nulls
void sl_store_channels_destroy(struct sl_store_channels **channels);

// Returns the channel to this store; the caller gives it back. SL_ERR_EXHAUSTED: all of them are in use.
enum sl_status sl_store_channels_take(struct sl_store_channels *channels, const char *address,
                                      struct sl_rpc_channel **channel_out, struct sl_error *err);
void sl_store_channels_give(struct sl_store_channels *channels, struct sl_rpc_channel *channel);

// Avoids a store that has failed a fetch, for a while.
void sl_store_channels_avoid(struct sl_store_channels *channels, const char *address, int64_t until_ns);
bool sl_store_channels_is_avoided(struct sl_store_channels *channels, const char *address);

int sl_store_channels_count(struct sl_store_channels *channels);
