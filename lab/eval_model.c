// SPDX-License-Identifier: Apache-2.0
#include "lab/eval_model.h"

#include <stdlib.h>
#include <string.h>

#include "client/cli/request.h"

// LICENSE, compiled in by CMake.
extern const uint8_t sl_sample_text[];
extern const size_t sl_sample_text_bytes;

static enum sl_status reserve(struct sl_eval_model *m, int64_t cache_tokens, struct sl_error *err) {
    const struct sl_model_config *c = m->runtime.config;
    struct sl_page_layout page;
    enum sl_status status = sl_page_layout_init(&page, SL_KV_F32, c->head_dim, SL_MAX_STATES, true);
    SL_FAIL_IF(status != SL_OK, err, status, "no page layout for head_dim %d", c->head_dim);
    size_t n_heads = (size_t)c->n_layers * (size_t)c->n_kv_heads;
    return sl_arena_create_mapped(n_heads * (sl_pages_for(cache_tokens) + 16) * (page.bytes + SL_ARENA_UNIT), &m->arena,
                                  err);
}

enum sl_status sl_eval_model_open(const struct sl_eval_model_config *config, struct sl_eval_model *m,
                                  struct sl_error *err) {
    *m = (struct sl_eval_model){0};
    SL_FAIL_IF(config->dir == NULL, err, SL_ERR_INVALID, "--model DIR is needed");
    struct sl_runtime_config runtime = {.model_dir = config->dir,
                                        .device = config->device,
                                        .host_reader = "this command",
                                        .threads = config->threads,
                                        .max_rows = config->max_rows,
                                        .tokenizer = config->tokenizer,
                                        .loading_fn = sl_signals_loading,
                                        .loading_arg = config->signals};
    enum sl_status status = config->weights ? sl_weight_format_parse(config->weights, &runtime.weights, err) : SL_OK;
    SL_THEN(status, sl_runtime_open(&runtime, &m->runtime, err));
    SL_THEN(status, reserve(m, config->cache_tokens, err));
    SL_THEN(status, sl_signals_check(config->signals, err));
    if (status != SL_OK) {
        sl_eval_model_close(m);
    }
    return status;
}

void sl_eval_model_close(struct sl_eval_model *m) {
    sl_arena_destroy(&m->arena);
    sl_runtime_close(&m->runtime);
}

enum sl_status sl_eval_model_session(const struct sl_eval_model *m, enum sl_position_mode positions, int64_t n_tokens,
                                     struct sl_session **session_out, struct sl_error *err) {
    struct sl_kv_geometry geometry = sl_model_geometry(m->runtime.config);
    SL_TRY(sl_session_create_plain(&geometry, SL_KV_F16, positions, n_tokens, m->arena, session_out, err));
    (*session_out)->rope_set = sl_model_rope_set(m->runtime.config, n_tokens);
    return SL_OK;
}

enum sl_status sl_eval_text_read(const char *path, char **text_out, struct sl_error *err) {
    if (!path) {
        *text_out = NULL;
        return SL_OK;
    }
    return sl_request_read_text(path, text_out, err);
}

enum sl_status sl_eval_model_encode(const struct sl_eval_model *m, const char *text, int32_t **ids_out, int64_t *n_out,
                                    struct sl_error *err) {
    size_t n_ids;
    SL_TRY(sl_tokenizer_encode(m->runtime.tokenizer, text ? text : (const char *)sl_sample_text,
                               text ? strlen(text) : sl_sample_text_bytes, true, ids_out, &n_ids, err));
    *n_out = (int64_t)n_ids;
    return SL_OK;
}

enum sl_status sl_eval_model_read(const struct sl_eval_model *m, const char *path, int32_t **ids_out, int64_t *n_out,
                                  struct sl_error *err) {
    char *text;
    SL_TRY(sl_eval_text_read(path, &text, err));
    enum sl_status status = sl_eval_model_encode(m, text, ids_out, n_out, err);
    free(text);
    return status;
}

// --- lists -----------------------------------------------------------------------------------------------------------

static enum sl_status add_item(struct sl_list *list, const char *text, size_t bytes, struct sl_error *err) {
    char **items = realloc(list->items, (list->n + 1) * sizeof *items);
    SL_FAIL_IF(items == NULL, err, SL_ERR_EXHAUSTED, "out of memory");
    list->items = items;
    list->items[list->n] = strndup(text, bytes);
    SL_FAIL_IF(list->items[list->n] == NULL, err, SL_ERR_EXHAUSTED, "out of memory");
    list->n++;
    return SL_OK;
}

enum sl_status sl_list_add(struct sl_list *list, const char *text, char separator, struct sl_error *err) {
    enum sl_status status = SL_OK;
    while (*text != '\0' && status == SL_OK) {
        const char *end = separator ? strchr(text, separator) : NULL;
        size_t bytes = end ? (size_t)(end - text) : strlen(text);
        status = bytes > 0 ? add_item(list, text, bytes, err) : SL_OK;
        text += bytes + (end != NULL);
    }
    return status;
}

void sl_list_cleanup(struct sl_list *list) {
    for (size_t i = 0; i < list->n; i++) {
        free(list->items[i]);
    }
    free(list->items);
    *list = (struct sl_list){0};
}
