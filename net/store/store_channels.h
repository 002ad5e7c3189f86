// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: channels to kvstores, kept between jobs, and which stores to avoid. Stores come and go during the life of a
 *          worker: when MAX channels exist, the one that has been unused for longest is closed for a new one.
 *
 * Design: a store that fails is avoided for a while, twice as long if it fails again soon. Afterwards it is on trial: the
 *         next job starts a call that no job waits for, and its outcome decides.
 *
 *     GOOD --failed--> AVOIDED --time--> ON_TRIAL --a call is left--> AVOIDED --its outcome--> GOOD, or AVOIDED for longer
 *       \------------a call is left-------------------------------------^
 *
 *         With certificates the record is of the store's name: a store that registers anew from another port keeps it.
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

enum sl_store_standing { SL_STORE_GOOD, SL_STORE_AVOIDED, SL_STORE_ON_TRIAL };
enum sl_store_standing sl_store_channels_standing(struct sl_store_channels *channels, const char *address);

// Records that the store has failed, or has done what was asked.
void sl_store_channels_note(struct sl_store_channels *channels, const char *address, bool failed);

// Takes over a unary call to the store that its caller no longer waits for. The store is avoided until the call ends.
void sl_store_channels_leave(struct sl_store_channels *channels, const char *address, struct sl_rpc_stream **call);

int sl_store_channels_count(struct sl_store_channels *channels);
