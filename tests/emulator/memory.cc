// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the memory of an emulated device: addresses that the host may not touch.
 *
 * Design: each device has a range of addresses, reserved once, so that one call opens or closes all of it. Blocks are
 *         ordered by address, and the gaps between them are free. After every block a border holds a pattern that is
 *         checked when the block is freed. Opening and closing costs time for each page, so pages are as large as the
 *         kernel makes them.
 */
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/emulator/emulator.h"
#include "tests/emulator/machine.h"

namespace emu {

constexpr size_t RANGE = (size_t)64 << 30, PAGE = (size_t)2 << 20, ALIGN = 256, BORDER = 256;
constexpr unsigned char PATTERN = 0xa5;

struct device_memory {
    char *base;
    size_t top;                      // highest byte ever used, in whole pages
    std::map<size_t, size_t> blocks; // offset -> bytes asked for
    size_t used, most_used, room = RANGE;
    bool open_to_network;
    char *view; // the network's mapping; NULL: none
};
static device_memory memories[SL_EMU_DEVICES];
static int n_open;
static bool dry;
static thread_local int device; // the thread's device

// Reserves pages of 2 MiB where the kernel has them: one entry of its tables opens or closes them instead of 512.
static char *reserve_alone() {
    void *range = mmap(nullptr, RANGE + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED) {
        return nullptr;
    }
    char *base = (char *)(((uintptr_t)range + PAGE - 1) & ~(uintptr_t)(PAGE - 1));
    (void)madvise(base, RANGE, MADV_HUGEPAGE); // only a hint
    return base;
}

// Maps a file in memory for the device and for the network.
static char *reserve_seen(device_memory &memory) {
    int file = memfd_create("emulated-device", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, RANGE) != 0) {
        die("there is no memory that a network could see", "?", 0);
    }
    void *base = mmap(nullptr, RANGE, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file, 0);
    void *view = mmap(nullptr, RANGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    close(file);
    if (base == MAP_FAILED || view == MAP_FAILED) {
        die("there is no memory that a network could see", "?", 0);
    }
    memory.view = (char *)view;
    return (char *)base;
}

static char *reserve(device_memory &memory) {
    return memory.open_to_network ? reserve_seen(memory) : reserve_alone();
}

static void protect(const device_memory &memory, size_t begin, size_t end, bool open) {
    if (begin < end && mprotect(memory.base + begin, end - begin, open ? PROT_READ | PROT_WRITE : PROT_NONE) != 0) {
        die("the rights of device memory cannot be changed", "?", 0);
    }
}

void open_devices(bool open) {
    n_open += open ? 1 : -1;
    if (n_open == (open ? 1 : 0)) {
        for (const auto &memory : memories) {
            protect(memory, 0, memory.top, open);
        }
    }
}

int used_device() {
    return device;
}

static size_t room_of(size_t bytes) {
    return (bytes + ALIGN - 1) / ALIGN * ALIGN + BORDER;
}

// Returns the first gap that is large enough, or the end.
static size_t find_room(const device_memory &memory, size_t room) {
    size_t at = 0;
    for (const auto &block : memory.blocks) {
        if (block.first - at >= room) {
            break;
        }
        at = block.first + room_of(block.second);
    }
    return at;
}

} // namespace emu

void sl_emu_use(int device) {
    emu::device = device;
}

void sl_emu_set_room(size_t bytes) {
    std::lock_guard<std::recursive_mutex> lock(emu::m.lock);
    emu::memories[emu::device].room = bytes;
}

void sl_emu_open_to_network(void) {
    std::lock_guard<std::recursive_mutex> lock(emu::m.lock);
    emu::memories[emu::device].open_to_network = true;
}

void *sl_emu_network_view(void *block) {
    std::lock_guard<std::recursive_mutex> lock(emu::m.lock);
    for (const auto &memory : emu::memories) {
        if (memory.view != nullptr && (char *)block >= memory.base && (char *)block < memory.base + memory.top) {
            return memory.view + ((char *)block - memory.base);
        }
    }
    return nullptr;
}

void *sl_emu_alloc(size_t bytes) {
    using namespace emu;
    std::lock_guard<std::recursive_mutex> lock(m.lock);
    device_memory &memory = memories[device];
    if (memory.base == nullptr) {
        memory.base = reserve(memory);
    }
    size_t room = room_of(bytes), at = find_room(memory, room);
    if (memory.base == nullptr || bytes == 0 || bytes > RANGE || at + room > RANGE ||
        memory.used + bytes > memory.room) {
        return nullptr;
    }
    size_t top = (at + room + PAGE - 1) / PAGE * PAGE;
    if (!dry) {
        if (top > memory.top) {
            protect(memory, memory.top, top, n_open > 0);
            memory.top = top;
        }
        open_devices(true);
        poison(memory.base + at, room);
        memset(memory.base + at + bytes, PATTERN, room - bytes);
        open_devices(false);
    }
    memory.blocks[at] = bytes;
    memory.used += bytes;
    memory.most_used = memory.used > memory.most_used ? memory.used : memory.most_used;
    return memory.base + at;
}

void sl_emu_free(void *block) {
    using namespace emu;
    if (block == nullptr) {
        return;
    }
    std::lock_guard<std::recursive_mutex> lock(m.lock);
    device_memory *memory = memories; // the owner's, whatever device the thread uses
    while (memory < memories + SL_EMU_DEVICES && memory->blocks.count((size_t)((char *)block - memory->base)) == 0) {
        memory++;
    }
    if (memory == memories + SL_EMU_DEVICES) {
        die("a block is freed that is none", "?", 0);
    }
    auto found = memory->blocks.find((size_t)((char *)block - memory->base));
    const unsigned char *border = (const unsigned char *)block + found->second;
    open_devices(true);
    for (size_t i = 0; i < room_of(found->second) - found->second && !dry; i++) {
        if (border[i] != PATTERN) {
            fprintf(stderr, "emulator: byte %zu behind a block of %zu was written\n", i, found->second);
            abort();
        }
    }
    if (!dry) {
        poison(block, found->second);
    }
    open_devices(false);
    memory->used -= found->second;
    memory->blocks.erase(found);
}

size_t sl_emu_used(void) {
    std::lock_guard<std::recursive_mutex> lock(emu::m.lock);
    return emu::memories[emu::device].used;
}

size_t sl_emu_most_used(void) {
    std::lock_guard<std::recursive_mutex> lock(emu::m.lock);
    return emu::memories[emu::device].most_used;
}

void sl_emu_set_dry(void) {
    std::lock_guard<std::recursive_mutex> lock(emu::m.lock);
    emu::dry = true;
}

bool sl_emu_is_dry(void) {
    std::lock_guard<std::recursive_mutex> lock(emu::m.lock);
    return emu::dry;
}
