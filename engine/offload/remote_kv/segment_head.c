// SPDX-License-Identifier: Apache-2.0
#include "engine/offload/remote_kv/segment_head.h"

#include <assert.h>
#include <string.h>

#include "base/hash.h"

#define MAGIC "SLUICESG"

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the head as bytes is the head in memory of little endian");
static_assert(sizeof(struct sl_kv_segment_head) == 88, "without padding");

enum sl_status sl_kv_family_config(const struct sl_kv_family *family, int64_t begin, int64_t end,
                                   struct sl_kv_segment_config *config_out, struct sl_error *err) {
    struct sl_key_index_layout scan;
    struct sl_page_layout work;
    int32_t formats[] = {family->work, family->rows, family->scan};
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        SL_FAIL_IF(formats[i] < 0 || formats[i] >= SL_KV_N_FORMATS, err, SL_ERR_INVALID,
                   "segment: format %d is not known", formats[i]);
    }
    SL_FAIL_IF(sl_kv_format_is_quantized((enum sl_kv_format)family->work) ||
                   (family->rows != family->work && family->rows != SL_KV_INT8) ||
                   (family->scan != family->work && family->scan != SL_KV_INT8 && family->scan != SL_KV_INT1) ||
                   sl_page_layout_init(&work, (enum sl_kv_format)family->work, family->head_dim, 0, false) != SL_OK ||
                   sl_key_index_layout_init(&scan, (enum sl_kv_format)family->scan, family->head_dim, SL_PAGE_SLOTS) !=
                       SL_OK,
               err, SL_ERR_INVALID,
               "segment: head_dim %d, shipped as %s, rows as %s, key indexes as %s: pages are shipped in a float "
               "format, rows are kept as shipped or in int8, key indexes as shipped, in int8 or in int1",
               family->head_dim, sl_kv_format_name((enum sl_kv_format)family->work),
               sl_kv_format_name((enum sl_kv_format)family->rows), sl_kv_format_name((enum sl_kv_format)family->scan));
    SL_FAIL_IF(family->first_offloaded_head < 0 || family->n_offloaded_heads < 1 ||
                   (int64_t)family->first_offloaded_head + family->n_offloaded_heads >
                       (int64_t)SL_MAX_LAYERS * SL_MAX_HEADS,
               err, SL_ERR_INVALID, "segment: %d offloaded heads from offloaded head %d on are out of bounds",
               family->n_offloaded_heads, family->first_offloaded_head);
    *config_out = (struct sl_kv_segment_config){.begin = begin,
                                                .n_slots = (uint32_t)(end - begin),
                                                .first_offloaded_head = family->first_offloaded_head,
                                                .n_offloaded_heads = family->n_offloaded_heads,
                                                .work = work,
                                                .rows = (enum sl_kv_format)family->rows,
                                                .scan = (enum sl_kv_format)family->scan};
    return SL_OK;
}

struct sl_kv_segment_head sl_kv_segment_head_make(const struct sl_kv_segment *segment,
                                                  const struct sl_kv_family *family, uint32_t index,
                                                  struct sl_hash128 prefix_hash) {
    const struct sl_kv_segment_config *config = sl_kv_segment_get_config(segment);
    struct sl_kv_segment_head head = {.version = SL_KV_SEGMENT_HEAD_VERSION,
                                      .index = index,
                                      .family = *family,
                                      .begin = config->begin,
                                      .n_slots = config->n_slots,
                                      .prefix_hash = prefix_hash,
                                      .body_bytes = sl_kv_segment_kept_bytes(config)};
    memcpy(head.magic, MAGIC, sizeof head.magic);
    return head;
}

bool sl_kv_segment_head_is(const void *bytes, size_t n_bytes) {
    return n_bytes >= sizeof MAGIC - 1 && memcmp(bytes, MAGIC, sizeof MAGIC - 1) == 0;
}

enum sl_status sl_kv_segment_head_read(const void *bytes, size_t n_bytes, struct sl_kv_segment_head *head_out,
                                       struct sl_kv_segment_config *config_out, struct sl_error *err) {
    struct sl_kv_segment_head head;
    SL_FAIL_IF(!sl_kv_segment_head_is(bytes, n_bytes) || n_bytes < sizeof head, err, SL_ERR_INVALID,
               "segment: its head is damaged or cut short");
    memcpy(&head, bytes, sizeof head);
    SL_FAIL_IF(head.version != SL_KV_SEGMENT_HEAD_VERSION, err, SL_ERR_UNSUPPORTED,
               "segment: it is of version %u, this reads %d", head.version, SL_KV_SEGMENT_HEAD_VERSION);
    SL_FAIL_IF(n_bytes != sizeof head || head.index >= SL_MAX_DOCUMENT_SEGMENTS || head.begin < 0 || head.n_slots < 1 ||
                   head.n_slots > INT32_MAX || head.begin > INT32_MAX - head.n_slots,
               err, SL_ERR_INVALID, "segment: number %u, of %lld tokens from token %lld on, is out of bounds",
               head.index, (long long)head.n_slots, (long long)head.begin);
    struct sl_kv_segment_config config;
    SL_TRY(sl_kv_family_config(&head.family, head.begin, head.begin + head.n_slots, &config, err));
    size_t expected = sl_kv_segment_kept_bytes(&config);
    SL_FAIL_IF(expected == 0 || head.body_bytes != expected, err, SL_ERR_INVALID,
               "segment: %llu bytes of pages, expected %zu", (unsigned long long)head.body_bytes, expected);
    *head_out = head;
    *config_out = config;
    return SL_OK;
}

// Returns what tells one family from another; NULL: nothing.
static const char *find_difference(const struct sl_kv_family *one, const struct sl_kv_family *other) {
    bool same_heads = one->first_offloaded_head == other->first_offloaded_head &&
                      one->n_offloaded_heads == other->n_offloaded_heads && one->head_dim == other->head_dim;
    return one->model_fingerprint != other->model_fingerprint ? "model or recipe"
           : !same_heads                                      ? "heads"
           : one->work != other->work                         ? "format of pages"
           : one->rows != other->rows                         ? "format of rows"
           : one->scan != other->scan                         ? "format of key indexes"
                                                              : NULL;
}

enum sl_status sl_kv_segment_head_follows(const struct sl_kv_segment_head *head, const struct sl_kv_family *family,
                                          uint32_t index, int64_t begin, int64_t end, struct sl_error *err) {
    const char *difference = find_difference(&head->family, family);
    difference = difference == NULL && (head->index != index || head->begin != begin || head->n_slots > end - begin)
                     ? "place"
                     : difference;
    return difference == NULL
               ? SL_OK
               : sl_fail(err, SL_ERR_PRECONDITION,
                         "segment %u of the offloaded layers, of tokens [%lld, %lld), is not the one of "
                         "this text, model and recipe: its %s differs",
                         head->index, (long long)head->begin, (long long)(head->begin + head->n_slots), difference);
}

// ---- keys -----------------------------------------------------------------------------------------------------------

struct sl_capsule_id sl_document_segments_id(const struct sl_capsule_id *capsule, int32_t n_offloaded_heads,
                                             int32_t scan) {
    const int32_t of[] = {n_offloaded_heads, scan};
    struct sl_capsule_id id = *capsule;
    id.recipe_fingerprint =
        sl_hash(of, sizeof of, capsule->recipe_fingerprint) / SL_MAX_DOCUMENT_SEGMENTS * SL_MAX_DOCUMENT_SEGMENTS;
    return id;
}

struct sl_capsule_id sl_document_segment_id(const struct sl_capsule_id *segments, uint32_t index) {
    assert(index < SL_MAX_DOCUMENT_SEGMENTS);
    struct sl_capsule_id id = *segments;
    id.recipe_fingerprint += index;
    return id;
}

struct sl_capsule_id sl_document_segments_of(const struct sl_capsule_id *segment, uint32_t *index_out) {
    struct sl_capsule_id id = *segment;
    *index_out = (uint32_t)(id.recipe_fingerprint % SL_MAX_DOCUMENT_SEGMENTS);
    id.recipe_fingerprint -= *index_out;
    return id;
}
