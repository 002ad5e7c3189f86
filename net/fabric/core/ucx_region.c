// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: memory that UCX knows at both ends: our regions, and regions of peers attached here.
 *
 * Design: UCX parses a peer's key without checks. It trusts every length in the key, and translates any address into
 *         our address space, even one outside of the region. So a key is followed by as many zeros as UCX could read,
 *         and the range of an attached region is not taken from the peer: it is the mapping that appeared when the key
 *         was unpacked. When UCX cannot attach a memory, because its owner has ended, it releases that memory all the
 *         same, and crashes. So the owner's file is looked for first.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/close.h"
#include "base/array.h"
#include "base/log.h"
#include "net/fabric/core/ucx_internal.h"

// UCX reads a key's lengths from the key: one byte each, for at most 64 memory domains.
#define KEY_READ_MAX_BYTES ((size_t)64 * 256 + SL_PLACE_KEY_MAX_BYTES)

// ---- regions of ours -------------------------------------------------------------------------------------------------

enum sl_status sl_ucx_map(struct sl_fabric *fabric, size_t bytes, struct sl_region *region, struct sl_error *err) {
    ucp_context_h context = fabric->ucx->context;
    ucp_mem_map_params_t params = {.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                                                 UCP_MEM_MAP_PARAM_FIELD_FLAGS,
                                   .address = region->base,
                                   .length = bytes,
                                   .flags = UCP_MEM_MAP_ALLOCATE | (region->base ? UCP_MEM_MAP_FIXED : 0)};
    ucp_mem_h handle = NULL;
    ucs_status_t ucs = ucp_mem_map(context, &params, &handle);
    SL_FAIL_IF(ucs != UCS_OK, err, sl_ucx_status(ucs), "cannot register %zu bytes: %s", bytes, ucs_status_string(ucs));
    ucp_mem_attr_t attr = {.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS | UCP_MEM_ATTR_FIELD_LENGTH};
    ucs = ucp_mem_query(handle, &attr);
    if (ucs == UCS_OK) {
        region->base = attr.address;
        region->bytes = bytes;
        ucs = ucp_rkey_pack(context, handle, &region->rkey, &region->rkey_bytes);
    }
    SL_FAIL_OR(ucs != UCS_OK, ucp_mem_unmap(context, handle), err, sl_ucx_status(ucs), "registered memory: %s",
               ucs_status_string(ucs));
    region->handle = handle;
    return SL_OK;
}

// Registers memory. For sending: no peer gets a key, and a guessed one opens nothing. For arrival: the holder of the
// key may write, not read.
enum sl_status sl_ucx_register(struct sl_fabric *fabric, struct sl_region *region, struct sl_error *err) {
    ucp_mem_map_params_t params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_PROT |
                      UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE,
        .address = region->seen,
        .length = region->bytes,
        .prot = region->arrives
                    ? UCP_MEM_MAP_PROT_LOCAL_READ | UCP_MEM_MAP_PROT_LOCAL_WRITE | UCP_MEM_MAP_PROT_REMOTE_WRITE
                    : UCP_MEM_MAP_PROT_LOCAL_READ,
        .memory_type = sl_region_is_cuda(region) ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST};
    ucp_mem_h handle = NULL;
    ucs_status_t ucs = ucp_mem_map(fabric->ucx->context, &params, &handle);
    if (ucs == UCS_OK && region->arrives) {
        ucs = ucp_rkey_pack(fabric->ucx->context, handle, &region->rkey, &region->rkey_bytes);
        if (ucs != UCS_OK) {
            ucp_mem_unmap(fabric->ucx->context, handle);
        }
    }
    SL_FAIL_IF(ucs != UCS_OK, err, SL_ERR_UNSUPPORTED, "UCX cannot register %zu bytes of the device's memory: %s",
               region->bytes, ucs_status_string(ucs));
    region->handle = handle;
    return SL_OK;
}

void sl_ucx_unmap(struct sl_fabric *fabric, struct sl_region *region) {
    if (region->rkey) {
        ucp_rkey_buffer_release(region->rkey);
    }
    ucp_mem_unmap(fabric->ucx->context, region->handle);
}

// ---- regions of peers ------------------------------------------------------------------------------------------------

struct mappings { // shared mappings of this process
    size_t n, capacity;
    struct {
        uintptr_t begin, end;
    } * at;
};

static bool add_mapping(struct mappings *mappings, uintptr_t begin, uintptr_t end) {
    if (!SL_GROW(mappings->at, mappings->n, mappings->capacity)) {
        return false;
    }
    mappings->at[mappings->n].begin = begin;
    mappings->at[mappings->n++].end = end;
    return true;
}

// Reads them from the kernel. False: they cannot be listed.
static bool list_mappings(struct mappings *mappings) {
    FILE *file = fopen("/proc/self/maps", "r");
    char *line = NULL;
    size_t line_bytes = 0;
    bool known = file != NULL;
    *mappings = (struct mappings){0};
    while (known && getline(&line, &line_bytes, file) > 0) {
        unsigned long long begin, end;
        char rights[5];
        if (sscanf(line, "%llx-%llx %4s", &begin, &end, rights) == 3 && rights[3] == 's') {
            known = add_mapping(mappings, (uintptr_t)begin, (uintptr_t)end);
        }
    }
    free(line);
    sl_close_file(file);
    return known;
}

// Finds the mapping that contains `at` and did not exist before.
static bool find_new(const struct mappings *before, const struct mappings *after, uintptr_t at,
                     struct sl_remote_region *region) {
    for (size_t i = 0; i < after->n; i++) {
        uintptr_t begin = after->at[i].begin, end = after->at[i].end;
        if (at < begin || at >= end) {
            continue;
        }
        for (size_t j = 0; j < before->n; j++) {
            if (begin < before->at[j].end && before->at[j].begin < end) {
                return false;
            }
        }
        region->begin = begin;
        region->end = end;
        return true;
    }
    return false;
}

/*
 * Checks that the memory of a key can be attached. A key of UCX: memory domains (64 bits), type of memory (a byte), and
 * of each domain the length (a byte) and what it packs. Shared memory packs where its file is found, /proc/PID/fd/FD, in
 * 64 bits: four flags, of which the uppermost says that it is there, FD, PID (30 bits each). Address and length follow.
 * SL_ERR_PEER_LOST: there is no such file.
 */
static enum sl_status find_shared_file(const struct sl_peer *peer, const struct sl_place *place, struct sl_error *err) {
    enum { PID_BITS = 30, SHARED_BYTES = 24 };
    const uint64_t mask = (UINT64_C(1) << PID_BITS) - 1;
    const size_t n = place->head.key_bytes;
    for (size_t at = sizeof(uint64_t) + 1; at < n; at += 1 + (size_t)place->key[at]) {
        uint64_t found;
        if (place->key[at] < SHARED_BYTES || at + SHARED_BYTES >= n) {
            continue;
        }
        memcpy(&found, place->key + at + 1, sizeof found);
        if (found >> 63) {
            char path[64];
            snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)(found & mask), (int)(found >> PID_BITS & mask));
            SL_FAIL_IF(access(path, F_OK) != 0, err, SL_ERR_PEER_LOST, "memory of %s: %s: %m: its process has ended",
                       peer->name, path);
        }
    }
    return SL_OK;
}

static ucs_status_t unpack(struct sl_peer *peer, const struct sl_place *place, ucp_rkey_h *rkey_out) {
    uint8_t *padded = calloc(1, KEY_READ_MAX_BYTES);
    if (!padded) {
        return UCS_ERR_NO_MEMORY;
    }
    memcpy(padded, place->key, place->head.key_bytes);
    ucs_status_t ucs = ucp_ep_rkey_unpack(peer->ep, padded, rkey_out);
    free(padded);
    return ucs;
}

/*
 * Attaches the owner's region, and finds out whether a put to it is real or emulated. ucp_rkey_ptr() succeeds exactly
 * when the region has been attached to this process's address space, that is, shared memory is mapped. The endpoint's
 * lanes decide whether puts then use that.
 */
enum sl_status sl_ucx_attach(struct sl_peer *peer, const struct sl_place *place, struct sl_remote_region *region,
                             struct sl_error *err) {
    if (sl_ucx_shares_memory(peer)) { // else UCX ignores that part of the key
        SL_TRY(find_shared_file(peer, place, err));
    }
    struct mappings before, after = {0};
    bool known = list_mappings(&before);
    ucp_rkey_h rkey = NULL;
    ucs_status_t ucs = unpack(peer, place, &rkey);
    SL_FAIL_OR(ucs != UCS_OK, free(before.at), err, SL_ERR_PEER_LOST, "remote region of %s: %s", peer->name,
               ucs_status_string(ucs));
    void *mapped = NULL;
    char transport[32];
    sl_ucx_transport(peer, transport, sizeof transport);
    bool shared = peer->near && ucp_rkey_ptr(rkey, place->head.address, &mapped) == UCS_OK;
    if (shared && !(known && list_mappings(&after) && find_new(&before, &after, (uintptr_t)mapped, region))) {
        sl_log_warn("fabric", "peer=%s says that its memory lies where nothing of it is mapped: it goes by messages",
                    peer->name);
        shared = false;
    }
    free(before.at);
    free(after.at);
    bool rdma = strncmp(transport, "rc_", 3) == 0 || strncmp(transport, "dc_", 3) == 0;
    region->rkey = rkey;
    region->rdma = rdma;
    region->one_sided = rdma || (shared && strcmp(transport, "posix") == 0);
    region->mapping = shared ? (intptr_t)((uintptr_t)mapped - (uintptr_t)place->head.address) : 0;
    return SL_OK;
}

void sl_ucx_detach(struct sl_remote_region *region) {
    if (region->rkey) {
        ucp_rkey_destroy(region->rkey);
    }
}
