// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: cut one range of bytes into blocks of any size and put them together again, in O(1).
 *
 * Design: two-level segregated fit (Masmano, Ripoll, Crespo, Real: "TLSF: a new dynamic memory allocator for real-time
 *         systems", 2004), with sizes counted in units of SL_ARENA_UNIT bytes:
 *
 *           n < 16    class (0, n)                                  one class a size
 *           n >= 16   class (log2(n) - 3, the four bits of n below its highest)
 *
 *         One bitmap says which first levels have free blocks, one bitmap a first level which of its 16 classes do:
 *         two find-first-set instructions find a class whose every block is large enough.
 *
 *         The range itself is never touched, so a block's header is outside it: a descriptor in a growing pool,
 *         referred to by its index. Descriptors of neighbors in memory are linked; a map from a block's first unit to
 *         its descriptor serves sl_arena_free(). The map is as long as the arena but costs memory only where blocks
 *         begin: it is anonymous memory, which the kernel gives page by page.
 *
 * Invariants: the blocks, by `next`, tile the range; no two free blocks are neighbors; a free block is in the list of
 *             its class and no other; a bit is set exactly when its list is not empty; map[u] is a descriptor exactly
 *             when an allocated block begins at unit u, and NONE otherwise.
 */
#include "base/arena.h"

#include <assert.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/locked.h"
#include "base/log.h"

#define CLASS_BITS 4
#define N_CLASSES  (1 << CLASS_BITS)
#define N_LEVELS   (32 - CLASS_BITS + 1)
#define NONE       0 // descriptor 0 is never used, so that zeroed memory means "none"
#define MAX_UNITS  ((size_t)UINT32_MAX)

struct block {
    uint32_t first;                    // unit
    uint32_t n_units;                  // > 0
    uint32_t previous, next;           // neighbors in memory
    uint32_t free_previous, free_next; // neighbors in the list of a class; free_next also links unused descriptors
    bool is_free;
};

struct sl_arena {
    pthread_mutex_t lock;
    char *base;
    uint32_t n_units;
    size_t mapped_bytes;   // bytes mapped for a range that the arena owns; 0: the caller owns it
    struct sl_arena *next; // the next range of this arena

    struct block *blocks; // the pool of descriptors; [0] is NONE
    uint32_t n_blocks_allocated;
    uint32_t n_blocks_ever; // descriptors from here on were never used
    uint32_t unused;        // list of descriptors that were freed

    uint32_t *map; // n_units entries

    uint32_t levels; // bit l: classes[l] != 0
    uint32_t classes[N_LEVELS];
    uint32_t lists[N_LEVELS][N_CLASSES];

    size_t used_units;
    size_t high_water_units;
    size_t n_handed_out;
};

struct size_class {
    int level, index;
};

static int floor_log2(size_t n) {
    return 63 - __builtin_clzll(n);
}

static struct size_class class_of(size_t n) {
    if (n < N_CLASSES) {
        return (struct size_class){0, (int)n};
    }
    int log2 = floor_log2(n);
    return (struct size_class){log2 - CLASS_BITS + 1, (int)(n >> (log2 - CLASS_BITS)) - N_CLASSES};
}

// Returns the smallest class in which every block has at least n units.
static struct size_class class_at_least(size_t n) {
    if (n >= N_CLASSES) {
        n += ((size_t)1 << (floor_log2(n) - CLASS_BITS)) - 1;
    }
    return class_of(n);
}

static void list_insert(struct sl_arena *arena, uint32_t id) {
    struct block *block = &arena->blocks[id];
    struct size_class c = class_of(block->n_units);
    uint32_t head = arena->lists[c.level][c.index];
    block->is_free = true;
    block->free_previous = NONE;
    block->free_next = head;
    if (head != NONE) {
        arena->blocks[head].free_previous = id;
    }
    arena->lists[c.level][c.index] = id;
    arena->classes[c.level] |= 1u << c.index;
    arena->levels |= 1u << c.level;
}

static void list_remove(struct sl_arena *arena, uint32_t id) {
    struct block *block = &arena->blocks[id];
    struct size_class c = class_of(block->n_units);
    if (block->free_next != NONE) {
        arena->blocks[block->free_next].free_previous = block->free_previous;
    }
    if (block->free_previous != NONE) {
        arena->blocks[block->free_previous].free_next = block->free_next;
    } else {
        arena->lists[c.level][c.index] = block->free_next;
        if (block->free_next == NONE) {
            arena->classes[c.level] &= ~(1u << c.index);
            if (arena->classes[c.level] == 0) {
                arena->levels &= ~(1u << c.level);
            }
        }
    }
    block->is_free = false;
}

// Returns a free block of at least n units, still in its list; NONE if there is none.
static uint32_t find(const struct sl_arena *arena, size_t n) {
    struct size_class c = class_at_least(n);
    if (c.level < N_LEVELS) {
        uint32_t classes = arena->classes[c.level] & (~0u << c.index);
        int level = c.level;
        if (classes == 0) {
            uint32_t levels = c.level + 1 < N_LEVELS ? arena->levels & (~0u << (c.level + 1)) : 0;
            if (levels != 0) {
                level = __builtin_ctz(levels);
                classes = arena->classes[level];
            }
        }
        if (classes != 0) {
            return arena->lists[level][__builtin_ctz(classes)];
        }
    }
    // Only the class of n itself is left, which holds smaller blocks too. Refusing here would lose up to 1/16 of a
    // nearly full arena. This list search is the only one that is not O(1).
    struct size_class own = class_of(n);
    uint32_t id = arena->lists[own.level][own.index];
    while (id != NONE && arena->blocks[id].n_units < n) {
        id = arena->blocks[id].free_next;
    }
    return id;
}

// Returns an unused descriptor, or NONE when there is no memory for another. May move arena->blocks.
static uint32_t descriptor_take(struct sl_arena *arena) {
    uint32_t id = arena->unused;
    if (id != NONE) {
        arena->unused = arena->blocks[id].free_next;
        return id;
    }
    if (arena->n_blocks_ever == arena->n_blocks_allocated) {
        size_t n = (size_t)arena->n_blocks_allocated * 2;
        struct block *blocks = n < UINT32_MAX ? realloc(arena->blocks, n * sizeof *blocks) : NULL;
        if (!blocks) {
            return NONE;
        }
        arena->blocks = blocks;
        arena->n_blocks_allocated = (uint32_t)n;
    }
    return arena->n_blocks_ever++;
}

static void descriptor_give(struct sl_arena *arena, uint32_t id) {
    arena->blocks[id].free_next = arena->unused;
    arena->unused = id;
}

// Cuts a block that is in no list after n units; the rest becomes a free block.
static void split(struct sl_arena *arena, uint32_t id, uint32_t n) {
    uint32_t rest_id = descriptor_take(arena);
    if (rest_id == NONE) {
        return; // the block stays larger than requested, which is a waste but not an error
    }
    struct block *block = &arena->blocks[id];
    struct block *rest = &arena->blocks[rest_id];
    *rest =
        (struct block){.first = block->first + n, .n_units = block->n_units - n, .previous = id, .next = block->next};
    if (rest->next != NONE) {
        arena->blocks[rest->next].previous = rest_id;
    }
    block->next = rest_id;
    block->n_units = n;
    list_insert(arena, rest_id);
}

// Joins a block that is in no list with its next neighbor, which is in no list either.
static void join_next(struct sl_arena *arena, uint32_t id) {
    struct block *block = &arena->blocks[id];
    uint32_t next_id = block->next;
    struct block *next = &arena->blocks[next_id];
    block->n_units += next->n_units;
    block->next = next->next;
    if (block->next != NONE) {
        arena->blocks[block->next].previous = id;
    }
    descriptor_give(arena, next_id);
}

enum sl_status sl_arena_create(void *base, size_t bytes, struct sl_arena **arena_out, struct sl_error *err) {
    size_t n_units = bytes / SL_ARENA_UNIT;
    SL_FAIL_IF((uintptr_t)base % SL_ARENA_UNIT != 0 || n_units == 0, err, SL_ERR_INVALID,
               "arena: %zu bytes at %p, expected at least %d, aligned to %d", bytes, base, SL_ARENA_UNIT,
               SL_ARENA_UNIT);
    SL_FAIL_IF(n_units > MAX_UNITS, err, SL_ERR_INVALID, "arena: %zu bytes, at most %zu", bytes,
               MAX_UNITS * SL_ARENA_UNIT);
    SL_NEW_OR_FAIL(struct sl_arena, arena, err, "arena: out of memory");
    arena->base = base;
    arena->n_units = (uint32_t)n_units;
    arena->n_blocks_allocated = 256;
    arena->blocks = malloc(arena->n_blocks_allocated * sizeof *arena->blocks);
    if (!arena->blocks) {
        sl_fail(err, SL_ERR_EXHAUSTED, "arena: out of memory");
        goto err_free_arena;
    }
    arena->map = mmap(NULL, n_units * sizeof *arena->map, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (arena->map == MAP_FAILED) {
        sl_fail(err, SL_ERR_EXHAUSTED, "arena: no address space for the map of %zu units", n_units);
        goto err_free_blocks;
    }
    // Attention strides through pages anywhere in the range; huge mappings save page walks. This is advice for the
    // memory pages that are completely in the range. A kernel that ignores it is only slower.
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    char *begin = (char *)(((uintptr_t)base + page - 1) / page * page), *end = (char *)base + bytes;
    if (begin < end) {
        (void)madvise(begin, (size_t)(end - begin), MADV_HUGEPAGE);
    }
    pthread_mutex_init(&arena->lock, NULL);
    arena->blocks[1] = (struct block){.first = 0, .n_units = (uint32_t)n_units};
    arena->n_blocks_ever = 2;
    list_insert(arena, 1);
    *arena_out = arena;
    return SL_OK;

err_free_blocks:
    free(arena->blocks);
err_free_arena:
    free(arena);
    return SL_ERR_EXHAUSTED;
}

enum sl_status sl_arena_create_mapped(size_t bytes, struct sl_arena **arena_out, struct sl_error *err) {
    bytes = sl_arena_rounded(bytes);
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    SL_FAIL_IF(memory == MAP_FAILED, err, SL_ERR_EXHAUSTED, "no address space for an arena of %zu bytes", bytes);
    SL_TRY_OR(sl_arena_create(memory, bytes, arena_out, err), munmap(memory, bytes));
    (*arena_out)->mapped_bytes = bytes;
    return SL_OK;
}

void sl_arena_destroy(struct sl_arena **arena_ptr) {
    struct sl_arena *arena = *arena_ptr;
    if (!arena) {
        return;
    }
    struct sl_arena *next = arena->next;
    if (arena->n_handed_out > 0) {
        sl_log_error("arena", "destroyed with %zu blocks (%zu bytes) still handed out", arena->n_handed_out,
                     arena->used_units * SL_ARENA_UNIT);
    }
    munmap(arena->map, (size_t)arena->n_units * sizeof *arena->map);
    if (arena->mapped_bytes > 0) {
        munmap(arena->base, arena->mapped_bytes);
    }
    pthread_mutex_destroy(&arena->lock);
    free(arena->blocks);
    free(arena);
    *arena_ptr = NULL;
    sl_arena_destroy(&next);
}

void sl_arena_join(struct sl_arena *arena, struct sl_arena **more_inout) {
    assert(sl_arena_ranges(arena) + sl_arena_ranges(*more_inout) <= SL_ARENA_RANGES);
    while (arena->next != NULL) {
        arena = arena->next;
    }
    arena->next = *more_inout;
    *more_inout = NULL;
}

int sl_arena_ranges(const struct sl_arena *arena) {
    return arena->next != NULL ? 1 + sl_arena_ranges(arena->next) : 1;
}

static void *alloc_here(struct sl_arena *arena, size_t bytes) {
    // An empty block is still a block: it has an address of its own, and counts.
    size_t n = bytes == 0 ? 1 : (bytes - 1) / SL_ARENA_UNIT + 1;
    if (n > arena->n_units) {
        return NULL;
    }
    char *memory = NULL;
    SL_LOCKED(&arena->lock);
    uint32_t id = find(arena, n);
    if (id != NONE) {
        list_remove(arena, id);
        if (arena->blocks[id].n_units > n) {
            split(arena, id, (uint32_t)n);
        }
        const struct block *block = &arena->blocks[id];
        arena->map[block->first] = id;
        arena->used_units += block->n_units;
        arena->n_handed_out++;
        if (arena->used_units > arena->high_water_units) {
            arena->high_water_units = arena->used_units;
        }
        memory = arena->base + (size_t)block->first * SL_ARENA_UNIT;
    }
    return memory;
}

void *sl_arena_alloc_near(struct sl_arena *arena, int range, size_t bytes) {
    struct sl_arena *near = arena;
    while (range-- > 0 && near->next != NULL) {
        near = near->next;
    }
    void *memory = alloc_here(near, bytes);
    for (struct sl_arena *a = arena; a != NULL && memory == NULL; a = a->next) {
        memory = alloc_here(a, bytes);
    }
    return memory;
}

void *sl_arena_alloc(struct sl_arena *arena, size_t bytes) {
    return sl_arena_alloc_near(arena, 0, bytes);
}

// Returns the descriptor of the block that begins at `memory`, or NONE.
static uint32_t lookup(const struct sl_arena *arena, const char *memory) {
    uintptr_t offset = (uintptr_t)memory - (uintptr_t)arena->base;
    if (offset % SL_ARENA_UNIT != 0 || offset / SL_ARENA_UNIT >= arena->n_units) {
        return NONE;
    }
    return arena->map[offset / SL_ARENA_UNIT];
}

void sl_arena_free(struct sl_arena *arena, void *memory) {
    if (!memory) {
        return;
    }
    while (arena->next != NULL && ((uintptr_t)memory - (uintptr_t)arena->base) / SL_ARENA_UNIT >= arena->n_units) {
        arena = arena->next;
    }
    pthread_mutex_lock(&arena->lock);
    uint32_t id = lookup(arena, memory);
    if (id != NONE) {
        struct block *block = &arena->blocks[id];
        arena->map[block->first] = NONE;
        arena->used_units -= block->n_units;
        arena->n_handed_out--;
        if (block->next != NONE && arena->blocks[block->next].is_free) {
            list_remove(arena, block->next);
            join_next(arena, id);
        }
        if (block->previous != NONE && arena->blocks[block->previous].is_free) {
            id = block->previous;
            list_remove(arena, id);
            join_next(arena, id);
        }
        list_insert(arena, id);
    }
    pthread_mutex_unlock(&arena->lock);
    if (id == NONE) { // a bug of the caller: leak the block, which does no further harm
        sl_log_error("arena", "free of %p, which is not a block of this arena or was freed already", memory);
    }
}

void *sl_arena_base(const struct sl_arena *arena) {
    return arena->base;
}

static int by_address(const void *a, const void *b) {
    const char *x = *(char *const *)a, *y = *(char *const *)b;
    return (x > y) - (x < y);
}

// Call with the lock held; memories is sorted.
static size_t largest_run(const struct sl_arena *arena, void *const *memories, size_t n) {
    size_t largest = 0, run = 0;
    for (uint32_t id = 1; id != NONE; id = arena->blocks[id].next) { // no split or join moves descriptor 1
        const struct block *block = &arena->blocks[id];
        const char *memory = arena->base + (size_t)block->first * SL_ARENA_UNIT;
        bool frees = block->is_free || (n > 0 && bsearch(&memory, memories, n, sizeof *memories, by_address) != NULL);
        run = frees ? run + block->n_units : 0;
        largest = run > largest ? run : largest;
    }
    return largest * SL_ARENA_UNIT;
}

size_t sl_arena_largest_if_freed(struct sl_arena *arena, void **memories, size_t n) {
    size_t largest = 0;
    if (n > 0) {
        qsort(memories, n, sizeof *memories, by_address);
    }
    for (; arena != NULL; arena = arena->next) {
        pthread_mutex_lock(&arena->lock);
        size_t here = largest_run(arena, memories, n);
        pthread_mutex_unlock(&arena->lock);
        largest = here > largest ? here : largest;
    }
    return largest;
}

static size_t largest_free_units(const struct sl_arena *arena) {
    if (arena->levels == 0) {
        return 0;
    }
    int level = 31 - __builtin_clz(arena->levels);
    int index = 31 - __builtin_clz(arena->classes[level]);
    size_t largest = 0;
    for (uint32_t id = arena->lists[level][index]; id != NONE; id = arena->blocks[id].free_next) {
        largest = arena->blocks[id].n_units > largest ? arena->blocks[id].n_units : largest;
    }
    return largest;
}

void sl_arena_get_stats(struct sl_arena *arena, struct sl_arena_stats *stats_out) {
    *stats_out = (struct sl_arena_stats){0};
    for (; arena != NULL; arena = arena->next) {
        SL_LOCKED(&arena->lock);
        size_t largest = largest_free_units(arena) * SL_ARENA_UNIT;
        stats_out->capacity_bytes += (size_t)arena->n_units * SL_ARENA_UNIT;
        stats_out->used_bytes += arena->used_units * SL_ARENA_UNIT;
        stats_out->high_water_bytes += arena->high_water_units * SL_ARENA_UNIT;
        stats_out->largest_free_bytes =
            largest > stats_out->largest_free_bytes ? largest : stats_out->largest_free_bytes;
        stats_out->n_blocks += arena->n_handed_out;
    }
}

void sl_arena_reset_high_water(struct sl_arena *arena) {
    for (; arena != NULL; arena = arena->next) {
        SL_LOCKED(&arena->lock);
        arena->high_water_units = arena->used_units;
    }
}
