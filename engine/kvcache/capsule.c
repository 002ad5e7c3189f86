// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: sessions to capsules and back; see capsule.h.
 *
 * Design: read_header() is the only function that trusts bytes of a header: its result has passed every check that
 *         does not need the receiver's model, including the exact body size. sl_capsule_open() then compares it with
 *         what this worker expects, and lays page tables over the body.
 */
#include "engine/kvcache/capsule.h"

#include <stdlib.h>
#include <string.h>

#include "engine/kvcache/internal.h"
#include "proto/sluice/v1/capsule.pb-c.h"

typedef Sluice__V1__CapsuleHeader header_message;
typedef Sluice__V1__CapsuleLayer layer_message;

// Returns how many slots of a head the capsule contains.
static uint32_t shipped_slots(const struct sl_layer *layer, const struct sl_head *head) {
    return layer->offloaded ? 0 : head->n_slots;
}

static size_t head_bytes(const struct sl_layer *layer, const struct sl_head *head) {
    uint32_t n_pages = sl_pages_for(shipped_slots(layer, head));
    return (size_t)head->n_packed * layer->packed.bytes + (size_t)(n_pages - head->n_packed) * layer->work.bytes;
}

size_t sl_capsule_layer_bytes(const struct sl_session *session, int layer) {
    const struct sl_layer *l = &session->layers[layer];
    size_t bytes = 0;
    for (int h = 0; h < session->geometry.n_kv_heads; h++) {
        bytes += head_bytes(l, &l->heads[h]);
    }
    return bytes;
}

size_t sl_capsule_body_bytes(const struct sl_session *session) {
    size_t bytes = 0;
    for (int l = 0; l < session->geometry.n_layers; l++) {
        bytes += sl_capsule_layer_bytes(session, l);
    }
    return bytes;
}

enum sl_status sl_capsule_layer_pieces(const struct sl_session *session, int layer, size_t body_offset,
                                       size_t max_piece_bytes, sl_capsule_piece_fn fn, void *arg) {
    const struct sl_layer *l = &session->layers[layer];
    struct sl_capsule_piece piece = {.offset = body_offset};
    for (int h = 0; h < session->geometry.n_kv_heads; h++) {
        const struct sl_head *head = &l->heads[h];
        for (uint32_t p = 0; p < sl_pages_for(shipped_slots(l, head)); p++) {
            const char *page = head->pages[p];
            size_t bytes = sl_layer_page_layout(l, head, p)->bytes;
            bool joins = piece.bytes > 0 && (const char *)piece.data + piece.bytes == page &&
                         piece.bytes + bytes <= max_piece_bytes;
            if (!joins) {
                if (piece.bytes > 0) {
                    SL_TRY(fn(arg, &piece));
                }
                piece = (struct sl_capsule_piece){page, 0, piece.offset + piece.bytes};
            }
            piece.bytes += bytes;
        }
    }
    return piece.bytes > 0 ? fn(arg, &piece) : SL_OK;
}

static enum sl_status copy_piece(void *body, const struct sl_capsule_piece *piece) {
    memcpy((char *)body + piece->offset, piece->data, piece->bytes);
    return SL_OK;
}

void sl_capsule_copy_body(const struct sl_session *session, void *body_out) {
    size_t offset = 0;
    for (int l = 0; l < session->geometry.n_layers; l++) {
        sl_capsule_layer_pieces(session, l, offset, SIZE_MAX, copy_piece, body_out);
        offset += sl_capsule_layer_bytes(session, l);
    }
}

void sl_capsule_clear_body(const struct sl_session *session, void *body) {
    char *end = body; // of a head's pages
    for (int l = 0; l < session->geometry.n_layers; l++) {
        const struct sl_layer *layer = &session->layers[l];
        for (int h = 0; h < session->geometry.n_kv_heads; h++) {
            uint32_t n_last = shipped_slots(layer, &layer->heads[h]) % SL_PAGE_SLOTS;
            end += head_bytes(layer, &layer->heads[h]);
            if (n_last > 0) { // so it is not packed
                sl_page_clear(&layer->work, end - layer->work.bytes, n_last);
            }
        }
    }
}

// --- writing a header ------------------------------------------------------------------------------------------------

// All memory that a message points to, in one allocation.
struct layer_parts {
    layer_message message;
    uint32_t counts[]; // n_slots of every head, then n_packed of every head
};

static void describe_layer(const struct sl_layer *layer, size_t n_heads, struct layer_parts *parts) {
    layer_message *m = &parts->message;
    sluice__v1__capsule_layer__init(m);
    m->work_format = layer->work.format;
    m->packed_format = layer->packed.format;
    m->work_states = (uint32_t)layer->work.n_states;
    m->packed_states = (uint32_t)layer->packed.n_states;
    m->work_positions = layer->work.has_positions;
    m->packed_positions = layer->packed.has_positions;
    m->merge_threshold = layer->merge_threshold;
    m->offloaded = layer->offloaded;
    m->n_n_slots = m->n_n_packed = n_heads;
    m->n_slots = parts->counts;
    m->n_packed = parts->counts + n_heads;
    for (size_t h = 0; h < n_heads; h++) {
        m->n_slots[h] = shipped_slots(layer, &layer->heads[h]);
        m->n_packed[h] = layer->heads[h].n_packed;
    }
}

static enum sl_status pack_header(const header_message *header, uint8_t **bytes_out, size_t *n_bytes_out,
                                  struct sl_error *err) {
    size_t n_bytes = sluice__v1__capsule_header__get_packed_size(header);
    uint8_t *bytes = malloc(n_bytes);
    SL_FAIL_IF(bytes == NULL, err, SL_ERR_EXHAUSTED, "no memory for a capsule header of %zu bytes", n_bytes);
    sluice__v1__capsule_header__pack(header, bytes);
    *bytes_out = bytes;
    *n_bytes_out = n_bytes;
    return SL_OK;
}

enum sl_status sl_capsule_write_header(const struct sl_session *session, const struct sl_capsule_id *id,
                                       uint8_t **bytes_out, size_t *n_bytes_out, struct sl_error *err) {
    size_t n_layers = (size_t)session->geometry.n_layers, n_heads = (size_t)session->geometry.n_kv_heads;
    size_t part_bytes = sizeof(struct layer_parts) + 2 * n_heads * sizeof(uint32_t); // a multiple of 8
    layer_message **layers = malloc(n_layers * (sizeof *layers + part_bytes));
    SL_FAIL_IF(layers == NULL, err, SL_ERR_EXHAUSTED, "no memory for a capsule header of %zu layers", n_layers);
    for (size_t l = 0; l < n_layers; l++) {
        struct layer_parts *parts = (struct layer_parts *)((char *)(layers + n_layers) + l * part_bytes);
        describe_layer(&session->layers[l], n_heads, parts);
        layers[l] = &parts->message;
    }
    header_message header = SLUICE__V1__CAPSULE_HEADER__INIT;
    header.version = SL_CAPSULE_VERSION;
    header.model_fingerprint = id->model_fingerprint;
    header.recipe_fingerprint = id->recipe_fingerprint;
    struct sl_hash128 prefix_hash = id->prefix_hash;
    header.prefix_hash = (ProtobufCBinaryData){sizeof prefix_hash, prefix_hash.bytes};
    header.n_kv_heads = (uint32_t)n_heads;
    header.head_dim = (uint32_t)session->geometry.head_dim;
    header.position_mode = session->positions;
    header.n_tokens = (uint64_t)session->n_tokens;
    header.body_bytes = sl_capsule_body_bytes(session);
    header.n_layers = n_layers;
    header.layers = layers;
    header.rope_set = (uint32_t)session->rope_set;

    enum sl_status status = pack_header(&header, bytes_out, n_bytes_out, err);
    free(layers);
    return status;
}

// --- reading a header ------------------------------------------------------------------------------------------------

struct layouts {
    struct sl_page_layout work, packed;
};

static enum sl_status read_layouts(const header_message *header, int layer, struct layouts *out, struct sl_error *err) {
    const layer_message *m = header->layers[layer];
    SL_FAIL_IF(m->work_states > SL_MAX_STATES || m->packed_states > SL_MAX_STATES ||
                   sl_page_layout_init(&out->work, (enum sl_kv_format)m->work_format, (int)header->head_dim,
                                       (int)m->work_states, m->work_positions != 0) != SL_OK ||
                   sl_page_layout_init(&out->packed, (enum sl_kv_format)m->packed_format, (int)header->head_dim,
                                       (int)m->packed_states, m->packed_positions != 0) != SL_OK,
               err, SL_ERR_INVALID, "capsule layer %d: no page layout has formats %u/%u, states %u/%u and head_dim %u",
               layer, m->work_format, m->packed_format, m->work_states, m->packed_states, header->head_dim);
    return sl_layer_check_layouts(&out->work, &out->packed, (int)header->head_dim, err);
}

// Checks the heads of one layer and adds their pages' bytes to *body_bytes.
static enum sl_status check_layer(const header_message *header, int layer, const struct layouts *layouts,
                                  uint64_t *body_bytes, bool *evicted, struct sl_error *err) {
    const layer_message *m = header->layers[layer];
    SL_FAIL_IF(m->n_n_slots != header->n_kv_heads || m->n_n_packed != header->n_kv_heads, err, SL_ERR_INVALID,
               "capsule layer %d: counts of %zu and %zu heads, expected %u", layer, m->n_n_slots, m->n_n_packed,
               header->n_kv_heads);
    if (!(m->merge_threshold >= -1 && m->merge_threshold <= 1)) { // an average of cosines; this also catches NaN
        return sl_fail(err, SL_ERR_INVALID, "capsule layer %d: a merge threshold of %g is outside -1..1", layer,
                       (double)m->merge_threshold);
    }
    bool quantized = sl_kv_format_is_quantized(layouts->packed.format);
    for (uint32_t h = 0; h < header->n_kv_heads; h++) {
        uint64_t n_slots = m->n_slots[h], n_packed = m->n_packed[h];
        SL_FAIL_IF(n_slots > header->n_tokens || n_packed * SL_PAGE_SLOTS > n_slots || (n_packed > 0 && !quantized),
                   err, SL_ERR_INVALID,
                   "capsule layer %d head %u: %llu slots and %llu packed pages do not fit %llu tokens", layer, h,
                   (unsigned long long)n_slots, (unsigned long long)n_packed, (unsigned long long)header->n_tokens);
        SL_FAIL_IF(m->offloaded && n_slots > 0, err, SL_ERR_INVALID,
                   "capsule layer %d head %u: %llu slots of an offloaded layer", layer, h, (unsigned long long)n_slots);
        *evicted |= !m->offloaded && n_slots < header->n_tokens;
        uint64_t n_pages = sl_pages_for((int64_t)n_slots); // < 2^26, a page < 2^19: 2^18 heads stay below 2^63
        *body_bytes += n_packed * layouts->packed.bytes + (n_pages - n_packed) * layouts->work.bytes;
    }
    return SL_OK;
}

static enum sl_status check_header(const header_message *header, bool *evicted, struct sl_error *err) {
    SL_FAIL_IF(header->version != SL_CAPSULE_VERSION, err, SL_ERR_INVALID, "capsule version %u, expected %d",
               header->version, SL_CAPSULE_VERSION);
    SL_FAIL_IF(header->prefix_hash.len != sizeof(struct sl_hash128), err, SL_ERR_INVALID,
               "capsule with a prefix hash of %zu bytes, expected %zu", header->prefix_hash.len,
               sizeof(struct sl_hash128));
    SL_FAIL_IF(header->n_layers < 1 || header->n_layers > SL_MAX_LAYERS || header->n_kv_heads < 1 ||
                   header->n_kv_heads > SL_MAX_HEADS || header->head_dim > INT32_MAX ||
                   header->n_tokens > INT32_MAX - 64 || header->position_mode > SL_POSITION_SLOT ||
                   header->rope_set >= SL_MAX_ROPE_SETS,
               err, SL_ERR_INVALID,
               "capsule of %zu layers, %u KV heads of %u, position mode %u, rope set %u and %llu tokens is out of "
               "bounds",
               header->n_layers, header->n_kv_heads, header->head_dim, header->position_mode, header->rope_set,
               (unsigned long long)header->n_tokens);
    uint64_t body_bytes = 0;
    for (int l = 0; l < (int)header->n_layers; l++) {
        struct layouts layouts;
        SL_TRY(read_layouts(header, l, &layouts, err));
        SL_TRY(check_layer(header, l, &layouts, &body_bytes, evicted, err));
    }
    SL_FAIL_IF(body_bytes != header->body_bytes, err, SL_ERR_INVALID,
               "capsule says %llu bytes of body, its pages take %llu", (unsigned long long)header->body_bytes,
               (unsigned long long)body_bytes);
    return SL_OK;
}

// Reads and checks a header. The caller frees *message_out with sluice__v1__capsule_header__free_unpacked().
static enum sl_status read_header(const void *bytes, size_t n_bytes, header_message **message_out,
                                  struct sl_capsule_info *info_out, struct sl_error *err) {
    SL_FAIL_IF(n_bytes > SL_CAPSULE_MAX_HEADER_BYTES, err, SL_ERR_INVALID,
               "capsule header of %zu bytes, at most %zu are possible", n_bytes, SL_CAPSULE_MAX_HEADER_BYTES);
    header_message *m = sluice__v1__capsule_header__unpack(NULL, n_bytes, bytes);
    SL_FAIL_IF(m == NULL, err, SL_ERR_INVALID, "capsule header of %zu bytes is not a CapsuleHeader message", n_bytes);
    bool evicted = false;
    SL_TRY_OR(check_header(m, &evicted, err), sluice__v1__capsule_header__free_unpacked(m, NULL));
    struct sl_hash128 prefix_hash;
    memcpy(&prefix_hash, m->prefix_hash.data, sizeof prefix_hash); // its length has been checked
    *info_out = (struct sl_capsule_info){
        .id = {m->model_fingerprint, m->recipe_fingerprint, prefix_hash},
        .geometry = {(int)m->n_layers, (int)m->n_kv_heads, (int)m->head_dim},
        .n_tokens = (int64_t)m->n_tokens,
        .body_bytes = m->body_bytes,
        .evicted = evicted,
    };
    *message_out = m;
    return SL_OK;
}

enum sl_status sl_capsule_read_header(const void *header, size_t header_bytes, struct sl_capsule_info *info_out,
                                      struct sl_error *err) {
    header_message *message = NULL;
    SL_TRY(read_header(header, header_bytes, &message, info_out, err));
    sluice__v1__capsule_header__free_unpacked(message, NULL);
    return SL_OK;
}

enum sl_status sl_capsule_rekey_header(const void *header, size_t header_bytes, const struct sl_hash128 *prefix_hash,
                                       uint8_t **bytes_out, size_t *n_bytes_out, struct sl_error *err) {
    header_message *message = NULL;
    struct sl_capsule_info info;
    SL_TRY(read_header(header, header_bytes, &message, &info, err));
    memcpy(message->prefix_hash.data, prefix_hash, sizeof *prefix_hash); // its length has been checked
    enum sl_status status = pack_header(message, bytes_out, n_bytes_out, err);
    sluice__v1__capsule_header__free_unpacked(message, NULL);
    return status;
}

// --- opening ---------------------------------------------------------------------------------------------------------

static enum sl_status check_expected(const struct sl_capsule_info *info, const struct sl_kv_geometry *geometry,
                                     const struct sl_capsule_id *id, size_t body_bytes, struct sl_error *err) {
    const struct sl_kv_geometry *g = &info->geometry;
    SL_FAIL_IF(g->n_layers != geometry->n_layers || g->n_kv_heads != geometry->n_kv_heads ||
                   g->head_dim != geometry->head_dim,
               err, SL_ERR_PRECONDITION,
               "capsule of %d layers, %d KV heads of %d; this model has %d layers, %d KV heads of %d", g->n_layers,
               g->n_kv_heads, g->head_dim, geometry->n_layers, geometry->n_kv_heads, geometry->head_dim);
    SL_FAIL_IF(info->id.model_fingerprint != id->model_fingerprint, err, SL_ERR_PRECONDITION,
               "capsule of model %016llx, this worker runs %016llx", (unsigned long long)info->id.model_fingerprint,
               (unsigned long long)id->model_fingerprint);
    SL_FAIL_IF(info->id.recipe_fingerprint != id->recipe_fingerprint, err, SL_ERR_PRECONDITION,
               "capsule of recipe %016llx, expected %016llx", (unsigned long long)info->id.recipe_fingerprint,
               (unsigned long long)id->recipe_fingerprint);
    if (!sl_hash128_is_zero(&id->prefix_hash) && !sl_hash128_equals(&info->id.prefix_hash, &id->prefix_hash)) {
        return sl_fail(err, SL_ERR_PRECONDITION, "capsule of another prefix"); // the hash must not appear in logs
    }
    SL_FAIL_IF(info->body_bytes != body_bytes, err, SL_ERR_INVALID, "capsule body of %zu bytes, its header says %zu",
               body_bytes, info->body_bytes);
    return SL_OK;
}

// Creates an empty session with the layouts of the header and room for all its slots.
static enum sl_status create_session(const header_message *header, const struct sl_kv_geometry *geometry,
                                     int64_t max_slots, struct sl_arena *arena, struct sl_session **session_out,
                                     struct sl_error *err) {
    struct sl_page_layout *work = malloc(2 * header->n_layers * sizeof *work);
    SL_FAIL_IF(work == NULL, err, SL_ERR_EXHAUSTED, "no memory for the layouts of %zu layers", header->n_layers);
    struct sl_page_layout *packed = work + header->n_layers;
    enum sl_status status = SL_OK;
    for (int l = 0; l < (int)header->n_layers && status == SL_OK; l++) {
        struct layouts layouts;
        status = read_layouts(header, l, &layouts, err);
        if (status == SL_OK) {
            work[l] = layouts.work;
            packed[l] = layouts.packed;
        }
        for (uint32_t h = 0; h < header->n_kv_heads; h++) {
            int64_t n_slots = header->layers[l]->n_slots[h];
            max_slots = n_slots > max_slots ? n_slots : max_slots;
        }
    }
    if (status == SL_OK) {
        struct sl_session_config config = {.geometry = *geometry,
                                           .positions = (enum sl_position_mode)header->position_mode,
                                           .max_slots = max_slots,
                                           .work = work,
                                           .packed = packed};
        status = sl_session_create(&config, arena, session_out, err);
    }
    free(work);
    return status;
}

// Lays the page tables over the body, whose exact size has been checked.
static void adopt_body(struct sl_session *session, const header_message *header, void *body, size_t body_bytes) {
    char *page = body;
    for (int l = 0; l < session->geometry.n_layers; l++) {
        struct sl_layer *layer = &session->layers[l];
        layer->merge_threshold = header->layers[l]->merge_threshold;
        layer->offloaded = header->layers[l]->offloaded != 0;
        for (int h = 0; h < session->geometry.n_kv_heads; h++) {
            struct sl_head *head = &layer->heads[h];
            head->n_slots = header->layers[l]->n_slots[h];
            head->n_packed = header->layers[l]->n_packed[h];
            head->n_pages = sl_pages_for(head->n_slots);
            for (uint32_t p = 0; p < head->n_pages; p++) {
                head->pages[p] = page;
                page += sl_layer_page_layout(layer, head, p)->bytes;
            }
        }
    }
    session->rope_set = (int)header->rope_set;
    session->n_tokens = (int64_t)header->n_tokens;
    session->adopted = (struct sl_session_span){body, body_bytes};
}

void sl_capsule_bytes_free(struct sl_capsule_bytes *capsule, struct sl_arena *arena) {
    sl_arena_free(arena, capsule->body);
    free(capsule->header);
    *capsule = (struct sl_capsule_bytes){0};
}

enum sl_status sl_capsule_open(const struct sl_capsule_bytes *capsule, struct sl_arena *arena,
                               const struct sl_kv_geometry *geometry, const struct sl_capsule_id *id, int64_t max_slots,
                               struct sl_session **session_out, struct sl_error *err) {
    header_message *message = NULL;
    struct sl_capsule_info info = {0};
    SL_TRY(read_header(capsule->header, capsule->header_bytes, &message, &info, err));
    struct sl_session *session;
    enum sl_status status = check_expected(&info, geometry, id, capsule->body_bytes, err);
    SL_THEN(status, create_session(message, geometry, max_slots, arena, &session, err));
    if (status == SL_OK) {
        adopt_body(session, message, capsule->body, capsule->body_bytes);
        *session_out = session;
    }
    sluice__v1__capsule_header__free_unpacked(message, NULL);
    return status;
}

enum sl_status sl_capsule_adopt(struct sl_capsule_bytes *capsule, struct sl_arena *arena,
                                const struct sl_kv_geometry *geometry, const struct sl_capsule_id *id,
                                int64_t max_slots, struct sl_session **session_out, struct sl_error *err) {
    enum sl_status status = sl_capsule_open(capsule, arena, geometry, id, max_slots, session_out, err);
    if (status == SL_OK) {
        capsule->body = NULL; // now owned by the session
    }
    sl_capsule_bytes_free(capsule, arena);
    return status;
}
