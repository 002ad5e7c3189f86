// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: wgmma: products of four warps in the background, and which memory they may read when.
 *
 * Design: each of the 128 threads records a product; all of them must reach it, with the same matrices. It is computed
 *         for all of them when the first thread waits for it or, in some orders, when the last has recorded it. For
 *         every unit of 16 bytes of dynamic shared memory the emulator knows which thread copied to it and has not
 *         fenced it. It does not see plain stores.
 */
#include <cstring>

#include "tests/emulator/machine.h"
#include "engine/tensor/half.h"

namespace emu {

constexpr uint32_t ROWS = 64, COLUMNS = 256, DEPTH = 16, EIGHT_ROWS = 1024;

uint32_t shared_address(const void *p) {
    size_t at = (size_t)((const char *)p - dynamic_window());
    return at < m.dynamic.size() * sizeof m.dynamic[0] ? (uint32_t)at : ~0u;
}

// --- the memory that they read ---------------------------------------------------------------------------------------

// Returns where the matrix of a descriptor, with n_rows rows, begins in the window. Dies if it is not one that gpu.h
// makes.
static uint32_t start_of(uint64_t matrix, uint32_t n_rows, const where &at) {
    uint32_t start = (uint32_t)(matrix & 0x3fff) * UNIT, stride = (uint32_t)(matrix >> 32 & 0x3fff) * UNIT;
    if (matrix >> 62 != 1 || (matrix >> 49 & 7) != 0 || stride != EIGHT_ROWS || start % EIGHT_ROWS >= 128) {
        die("wgmma of a matrix that is not in rows of 128 bytes, swizzled, from a multiple of 1,024 on", at.file,
            at.line);
    }
    if (start + n_rows / 8 * stride > m.dynamic.size() * sizeof m.dynamic[0]) {
        die("wgmma of a matrix that is not in dynamic shared memory", at.file, at.line);
    }
    return start;
}

// Returns the address of the unit with columns [8 half, 8 half + 8) of a row.
static uint32_t address(uint32_t start, uint32_t row, uint32_t half) {
    uint32_t at = start + row * 128 + half * UNIT;
    return at ^ (at >> 7 & 7) * UNIT;
}

// Calls f(row, half, address) for every unit.
template <class F> static void for_units(uint64_t matrix, uint32_t n_rows, const where &at, const F &f) {
    uint32_t start = start_of(matrix, n_rows, at);
    for (uint32_t i = 0; i < 2 * n_rows; i++) {
        f(i / 2, i % 2, address(start, i / 2, i % 2));
    }
}

static void look_at_fences(const async_product &p) {
    auto look = [&](uint32_t, uint32_t, uint32_t address) {
        if (m.copied[address / UNIT] != 0) {
            die("wgmma reads what was copied without fence_proxy_async() behind it", p.at.file, p.at.line);
        }
    };
    for_units(p.a, ROWS, p.at, look);
    for_units(p.b, COLUMNS, p.at, look);
}

void copies_to(const void *to, const char *file, int line) {
    uint32_t address = shared_address(to), block = address / EIGHT_ROWS * EIGHT_ROWS;
    if (address == ~0u) {
        return;
    }
    for (const auto &group : m.warpgroups) {
        for (const auto &p : group.products) {
            uint32_t a = start_of(p.a, ROWS, p.at) / EIGHT_ROWS * EIGHT_ROWS;
            uint32_t b = start_of(p.b, COLUMNS, p.at) / EIGHT_ROWS * EIGHT_ROWS;
            if (block - a < ROWS * 128 || block - b < COLUMNS * 128) { // unsigned differences
                die("a copy to what a wgmma may still read", file, line);
            }
        }
    }
    m.copied[address / UNIT] = (uint16_t)(m.now->id + 1);
}

void copied_to(const void *to) {
    uint32_t address = shared_address(to);
    if (address != ~0u) {
        m.now->unfenced.push_back(address / UNIT);
    }
}

void fence_proxy_async() {
    for (uint32_t unit : m.now->unfenced) {
        if (m.copied[unit] == m.now->id + 1) {
            m.copied[unit] = 0;
        }
    }
    m.now->unfenced.clear();
}

// --- products --------------------------------------------------------------------------------------------------------

// Adds each sum in ascending order of k, then adds it to d.
static void compute(async_product &p) {
    static float A[ROWS][DEPTH], B[DEPTH][COLUMNS];
    const char *window = dynamic_window();
    look_at_fences(p);
    for_units(p.a, ROWS, p.at, [&](uint32_t row, uint32_t half, uint32_t address) {
        for (uint32_t e = 0; e < 8; e++) {
            A[row][8 * half + e] = sl_bf16_to_f32(((const uint16_t *)(window + address))[e]);
        }
    });
    for_units(p.b, COLUMNS, p.at, [&](uint32_t row, uint32_t half, uint32_t address) {
        for (uint32_t e = 0; e < 8; e++) {
            B[8 * half + e][row] = sl_bf16_to_f32(((const uint16_t *)(window + address))[e]);
        }
    });
    for (uint32_t row = 0; row < ROWS; row++) {
        float sums[COLUMNS] = {};
        for (uint32_t k = 0; k < DEPTH; k++) {
            for (uint32_t j = 0; j < COLUMNS; j++) {
                sums[j] += A[row][k] * B[k][j];
            }
        }
        for (uint32_t j = 0; j < COLUMNS; j++) {
            p.d[row / 16 * 32 + row % 8 * 4 + j % 8 / 2][j / 8 * 4 + row % 16 / 8 * 2 + j % 2] += sums[j];
        }
    }
    p.done = true;
}

// Returns true for products that run when the last thread has recorded them, not when the first one waits.
static bool at_once(uint64_t n) {
    return m.order == 1 || (m.order > 1 && (n * 0x9e3779b97f4a7c15u ^ m.order) >> 62 == 0);
}

void wgmma(uint64_t a, uint64_t b, float *d, const char *file, int line) {
    fiber *f = m.now;
    if (f->id / WARPGROUP >= m.warpgroups.size()) {
        die("wgmma by less than four warps", file, line);
    }
    if (!f->wgmma_fenced) {
        die("wgmma without wgmma_fence() before it", file, line);
    }
    warpgroup &group = m.warpgroups[f->id / WARPGROUP];
    f->line = {file, line};
    uint64_t number = f->n_wgmma++ - group.n_gone;
    if (number == group.products.size()) {
        group.products.push_back({a, b, {}, 0, 0, false, {file, line}});
    }
    async_product &p = group.products[number];
    if (p.a != a || p.b != b || p.at.line != line) {
        die("threads of four warps multiply different matrices", file, line);
    }
    unsigned t = f->id % WARPGROUP;
    READS(dynamic_window() + address(start_of(a, ROWS, p.at), t / 2, t % 2), UNIT);
    READS(dynamic_window() + address(start_of(b, COLUMNS, p.at), 2 * t, 0), UNIT);
    p.d[t] = d;
    if (++p.arrived < WARPGROUP) {
        return;
    }
    m.n_products++;
    look_at_fences(p);
    for (uint64_t i = 0; at_once(m.n_products) && i <= number; i++) { // in the order in which they were recorded
        if (!group.products[i].done) {
            compute(group.products[i]);
        }
    }
    for (unsigned i = f->id - t; i < f->id - t + WARPGROUP; i++) {
        if (m.fibers[i].what == AT_WGMMA) {
            m.fibers[i].what = READY;
        }
    }
}

void wgmma_fence() {
    m.now->wgmma_fenced = true;
}

void wgmma_commit() {
    m.now->wgmma_ends.push_back(m.now->n_wgmma);
    m.now->wgmma_fenced = false;
}

void wgmma_wait(size_t n_left, const char *file, int line) {
    fiber *f = m.now;
    if (f->wgmma_ends.size() <= n_left) {
        return;
    }
    warpgroup &group = m.warpgroups[f->id / WARPGROUP];
    size_t n_groups = f->wgmma_ends.size() - n_left;
    uint64_t end = f->wgmma_ends[n_groups - 1];
    for (; f->n_wgmma_waited < end; f->n_wgmma_waited++) {
        while (group.products[f->n_wgmma_waited - group.n_gone].arrived < WARPGROUP) {
            f->line = {file, line};
            f->what = AT_WGMMA;
            to_scheduler();
        }
        async_product &p = group.products[f->n_wgmma_waited - group.n_gone];
        unsigned t = f->id % WARPGROUP;
        READS(dynamic_window() + address(start_of(p.a, ROWS, p.at), t / 2, t % 2), UNIT);
        READS(dynamic_window() + address(start_of(p.b, COLUMNS, p.at), 2 * t, 0), UNIT);
        if (!p.done) {
            compute(p);
        }
        p.waited++;
    }
    f->wgmma_ends.erase(f->wgmma_ends.begin(), f->wgmma_ends.begin() + (ptrdiff_t)n_groups);
    while (!group.products.empty() && group.products.front().waited == WARPGROUP) {
        group.products.pop_front();
        group.n_gone++;
    }
}

} // namespace emu
