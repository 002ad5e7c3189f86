// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: memory that transports know: regions of ours, regions of peers, and buffers for
 *          what is packed or unpacked.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/hash.h"
#include "fabric/core/core.h"

// ---- regions of ours -------------------------------------------------------------------------------------------------

struct region_command {
    struct sl_command command;
    size_t bytes;
    bool lock, done;
    enum sl_status status;
    void *base;
    struct sl_error *err;
};

static enum sl_status lock_memory(void *base, size_t bytes, struct sl_error *err) {
    if (mlock(base, bytes) == 0) {
        return SL_OK;
    }
    struct rlimit limit = {0};
    getrlimit(RLIMIT_MEMLOCK, &limit);
    return sl_fail(err, SL_ERR_PRECONDITION,
                   "cannot lock %zu bytes of memory: %s; the limit is %llu bytes (raise it with ulimit -l)", bytes,
                   strerror(errno), (unsigned long long)limit.rlim_cur);
}

static enum sl_status map_region(struct sl_fabric *fabric, size_t bytes, bool lock, struct sl_region *region,
                                 struct sl_error *err) {
    ucp_mem_map_params_t params = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS,
                                   .length = bytes,
                                   .flags = UCP_MEM_MAP_ALLOCATE};
    ucs_status_t ucs = ucp_mem_map(fabric->context, &params, &region->handle);
    if (ucs != UCS_OK) {
        return sl_fail(err, sl_ucx_status(ucs), "cannot register %zu bytes: %s", bytes, ucs_status_string(ucs));
    }
    ucp_mem_attr_t attr = {.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS | UCP_MEM_ATTR_FIELD_LENGTH};
    ucs = ucp_mem_query(region->handle, &attr);
    enum sl_status status = SL_OK;
    if (ucs == UCS_OK) {
        region->base = attr.address;
        region->bytes = bytes;
        ucs = ucp_rkey_pack(fabric->context, region->handle, &region->rkey, &region->rkey_bytes);
    }
    if (ucs != UCS_OK) {
        status = sl_fail(err, sl_ucx_status(ucs), "registered memory: %s", ucs_status_string(ucs));
    } else if (lock && (status = lock_memory(region->base, bytes, err)) != SL_OK) {
        ucp_rkey_buffer_release(region->rkey);
    }
    if (status != SL_OK) {
        ucp_mem_unmap(fabric->context, region->handle);
    }
    return status;
}

static void run_region_create(struct sl_fabric *fabric, struct sl_command *command) {
    struct region_command *call = (struct region_command *)command;
    struct sl_region *region = calloc(1, sizeof *region);
    enum sl_status status = region ? map_region(fabric, call->bytes, call->lock, region, call->err)
                                   : sl_fail(call->err, SL_ERR_EXHAUSTED, "no memory for a region");
    pthread_mutex_lock(&fabric->lock);
    if (status == SL_OK) {
        region->next = fabric->regions;
        fabric->regions = region;
        call->base = region->base;
    } else {
        free(region);
    }
    call->status = status;
    call->done = true;
    pthread_cond_broadcast(&fabric->changed);
    pthread_mutex_unlock(&fabric->lock);
}

enum sl_status sl_region_create(struct sl_fabric *fabric, size_t bytes, bool lock, void **base_out,
                                struct sl_error *err) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (bytes == 0 || bytes > SIZE_MAX - page) {
        return sl_fail(err, SL_ERR_INVALID, "a region of %zu bytes", bytes);
    }
    struct region_command call = {
        .command.run = run_region_create, .bytes = (bytes + page - 1) / page * page, .lock = lock, .err = err};
    sl_fabric_post(fabric, &call.command);
    pthread_mutex_lock(&fabric->lock);
    while (!call.done) { // commands always run, in wind_down() at the latest
        pthread_cond_wait(&fabric->changed, &fabric->lock);
    }
    pthread_mutex_unlock(&fabric->lock);
    if (call.status == SL_OK) {
        *base_out = call.base;
    }
    return call.status;
}

// Regions are never taken off the list before the fabric stops, so the result may be used without the lock.
struct sl_region *sl_fabric_region(struct sl_fabric *fabric, const void *data, size_t bytes) {
    pthread_mutex_lock(&fabric->lock);
    struct sl_region *region = fabric->regions;
    while (region && !((const uint8_t *)data >= region->base && bytes <= region->bytes &&
                       (size_t)((const uint8_t *)data - region->base) <= region->bytes - bytes)) {
        region = region->next;
    }
    pthread_mutex_unlock(&fabric->lock);
    return region;
}

void sl_fabric_use_region(struct sl_fabric *fabric, const void *data, size_t bytes, ucp_request_param_t *with) {
    const struct sl_region *region = sl_fabric_region(fabric, data, bytes);
    if (region) {
        with->op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
        with->memh = region->handle;
    }
}

void sl_fabric_free_regions(struct sl_fabric *fabric) {
    while (fabric->regions) {
        struct sl_region *region = fabric->regions;
        fabric->regions = region->next;
        ucp_rkey_buffer_release(region->rkey);
        ucp_mem_unmap(fabric->context, region->handle);
        free(region);
    }
}

// ---- regions of peers ------------------------------------------------------------------------------------------------

// Attach the owner's region, and find out whether a put to it is more than an emulation.
struct sl_remote_region *sl_peer_region(struct sl_peer *peer, const struct sl_ticket *ticket, struct sl_error *err) {
    const struct sl_wire_ticket *head = &ticket->head;
    uint64_t hash = sl_hash(ticket->rkey, head->rkey_bytes, 0);
    for (struct sl_remote_region *at = peer->regions; at; at = at->next) {
        if (at->packed_hash == hash && at->packed_bytes == head->rkey_bytes) {
            return at;
        }
    }
    struct sl_remote_region *region = calloc(1, sizeof *region);
    if (!region) {
        sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a remote region");
        return NULL;
    }
    ucs_status_t ucs = ucp_ep_rkey_unpack(peer->ep, ticket->rkey, &region->rkey);
    if (ucs != UCS_OK) {
        sl_fail(err, SL_ERR_PEER_LOST, "remote region of %s: %s", peer->name, ucs_status_string(ucs));
        free(region);
        return NULL;
    }
    /*
     * ucp_rkey_ptr() succeeds exactly when the region has been attached to this process's address space: shared
     * memory, really mapped. Whether puts then take that way is a matter of the endpoint's lanes.
     */
    void *mapped = NULL;
    char transport[32];
    sl_ucx_transport(peer->ep, transport, sizeof transport);
    bool shared =
        head->host_id == peer->fabric->host_id && ucp_rkey_ptr(region->rkey, head->remote_address, &mapped) == UCS_OK;
    bool rdma = strncmp(transport, "rc_", 3) == 0 || strncmp(transport, "dc_", 3) == 0;
    region->one_sided = rdma || (shared && strcmp(transport, "posix") == 0);
    region->mapping = shared ? (intptr_t)((uintptr_t)mapped - (uintptr_t)head->remote_address) : 0;
    region->packed_hash = hash;
    region->packed_bytes = head->rkey_bytes;
    region->next = peer->regions;
    peer->regions = region;
    return region;
}

void sl_peer_free_regions(struct sl_peer *peer) {
    while (peer->regions) {
        struct sl_remote_region *region = peer->regions;
        peer->regions = region->next;
        ucp_rkey_destroy(region->rkey);
        free(region);
    }
}

// ---- buffers ---------------------------------------------------------------------------------------------------------

void *sl_fabric_take_buffer(struct sl_fabric *fabric) {
    return fabric->n_buffers > 0 ? fabric->buffers[--fabric->n_buffers] : malloc(SL_SEGMENT_MAX_BYTES);
}

void sl_fabric_give_buffer(struct sl_fabric *fabric, void *buffer) {
    if (buffer && fabric->n_buffers < SL_N_BUFFERS) {
        fabric->buffers[fabric->n_buffers++] = buffer;
    } else {
        free(buffer);
    }
}

void sl_fabric_free_buffers(struct sl_fabric *fabric) {
    while (fabric->n_buffers > 0) {
        free(fabric->buffers[--fabric->n_buffers]);
    }
}
