// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: retrieve=pull: reads rows and channels from a store's memory where that works without the store's threads.
 *
 * Design: reads go to the store that would be asked first, into the buffer of its answer. They too get half of the
 *         time; if one fails, the question is asked as if there had been no read. A store's map is requested when
 *         something could have been read, and is not waited for. Reads renew no lease, and memory of a remote KV
 *         without a lease may hold other data. So a question is sent whenever a third of the lease has passed without
 *         one, and data that arrives after the lease's end is not used.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "net/offload/remote/remote_internal.h"

#define MAP_MS       2000
#define LEASE_MAX_MS 3600000 // renewed three times within it, however long the store's lease is

bool sl_replica_set_up_reads(struct sl_replica *replica, const Sluice__V1__AnnexShare *remote_kv,
                             const struct sl_plan *plan) {
    int layer = 0;
    while (!sl_layers_has(&plan->recipe.offload, layer)) {
        layer++;
    }
    replica->map =
        (struct sl_remote_kv_map){.first_offloaded_head = remote_kv->share->first_lane,
                                  .n_offloaded_heads = remote_kv->share->n_lanes,
                                  .work = plan->work[layer], // the same for all layers: engine/compress/recipe/recipe.h
                                  .scan = sl_plan_scan_format(plan)};
    replica->lease_ms = remote_kv->lease_ms < LEASE_MAX_MS ? remote_kv->lease_ms : LEASE_MAX_MS;
    replica->window_bytes = remote_kv->window.len;
    replica->is_read =
        plan->recipe.retrieve == SL_RETRIEVE_PULL && remote_kv->lease_ms > 0 && remote_kv->window.len > 0 &&
        sl_page_layout_init(&replica->map.kept, sl_plan_row_format(plan), plan->geometry.head_dim, 0, false) == SL_OK;
    replica->window = malloc(remote_kv->window.len + 1);
    if (replica->window && remote_kv->window.len > 0) {
        memcpy(replica->window, remote_kv->window.data, remote_kv->window.len);
    }
    return replica->window != NULL;
}

// Returns true if windows are mapped or read by hardware on this connection. On others the peer's progress thread would
// send the data, as it sends answers.
static bool reads_well(const struct sl_connection *connection) {
    const char *transport = sl_connection_transport(connection);
    return strcmp(transport, "shm") == 0 || strcmp(transport, "rdma") == 0;
}

static void read_no_more(struct sl_replica *replica, const struct sl_error *why) {
    sl_log_warn("retrieve", "store %s is asked for what could be read there: %s", replica->store, why->text);
    replica->is_read = false;
}

// Returns true if the map of the store's segments is known. Otherwise requests it, and checks for the answer the next
// time.
static bool has_map(struct sl_remote *r, struct sl_replica *replica) {
    if (replica->map.segments) {
        return true;
    }
    struct sl_near_request request = sl_remote_kv_map_request(&replica->map, replica->remote_kv_id);
    size_t capacity = sl_remote_kv_map_answer_limit(r->n_prompt), bytes;
    struct sl_error why = {0};
    enum sl_status status = SL_OK;
    if (!replica->map_request) {
        if (!replica->map_answer && !(replica->map_answer = aligned_alloc(64, (capacity + 63) / 64 * 64))) {
            status = sl_fail(&why, SL_ERR_EXHAUSTED, "no memory for a map of %zu bytes", capacity);
        } else {
            struct sl_fabric_question question = {.body = &request,
                                                  .body_bytes = sizeof request,
                                                  .reply_out = replica->map_answer,
                                                  .reply_capacity = capacity,
                                                  .deadline_ns = sl_deadline_in_ms(MAP_MS)};
            status = sl_fabric_request_open(replica->connection, &question, &replica->map_request, &why);
        }
        if (status != SL_OK) {
            read_no_more(replica, &why);
        }
        return false;
    }
    status = sl_fabric_request_wait(replica->map_request, 0, &bytes, &why);
    if (status == SL_AGAIN) {
        return false;
    }
    sl_fabric_request_close(&replica->map_request);
    SL_THEN(status, sl_remote_kv_map_read(&replica->map, &request, replica->map_answer, bytes, r->n_prompt, &why));
    if (status != SL_OK && !sl_ask_may_pass(status)) {
        read_no_more(replica, &why);
    }
    return status == SL_OK;
}

// Lists the ranges of a request's answer in r->ranges. 0: the store must be asked.
static size_t list_ranges(struct sl_remote *r, const struct sl_remote_kv_map *map, const struct sl_near_request *head,
                          struct sl_asked *asked, int i) {
    const char *body = asked->request + sizeof *head;
    size_t n = sl_remote_kv_map_n_ranges(map, head, body);
    if (n > r->ranges_cap) {
        free(r->ranges);
        r->ranges = malloc(n * sizeof *r->ranges);
        r->ranges_cap = r->ranges ? n : 0;
    }
    if (n == 0 || n > r->ranges_cap || !sl_asked_make_room(&r->base, asked, i)) {
        return 0;
    }
    asked->read_bytes = sl_remote_kv_map_answer(map, head, body, asked->replicas[i].answer, r->ranges);
    return n;
}

bool sl_remote_begin_read(struct sl_remote *r, struct sl_asked *asked) {
    int i = asked->share->first;
    struct sl_replica *replica = &asked->share->replicas[i];
    struct sl_near_request head;
    memcpy(&head, asked->request, sizeof head);
    if (!replica->is_read || !replica->connection || !reads_well(replica->connection) ||
        (head.kind != SL_NEAR_ROWS && head.kind != SL_NEAR_CHANNELS) || !has_map(r, replica) ||
        asked->asked_ns - replica->renewed_ns > replica->lease_ms * SL_NS_PER_MS / 3) {
        return false;
    }
    size_t n = list_ranges(r, &replica->map, &head, asked, i);
    if (n == 0) {
        return false;
    }
    struct sl_error why = {0};
    asked->reads = i;
    struct sl_fetch_plan plan = {.ticket = replica->window,
                                 .ticket_bytes = replica->window_bytes,
                                 .ranges = r->ranges,
                                 .n_ranges = n,
                                 .deadline_ns = sl_asked_half(asked)};
    enum sl_status status = sl_fetch_open(replica->connection, &plan, &asked->fetch, &why);
    if (status != SL_OK && !sl_ask_may_pass(status)) {
        read_no_more(replica, &why);
    }
    return status == SL_OK;
}

enum sl_status sl_remote_end_read(struct sl_remote *r, struct sl_asked *asked) {
    struct sl_replica *replica = &asked->share->replicas[asked->reads];
    struct sl_error why = {0};
    enum sl_status status = sl_fetch_wait(asked->fetch, sl_asked_half(asked), &why);
    sl_fetch_close(&asked->fetch);
    SL_THEN(status, sl_now_ns() - replica->renewed_ns >= replica->lease_ms * SL_NS_PER_MS ? SL_ERR_DEADLINE : SL_OK);
    if (status < SL_OK && !sl_ask_may_pass(status)) {
        read_no_more(replica, &why);
    }
    r->base.n_reads += status == SL_OK;
    return status;
}
