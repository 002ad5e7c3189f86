// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: quantizes full working pages into packed ones: x^ = code * s + z by groups; a block takes a page.
 *
 * Design: K: a group is a channel over the slots. A thread takes a channel, and neighbors read neighbors. It reads the
 *         slots twice, the second time from the cache, and writes words of codes. V: groups of up to 64 channels of a
 *         slot. Eight lanes take a group, eight channels each. Gives the bits of
 *         engine/tensor/cpu/attention/ref_kv_slots.c; must be compiled with -fmad=false.
 */
#include "engine/tensor/cuda/attention/launch.h"
#include "engine/tensor/cuda/pages.h"

constexpr uint32_t THREADS = 256;

// Writes a half of floats: the same bits if the formats are equal.
GPU_DEVICE void copy_half(const sl_page_layout *work, const char *from, sl_kv_format format, char *to) {
    size_t n = (size_t)SL_PAGE_SLOTS * (size_t)work->head_dim;
    if (format == work->format) {
        uint32_t n_words = (uint32_t)(n * (size_t)gpu::bits_of(format) / 32);
        for (uint32_t i = threadIdx.x; i < n_words; i += THREADS) {
            ((uint32_t *)to)[i] = ((const uint32_t *)from)[i];
        }
        return;
    }
    for (size_t e = threadIdx.x * 8; e < n; e += THREADS * 8) {
        float x[8];
        gpu::read_floats8(work->format, from, e, x);
        gpu::write_floats8(format, to, e, x);
    }
}

GPU_DEVICE void quantize_k(const sl_page_layout *work, const char *page, const sl_page_layout *packed, char *out) {
    int d = work->head_dim, bits = gpu::bits_of(packed->k_format);
    if (!gpu::is_codes(packed->k_format)) {
        copy_half(work, page + work->k, packed->k_format, out + packed->k);
        return;
    }
    for (int c = (int)threadIdx.x; c < d; c += (int)THREADS) {
        float min = gpu::read_float(work->format, page + work->k, (size_t)c), max = min;
        for (int j = 1; j < SL_PAGE_SLOTS; j++) {
            float x = gpu::read_float(work->format, page + work->k, (size_t)(j * d + c));
            min = fminf(min, x);
            max = fmaxf(max, x);
        }
        gpu::code_group g = gpu::group_of(min, max, bits);
        uint32_t *codes = (uint32_t *)(out + packed->k) + c * 2 * bits;
        ((uint32_t *)(out + packed->k_scale))[c] = g.pair;
        uint64_t next = 0; // codes that are not written yet
        for (int j = 0, n_bits = 0; j < SL_PAGE_SLOTS; j++) {
            uint32_t code = gpu::encode(gpu::read_float(work->format, page + work->k, (size_t)(j * d + c)), g);
            next |= (uint64_t)code << n_bits;
            n_bits += bits;
            if (n_bits >= 32) {
                *codes++ = (uint32_t)next;
                next >>= 32;
                n_bits -= 32;
            }
        }
    }
}

// Writes eight codes, which are as many bytes as a code has bits.
GPU_DEVICE void put_codes8(char *at, int bits, const uint32_t (&codes)[8]) {
    uint64_t all = 0;
    GPU_UNROLL
    for (int e = 0; e < 8; e++) {
        all |= (uint64_t)codes[e] << e * bits;
    }
    if (bits == 8) {
        *(uint64_t *)at = all;
    } else if (bits == 4) {
        *(uint32_t *)at = (uint32_t)all;
    } else if (bits == 2) {
        *(uint16_t *)at = (uint16_t)all;
    } else {
        for (int byte = 0; byte < bits; byte++) {
            at[byte] = (char)(all >> 8 * byte);
        }
    }
}

GPU_DEVICE void quantize_v(const sl_page_layout *work, const char *page, const sl_page_layout *packed, char *out) {
    int d = work->head_dim, bits = gpu::bits_of(packed->v_format), channels = gpu::v_group(d), n_groups = d / channels;
    int lane = (int)threadIdx.x % 8;
    if (!gpu::is_codes(packed->v_format)) {
        copy_half(work, page + work->v, packed->v_format, out + packed->v);
        return;
    }
    for (int i = (int)threadIdx.x / 8; i < SL_PAGE_SLOTS * n_groups; i += (int)THREADS / 8) { // whole warps
        int j = i / n_groups, c = i % n_groups * channels + lane * 8;
        bool mine = lane * 8 < channels; // a group may be narrower than eight lanes
        float x[8], min = NAN, max = NAN;
        if (mine) {
            gpu::read_floats8(work->format, page + work->v, (size_t)(j * d + c), x);
            GPU_UNROLL
            for (int e = 0; e < 8; e++) {
                min = fminf(min, x[e]);
                max = fmaxf(max, x[e]);
            }
        }
        for (int lanes = 1; lanes < 8; lanes *= 2) {
            min = fminf(min, __shfl_xor_sync(~0u, min, lanes));
            max = fmaxf(max, __shfl_xor_sync(~0u, max, lanes));
        }
        if (mine) {
            gpu::code_group g = gpu::group_of(min, max, bits);
            uint32_t codes[8];
            GPU_UNROLL
            for (int e = 0; e < 8; e++) {
                codes[e] = gpu::encode(x[e], g);
            }
            put_codes8(out + packed->v + (j * d + c) / 8 * bits, bits, codes);
            if (lane == 0) {
                ((uint32_t *)(out + packed->v_scale))[i] = g.pair;
            }
        }
    }
}

// Copies positions and state as they are, and zeros between the parts, which are sent too.
GPU_DEVICE void copy_rest(const sl_page_layout *work, const char *page, const sl_page_layout *packed, char *out) {
    uint32_t *words = (uint32_t *)out, n_pairs = gpu::is_codes(packed->k_format) ? (uint32_t)packed->head_dim : 0;
    for (uint32_t i = packed->k_scale / 4 + n_pairs + threadIdx.x; i < packed->v / 4; i += THREADS) {
        words[i] = 0;
    }
    for (uint32_t i = threadIdx.x; packed->has_positions && i < SL_PAGE_SLOTS; i += THREADS) {
        words[packed->positions / 4 + i] = ((const uint32_t *)(page + work->positions))[i];
    }
    for (uint32_t i = threadIdx.x; i < (uint32_t)packed->n_states * SL_PAGE_SLOTS; i += THREADS) {
        words[packed->states / 4 + i] = ((const uint32_t *)(page + work->states))[i];
    }
}

// blockIdx: page, head.
static __global__ void __launch_bounds__(THREADS) quantize(const gpu_head *heads, void *const *to) {
    const gpu_head *h = &heads[blockIdx.y];
    char *out = (char *)to[(size_t)blockIdx.y * gridDim.x + blockIdx.x];
    if (out != nullptr) {
        const char *page = (const char *)h->pages[h->n_packed + blockIdx.x];
        quantize_k(&h->work, page, &h->packed, out);
        quantize_v(&h->work, page, &h->packed, out);
        copy_rest(&h->work, page, &h->packed, out);
    }
}

void sl_gpu_quantize(struct gpu_queue *queue, const struct gpu_head *heads, int n_heads, uint32_t n_pages,
                     void *const *to) {
    if (n_pages > 0) {
        GPU_LAUNCH(quantize, dim3(n_pages, (unsigned)n_heads), THREADS, 0, queue, heads, to);
    }
}
