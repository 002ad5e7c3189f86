// SPDX-License-Identifier: Apache-2.0
// Purpose: operations of the lanes of a warp: shuffles, ballots, products of matrices; and each thread's asynchronous
//         copies.
#include <cstring>

#include "tests/emulator/machine.h"
#include "engine/tensor/half.h"

namespace emu {

// Any bytes, as words of T. Replaces memcpy(), which ThreadSanitizer would see and attribute to the lane.
template <class T> struct words { typedef T word __attribute__((may_alias, aligned(1))); };
template <class T> static T load(const void *from) {
    return *(const typename words<T>::word *)from;
}
template <class T> static void store(void *to, T value) {
    *(typename words<T>::word *)to = value;
}

// --- matrices: gpu.h says which lane holds which elements ------------------------------------------------------------

typedef float four __attribute__((vector_size(16)));

// Adds each sum in ascending order of k, with the columns of a row side by side.
template <float (*value)(uint16_t)> static void mma(warp &w) {
    float A[16][16], C[16][8];
    four B[16][2];
    for (int l = 0; l < 32; l++) { // in: a[4], b[2]
        const uint32_t *f = (const uint32_t *)w.lanes[l]->in;
        int g = l / 4, t = l % 4;
        for (int e = 0; e < 2; e++) {
            for (int i = 0; i < 4; i++) {
                A[g + 8 * (i & 1)][2 * t + 8 * (i >> 1) + e] = value((uint16_t)(f[i] >> 16 * e));
            }
            for (int i = 0; i < 2; i++) {
                B[2 * t + 8 * i + e][g / 4][g % 4] = value((uint16_t)(f[4 + i] >> 16 * e));
            }
        }
    }
    for (int row = 0; row < 16; row++) {
        four low = {}, high = {};
        for (int k = 0; k < 16; k++) {
            low += A[row][k] * B[k][0];
            high += A[row][k] * B[k][1];
        }
        memcpy(&C[row][0], &low, sizeof low);
        memcpy(&C[row][4], &high, sizeof high);
    }
    for (int l = 0; l < 32; l++) {
        float *d = (float *)w.lanes[l]->out;
        for (int i = 0; i < 4; i++) {
            d[i] += C[l / 4 + 8 * (i >> 1)][2 * (l % 4) + (i & 1)];
        }
    }
}

static void ldmatrix(warp &w) {
    for (int l = 0; l < 32; l++) {
        for (int i = 0; i < 4; i++) {
            uint16_t pair[2];
            for (int e = 0; e < 2; e++) {
                const uint16_t *from = (const uint16_t *)w.lanes[8 * i + l / 4]->in;
                if ((uintptr_t)from % 16 != 0) {
                    die("ldmatrix of a row that is not aligned to 16 bytes", w.at.file, w.at.line);
                }
                pair[e] = from[2 * (l % 4) + e];
            }
            ((uint32_t *)w.lanes[l]->out)[i] = pair[0] | (uint32_t)pair[1] << 16;
        }
    }
}

static void movmatrix(warp &w) { // 8x8 of 16 bits: lane l has row l / 4, columns 2 (l % 4) and the next
    uint16_t x[8][8];
    for (int l = 0; l < 32; l++) {
        for (int e = 0; e < 2; e++) {
            x[l / 4][2 * (l % 4) + e] = (uint16_t)(*(const uint32_t *)w.lanes[l]->in >> 16 * e);
        }
    }
    for (int l = 0; l < 32; l++) {
        *(uint32_t *)w.lanes[l]->out = x[2 * (l % 4)][l / 4] | (uint32_t)x[2 * (l % 4) + 1][l / 4] << 16;
    }
}

// --- shuffles --------------------------------------------------------------------------------------------------------

// within: a width of lanes, less one.
static unsigned source(unsigned lane, warp_op op, unsigned amount, unsigned within) {
    switch (op) {
    case XOR:
        return amount <= within ? lane ^ amount : lane;
    case DOWN:
        return (lane & within) + amount <= within ? lane + amount : lane;
    case UP:
        return (lane & within) >= amount ? lane - amount : lane;
    default:
        return (lane & ~within) | (amount & within);
    }
}

template <class T> static void shuffle_lanes(warp &w, unsigned width) {
    if (width < 1 || width > 32 || (width & (width - 1)) != 0) {
        die("a shuffle whose width is not a power of two", w.at.file, w.at.line);
    }
    T values[32];
    for (unsigned l = 0; l < 32; l++) {
        if (w.mask >> l & 1) {
            values[l] = load<T>(w.lanes[l]->in);
        }
    }
    for (unsigned l = 0; l < 32; l++) {
        if (w.mask >> l & 1) {
            unsigned from = source(l, w.op, (unsigned)w.lanes[l]->amount, width - 1);
            if (!(w.mask >> from & 1)) {
                die("a shuffle from a lane that takes no part", w.at.file, w.at.line);
            }
            store(w.lanes[l]->out, values[from]);
        }
    }
}

static void ballot(warp &w) {
    unsigned bits = 0;
    for (unsigned l = 0; l < 32; l++) {
        bits |= (unsigned)(w.mask >> l & 1 && *(const int *)w.lanes[l]->in != 0) << l;
    }
    for (unsigned l = 0; l < 32; l++) {
        if (w.mask >> l & 1) {
            *(unsigned *)w.lanes[l]->out = bits;
        }
    }
}

static void work(warp &w, shuffle moves) {
    switch (w.op) {
    case SYNC:
        break;
    case BALLOT:
        ballot(w);
        break;
    case MMA_BF16:
        mma<sl_bf16_to_f32>(w);
        break;
    case MMA_F16:
        mma<sl_f16_to_f32>(w);
        break;
    case LDMATRIX:
        ldmatrix(w);
        break;
    case MOVMATRIX:
        movmatrix(w);
        break;
    case XOR:
    case DOWN:
    case UP:
    case FROM:
        if (moves.bytes == 4) {
            shuffle_lanes<uint32_t>(w, (unsigned)moves.width);
        } else {
            shuffle_lanes<uint64_t>(w, (unsigned)moves.width);
        }
        break;
    }
}

void together(warp_op op, unsigned mask, const void *in, void *out, where at, shuffle moves) {
    fiber *f = m.now;
    warp &w = m.warps[f->id / 32];
    unsigned lane = f->id % 32;
    if (!(mask >> lane & 1)) {
        die("a lane that is not in its own mask", at.file, at.line);
    }
    if (w.arrived == 0) {
        w.mask = mask;
        w.op = op;
        w.at = at;
    }
    if (w.mask != mask || w.op != op || w.at.line != at.line) {
        die("lanes of a warp at different operations", at.file, at.line);
    }
    f->in = in;
    f->out = out;
    f->amount = moves.amount;
    f->line = at;
    w.lanes[lane] = f;
    if (op == LDMATRIX) {
        READS(in, 16); // the lane's own row
    }
    w.arrived |= 1u << lane;
    char *sync = &w.sync[w.n_done % 2]; // alternates as the barrier's does
    if (op == SYNC) {
        RELEASE(sync); // shuffles and products do not order memory
    }
    if (w.arrived == mask) {
        w.arrived = 0;
        w.n_done++;
        work(w, moves);
        for (unsigned l = 0; l < 32; l++) {
            if (mask >> l & 1) {
                w.lanes[l]->what = READY;
            }
        }
    } else {
        f->what = AT_WARP;
        to_scheduler();
    }
    if (op == SYNC) {
        ACQUIRE(sync);
    }
}

// --- cp.async --------------------------------------------------------------------------------------------------------

void copy_later(void *to, const void *from, unsigned bytes, const char *file, int line) {
    if (((uintptr_t)to | (uintptr_t)from) % bytes != 0) {
        die("an asynchronous copy that is not aligned", file, line);
    }
    WRITES(to, bytes); // the copy may happen from now on, until it is waited for
    copies_to(to, file, line);
    m.now->copies.push_back({(char *)to, (const char *)from, bytes});
    m.now->line = {file, line};
}

void copy_commit() {
    m.now->ends.push_back(m.now->copies.size());
}

void copy_wait(size_t n_left) {
    fiber *f = m.now;
    if (f->ends.size() <= n_left) {
        return;
    }
    size_t n_groups = f->ends.size() - n_left, n = f->ends[n_groups - 1];
    for (size_t i = 0; i < n; i++) {
        READS(f->copies[i].from, f->copies[i].bytes);
        WRITES(f->copies[i].to, f->copies[i].bytes);
        const char *from = f->copies[i].from;
        uint64_t low = load<uint64_t>(from), high = load<uint64_t>(from + 8);
        store(f->copies[i].to, low);
        store(f->copies[i].to + 8, high);
        copied_to(f->copies[i].to);
    }
    f->copies.erase(f->copies.begin(), f->copies.begin() + (ptrdiff_t)n);
    f->ends.erase(f->ends.begin(), f->ends.begin() + (ptrdiff_t)n_groups);
    for (auto &end : f->ends) {
        end -= n;
    }
}

} // namespace emu
