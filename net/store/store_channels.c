// SPDX-License-Identifier: Apache-2.0
#include "net/store/store_channels.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/locked.h"

#define AVOID_MS      10000 // after a first failure
#define MOST_AVOID_MS 80000

struct sl_store_channels {
    const struct sl_rpc_credentials *credentials;
    pthread_mutex_t mutex;
    struct entry {
        char address[128];
        struct sl_rpc_channel *channel;
        int n_users;
        int64_t used_ns;
        struct record {
            bool failed; // since it last did what was asked
            int64_t avoid_ms, until_ns;
        } record;
        struct sl_rpc_stream *left; // NULL: none
    } at[SL_STORE_CHANNELS_MAX];
    int n;
};

enum sl_status sl_store_channels_create(const struct sl_rpc_credentials *credentials,
                                        struct sl_store_channels **channels_out, struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_store_channels, channels, err, "no memory for channels to kvstores");
    channels->credentials = credentials;
    pthread_mutex_init(&channels->mutex, NULL);
    *channels_out = channels;
    return SL_OK;
}

static void close_entry(struct entry *entry) {
    sl_rpc_stream_close(&entry->left);
    sl_rpc_channel_destroy(&entry->channel);
}

void sl_store_channels_destroy(struct sl_store_channels **channels) {
    SL_TAKE_OR_RETURN(it, channels);
    for (int i = 0; i < it->n; i++) {
        close_entry(&it->at[i]);
    }
    pthread_mutex_destroy(&it->mutex);
    free(it);
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

// Returns the record of an address: its own, or the last one of the same name at another address. Lock held.
static struct record record_of(const struct sl_store_channels *channels, const char *address) {
    const char *at = strchr(address, '@');
    struct record record = {0};
    for (int i = 0; i < channels->n; i++) {
        const struct entry *entry = &channels->at[i];
        if (strcmp(entry->address, address) == 0) {
            return entry->record;
        }
        bool same = at && strncmp(entry->address, address, (size_t)(at - address) + 1) == 0;
        if (same && entry->record.until_ns >= record.until_ns) {
            record = entry->record;
        }
    }
    return record;
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
        close_entry(oldest);
    }
    return oldest;
}

static enum sl_status add(struct sl_store_channels *channels, const char *address, struct entry **entry_out,
                          struct sl_error *err) {
    struct sl_rpc_channel *channel = NULL;
    SL_FAIL_IF(strlen(address) >= sizeof channels->at->address, err, SL_ERR_INVALID,
               "kvstore address \"%.64s...\" is too long", address);
    enum sl_status status = sl_rpc_channel_create(address, channels->credentials, SL_ROLE_KVSTORE, &channel, err);
    const struct record record = record_of(channels, address);
    struct entry *entry = status == SL_OK ? make_room(channels) : NULL;
    if (status == SL_OK && !entry) {
        sl_rpc_channel_destroy(&channel);
        status = sl_fail(err, SL_ERR_EXHAUSTED, "more than %d kvstores at once", SL_STORE_CHANNELS_MAX);
    }
    if (status == SL_OK) {
        *entry = (struct entry){.channel = channel, .record = record};
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

static void note(struct record *record, bool failed) {
    const int64_t now_ns = sl_now_ns();
    if (record->failed && now_ns < record->until_ns) { // the call was under way when another one failed
        return;
    }
    record->failed = failed;
    if (failed) {
        const bool is_soon = now_ns < record->until_ns + record->avoid_ms * SL_NS_PER_MS;
        const int64_t twice_ms = 2 * record->avoid_ms < MOST_AVOID_MS ? 2 * record->avoid_ms : MOST_AVOID_MS;
        record->avoid_ms = is_soon ? twice_ms : AVOID_MS;
        record->until_ns = now_ns + record->avoid_ms * SL_NS_PER_MS;
    }
}

// Records the outcome of the call that was left, if it has ended. A lease in its reply ends by itself. Lock held.
static void look_at_left(struct entry *entry) {
    ProtobufCMessage *reply = NULL;
    struct sl_error err = {0};
    const enum sl_status status = sl_rpc_stream_next(entry->left, 0, &reply, &err);
    if (status != SL_AGAIN) {
        if (status == SL_OK) {
            protobuf_c_message_free_unpacked(reply, NULL);
        }
        note(&entry->record, status != SL_OK && err.status != SL_ERR_NOT_FOUND);
        sl_rpc_stream_close(&entry->left);
    }
}

enum sl_store_standing sl_store_channels_standing(struct sl_store_channels *channels, const char *address) {
    SL_LOCKED(&channels->mutex);
    struct entry *entry = find(channels, address);
    if (entry && entry->left) {
        look_at_left(entry);
    }
    const struct record record = record_of(channels, address);
    return (entry && entry->left) || (record.failed && sl_now_ns() < record.until_ns) ? SL_STORE_AVOIDED
           : record.failed                                                            ? SL_STORE_ON_TRIAL
                                                                                      : SL_STORE_GOOD;
}

void sl_store_channels_note(struct sl_store_channels *channels, const char *address, bool failed) {
    SL_LOCKED(&channels->mutex);
    struct entry *entry = find(channels, address);
    if (entry) {
        note(&entry->record, failed);
    }
}

void sl_store_channels_leave(struct sl_store_channels *channels, const char *address, struct sl_rpc_stream **call) {
    SL_LOCKED(&channels->mutex);
    struct entry *entry = find(channels, address);
    if (entry && !entry->left) {
        entry->left = *call;
        *call = NULL;
    }
    sl_rpc_stream_close(call); // another one is waited for already
}

int sl_store_channels_count(struct sl_store_channels *channels) {
    SL_LOCKED(&channels->mutex);
    return channels->n;
}
