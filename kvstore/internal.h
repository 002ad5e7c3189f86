// SPDX-License-Identifier: Apache-2.0
// Purpose: shared by the files of the kvstore.
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "kvstore/remote_kv/remote_kv_table.h"
#include "kvstore/remote_kv/document_layers.h"
#include "kvstore/remote_kv/questions.h"
#include "kvstore/capsules/arrivals.h"
#include "kvstore/capsules/pins.h"
#include "kvstore/disk/disk.h"
#include "kvstore/disk/read_back.h"
#include "kvstore/kvstore.h"
#include "kvstore/memory/room.h"
#include "proto/sluice/v1/worker.pb-c.h"

struct sl_kvstore {
    struct sl_node node;
    struct sl_capsule_cache *capsule_cache;
    struct sl_kv_segments *segments;
    struct sl_protected *protected; // the capsules of documents
    struct sl_room room;
    struct sl_disk *disk;             // NULL: none
    struct sl_disk_reader *read_back; // NULL: none
    struct sl_pins *pins;
    struct sl_arrivals *arrivals;
    struct sl_remote_kv_pins *remote_kv_pins; // of documents
    struct sl_document_layers *layers;        // the same on disk
    struct sl_remote_kv_table *remote_kvs;
    struct sl_questions *questions;
    // of the keeper, of the remote KVs' builder and of the disk's thread
    struct sl_progress_counter keeping, building, writing;
    double max_scan_load;
    pthread_t keeper;
    _Atomic bool stopping;
    _Atomic int64_t n_calls, n_jobs;
    _Atomic int64_t n_forgotten; // capsules, since the start
    int64_t n_memory_hits;       // as reported last; used by the admin port alone
};

// service.c: handlers of sluice.v1.Store
sl_rpc_handler_fn sl_store_handle_reserve, sl_store_handle_renew, sl_store_handle_release, sl_store_handle_forget,
    sl_store_handle_lookup, sl_store_handle_fetch, sl_store_handle_stats;

// service.c: reads and checks the keys of a capsule that is announced; keys_out points into the request. SL_ERR_EXISTS: it
// is stored, or in transit.
enum sl_status sl_store_read_keys(struct sl_kvstore *kvstore, const Sluice__V1__StoreReserveRequest *request,
                                  struct sl_capsule_keys *keys_out, struct sl_error *err);

// pieces_service.c: those that carry capsules of documents to and from the coordinator
sl_rpc_handler_fn sl_store_handle_read, sl_store_handle_write;

// protect_service.c: the one about documents
sl_rpc_handler_fn sl_store_handle_protect;
// Returns the offloaded layers of a document, of which the coordinator has named the capsule.
struct sl_document_remote_kv sl_store_remote_kv_of(const struct sl_capsule_id *id, const Sluice__V1__StoreKey *key);

// remote_kv_service.c: those about offloaded layers
sl_rpc_handler_fn sl_store_handle_open_annex, sl_store_handle_grant_stretch, sl_store_handle_await_annex;
