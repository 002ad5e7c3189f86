// SPDX-License-Identifier: Apache-2.0
#include "net/store/store_channels.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/locked.h"

struct sl_store_channels {
    const struct sl_rpc_credentials *credentials;
    pthread_mutex_t mutex;
    struct entry {
        char address[128];
        struct sl_rpc_channel *channel;
        int n_users;
        int64_t used_ns, avoid_until_ns;
    } at[SL_STORE_CHANNELS_MAX];
    int n;
};

enum sl_status sl_store_channels_create(const struct sl_rpc_credentials *credentials,
                                        struct sl_store_channels **channels_out, struct sl_error *err) {
    struct sl_store_channels *channels = calloc(1, sizeof *channels);
    SL_FAIL_IF(!channels, err, SL_ERR_EXHAUSTED, "no memory for channels to kvstores");
    channels->credentials = credentials;
    pthread_mutex_init(&channels->mutex, NULL);
    *channels_out = channels;
    return SL_OK;
}

void sl_store_channels_destroy(struct sl_store_channels **channels) {
    struct sl_store_channels *it = *channels;
    if (it) {
        for (int i = 0; i < it->n; i++) {
            sl_rpc_channel_destroy(&it->at[i].channel);
        }
        pthread_mutex_destroy(&it->mutex);
        free(it);
        *channels = NULL;
    }
}

// Returns the entry for an address. Lock held.
static struct entry *find(struct sl_store_channels *channels, const char *address) {
    for (int i = 0; i < channels->n; i++) {
        if (strcmp(channels->at[i].address, address) == 0) {
            return &channels->at[i];
        }
    }
    return NULL;
}

// Returns an entry for one more channel; NULL: every channel is in use. Lock held.
static struct entry *make_room(struct sl_store_channels *channels) {
    if (channels->n < SL_STORE_CHANNELS_MAX) {
        return &channels->at[channels->n++];
    }
    struct entry *oldest = NULL;
    for (int i = 0; i < channels->n; i++) {
        struct entry *entry = &channels->at[i];
        if (entry->n_users == 0 && (!oldest || entry->used_ns < oldest->used_ns)) {
            oldest = entry;
        }
    }
    if (oldest) {
        sl_rpc_channel_destroy(&oldest->channel);
    }
    return oldest;
}

// Adds a channel to this address. Lock held.
static enum sl_status add(struct sl_store_channels *channels, const char *address, struct entry **entry_out,
                          struct sl_error *err) {
    struct sl_rpc_channel *channel = NULL;
    SL_FAIL_IF(strlen(address) >= sizeof channels->at->address, err, SL_ERR_INVALID,
               "kvstore address \"%.64s...\" is too long", address);
    enum sl_status status = sl_rpc_channel_create(address, channels->credentials, SL_ROLE_KVSTORE, &channel, err);
    struct entry *entry = status == SL_OK ? make_room(channels) : NULL;
    if (status == SL_OK && !entry) {
        sl_rpc_channel_destroy(&channel);
        status = sl_fail(err, SL_ERR_EXHAUSTED, "more than %d kvstores at once", SL_STORE_CHANNELS_MAX);
    }
    if (status == SL_OK) {
        *entry = (struct entry){.channel = channel};
        snprintf(entry->address, sizeof entry->address, "%s", address);
        *entry_out = entry;
    }
    return status;
}

enum sl_status sl_store_channels_take(struct sl_store_channels *channels, const char *address,
                                      struct sl_rpc_channel **channel_out, struct sl_error *err) {
    SL_LOCKED(&channels->mutex);
    struct entry *entry = find(channels, address);
    SL_TRY(entry ? SL_OK : add(channels, address, &entry, err));
    entry->n_users++;
    entry->used_ns = sl_now_ns();
    *channel_out = entry->channel;
    return SL_OK;
}

void sl_store_channels_give(struct sl_store_channels *channels, struct sl_rpc_channel *channel) {
    SL_LOCKED(&channels->mutex);
    for (int i = 0; i < channels->n; i++) {
        if (channels->at[i].channel == channel) {
            channels->at[i].n_users--;
        }
    }
}

void sl_store_channels_avoid(struct sl_store_channels *channels, const char *address, int64_t until_ns) {
    SL_LOCKED(&channels->mutex);
    struct entry *entry = find(channels, address);
    if (entry) {
        entry->avoid_until_ns = until_ns;
    }
}

bool sl_store_channels_is_avoided(struct sl_store_channels *channels, const char *address) {
    SL_LOCKED(&channels->mutex);
    const struct entry *entry = find(channels, address);
    return entry && sl_now_ns() < entry->avoid_until_ns;
}

int sl_store_channels_count(struct sl_store_channels *channels) {
    SL_LOCKED(&channels->mutex);
    return channels->n;
}
