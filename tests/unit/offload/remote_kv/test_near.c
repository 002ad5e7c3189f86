// SPDX-License-Identifier: Apache-2.0
// Tests of engine/offload/remote_kv/near_wire.c, near_serve.c and local_source.c: every kind of question, and bytes
// that are none.
#include <math.h>

#include "fixture.h"
#include "engine/offload/remote_kv/source.h"
#include "tests/unit/offload/remote_kv/shared_blocks.h"

enum { MAX_REQUEST = 1 << 16 };

// A request as bytes: head and body.
struct packet {
    struct sl_near_request head;
    uint8_t body[MAX_REQUEST];
    size_t bytes;
};

static struct packet *packet_create(enum sl_near_kind kind, int first_offloaded_head, int n_offloaded_heads,
                                    const void *body, size_t body_bytes) {
    struct packet *p = calloc(1, sizeof *p);
    assert_true(p != NULL && body_bytes <= sizeof p->body);
    p->head = (struct sl_near_request){.magic = SL_NEAR_MAGIC,
                                       .version = SL_NEAR_VERSION,
                                       .kind = kind,
                                       .first_offloaded_head = (uint32_t)first_offloaded_head,
                                       .n_offloaded_heads = (uint32_t)n_offloaded_heads};
    memcpy(p->body, body, body_bytes);
    p->bytes = sizeof p->head + body_bytes;
    return p;
}

// A remote KV and its reader.
struct asker {
    struct offloaded_heads offloaded_heads;
    struct sl_remote_kv *remote_kv;
    struct sl_near_memory *memory;
    struct sl_remote_kv_scratch *scratch;
    struct sl_near_shape shape;
    uint8_t *answer; // malloc'd to the byte, so that a sanitizer sees what goes beyond
    size_t bytes;
    const uint8_t *body, *end;
};

static void asker_create(struct asker *a, const struct make *make, int d, uint32_t n_tokens) {
    *a = (struct asker){.answer = NULL};
    offloaded_heads_create(&a->offloaded_heads, SL_KV_F16, make->n_offloaded_heads, d, n_tokens, 31);
    a->remote_kv = make_remote_kv(&a->offloaded_heads, make);
    a->scratch = sl_remote_kv_scratch_create(NULL);
    a->shape = (struct sl_near_shape){d, SL_KV_F16, make->scan, n_tokens};
    assert_non_null(a->scratch);
    assert_int_equal(sl_near_memory_create(a->remote_kv, &a->memory, NULL), SL_OK);
}

static void asker_destroy(struct asker *a) {
    free(a->answer);
    sl_near_memory_destroy(&a->memory);
    sl_remote_kv_scratch_destroy(&a->scratch);
    sl_remote_kv_destroy(&a->remote_kv);
    offloaded_heads_destroy(&a->offloaded_heads);
}

// Serves any bytes: checks that the answer fits, and reads it as the asker does.
static enum sl_status serve(struct asker *a, const void *request, size_t bytes, const struct sl_near_request *asked,
                            struct sl_error *err) {
    size_t limit = sl_near_answer_bytes(a->remote_kv, request, bytes);
    free(a->answer);
    a->answer = aligned_alloc(64, ((limit > SL_NEAR_REFUSAL_BYTES ? limit : SL_NEAR_REFUSAL_BYTES) + 63) / 64 * 64);
    assert_non_null(a->answer);
    sl_near_serve(a->remote_kv, a->memory, a->scratch, request, bytes, a->answer, &a->bytes);
    assert_true(a->bytes <= (limit > 0 ? limit : SL_NEAR_REFUSAL_BYTES));
    struct sl_near_answer head;
    enum sl_status status = sl_near_check(asked, a->answer, a->bytes, &head, &a->body, err);
    a->end = a->answer + a->bytes;
    assert_int_not_equal(status, SL_ERR_PEER_CORRUPT);
    return status;
}

static void ask(struct asker *a, struct packet *p) {
    struct sl_error err = {0};
    size_t limit = sl_near_answer_bytes(a->remote_kv, &p->head, p->bytes);
    assert_true(limit > 0 && limit == sl_near_answer_limit(&a->shape, &p->head));
    if (serve(a, &p->head, p->bytes, &p->head, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
}

static struct packet *topk_packet(struct asker *a, int first_offloaded_head, int n_offloaded_heads, uint32_t topk,
                                  const float *q) {
    struct packet *p = packet_create(SL_NEAR_TOPK, first_offloaded_head, n_offloaded_heads, q,
                                     (size_t)n_offloaded_heads * (size_t)a->offloaded_heads.d * sizeof(float));
    p->head.n_channels = 4;
    p->head.topk = p->head.places = topk;
    p->head.last = a->offloaded_heads.n_tokens;
    return p;
}

// --- what is answered ----------------------------------------------------------------------------------------------

static void test_near_answers_topk(void **state) {
    (void)state;
    enum { D = 32, N = 1000, HEADS = 3, K = 25 };
    struct make make = {0, HEADS, SL_KV_INT8, SL_KV_INT8, 0};
    struct asker a;
    asker_create(&a, &make, D, N);
    float q[HEADS * D], *scanned = malloc(sizeof *scanned * N * D);
    size_t row_bytes = sl_near_row_bytes(&a.shape);
    char rows[K * 2 * D * 2];
    uint32_t expected[K];
    assert_int_equal(row_bytes, 2 * D * 2);
    for (int h = 0; h < HEADS; h++) {
        random_query(&a.offloaded_heads, q + h * D);
    }
    for (int probe = 0; probe < 2; probe++) {
        struct packet *p = topk_packet(&a, FIRST_HEAD + 1, 2, K, q);
        p->head.first = 8;
        p->head.last = N - 17;
        p->head.flags = probe ? SL_NEAR_PROBE : SL_NEAR_RESET;
        ask(&a, p);
        assert_true(((struct sl_near_answer *)a.answer)->scan_bytes > 0);
        for (int h = 0; h < 2; h++) {
            struct sl_near_offloaded_head_view view;
            struct sl_remote_kv_query query = {FIRST_HEAD + 1 + h, q + h * D, NULL, 4, 8, N - 17, K};
            read_scanned(a.remote_kv, query.offloaded_head, scanned);
            expected_topk(a.remote_kv, &query, scanned, expected);
            assert_int_equal(next_offloaded_head(&p->head, row_bytes, &a.body, a.end, &view, NULL), SL_OK);
            assert_int_equal(view.n_rows, K);
            assert_int_equal(view.n_new, probe ? 0 : K);
            if (probe) {
                assert_memory_equal(view.places, expected, sizeof expected);
                continue;
            }
            sl_remote_kv_rows(a.remote_kv, query.offloaded_head, expected, K, rows);
            assert_memory_equal(view.rows, rows, sizeof rows);
            for (uint32_t i = 0; i < K; i++) { // an empty hot cache is filled in order
                assert_int_equal(view.places[i], i);
                assert_int_equal(view.fresh[i], i);
            }
        }
        assert_ptr_equal(a.body, a.end);
        free(p);
    }
    free(scanned);
    asker_destroy(&a);
}

// With every channel and a group of one, near is exact attention's topk: of q . K in f64 over the pages' keys.
static void test_near_with_all_channels_is_exact(void **state) {
    (void)state;
    enum { D = 16, N = 500, K = 20 };
    struct make make = {0, 1, SL_KV_F16, SL_KV_F16, 0};
    struct asker a;
    asker_create(&a, &make, D, N);
    float q[D], k[N * D];
    random_query(&a.offloaded_heads, q);
    a.offloaded_heads.ops->read_rows(&a.offloaded_heads.kv[0], 0, N, k, NULL);
    struct packet *p = topk_packet(&a, FIRST_HEAD, 1, K, q);
    p->head.n_channels = D;
    p->head.flags = SL_NEAR_PROBE;
    ask(&a, p);
    struct sl_near_offloaded_head_view view;
    assert_int_equal(next_offloaded_head(&p->head, 64, &a.body, a.end, &view, NULL), SL_OK);
    double logits[N];
    for (int j = 0; j < N; j++) {
        logits[j] = 0.0;
        for (int c = 0; c < D; c++) {
            logits[j] += (double)q[c] * (double)k[j * D + c];
        }
    }
    for (uint32_t i = 0; i < K; i++) { // fewer than K tokens are better, or as good and earlier
        int n_better = 0;
        for (uint32_t j = 0; j < N; j++) {
            double mine = logits[view.places[i]];
            n_better += logits[j] > mine || (logits[j] == mine && j < view.places[i]);
        }
        assert_true(n_better < K);
    }
    free(p);

    p = topk_packet(&a, FIRST_HEAD, 1, 3 * N, q); // more than there are: all
    p->head.flags = SL_NEAR_PROBE;
    ask(&a, p);
    assert_int_equal(next_offloaded_head(&p->head, 64, &a.body, a.end, &view, NULL), SL_OK);
    assert_int_equal(view.n_rows, N);
    for (uint32_t i = 0; i < N; i++) {
        assert_int_equal(view.places[i], i);
    }
    free(p);
    asker_destroy(&a);
}

static void test_near_answers_rows_and_absmax(void **state) {
    (void)state;
    enum { D = 24, N = 300 };
    struct make make = {0, 2, SL_KV_F16, SL_KV_F16, 1};
    struct asker a;
    asker_create(&a, &make, D, N);
    uint32_t tokens[] = {299, 0, 64, 64, 128, 1};
    size_t row_bytes = sl_near_row_bytes(&a.shape);
    char rows[6 * 2 * D * 2];
    struct packet *p = packet_create(SL_NEAR_ROWS, FIRST_HEAD, 2, tokens, sizeof tokens);
    p->head.n_tokens = 6;
    ask(&a, p);
    assert_int_equal(sl_near_read_rows(&p->head, row_bytes, a.body, a.end, NULL), SL_OK);
    assert_int_equal(sl_near_read_rows(&p->head, row_bytes, a.body, a.end - row_bytes, NULL), SL_ERR_PEER_CORRUPT);
    for (int h = 0; h < 2; h++) {
        sl_remote_kv_rows(a.remote_kv, FIRST_HEAD + h, tokens, 6, rows);
        assert_memory_equal(a.body + (size_t)h * sizeof rows, rows, sizeof rows);
    }
    tokens[3] = N;
    free(p);
    p = packet_create(SL_NEAR_ROWS, FIRST_HEAD, 2, tokens, sizeof tokens);
    p->head.n_tokens = 6;
    struct sl_error err = {0};
    assert_int_equal(serve(&a, &p->head, p->bytes, &p->head, &err), SL_ERR_RANGE);
    assert_non_null(strstr(err.text, "token 300"));
    free(p);

    p = packet_create(SL_NEAR_ABSMAX, FIRST_HEAD, 2, "", 0);
    ask(&a, p);
    const float *absmax;
    float expected[D];
    assert_int_equal(sl_near_read_absmax(&p->head, D, a.body, a.end, &absmax, NULL), SL_OK);
    sl_remote_kv_absmax(a.remote_kv, FIRST_HEAD + 1, expected);
    assert_memory_equal(absmax + D, expected, sizeof expected);
    assert_int_equal(sl_near_read_absmax(&p->head, D, a.body, a.end - 4, &absmax, NULL), SL_ERR_PEER_CORRUPT);
    free(p);

    p = packet_create(SL_NEAR_MAP, 0, 0, "", 0);
    assert_int_equal(serve(&a, &p->head, p->bytes, &p->head, &err), SL_ERR_UNSUPPORTED); // the store answers those
    free(p);
    asker_destroy(&a);
}

// The scores that the asker gets from the channels that were sent are the bits of those beside the whole key indexes.
static void test_near_answers_channels(void **state) {
    (void)state;
    enum { D = 40, N = 901, CHANNELS = 5, HEADS = 2 };
    static const enum sl_kv_format scans[] = {SL_KV_F16, SL_KV_INT8, SL_KV_INT1};
    static const int64_t lasts[] = {N, 640, 70, 1};
    const uint16_t channels[HEADS][CHANNELS] = {{0, 3, 7, 8, 39}, {1, 2, 3, 4, 5}};
    const int own[] = {0, 1, 2, 3, 4};
    for (int i = 0; i < 12; i++) {
        struct make make = {0, HEADS, SL_KV_F16, scans[i / 4], 0};
        struct asker a;
        asker_create(&a, &make, D, N);
        struct packet *p = packet_create(SL_NEAR_CHANNELS, FIRST_HEAD, HEADS, channels, sizeof channels);
        p->head.n_channels = CHANNELS;
        p->head.last = lasts[i % 4];
        ask(&a, p);
        struct sl_near_channels_view view;
        assert_int_equal(sl_near_read_channels(&p->head, &a.shape, a.body, a.end, &view, NULL), SL_OK);
        float q[D], chosen[CHANNELS], scores[N], expected[N];
        random_query(&a.offloaded_heads, q);
        for (int h = 0; h < HEADS; h++) {
            int all[CHANNELS];
            for (int c = 0; c < CHANNELS; c++) {
                all[c] = channels[h][c];
                chosen[c] = q[all[c]];
            }
            const uint8_t *index = view.indexes + (size_t)h * view.offloaded_head_bytes;
            for (uint32_t s = 0; s < view.n_segments; s++) {
                const struct sl_kv_segment *segment = sl_remote_kv_segment(a.remote_kv, (int)s);
                struct sl_key_index_layout layout;
                uint32_t n = view.n_slots[s];
                assert_int_equal(sl_near_channels_layout(&a.shape, CHANNELS, n, &layout), SL_OK);
                const char *kept = segment->indexes + (size_t)h * segment->scan.bytes;
                a.offloaded_heads.ops->host.scan(&(struct sl_scan_piece){layout, index, 0, n, 0}, chosen, own, CHANNELS, scores);
                a.offloaded_heads.ops->host.scan(&(struct sl_scan_piece){segment->scan, kept, 0, n, 0}, q, all, CHANNELS, expected);
                assert_memory_equal(scores, expected, n * sizeof(float));
                index += layout.bytes;
            }
        }
        struct sl_error err = {0};
        p->head.last = N + 1;
        assert_int_equal(sl_near_answer_bytes(a.remote_kv, &p->head, p->bytes), 0);
        ((uint16_t *)p->body)[1] = 0; // not ascending
        p->head.last = N;
        assert_int_equal(serve(&a, &p->head, p->bytes, &p->head, &err), SL_ERR_INVALID);
        free(p);
        asker_destroy(&a);
    }
}

// The list of segments in front of the channels is padded: of any length, also where it fills its last line or misses it by one.
static void test_near_channels_of_any_number_of_segments(void **state) {
    (void)state;
    enum { D = 8, CHANNELS = 2 };
    const uint16_t channels[CHANNELS] = {1, 5};
    for (uint32_t n = 13; n <= 33; n++) {
        struct make make = {0, 1, SL_KV_F16, SL_KV_F16, 1};
        struct asker a;
        asker_create(&a, &make, D, n * SL_PAGE_SLOTS);
        struct packet *p = packet_create(SL_NEAR_CHANNELS, FIRST_HEAD, 1, channels, sizeof channels);
        p->head.n_channels = CHANNELS;
        p->head.last = n * SL_PAGE_SLOTS;
        ask(&a, p);
        struct sl_near_channels_view view;
        struct sl_error err = {0};
        if (sl_near_read_channels(&p->head, &a.shape, a.body, a.end, &view, &err) != SL_OK) {
            fail_msg("%u segments: %s", n, err.text);
        }
        assert_int_equal(view.n_segments, n);
        assert_int_equal((view.indexes - a.body) % 64, 0);
        assert_true((const uint8_t *)(view.n_slots + n) <= view.indexes);
        assert_true(view.indexes - (const uint8_t *)(view.n_slots + n) < 64); // no more padding than it needs
        assert_ptr_equal(view.indexes + view.offloaded_head_bytes, a.end);
        free(p);
        asker_destroy(&a);
    }
}

static void test_near_map_is_checked(void **state) {
    (void)state;
    struct sl_near_segment map[3] = {{0, 64, 1, 0, 0, 0}, {64, 128, 1, 0, 0, 0}, {192, 7, 1, 0, 0, 0}};
    const struct sl_near_segment *read;
    const uint8_t *body = (const uint8_t *)map;
    size_t n;
    assert_int_equal(sl_near_read_map(body, body + sizeof map, &read, &n, NULL), SL_OK);
    assert_true(n == 3 && read == map);
    assert_int_equal(sl_near_read_map(body, body + sizeof map - 1, &read, &n, NULL), SL_ERR_PEER_CORRUPT);
    map[1].n_slots = 127;
    assert_int_equal(sl_near_read_map(body, body + sizeof map, &read, &n, NULL), SL_ERR_PEER_CORRUPT);
    map[1].n_slots = 100;
    map[2].begin = 164; // after a partial page
    assert_int_equal(sl_near_read_map(body, body + sizeof map, &read, &n, NULL), SL_ERR_PEER_CORRUPT);
}

// --- bytes that are none -------------------------------------------------------------------------------------------

// Read everything that an answer says it has.
static enum sl_status read_answer(const struct asker *a, const struct sl_near_request *asked, const uint8_t *answer,
                                  size_t bytes, unsigned *sum) {
    struct sl_near_answer head;
    const uint8_t *at, *end = answer + bytes;
    struct sl_error err;
    enum sl_status status = sl_near_check(asked, answer, bytes, &head, &at, &err);
    size_t row_bytes = sl_near_row_bytes(&a->shape);
    if (status != SL_OK) {
        assert_true(err.text[0] != '\0' || head.n_bytes == 0);
        return status;
    }
    if (asked->kind == SL_NEAR_CHANNELS) {
        struct sl_near_channels_view view;
        status = sl_near_read_channels(asked, &a->shape, at, end, &view, &err);
        for (size_t i = 0; status == SL_OK && i < view.offloaded_head_bytes * asked->n_offloaded_heads; i++) {
            *sum += view.indexes[i];
        }
        return status;
    }
    if (asked->kind != SL_NEAR_TOPK) {
        status = asked->kind == SL_NEAR_ROWS
                     ? sl_near_read_rows(asked, row_bytes, at, end, &err)
                     : sl_near_read_absmax(asked, a->shape.head_dim, at, end, &(const float *){NULL}, &err);
        return status;
    }
    for (uint32_t h = 0; h < asked->n_offloaded_heads && status == SL_OK; h++) {
        struct sl_near_offloaded_head_view view;
        status = next_offloaded_head(asked, row_bytes, &at, end, &view, &err);
        for (uint32_t i = 0; status == SL_OK && i < view.n_rows; i++) {
            assert_true(view.places[i] < ((asked->flags & SL_NEAR_PROBE) ? asked->last : asked->places));
        }
        for (uint32_t i = 0; status == SL_OK && i < view.n_new; i++) {
            assert_true(view.fresh[i] < view.n_rows);
            *sum += view.rows[(i + 1) * row_bytes - 1];
        }
    }
    return status;
}

// Every request cut at every length, and with every byte of its head flipped in three ways, is answered or refused; so
// is every answer by its asker.
static void test_near_bears_malformed_bytes(void **state) {
    (void)state;
    enum { D = 16, N = 200, HEADS = 2 };
    struct make make = {0, HEADS, SL_KV_INT8, SL_KV_INT8, 1};
    struct asker a;
    asker_create(&a, &make, D, N);
    float q[HEADS * D];
    const uint32_t tokens[] = {3, 199};
    const uint16_t channels[] = {0, 5, 1, 15};
    random_query(&a.offloaded_heads, q);
    random_query(&a.offloaded_heads, q + D);
    struct packet *packets[] = {topk_packet(&a, FIRST_HEAD, HEADS, 5, q), topk_packet(&a, FIRST_HEAD, HEADS, 5, q),
                                packet_create(SL_NEAR_ROWS, FIRST_HEAD, 2, tokens, sizeof tokens),
                                packet_create(SL_NEAR_CHANNELS, FIRST_HEAD, 2, channels, sizeof channels),
                                packet_create(SL_NEAR_ABSMAX, FIRST_HEAD, 2, "", 0)};
    packets[1]->head.flags = SL_NEAR_PROBE;
    packets[2]->head.n_tokens = 2;
    packets[3]->head.n_channels = 2;
    packets[3]->head.last = 130;
    unsigned sum = 0;
    for (size_t k = 0; k < sizeof packets / sizeof packets[0]; k++) {
        struct packet *p = packets[k];
        ask(&a, p);
        assert_int_equal(read_answer(&a, &p->head, a.answer, a.bytes, &sum), SL_OK);
        // requests
        uint8_t *copy = malloc(p->bytes), *whole = malloc(a.bytes);
        size_t answer_bytes = a.bytes;
        assert_true(copy != NULL && whole != NULL);
        memcpy(whole, a.answer, answer_bytes);
        struct sl_error err;
        for (size_t n = 0; n < p->bytes; n++) {
            uint8_t *cut = malloc(n > 0 ? n : 1);
            memcpy(cut, &p->head, n);
            assert_int_equal(sl_near_answer_bytes(a.remote_kv, cut, n), 0);
            struct sl_near_request asked = {0};
            memcpy(&asked, cut, n < sizeof asked ? 0 : sizeof asked);
            assert_int_equal(serve(&a, cut, n, &asked, &err), SL_ERR_INVALID);
            free(cut);
        }
        for (size_t i = 0; i < p->bytes * 3; i++) {
            static const uint8_t flips[] = {0x01, 0x80, 0xff};
            memcpy(copy, &p->head, p->bytes);
            copy[i / 3] ^= flips[i % 3];
            struct sl_near_request asked;
            memcpy(&asked, copy, sizeof asked);
            if (sl_near_answer_bytes(a.remote_kv, copy, p->bytes) > 0) {
                enum sl_status status = serve(&a, copy, p->bytes, &asked, &err);
                if (status == SL_OK) {
                    assert_int_equal(read_answer(&a, &asked, a.answer, a.bytes, &sum), SL_OK);
                }
            } else {
                assert_int_not_equal(serve(&a, copy, p->bytes, &asked, &err), SL_OK);
            }
        }
        // answers
        for (size_t n = 0; n < answer_bytes; n++) {
            uint8_t *cut = aligned_alloc(64, (n + 64) / 64 * 64), *tight = cut + ((n + 64) / 64 * 64 - n) / 8 * 8;
            memcpy(tight, whole, n);
            assert_int_equal(read_answer(&a, &p->head, tight, n, &sum), SL_ERR_PEER_CORRUPT);
            if (n >= sizeof(struct sl_near_answer)) { // and believes that this is all
                ((struct sl_near_answer *)tight)->n_bytes = n - sizeof(struct sl_near_answer);
                assert_int_equal(read_answer(&a, &p->head, tight, n, &sum), SL_ERR_PEER_CORRUPT);
            }
            free(cut);
        }
        for (size_t i = 0; i < answer_bytes * 8; i++) {
            whole[i / 8] ^= (uint8_t)(1u << i % 8);
            (void)read_answer(&a, &p->head, whole, answer_bytes, &sum);
            whole[i / 8] ^= (uint8_t)(1u << i % 8);
        }
        free(copy);
        free(whole);
        free(p);
    }
    assert_true(sum > 0);
    asker_destroy(&a);
}

// --- in one process ------------------------------------------------------------------------------------------------

static void test_local_source_answers_like_the_wire(void **state) {
    (void)state;
    enum { D = 16, N = 300, HEADS = 2 };
    struct make make = {0, HEADS, SL_KV_F16, SL_KV_F16, 0};
    struct asker a;
    asker_create(&a, &make, D, N);
    struct sl_source *source;
    struct sl_team *team;
    struct sl_error err;
    assert_int_equal(sl_team_create(2, &team, &err), SL_OK);
    assert_int_equal(sl_local_source_create(a.remote_kv, team, &source, &err), SL_OK);
    assert_int_equal(source->n_shares, 1);
    assert_int_equal(source->shares[0].first_offloaded_head, FIRST_HEAD);
    assert_int_equal(source->shares[0].n_offloaded_heads, HEADS);
    float q[HEADS * D];
    for (uint64_t i = 1; i < 6; i++) {
        random_query(&a.offloaded_heads, q);
        random_query(&a.offloaded_heads, q + D);
        struct packet *p = topk_packet(&a, FIRST_HEAD, HEADS, 7, q);
        p->head.sequence = i;
        ask(&a, p);
        struct sl_asked *asked = NULL;
        const void *answer;
        size_t bytes, limit = sl_near_answer_limit(&a.shape, &p->head);
        assert_int_equal(source->ops->ask(source, &p->head, p->bytes, limit, INT64_MAX, &asked, &err), SL_OK);
        assert_true(source->ops->is_there(source, asked));
        assert_int_equal(source->ops->wait(source, asked, &answer, &bytes, &err), SL_OK);
        assert_int_equal(bytes, a.bytes);
        struct sl_near_answer head;
        const uint8_t *body;
        assert_int_equal(sl_near_check(&p->head, answer, bytes, &head, &body, &err), SL_OK);
        assert_memory_equal(body, a.body, head.n_bytes);
        source->ops->forget(source, &asked);
        assert_null(asked);
        source->ops->forget(source, &asked);
        p->head.flags = SL_NEAR_PROBE;
        assert_int_equal(source->ops->ask(source, &p->head, p->bytes, 64, INT64_MAX, &asked, &err), SL_ERR_RANGE);
        assert_null(asked);
        free(p);
    }
    assert_int_equal(source->n_asks, 5);
    source->ops->destroy(&source);
    assert_null(source);
    sl_team_destroy(&team);
    asker_destroy(&a);
}

// On a device with memory of its own, the source reads the rows there.
static void test_local_source_answers_in_shared_memory_of_a_device(void **state) {
    (void)state;
    enum { D = 16, N = 300, HEADS = 2 };
    struct make make = {0, HEADS, SL_KV_F16, SL_KV_F16, 0};
    struct shared_blocks blocks = {.device = {.ops = &shared_blocks_ops}};
    struct asker a;
    asker_create(&a, &make, D, N);
    struct sl_source *source;
    struct sl_error err;
    assert_int_equal(sl_local_source_create(a.remote_kv, NULL, &source, &err), SL_OK);
    source->device = &blocks.device;
    float q[HEADS * D];
    for (uint64_t i = 1; i < 6; i++) {
        random_query(&a.offloaded_heads, q);
        random_query(&a.offloaded_heads, q + D);
        struct packet *p = topk_packet(&a, FIRST_HEAD, HEADS, (uint32_t)(7 * i), q);
        p->head.sequence = i;
        struct sl_asked *asked = NULL;
        const void *answer;
        size_t bytes, limit = sl_near_answer_limit(&a.shape, &p->head);
        assert_int_equal(source->ops->ask(source, &p->head, p->bytes, limit, INT64_MAX, &asked, &err), SL_OK);
        assert_int_equal(source->ops->wait(source, asked, &answer, &bytes, &err), SL_OK);
        assert_ptr_equal(answer, blocks.newest);
        assert_int_equal(blocks.n, 1);
        source->ops->forget(source, &asked);
        free(p);
    }
    source->ops->destroy(&source);
    assert_int_equal(blocks.n, 0);
    asker_destroy(&a);
}

// Three questions in one pass, one of which cannot be answered: the bytes are those of three passes.
static void test_near_serves_together_what_it_serves_alone(void **state) {
    (void)state;
    enum { D = 32, N = 700, HEADS = 2, K = 20, QUESTIONS = 3, STEPS = 3 };
    struct make make = {0, HEADS, SL_KV_F16, SL_KV_INT8, 0};
    struct asker askers[QUESTIONS];
    struct sl_near_memory *memories[QUESTIONS];
    for (int i = 0; i < QUESTIONS; i++) {
        asker_create(&askers[i], &make, D, N - 64 * (uint32_t)i);
        assert_int_equal(sl_near_memory_create(askers[i].remote_kv, &memories[i], NULL), SL_OK);
    }
    for (int step = 0; step < STEPS; step++) {
        struct packet *packets[QUESTIONS];
        struct sl_near_served served[QUESTIONS];
        for (int i = 0; i < QUESTIONS; i++) {
            float q[HEADS * D];
            for (int h = 0; h < HEADS; h++) {
                random_query(&askers[i].offloaded_heads, q + h * D);
            }
            packets[i] = topk_packet(&askers[i], FIRST_HEAD, HEADS, K, q);
            packets[i]->head.places = 2 * K;
            packets[i]->head.sequence = (uint64_t)step + 1;
            packets[i]->head.n_channels = i == 1 && step == 1 ? 0 : 4;
            size_t bytes = sl_near_answer_limit(&askers[i].shape, &packets[i]->head) + SL_NEAR_REFUSAL_BYTES;
            served[i] = (struct sl_near_served){askers[i].remote_kv,
                                                memories[i],
                                                &packets[i]->head,
                                                packets[i]->bytes,
                                                aligned_alloc(64, (bytes + 63) / 64 * 64),
                                                0};
            assert_non_null(served[i].answer);
        }
        sl_near_serve_together(served, QUESTIONS, askers[0].scratch);
        for (int i = 0; i < QUESTIONS; i++) {
            struct sl_error err = {0};
            enum sl_status status = serve(&askers[i], &packets[i]->head, packets[i]->bytes, &packets[i]->head, &err);
            assert_int_equal(status, i == 1 && step == 1 ? SL_ERR_INVALID : SL_OK);
            struct sl_near_answer head;
            memcpy(&head, served[i].answer, sizeof head);
            assert_int_equal(head.status, status);
            assert_int_equal(served[i].n_out, askers[i].bytes);
            assert_memory_equal((char *)served[i].answer + sizeof head, askers[i].answer + sizeof head,
                                askers[i].bytes - sizeof head);
            free(served[i].answer);
            free(packets[i]);
        }
    }
    for (int i = 0; i < QUESTIONS; i++) {
        sl_near_memory_destroy(&memories[i]);
        asker_destroy(&askers[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_near_serves_together_what_it_serves_alone),
        cmocka_unit_test(test_near_answers_topk),
        cmocka_unit_test(test_near_with_all_channels_is_exact),
        cmocka_unit_test(test_near_answers_rows_and_absmax),
        cmocka_unit_test(test_near_answers_channels),
        cmocka_unit_test(test_near_channels_of_any_number_of_segments),
        cmocka_unit_test(test_near_map_is_checked),
        cmocka_unit_test(test_near_bears_malformed_bytes),
        cmocka_unit_test(test_local_source_answers_like_the_wire),
        cmocka_unit_test(test_local_source_answers_in_shared_memory_of_a_device),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
