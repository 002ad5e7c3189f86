// SPDX-License-Identifier: Apache-2.0
// Purpose: see fixture.h.
#include "fixture.h"
#include "engine/tensor/cpu/tiers.h"
#include "tests/one_head.h"

#include <math.h>

#define ARENA_BYTES ((size_t)96 << 20)

uint64_t next_random(uint64_t *seed) { // splitmix64
    uint64_t z = (*seed += 0x9e3779b97f4a7c15u);
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

int random_int(uint64_t *seed, int low, int high) {
    return low + (int)(next_random(seed) % (uint64_t)(high - low + 1));
}

void offloaded_heads_create(struct offloaded_heads *l, enum sl_kv_format work, int n_offloaded_heads, int d,
                            uint32_t n_tokens, uint64_t seed) {
    *l = (struct offloaded_heads){.n_offloaded_heads = n_offloaded_heads, .d = d, .n_tokens = n_tokens, .seed = seed};
    struct sl_error err;
    assert_int_equal(sl_ops_select("auto", &l->ops, &err), SL_OK);
    l->memory = aligned_alloc(SL_ARENA_UNIT, ARENA_BYTES);
    assert_non_null(l->memory);
    assert_int_equal(sl_arena_create(l->memory, ARENA_BYTES, &l->arena, &err), SL_OK);
    assert_int_equal(sl_page_layout_init(&l->work, work, d, 0, false), SL_OK);
    uint32_t n_pages = sl_pages_for(n_tokens);
    l->pages = aligned_alloc(64, (size_t)n_offloaded_heads * n_pages * l->work.bytes);
    l->page_list = calloc((size_t)n_offloaded_heads * n_pages, sizeof *l->page_list);
    l->kv = calloc((size_t)n_offloaded_heads, sizeof *l->kv);
    float *k = malloc((size_t)d * sizeof *k), *v = malloc((size_t)d * sizeof *v);
    assert_true(l->pages != NULL && l->page_list != NULL && l->kv != NULL && k != NULL && v != NULL);
    for (int offloaded_head = 0; offloaded_head < n_offloaded_heads; offloaded_head++) {
        void **pages = l->page_list + (size_t)offloaded_head * n_pages;
        for (uint32_t p = 0; p < n_pages; p++) {
            pages[p] = l->pages + ((size_t)offloaded_head * n_pages + p) * l->work.bytes;
        }
        l->kv[offloaded_head] = (struct sl_kv){pages, 0, 0, &l->work, &l->work};
        for (uint32_t j = 0; j < n_tokens; j++) {
            for (int c = 0; c < d; c++) {
                int low = (c + (int)(j / SL_PAGE_SLOTS)) % 2 == 0 ? -254 : -1, slot = (int)(j % SL_PAGE_SLOTS);
                k[c] = (float)(slot < 2 ? low + 255 * ((c + slot) % 2) : random_int(&l->seed, low, low + 255));
                v[c] = (float)random_int(&l->seed, -127, 127);
            }
            append_rows(l->ops, &l->kv[offloaded_head], k, v, d, 1, NULL);
            l->kv[offloaded_head].n_slots++;
        }
    }
    free(k);
    free(v);
}

void offloaded_heads_destroy(struct offloaded_heads *offloaded_heads) {
    struct sl_arena_stats stats;
    sl_arena_get_stats(offloaded_heads->arena, &stats);
    assert_int_equal(stats.n_blocks, 0);
    sl_arena_destroy(&offloaded_heads->arena);
    free(offloaded_heads->memory);
    free(offloaded_heads->pages);
    free(offloaded_heads->page_list);
    free(offloaded_heads->kv);
}

static struct sl_kv_segment_config config_of(const struct offloaded_heads *offloaded_heads, const struct make *make,
                                             int64_t begin, uint32_t n_slots) {
    return (struct sl_kv_segment_config){.begin = begin,
                                         .n_slots = n_slots,
                                         .first_offloaded_head = FIRST_HEAD + make->first_offloaded_head,
                                         .n_offloaded_heads = make->n_offloaded_heads,
                                         .work = offloaded_heads->work,
                                         .rows = make->rows,
                                         .scan = make->scan};
}

struct sl_kv_segment *make_segment(struct offloaded_heads *offloaded_heads, const struct make *make, int64_t begin,
                                   uint32_t n_slots) {
    struct sl_kv_segment_config config = config_of(offloaded_heads, make, begin, n_slots);
    char *block = sl_arena_alloc(offloaded_heads->arena, sl_kv_segment_block_bytes(&config));
    assert_non_null(block);
    for (int offloaded_head = 0; offloaded_head < make->n_offloaded_heads; offloaded_head++) {
        memcpy(block + (size_t)offloaded_head * sl_pages_for(n_slots) * offloaded_heads->work.bytes,
               offloaded_heads->kv[make->first_offloaded_head + offloaded_head].pages[begin / SL_PAGE_SLOTS],
               (size_t)sl_pages_for(n_slots) * offloaded_heads->work.bytes);
    }
    struct sl_kv_segment *segment;
    struct sl_error err = {0};
    if (sl_kv_segment_create(&config, offloaded_heads->ops, NULL, offloaded_heads->arena, block, &segment, &err) !=
        SL_OK) {
        fail_msg("%s", err.text);
    }
    return segment;
}

struct sl_remote_kv *make_remote_kv(struct offloaded_heads *offloaded_heads, const struct make *make) {
    struct sl_remote_kv *remote_kv;
    struct sl_error err = {0};
    assert_int_equal(sl_remote_kv_create(offloaded_heads->ops, FIRST_HEAD + make->first_offloaded_head,
                                         make->n_offloaded_heads, offloaded_heads->d, offloaded_heads->n_tokens,
                                         &remote_kv, &err),
                     SL_OK);
    for (uint32_t begin = 0, n; begin < offloaded_heads->n_tokens; begin += n) {
        n = SL_PAGE_SLOTS * (make->cut > 0 ? make->cut : (uint32_t)random_int(&offloaded_heads->seed, 1, 5));
        n = n < offloaded_heads->n_tokens - begin ? n : offloaded_heads->n_tokens - begin;
        struct sl_kv_segment *segment = make_segment(offloaded_heads, make, begin, n);
        assert_int_equal(sl_remote_kv_append(remote_kv, segment, &err), SL_OK);
        assert_int_equal(sl_kv_segment_n_refs(segment), 2);
        sl_kv_segment_unref(&segment);
    }
    assert_int_equal(sl_remote_kv_n_tokens(remote_kv), offloaded_heads->n_tokens);
    return remote_kv;
}

void random_query(struct offloaded_heads *offloaded_heads, float *q) {
    for (int c = 0; c < offloaded_heads->d; c++) {
        q[c] = (float)random_int(&offloaded_heads->seed, -8, 8);
    }
}

// --- what must be found --------------------------------------------------------------------------------------------

// As a float format keeps it; round half even.
static float rounded(enum sl_kv_format format, float x) {
    uint32_t bits;
    if (format == SL_KV_F16) {
        return (float)(_Float16)x;
    }
    if (format == SL_KV_BF16 && !isnan(x)) {
        memcpy(&bits, &x, sizeof bits);
        bits = (bits + 0x7fffu + (bits >> 16 & 1)) & 0xffff0000u;
        memcpy(&x, &bits, sizeof bits);
    }
    return x;
}

void read_scanned(const struct sl_remote_kv *remote_kv, int offloaded_head, float *k_out) {
    size_t d = (size_t)remote_kv->head_dim;
    const struct sl_kv_segment *s;
    for (int i = 0; (s = sl_remote_kv_segment(remote_kv, i)) != NULL; i++) {
        float *k = k_out + (size_t)s->config.begin * d;
        uint32_t n = s->config.n_slots;
        remote_kv->ops->read_rows(&s->kv[offloaded_head - remote_kv->first_offloaded_head], 0, n, k, NULL);
        for (size_t c = 0; c < d; c++) {
            float absmax = 0.0f;
            double sum = 0.0;
            for (uint32_t j = 0; j < n; j++) {
                absmax = fmaxf(absmax, fabsf(k[j * d + c]));
                sum += fabsf(k[j * d + c]);
            }
            for (uint32_t j = 0; j < n; j++) {
                float *x = &k[j * d + c], scale = absmax / 127.0f, mean = (float)(sum / n);
                *x = s->config.scan == SL_KV_INT8   ? rintf(*x / scale) * scale
                     : s->config.scan == SL_KV_INT1 ? (*x >= 0.0f ? mean : -mean)
                                                    : rounded(s->config.scan, *x);
            }
        }
    }
}

struct ranked {
    float score;
    uint32_t index;
};

static int by_rank(const void *a, const void *b) {
    const struct ranked *x = a, *y = b;
    if (x->score != y->score && !(isnan(x->score) && isnan(y->score))) {
        return isnan(x->score) || x->score < y->score ? 1 : -1;
    }
    return x->index < y->index ? -1 : x->index > y->index;
}

static int by_index(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

// The b best of n by sorting all of them.
static void best(struct ranked *all, uint32_t n, uint32_t b, uint32_t *out) {
    qsort(all, n, sizeof *all, by_rank);
    for (uint32_t i = 0; i < b; i++) {
        out[i] = all[i].index;
    }
    qsort(out, b, sizeof *out, by_index);
}

uint32_t expected_topk(const struct sl_remote_kv *remote_kv, const struct sl_remote_kv_query *query,
                       const float *scanned, uint32_t *tokens_out) {
    size_t d = (size_t)remote_kv->head_dim;
    uint32_t n = (uint32_t)(query->last - query->first), channels[512], b = query->topk < n ? query->topk : n;
    struct ranked *all = malloc((n + d) * sizeof *all);
    float *absmax = calloc(d, sizeof *absmax);
    assert_true(all != NULL && absmax != NULL);
    int offloaded_head = query->offloaded_head - remote_kv->first_offloaded_head;
    const struct sl_kv_segment *s;
    for (int i = 0; (s = sl_remote_kv_segment(remote_kv, i)) != NULL; i++) {
        for (size_t c = 0; c < d; c++) {
            absmax[c] = fmaxf(absmax[c], sl_kv_segment_absmax(s, offloaded_head)[c]);
        }
    }
    for (size_t c = 0; c < d; c++) {
        all[c] = (struct ranked){fabsf(query->q[c]) * absmax[c], (uint32_t)c};
    }
    best(all, (uint32_t)d, (uint32_t)query->n_channels, channels);
    for (int i = 0; query->given != NULL && i < query->n_channels; i++) {
        channels[i] = (uint32_t)query->given[i];
    }
    for (uint32_t j = 0; j < n; j++) {
        float sum = 0.0f;
        for (int i = 0; i < query->n_channels; i++) {
            sum += query->q[channels[i]] * scanned[((size_t)query->first + j) * d + channels[i]];
        }
        all[j] = (struct ranked){sum, (uint32_t)query->first + j};
    }
    best(all, n, b, tokens_out);
    free(all);
    free(absmax);
    return b;
}
