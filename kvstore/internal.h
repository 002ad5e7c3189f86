// SPDX-License-Identifier: Apache-2.0
// Purpose: what the files of the kvstore share.
#ifndef SL_KVSTORE_INTERNAL_H
#define SL_KVSTORE_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "fabric/fetch.h"
#include "kvstore/annexes/annexes.h"
#include "kvstore/annexes/questions.h"
#include "kvstore/disk/disk.h"
#include "kvstore/kvstore.h"
#include "kvstore/memory/room.h"

// A capsule that has been announced and not yet shelved.
struct sl_expected {
    struct sl_expected *next;
    char lease_id[40];
    struct sl_capsule_keys keys;
};

// A lookup's hold on a capsule.
struct sl_pin {
    struct sl_pin *next;
    char lease_id[48];
    struct sl_stored *stored;
    int64_t deadline_ns;
    bool in_use; // a Fetch is sending from it: not to be ended now
};

struct sl_kvstore {
    struct sl_node node;
    struct sl_shelf *shelf;
    struct sl_kv_segments *segments;
    struct sl_room room;
    struct sl_disk *disk; // NULL: none
    struct sl_annexes *annexes;
    struct sl_questions *questions;
    struct sl_team *team;     // makes key indexes
    struct sl_window *window; // over the arena, for one-sided reads
    uint8_t *window_ticket;   // malloc'd
    size_t window_ticket_bytes;
    double max_scan_load;
    pthread_mutex_t mutex; // over what follows
    struct sl_expected *expected;
    struct sl_pin *pins;
    int64_t n_pins;
    uint64_t next_pin, secret;
    bool stopping;
    pthread_t keeper;
    _Atomic int64_t n_calls, n_jobs;
};

// keeper.c
void *sl_kvstore_keeper_main(void *kvstore);
// Shelve what arrives under this lease. The keys' hashes are copied.
enum sl_status sl_kvstore_expect(struct sl_kvstore *kvstore, const char *lease_id, const struct sl_capsule_keys *keys,
                                 struct sl_error *err);
bool sl_kvstore_expects(struct sl_kvstore *kvstore, const struct sl_capsule_id *id);
// Hold a pinned capsule under a lease; the id is written to id_out[48].
enum sl_status sl_kvstore_pin(struct sl_kvstore *kvstore, struct sl_stored *stored, char *id_out, struct sl_error *err);
bool sl_kvstore_renew_pin(struct sl_kvstore *kvstore, const char *lease_id);
void sl_kvstore_unpin(struct sl_kvstore *kvstore, const char *lease_id);
// Borrow the capsule of a pin for sending; give it back with sl_kvstore_return(). NULL: no such lease, or in use.
struct sl_stored *sl_kvstore_borrow(struct sl_kvstore *kvstore, const char *lease_id);
void sl_kvstore_return(struct sl_kvstore *kvstore, const char *lease_id);

// service.c: handlers of sluice.v1.Store
enum sl_status sl_store_handle_reserve(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                       struct sl_error *err);
enum sl_status sl_store_handle_renew(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                     struct sl_error *err);
enum sl_status sl_store_handle_release(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                       struct sl_error *err);
enum sl_status sl_store_handle_lookup(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                      struct sl_error *err);
enum sl_status sl_store_handle_fetch(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                     struct sl_error *err);
enum sl_status sl_store_handle_stats(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                     struct sl_error *err);

// annex_service.c: those about offloaded layers
enum sl_status sl_store_handle_open_annex(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                          struct sl_error *err);
enum sl_status sl_store_handle_grant_stretch(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                             struct sl_error *err);
enum sl_status sl_store_handle_await_annex(void *service, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                           struct sl_error *err);

#endif
