// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: memory that transports know: our regions, regions of peers, and buffers for packing and unpacking.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "net/fabric/core/huge.h"
#include "base/locked.h"
#include "net/fabric/core/ucx.h"

#define MAX_REMOTE_REGIONS 64 // per peer
#define HUGE_PAGE_SHIFT    21 // 2 MiB: available on every x86 and in Kubernetes; ARM has it with base pages of 4 KiB

// ---- regions of ours -------------------------------------------------------------------------------------------------

struct region_command {
    struct sl_command command;
    size_t bytes;
    bool lock, huge, done;
    enum sl_status status;
    void *base;
    const struct sl_region_source *device; // existing device memory; NULL: allocate host memory
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
    sl_huge_stop(&region->joining);
    if (region->handle) {
        sl_ucx_unmap(fabric, region);
    } else if (!region->seen) {
        munmap(region->base, region->bytes);
    }
}

/*
 * Touches all huge pages here: pages that a limit of the container refuses (hugetlb.2MB.max) would end the process by
 * SIGBUS at their first write.
 */
static enum sl_status map_huge_pages(size_t bytes, struct sl_region *region, struct sl_error *err) {
    void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | (HUGE_PAGE_SHIFT << MAP_HUGE_SHIFT), -1, 0);
    if (base == MAP_FAILED || madvise(base, bytes, MADV_POPULATE_WRITE) != 0) {
        int why = errno;
        if (base != MAP_FAILED) {
            munmap(base, bytes);
        }
        return sl_fail(err, SL_ERR_PRECONDITION,
                       "no %zu huge pages of 2 MiB: %s; reserve them (vm.nr_hugepages, and hugepages-2Mi of a pod)",
                       bytes >> HUGE_PAGE_SHIFT, strerror(why));
    }
    *region = (struct sl_region){.base = base, .bytes = bytes};
    return SL_OK;
}

/*
 * Lets UCX allocate the region where huge pages can be mapped, and prepares to join its pages. Not with RDMA: an
 * adapter keeps the pages that it was given. If UCX fails there, the reservation stays: UCX may have replaced and unmapped it.
 */
static enum sl_status map_shared(struct sl_fabric *fabric, size_t bytes, struct sl_region *region,
                                 struct sl_error *err) {
    void *reserved = fabric->has_rdma ? NULL : sl_huge_reserve(bytes);
    region->base = reserved;
    enum sl_status status = sl_ucx_map(fabric, bytes, region, err);
    if (status == SL_OK && reserved && region->base == reserved) {
        region->joining = sl_huge_start(reserved, bytes);
    } else if (status != SL_OK && reserved) {
        region->base = NULL;
        status = sl_ucx_map(fabric, bytes, region, err);
    }
    return status;
}

// Lets UCX allocate it, if there is UCX, so that peers on this host can put into it.
static enum sl_status map_region(struct sl_fabric *fabric, size_t bytes, bool lock, bool huge, struct sl_region *region,
                                 struct sl_error *err) {
    enum sl_status status = SL_OK;
    if (fabric->ucx && huge) {
        status = sl_fail(err, SL_ERR_PRECONDITION, "huge pages are for the transport tcp alone");
    } else if (huge) {
        status = map_huge_pages(bytes, region, err);
    } else if (fabric->ucx) {
        status = map_shared(fabric, bytes, region, err);
    } else {
        void *base = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        SL_FAIL_IF(base == MAP_FAILED, err, SL_ERR_EXHAUSTED, "no memory for a region of %zu bytes: %s", bytes,
                   strerror(errno));
        *region = (struct sl_region){.base = base, .bytes = bytes};
    }
    if (status == SL_OK && lock && (status = lock_memory(region->base, bytes, err)) != SL_OK) {
        unmap_region(fabric, region);
    }
    return status;
}

// Finds the region that contains this one: ordinary memory that others put into is already registered, so its key
// serves for this one.
static enum sl_status lie_within(struct sl_fabric *fabric, struct sl_region *region, struct sl_error *err) {
    region->within = sl_fabric_region(fabric, region->seen, region->bytes);
    return region->within && !region->within->seen && region->within->rkey_bytes > 0
               ? SL_OK
               : sl_fail(err, SL_ERR_INVALID, "what a device is to receive at %p lies in no region of this fabric",
                         (void *)region->seen);
}

static enum sl_status open_device_region(struct sl_fabric *fabric, const struct sl_region_source *what,
                                         struct sl_region *region, struct sl_error *err) {
    region->base = what->base;
    region->bytes = what->bytes;
    region->seen = what->seen;
    region->arrives = what->arrives;
    SL_FAIL_IF(!fabric->ucx, err, SL_ERR_UNSUPPORTED, "nothing goes straight from or to a device's memory over tcp");
    if (what->enter) {
        what->enter(what->arg);
    }
    return what->arrives && !sl_region_is_cuda(region) ? lie_within(fabric, region, err)
                                                       : sl_ucx_register(fabric, region, err);
}

static enum sl_status open_region(struct sl_fabric *fabric, const struct region_command *call,
                                  struct sl_region *region) {
    return call->device ? open_device_region(fabric, call->device, region, call->err)
                        : map_region(fabric, call->bytes, call->lock, call->huge, region, call->err);
}

static void run_region_create(struct sl_fabric *fabric, struct sl_command *command) {
    struct region_command *call = (struct region_command *)command;
    struct sl_region *region = calloc(1, sizeof *region);
    enum sl_status status =
        region ? open_region(fabric, call, region) : sl_fail(call->err, SL_ERR_EXHAUSTED, "no memory for a region");
    SL_LOCKED(&fabric->lock);
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
}

// Runs the command on the progress thread. It lies on the stack of the caller, which waits here.
static enum sl_status run(struct sl_fabric *fabric, struct region_command *call) {
    sl_fabric_post(fabric, &call->command);
    SL_LOCKED(&fabric->lock);
    while (!call->done) { // commands always run, in wind_down() at the latest
        pthread_cond_wait(&fabric->changed, &fabric->lock);
    }
    return call->status;
}

enum sl_status sl_region_create(struct sl_fabric *fabric, size_t bytes, bool lock, bool huge, void **base_out,
                                struct sl_error *err) {
    size_t page = huge ? (size_t)1 << HUGE_PAGE_SHIFT : (size_t)sysconf(_SC_PAGESIZE);
    SL_FAIL_IF(bytes == 0 || bytes > SIZE_MAX - page, err, SL_ERR_INVALID, "a region of %zu bytes", bytes);
    struct region_command call = {.command.run = run_region_create,
                                  .bytes = (bytes + page - 1) / page * page,
                                  .lock = lock,
                                  .huge = huge,
                                  .err = err};
    SL_TRY(run(fabric, &call));
    *base_out = call.base;
    return SL_OK;
}

enum sl_status sl_region_add(struct sl_fabric *fabric, const struct sl_region_source *what, struct sl_error *err) {
    struct region_command call = {.command.run = run_region_create, .device = what, .err = err};
    return what->base && what->seen && what->bytes > 0
               ? run(fabric, &call)
               : sl_fail(err, SL_ERR_INVALID, "a region of %zu bytes at %p", what->bytes, what->base);
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

size_t sl_place_pack(const struct sl_region *region, const void *base, size_t bytes, uint8_t *to) {
    const struct sl_region *keyed = region->within ? region->within : region;
    if (keyed->rkey_bytes == 0 || keyed->rkey_bytes > SL_PLACE_KEY_MAX_BYTES) {
        return 0;
    }
    const uint8_t *at = region->seen ? region->seen + ((const uint8_t *)base - region->base) : base;
    struct sl_wire_place head = {(uint64_t)(uintptr_t)at, bytes, (uint32_t)keyed->rkey_bytes, 0};
    memcpy(to, &head, sizeof head);
    memcpy(to + sizeof head, keyed->rkey, keyed->rkey_bytes);
    return sizeof head + keyed->rkey_bytes;
}

enum sl_status sl_place_unpack(struct sl_place *place, const uint8_t *from, size_t from_bytes, uint64_t expected,
                               struct sl_error *err) {
    struct sl_wire_place *head = &place->head;
    uint64_t end;
    SL_FAIL_IF(from_bytes < sizeof *head, err, SL_ERR_PEER_CORRUPT, "a place of %zu bytes", from_bytes);
    memcpy(head, from, sizeof *head);
    if (head->key_bytes == 0 || head->key_bytes > SL_PLACE_KEY_MAX_BYTES ||
        head->key_bytes != from_bytes - sizeof *head) {
        return sl_fail(err, SL_ERR_PEER_CORRUPT, "a place with a key of %u bytes in %zu", head->key_bytes, from_bytes);
    }
    SL_FAIL_IF(head->bytes != expected || head->address == 0 ||
                   __builtin_add_overflow(head->address, head->bytes, &end),
               err, SL_ERR_PEER_CORRUPT, "a place of %llu bytes, its ticket is for %llu",
               (unsigned long long)head->bytes, (unsigned long long)expected);
    memcpy(place->key, from + sizeof *head, head->key_bytes);
    return SL_OK;
}

static struct sl_remote_region *find_region(const struct sl_peer *peer, const struct sl_place *place) {
    struct sl_remote_region *at = peer->regions;
    while (at && !(at->key_bytes == place->head.key_bytes && memcmp(at->key, place->key, at->key_bytes) == 0)) {
        at = at->next;
    }
    return at;
}

static enum sl_status attach_region(struct sl_peer *peer, const struct sl_place *place,
                                    struct sl_remote_region **region_out, struct sl_error *err) {
    size_t n = 0;
    for (const struct sl_remote_region *at = peer->regions; at; at = at->next) {
        n++;
    }
    SL_FAIL_IF(n >= MAX_REMOTE_REGIONS, err, SL_ERR_PEER_CORRUPT, "%s has shown %zu regions: a worker has one",
               peer->name, n);
    SL_NEW_OR_FAIL(struct sl_remote_region, region, err, "no memory for a remote region");
    SL_TRY_OR(sl_ucx_attach(peer, place, region, err), free(region));
    region->key_bytes = place->head.key_bytes;
    memcpy(region->key, place->key, region->key_bytes);
    region->next = peer->regions;
    peer->regions = region;
    *region_out = region;
    return SL_OK;
}

enum sl_status sl_peer_region(struct sl_peer *peer, const struct sl_place *place, struct sl_remote_region **region_out,
                              struct sl_error *err) {
    struct sl_remote_region *region = find_region(peer, place);
    enum sl_status status = region ? SL_OK : attach_region(peer, place, &region, err);
    if (status == SL_OK && region->mapping != 0) { // else the network adapter checks the key's bounds
        uintptr_t here = (uintptr_t)place->head.address + (uintptr_t)region->mapping;
        if (here < region->begin || here > region->end || place->head.bytes > region->end - here) {
            status = sl_fail(err, SL_ERR_PEER_CORRUPT,
                             "%s says that its memory lies outside of what it has mapped here", peer->name);
        }
    }
    if (status == SL_OK) {
        *region_out = region;
    }
    return status;
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
