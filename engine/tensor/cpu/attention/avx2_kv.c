// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: attention over pages with AVX2. The formulas are those of ref_kv.c.
 *
 * Design: a block of query vectors (kv_blocks.h) is scaled (and rotated) once into scratch and visits the pages of a
 *         split. A page is converted to f32 tiles (avx2_kv.h) once and used for all vectors. The same kernel, chain(),
 *         then computes scores and weighted values: A times strips.
 *
 *         Bits: a score is one chain of fused multiply-adds over the channels in order, an output channel one chain
 *         over the slots in order, for every format of the page. Neither depends on how many vectors or columns a
 *         kernel works on together, so blocking never changes a bit.
 */
#include "engine/tensor/cpu/attention/avx2_kv.h"

#include <assert.h>
#include <string.h>

#define MULTIPLY_ADD(w, x, sum) _mm256_fmadd_ps(w, x, sum)
#include "engine/tensor/cpu/attention/chain.h"

// --- the kernel ------------------------------------------------------------------------------------------------------

// Multiplies several strips at a time when there are few rows: a single chain would wait for its own result.
static void multiply_rows(const struct sl_avx2_product *product, int row, int n_rows, int n_strips, size_t begin,
                          size_t end) {
    struct sl_avx2_product p = sl_avx2_product_from(product, row, 0);
    int wide = n_rows == 1 ? 4 : n_rows == 2 ? 2 : 1;
    for (int s = 0, n; s < n_strips; s += n, p = sl_avx2_product_from(&p, 0, n)) {
        n = s + wide <= n_strips ? wide : 1;
        switch (n_rows * 8 + n) { // every case is a kernel of its own
#define CHAIN(rows, strips)                                                                                            \
    case (rows)*8 + (strips):                                                                                          \
        chain(&p, begin, end, rows, strips);                                                                           \
        break;
            CHAIN(1, 4)
            CHAIN(1, 1)
            CHAIN(2, 2)
            CHAIN(2, 1)
            CHAIN(3, 1)
            CHAIN(4, 1)
            CHAIN(5, 1)
            CHAIN(6, 1)
#undef CHAIN
        default:
            assert(false);
        }
    }
}

// Goes strip by strip, so that a strip stays in the first-level cache for all rows.
void sl_avx2_multiply(const struct sl_avx2_product *p, int row_begin, int row_end, int n_strips, size_t begin,
                      size_t end) {
    if (row_end - row_begin <= ROWS) {
        multiply_rows(p, row_begin, row_end - row_begin, n_strips, begin, end);
        return;
    }
    for (int s = 0; s < n_strips; s++) {
        const struct sl_avx2_product one = sl_avx2_product_from(p, 0, s);
        for (int v = row_begin; v < row_end; v += ROWS) {
            multiply_rows(&one, v, v + ROWS < row_end ? ROWS : row_end - v, 1, begin, end);
        }
    }
}

// --- a call ----------------------------------------------------------------------------------------------------------

void sl_avx2_load_queries(const struct sl_avx2_call *call, int head, int64_t begin, int n,
                          struct sl_page_angles *of_page, float *q) {
    int d = call->args.head_dim, n_heads;
    for (int v = 0; v < n; v += n_heads, q += (size_t)n_heads * (size_t)d) { // up to the last query head of the row
        int64_t row = (begin + v) / call->group, left = call->group - (begin + v) % call->group;
        n_heads = left < n - v ? (int)left : n - v;
        const float *from = call->args.q + row * sl_attend_q_stride(&call->args) +
                            (size_t)(head * call->group + (begin + v) % call->group) * (size_t)d;
        if (call->angles != NULL) {
            int64_t slot = (int64_t)call->args.heads.kv[head].n_slots - call->args.m + row;
            sl_avx2_rotate_queries(call->angles, of_page, slot, from, n_heads, q);
            from = q;
        }
        for (int i = 0; i < n_heads * d; i += 8) {
            _mm256_storeu_ps(q + i, _mm256_mul_ps(_mm256_loadu_ps(from + i), _mm256_set1_ps(call->args.scale)));
        }
    }
}

void sl_avx2_load_keys(const struct sl_avx2_call *call, int head, uint32_t page, struct sl_page_angles *of_page,
                       float *tile) {
    const struct sl_kv *kv = &call->args.heads.kv[head];
    sl_avx2_fill_keys(sl_kv_page_layout(kv, page), kv->pages[page], tile);
    if (call->angles != NULL) {
        sl_avx2_rotate_keys(call->angles, of_page, page, tile);
    }
}

// --- attend ----------------------------------------------------------------------------------------------------------

// Adds one page to the vectors of a block. Slots that a vector does not see have weight 0, which does not change its
// sums. One tile holds the keys, and then the values: two of 128 channels do not fit the first-level cache.
static void attend_page(const struct sl_kv_block *b, uint32_t page, uint32_t page_end, struct sl_attend_scratch *s) {
    (void)page_end; // nothing is prefetched
    const struct sl_kv *kv = &b->args->heads.kv[b->head];
    int d = b->args->head_dim, n_strips = sl_avx2_n_strips(d), begin, end;
    int n_page = sl_kv_block_clip(b, page, &begin, &end);
    if (n_page == 0) {
        return;
    }
    sl_avx2_fill_keys(sl_kv_page_layout(kv, page), kv->pages[page], s->v);
    if (b->angles != NULL) {
        sl_avx2_rotate_keys(b->angles, &s->of_page, page, s->v);
    }
    float *scores = b->kept != NULL ? sl_kv_kept(b, page) : s->scores;
    const struct sl_avx2_product qk = {s->q, (size_t)d, s->v, (size_t)d, scores, SL_PAGE_SLOTS, NULL};
    sl_avx2_multiply(&qk, begin, end, (n_page + SL_STRIP - 1) / SL_STRIP, 0, (size_t)d);
    for (int v = begin; v < end; v++) {
        size_t at = (size_t)v * SL_PAGE_SLOTS;
        sl_avx2_mask(scores + at, sl_slots_in_page(b->first[v], b->end[v], page));
        s->factors[v] = sl_avx2_softmax_add(&s->states[v], scores + at, s->scores + at);
    }
    sl_avx2_fill_values(sl_kv_page_layout(kv, page), kv->pages[page], n_page, s->v);
    const struct sl_avx2_product pv = {
        s->scores, SL_PAGE_SLOTS, s->v, SL_PAGE_SLOTS, s->out, (size_t)n_strips * SL_STRIP, s->factors};
    sl_avx2_multiply(&pv, begin, end, n_strips, 0, (size_t)n_page);
}

void sl_avx2_attend_pages(sl_load_queries_fn *load_queries, sl_attend_page_fn *attend_page_by,
                          const struct sl_kv_block *b, uint32_t page_begin, uint32_t page_end,
                          const struct sl_kv_partial *partial) {
    size_t d = (size_t)b->args->head_dim, wide = (size_t)sl_avx2_n_strips((int)d) * SL_STRIP;
    const struct sl_avx2_call call = {.args = *b->args, .angles = b->angles, .group = b->group};
    struct sl_attend_scratch s;
    s.of_page.page = -1;
    load_queries(&call, b->head, b->begin, b->n, &s.of_page, s.q);
    memset(s.out, 0, (size_t)b->n * wide * sizeof *s.out);
    for (int v = 0; v < b->n; v++) {
        s.states[v] = (struct sl_avx2_softmax){-INFINITY, 0.0f};
    }
    for (uint32_t page = page_begin; page < page_end; page++) {
        attend_page_by(b, page, page_end, &s);
    }
    for (int v = 0; v < b->n; v++) {
        memcpy(partial->out + (size_t)v * d, s.out + (size_t)v * wide, d * sizeof *s.out);
        partial->max[v] = s.states[v].max;
        partial->sum[v] = s.states[v].sum;
    }
}

void sl_avx2_attend_block(const struct sl_kv_block *b, uint32_t page_begin, uint32_t page_end,
                          const struct sl_kv_partial *partial) {
    sl_avx2_attend_pages(sl_avx2_load_queries, attend_page, b, page_begin, page_end, partial);
}

// --- calls ------------------------------------------------------------------------------------------------------------

void sl_avx2_call_init(struct sl_avx2_call *call, const struct sl_attend *args, struct sl_slot_angles *angles) {
    int group = args->n_heads / args->heads.n;
    *call = (struct sl_avx2_call){.args = *args, .group = group};
    if (args->rope != NULL) {
        sl_slot_angles_init(angles, args->rope);
        call->angles = angles;
    }
}
