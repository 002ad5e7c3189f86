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
#include "fabric/core/ucx.h"

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

static void unmap_region(struct sl_fabric *fabric, struct sl_region *region) {
    if (region->handle) {
        sl_ucx_unmap(fabric, region);
    } else {
        munmap(region->base, region->bytes);
    }
}

// Of UCX where it is there, so that peers on this host can put into it.
static enum sl_status map_region(struct sl_fabric *fabric, size_t bytes, bool lock, struct sl_region *region,
                                 struct sl_error *err) {
    enum sl_status status = SL_OK;
    if (fabric->ucx) {
        status = sl_ucx_map(fabric, bytes, region, err);
    } else {
        void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (base == MAP_FAILED) {
            return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a region of %zu bytes: %s", bytes, strerror(errno));
        }
        *region = (struct sl_region){.base = base, .bytes = bytes};
    }
    if (status == SL_OK && lock && (status = lock_memory(region->base, bytes, err)) != SL_OK) {
        unmap_region(fabric, region);
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

void sl_fabric_free_regions(struct sl_fabric *fabric) {
    while (fabric->regions) {
        struct sl_region *region = fabric->regions;
        fabric->regions = region->next;
        unmap_region(fabric, region);
        free(region);
    }
}

// ---- regions of peers ------------------------------------------------------------------------------------------------

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
    // Without UCX on both sides there is nothing to attach: everything goes by message.
    if (peer->ep && head->rkey_bytes > 0 && sl_ucx_attach(peer, ticket, region, err) != SL_OK) {
        free(region);
        return NULL;
    }
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
        sl_ucx_detach(region);
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
