// SPDX-License-Identifier: Apache-2.0
#include "engine/runner/join.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "engine/runner/reader_internal.h"

// ---- checks ---------------------------------------------------------------------------------------------------------

enum sl_status sl_join_check_device(const struct sl_runtime *runtime, struct sl_error *err) {
    // Ranks divide the heads of a row.
    return runtime->device->ops->one_memory && sl_runtime_ranks(runtime) == 1
               ? SL_OK
               : sl_fail(err, SL_ERR_UNSUPPORTED, "join: needs one rank of processors");
}

static enum sl_status check_plan(const struct sl_reader_config *config, struct sl_error *err) {
    const struct sl_plan *plan = config->plan;
    bool fits = !sl_recipe_evicts(&plan->recipe) && !sl_recipe_offloads(&plan->recipe);
    for (int layer = 0; fits && layer < plan->geometry.n_layers; layer++) {
        fits = plan->work[layer].n_states == 0;
    }
    SL_FAIL_IF(!fits, err, SL_ERR_UNSUPPORTED, "join: the recipe does not keep every token of every layer");
    return sl_join_check_device(config->runtime, err);
}

static enum sl_status check_source(const struct sl_join *join, const struct sl_session *session, struct sl_error *err) {
    const struct sl_session *from = join->from;
    SL_FAIL_IF(from->geometry.n_layers != session->geometry.n_layers ||
                   from->geometry.n_kv_heads != session->geometry.n_kv_heads ||
                   from->geometry.head_dim != session->geometry.head_dim || from->positions != session->positions ||
                   from->rope_set != session->rope_set,
               err, SL_ERR_UNSUPPORTED, "join: a session of another shape, or of other frequencies");
    for (int i = 0; i < from->geometry.n_layers * from->geometry.n_kv_heads; i++) {
        const struct sl_head *head = &from->layers[i / from->geometry.n_kv_heads].heads[i % from->geometry.n_kv_heads];
        SL_FAIL_IF((int64_t)head->n_slots != from->n_tokens, err, SL_ERR_UNSUPPORTED,
                   "join: a session that has evicted or offloaded slots");
    }
    return join->first >= 0 && join->first + join->n_tokens <= from->n_tokens
               ? SL_OK
               : sl_fail(err, SL_ERR_INVALID, "join: tokens %lld to %lld of a session of %lld", (long long)join->first,
                         (long long)(join->first + join->n_tokens), (long long)from->n_tokens);
}

enum sl_status sl_join_check(const struct sl_reader_config *config, const struct sl_session *session,
                             struct sl_error *err) {
    enum sl_status status = check_plan(config, err);
    int64_t end = session->n_tokens;
    for (int i = 0; status == SL_OK && i < config->n_joins; i++) {
        const struct sl_join *join = &config->joins[i];
        SL_FAIL_IF(join->n_tokens < 1 || join->at < end || join->n_tokens >= config->plan->n_prompt - join->at, err,
                   SL_ERR_INVALID, "join: %lld tokens at %lld do not fit between %lld and %lld",
                   (long long)join->n_tokens, (long long)join->at, (long long)end, (long long)config->plan->n_prompt);
        end = join->at + join->n_tokens;
        status = check_source(join, session, err);
    }
    return status;
}

// ---- copying --------------------------------------------------------------------------------------------------------

bool sl_reader_joins(const struct sl_reader *reader) {
    return reader->n_joined < reader->n_joins && reader->joins[reader->n_joined].at == reader->session->n_tokens;
}

// Memory for the rows of one layer.
struct rows {
    int m;
    float *k, *v;           // [m][Hk][d]
    float *row;             // [m][d] of one head
    float *cosines, *sines; // [m][rotary_dim / 2], of the way that the rows move
    int64_t *positions;     // [m], the new ones
    struct sl_kv *kv;       // [Hk]
    const struct sl_rope *rope;
    struct sl_device *device;
};

static void free_rows(struct rows *rows) {
    void *const blocks[] = {rows->k, rows->v, rows->row, rows->cosines, rows->sines, rows->positions};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
        sl_device_free(rows->device, SL_MEMORY_SHARED, blocks[i]);
    }
    free(rows->kv);
}

static enum sl_status make_rows(struct rows *rows, const struct sl_reader *reader, int m, struct sl_error *err) {
    const struct sl_kv_geometry *geometry = &reader->session->geometry;
    const struct sl_rope *rope = sl_model_get_rope(reader->runtime->model, reader->session->rope_set);
    size_t d = (size_t)geometry->head_dim, n_heads = (size_t)geometry->n_kv_heads;
    size_t head = (size_t)m * d * sizeof(float), angles = (size_t)m * (size_t)(rope->rotary_dim / 2) * sizeof(float);
    struct sl_device *device = reader->runtime->device;
    *rows = (struct rows){.m = m, .rope = rope, .device = device};
    rows->k = sl_device_alloc(device, SL_MEMORY_SHARED, head * n_heads);
    rows->v = sl_device_alloc(device, SL_MEMORY_SHARED, head * n_heads);
    rows->row = sl_device_alloc(device, SL_MEMORY_SHARED, head);
    rows->cosines = sl_device_alloc(device, SL_MEMORY_SHARED, angles);
    rows->sines = sl_device_alloc(device, SL_MEMORY_SHARED, angles);
    rows->positions = sl_device_alloc(device, SL_MEMORY_SHARED, (size_t)m * sizeof *rows->positions);
    rows->kv = malloc(n_heads * sizeof *rows->kv);
    if (!rows->k || !rows->v || !rows->row || !rows->cosines || !rows->sines || !rows->positions || !rows->kv) {
        free_rows(rows);
        return sl_fail(err, SL_ERR_EXHAUSTED, "join: out of memory");
    }
    return SL_OK;
}

// Computes the angles of the way from the part's old positions to the new ones, without the scale that the keys have.
static void compute_angles(const struct sl_reader *reader, const struct sl_join *join, struct rows *rows) {
    struct sl_rope way = *rows->rope;
    way.scale = 1;
    for (int r = 0; r < rows->m; r++) {
        rows->positions[r] = join->at - join->first;
    }
    reader->runtime->ops->angles(reader->runtime->stream, &way, rows->positions, rows->m, rows->cosines, rows->sines);
    for (int r = 0; r < rows->m; r++) {
        rows->positions[r] = join->at + r;
    }
}

// Writes [m][d] of one head into its columns of [m][Hk][d].
static void spread(const struct rows *rows, int n_heads, int head, float *out) {
    size_t d = (size_t)rows->rope->head_dim;
    for (size_t r = 0; r < (size_t)rows->m; r++) {
        memcpy(out + (r * (size_t)n_heads + (size_t)head) * d, rows->row + r * d, d * sizeof *out);
    }
}

// Reads the rows of all heads of a layer, and turns the keys to their new positions.
static void read_layer(const struct sl_reader *reader, const struct sl_join *join, int layer, struct rows *rows) {
    const struct sl_ops *ops = reader->runtime->ops;
    int n_heads = reader->session->geometry.n_kv_heads;
    uint32_t begin = (uint32_t)join->first, end = begin + (uint32_t)rows->m;
    for (int head = 0; head < n_heads; head++) {
        struct sl_kv from = sl_session_kv(join->from, layer, head);
        ops->read_rows(&from, begin, end, rows->row, NULL);
        spread(rows, n_heads, head, rows->k);
        ops->read_rows(&from, begin, end, NULL, rows->row);
        spread(rows, n_heads, head, rows->v);
    }
    if (reader->session->positions == SL_POSITION_ORIGINAL) {
        struct sl_row_vectors k = {rows->k, (int64_t)n_heads * rows->rope->head_dim, rows->m, n_heads};
        ops->rotate(reader->runtime->stream, rows->rope, rows->cosines, rows->sines, k);
    }
}

static enum sl_status append_layer(const struct sl_reader *reader, int layer, struct rows *rows, struct sl_error *err) {
    const struct sl_ops *ops = reader->runtime->ops;
    struct sl_session *session = reader->session;
    sl_session_add_slots(session, layer, rows->m);
    struct sl_kv_heads heads = sl_session_heads(session, layer, rows->kv);
    SL_TRY(ops->publish(reader->runtime->stream, &heads, err));
    struct sl_attend call = {.k = rows->k,
                             .v = rows->v,
                             .m = rows->m,
                             .n_heads = reader->runtime->config->n_heads,
                             .head_dim = session->geometry.head_dim,
                             .heads = heads,
                             .positions = rows->positions};
    ops->append(reader->runtime->stream, &call, 1);
    return SL_OK;
}

// Reserves room in all layers, so that a layer is never longer than another.
static enum sl_status reserve(struct sl_session *session, int m, struct sl_error *err) {
    enum sl_status status = SL_OK;
    for (int layer = 0; status == SL_OK && layer < session->geometry.n_layers; layer++) {
        status = sl_session_reserve(session, layer, m);
    }
    return status == SL_OK ? SL_OK
                           : sl_fail(err, status, "no room in the KV cache for %d joined tokens after %lld", m,
                                     (long long)session->n_tokens);
}

enum sl_status sl_reader_join(struct sl_reader *reader, struct sl_error *err) {
    assert(sl_reader_joins(reader));
    struct sl_join *join = &reader->joins[reader->n_joined];
    int m = join->n_tokens < SL_JOIN_TOKENS ? (int)join->n_tokens : SL_JOIN_TOKENS;
    struct sl_stream *stream = reader->runtime->stream;
    struct rows rows;
    SL_TRY(make_rows(&rows, reader, m, err));
    sl_stream_hold(stream);
    enum sl_status status = reserve(reader->session, m, err);
    if (status == SL_OK) {
        compute_angles(reader, join, &rows);
    }
    for (int layer = 0; status == SL_OK && layer < reader->session->geometry.n_layers; layer++) {
        read_layer(reader, join, layer, &rows);
        status = append_layer(reader, layer, &rows, err);
    }
    status = sl_stream_release_after(stream, status, err);
    free_rows(&rows);
    if (status == SL_OK) {
        reader->session->n_tokens += m;
        join->first += m;
        join->at += m;
        join->n_tokens -= m;
        reader->n_joined += join->n_tokens == 0;
    }
    return status;
}
