// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: shared by the files that implement offload.h.
 *
 *     offload.c        the engine's side: the held slots, the shipments, the end
 *     offload_store.c  calls to the stores: open, grant, await, map, renew, release
 *     offload_ship.c   the thread that ships segments and keeps leases
 *     offload_read.c   reading back: tiles, attention over them
 */
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "engine/offload/remote_kv/near.h"
#include "net/fabric/fetch.h"
#include "net/offload/prefill/offload.h"
#include "net/offload/remote/remote_kv_map.h"

#define SL_KV_SEGMENT_PAGES (SL_KV_SEGMENT_TOKENS / SL_PAGE_SLOTS)
#define SL_TILE_PAGES       (SL_ATTEND_SPLIT / SL_PAGE_SLOTS)
#define SL_MAX_LINKS        (2 * SL_MAX_SHARES) // shares and their replicas
#define SL_RING             SL_KV_SEGMENTS_HELD

// A share at a store.
struct sl_store_link {
    const Sluice__V1__StoreShare *share;
    struct sl_rpc_channel *channel;
    Sluice__V1__Annex *remote_kv; // the store's reply; NULL: not open
    struct sl_connection *connection;
    int64_t n_tokens;            // slots of the remote KV, including granted ones; used by the ships' thread
    struct sl_remote_kv_map map; // under the mutex
};

// Pages that wait to be shipped: those of slots [begin, begin + n_slots) of every offloaded head.
struct sl_shipment {
    int64_t begin;
    uint32_t n_slots;
    const void **pages;  // [n_offloaded_heads][SL_KV_SEGMENT_PAGES]: where the ship reads them
    char *staged;        // in offload->staging, if the device has its own memory: room for all of them
    struct sl_mark down; // after it, the pages have been copied down
};

// Pages of one offloaded layer that are being read back.
struct sl_read_back {
    int layer; // -1: none
    int64_t begin;
    uint32_t n_pages;
    void *const *heads[SL_MAX_HEADS]; // [n_kv_heads][n_pages]: their destination
    struct sl_fetch *fetches[SL_MAX_SHARES];
    const struct sl_store_link *from[SL_MAX_SHARES];
    int n_fetches;
    enum sl_status status; // of opening the fetches
    struct sl_error err;
};

struct sl_tile {
    struct sl_read_back read;
    void **memory;         // blocks of the arena: [n_kv_heads], each of SL_TILE_PAGES pages
    void **pages;          // of `memory`, in this order
    void *staged;          // the same in offload->staging, where reads arrive; NULL: they arrive in `memory`
    void **receive_buffer; // receive buffer: [n_kv_heads][SL_TILE_PAGES]
    bool is_up;            // the arrived pages are in `memory`
    struct sl_mark used;   // after the last attention that reads it
};

struct sl_offload {
    struct sl_node *node;
    const struct sl_plan *plan;
    const char *job_id;
    struct sl_rpc_call *parent;
    int64_t restored_by_ns; // until then it waits for documents to come back
    int64_t restore_ns;     // that it waited for them
    bool (*alive)(void *arg);
    void *arg;
    struct sl_offloaded_heads offloaded_heads;
    struct sl_page_layout work, kept; // of pages as they are read and shipped, and of full pages as the stores keep
                                      // them
    struct sl_store_link links[SL_MAX_LINKS];
    int n_links, n_replicas;
    // of an offloaded head after the whole prompt; of those, stored when the remote KVs were opened
    int64_t n_slots, n_stored;
    char *staging; // one block of staging memory for everything staged. NULL: nothing is, or not yet

    // Used by the engine's (or the handler's) thread:
    int64_t n_tokens;       // read so far
    int64_t held, n_handed; // first slot held here; slots given to the ships
    struct sl_tile tiles[2];
    struct sl_kv *kv;              // [n_kv_heads] of a tile
    struct sl_fetch_range *ranges; // [n_kv_heads * SL_TILE_PAGES] scratch
    struct sl_softmax softmax;     // of a step's rows over tiles
    float *unseen;                 // initial value of its maxima, before the first tile
    size_t softmax_rows;           // rows times query heads that fit
    int replica;                   // the replica that reads use
    bool leases_passed;            // the receiver owns the leases
    int64_t read_back_bytes, read_back_wait_ns;

    pthread_t thread;
    bool has_thread;
    atomic_bool stopping;
    pthread_mutex_t mutex; // guards the following
    pthread_cond_t changed;
    struct sl_shipment ring[SL_RING];
    int first, n_queued;
    bool no_more;     // no more segments follow the queued ones: every remote KV is to become complete
    bool complete;    // every remote KV can be asked about the whole prompt
    int64_t n_mapped; // slots whose segments are in the maps of all links
    int64_t shipped_bytes, shipped_tokens;
    enum sl_status status; // of the ships
    struct sl_error err;
};

// offload_store.c. Failures name the store, as text and as the culprit; one that does not answer or does not know our lease is
// lost (SL_ERR_PEER_LOST).
// Records a failure of a link's store: the text of *why after the store's address. Returns status.
enum sl_status sl_store_link_fail(const struct sl_store_link *link, enum sl_status status, const struct sl_error *why,
                                  struct sl_error *err);
enum sl_status sl_store_link_open(struct sl_offload *offload, struct sl_store_link *link,
                                  Sluice__V1__OpenAnnexRequest *request, struct sl_error *err);
void sl_store_link_close(struct sl_offload *offload, struct sl_store_link *link);
// Asks for a grant. SL_ERR_EXISTS: no need to ship. Free *grant_out with protobuf_c_message_free_unpacked().
enum sl_status sl_store_link_grant(struct sl_offload *offload, struct sl_store_link *link, int64_t begin,
                                   uint32_t n_slots, Sluice__V1__Grant **grant_out, struct sl_error *err);
// Waits about a second until the store can be asked about the first n_tokens. SL_AGAIN: not yet, but about
// *n_built_out.
enum sl_status sl_store_link_await(struct sl_offload *offload, struct sl_store_link *link, int64_t n_tokens,
                                   int64_t *n_built_out, struct sl_error *err);
// Asks where the first n_tokens lie.
enum sl_status sl_store_link_map(struct sl_offload *offload, struct sl_store_link *link, int64_t n_tokens,
                                 struct sl_error *err);
enum sl_status sl_store_link_renew(struct sl_offload *offload, struct sl_store_link *link, struct sl_error *err);

// offload_ship.c
void *sl_offload_ship_main(void *offload);
// Awaits and maps the first n_tokens at every link; only the ships' thread renews leases.
enum sl_status sl_offload_map(struct sl_offload *offload, int64_t n_tokens, struct sl_error *err);

// offload_read.c
enum sl_status sl_read_back_create(struct sl_offload *offload, struct sl_error *err);
void sl_read_back_destroy(struct sl_offload *offload);
size_t sl_tile_bytes(const struct sl_offload *offload);
// Reads pages of slots [held, held + n_slots) of a layer into a session, which has room for them. Waits.
enum sl_status sl_read_back_session(struct sl_offload *offload, struct sl_session *session, int layer, uint32_t n_slots,
                                    struct sl_error *err);
