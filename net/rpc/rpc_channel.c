// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: channels: connections to servers, which gRPC makes on demand.
 *
 * Design: a server is authenticated when a connection is made. So when the revocation lists have changed, a channel is
 *         replaced before its next call: its connection to a server that was revoked is not used again. rpc_client.c
 *         ends open calls.
 */
#include <grpc/impl/codegen/propagation_bits.h>
#include <stdlib.h>
#include <string.h>

#include "base/locked.h"
#include "net/rpc/rpc_internal.h"

enum {
    KEEPALIVE_TIME_MS = 4000, // a dead server is detected within the sum of the two
    KEEPALIVE_TIMEOUT_MS = 2000,
    MIN_CONNECT_MS = 1000, // time for a connection attempt; gRPC has one setting for this and for the shortest backoff
    BACKOFF_FIRST_MS = 100,
    RESOLVE_AGAIN_MS = 1000,
};

// Makes a gRPC channel. NULL: no memory.
static grpc_channel *open_channel(const struct sl_rpc_channel *channel) {
    grpc_channel_credentials *theirs = sl_rpc_channel_credentials(channel->credentials, channel->roles, channel->name);
    if (!theirs) {
        return NULL;
    }
    const bool measures =
        sl_rpc_reads_far_ahead() && channel->roles & (SL_ROLE_KVSTORE | SL_ROLE_COORDINATOR); // others send little
    grpc_arg args[] = {
        sl_rpc_setting(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, channel->max_reply_bytes),
        sl_rpc_setting(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, -1),
        sl_rpc_setting(GRPC_ARG_KEEPALIVE_TIME_MS, KEEPALIVE_TIME_MS),
        sl_rpc_setting(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, KEEPALIVE_TIMEOUT_MS),
        sl_rpc_setting(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1),
        sl_rpc_setting(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0),
        sl_rpc_setting(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, MIN_CONNECT_MS),
        sl_rpc_setting(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, BACKOFF_FIRST_MS),
        sl_rpc_setting(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, SL_RPC_BACKOFF_MAX_MS),
        sl_rpc_setting(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, RESOLVE_AGAIN_MS),
        sl_rpc_setting(GRPC_ARG_HTTP2_BDP_PROBE, measures), // by pings, for the windows
        sl_rpc_setting(GRPC_ARG_ENABLE_HTTP_PROXY, 0),
        sl_rpc_setting(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, !channel->shares),
        // Filters and counters that every message passes, and that nothing here uses.
        sl_rpc_setting(GRPC_ARG_ENABLE_PER_MESSAGE_COMPRESSION, 0),
        sl_rpc_setting(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0),
        sl_rpc_setting(GRPC_ARG_ENABLE_CHANNELZ, 0),
        // We retry ourselves; and gRPC's own retries abort the process if a server's trailers have no status.
        sl_rpc_setting(GRPC_ARG_ENABLE_RETRIES, 0),
    };
    const grpc_channel_args all = {.num_args = sizeof args / sizeof *args, .args = args};
    grpc_channel *made = grpc_channel_create(channel->target, theirs, &all);
    grpc_channel_credentials_release(theirs);
    return made;
}

// Creates a channel. shares: shares connections with the process's other channels to the same address.
static enum sl_status create_channel(const char *address, const struct sl_rpc_credentials *credentials, unsigned roles,
                                     int max_reply_bytes, bool shares, struct sl_rpc_channel **channel_out,
                                     struct sl_error *err) {
    struct sl_rpc_address parsed;
    char name[SL_IDENTITY_BYTES];
    const char *host = sl_identity_split_address(address, name);
    SL_FAIL_IF(!host, err, SL_ERR_INVALID, "address '%.256s': the server's name is too long", address);
    SL_TRY(sl_rpc_address_parse(host, &parsed, err));
    SL_FAIL_IF(parsed.port == 0, err, SL_ERR_INVALID, "address '%s': port 0 cannot be called", address);
    SL_NEW_OR_FAIL(struct sl_rpc_channel, channel, err, "no memory for a channel to %s", address);
    *channel = (struct sl_rpc_channel){.credentials = credentials,
                                       .edition = sl_rpc_credentials_edition(credentials),
                                       .roles = roles,
                                       .max_reply_bytes = max_reply_bytes,
                                       .shares = shares};
    memcpy(channel->name, name, sizeof name);
    sl_rpc_address_target(&parsed, channel->target, sizeof channel->target);
    channel->channel = open_channel(channel);
    SL_FAIL_OR(!channel->channel, free(channel), err, SL_ERR_EXHAUSTED, "no memory for a channel to %s", address);
    pthread_mutex_init(&channel->mutex, NULL);
    sl_rpc_streams_allow_replies(max_reply_bytes);
    *channel_out = channel;
    return SL_OK;
}

enum sl_status sl_rpc_channel_create(const char *address, const struct sl_rpc_credentials *credentials, unsigned roles,
                                     struct sl_rpc_channel **channel_out, struct sl_error *err) {
    return create_channel(address, credentials, roles, SL_RPC_MAX_REPLY_BYTES, true, channel_out, err);
}

enum sl_status sl_rpc_channel_create_bounded(const char *address, const struct sl_rpc_credentials *credentials,
                                             unsigned roles, int max_reply_bytes, struct sl_rpc_channel **channel_out,
                                             struct sl_error *err) {
    return create_channel(address, credentials, roles, max_reply_bytes, true, channel_out, err);
}

enum sl_status sl_rpc_channel_create_alone(const char *address, const struct sl_rpc_credentials *credentials,
                                           unsigned roles, struct sl_rpc_channel **channel_out, struct sl_error *err) {
    return create_channel(address, credentials, roles, SL_RPC_MAX_REPLY_BYTES, false, channel_out, err);
}

void sl_rpc_channel_destroy(struct sl_rpc_channel **channel_inout) {
    SL_TAKE_OR_RETURN(channel, channel_inout);
    grpc_channel_destroy(channel->channel);
    pthread_mutex_destroy(&channel->mutex);
    free(channel);
}

// Replaces the gRPC channel if the revocation lists were read again; without memory, before the next call. Lock held.
static void renew(struct sl_rpc_channel *channel) {
    const uint64_t edition = sl_rpc_credentials_edition(channel->credentials);
    grpc_channel *made = edition != channel->edition ? open_channel(channel) : NULL;
    if (made) {
        grpc_channel_destroy(channel->channel); // open calls keep what they need
        channel->channel = made;
        channel->edition = edition;
    }
}

grpc_call *sl_rpc_channel_call(struct sl_rpc_channel *channel, const char *path, int64_t deadline_ns,
                               struct sl_rpc_call *parent) {
    grpc_slice method = grpc_slice_from_copied_string(path);
    SL_LOCKED(&channel->mutex);
    renew(channel);
    grpc_call *call =
        grpc_channel_create_call(channel->channel, parent ? parent->call : NULL, GRPC_PROPAGATE_DEFAULTS,
                                 sl_rpc_queue(), method, NULL, sl_rpc_deadline_to_timespec(deadline_ns), NULL);
    grpc_slice_unref(method);
    return call;
}

uint64_t sl_rpc_channel_edition(struct sl_rpc_channel *channel) {
    SL_LOCKED(&channel->mutex);
    return channel->edition;
}

void sl_rpc_channel_reset_backoff(struct sl_rpc_channel *channel) {
    SL_LOCKED(&channel->mutex);
    grpc_channel_reset_connect_backoff(channel->channel);
}
