// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: libFuzzer target for the files that describe a model. Whatever they hold, they are refused with a reason, or every number that
 *          follows from them is in its bounds and finite.
 *
 * Design: the parts of the input, separated by zero bytes, are config.json, generation_config.json, sluice_profile.json,
 *         and as text (fuzz_folder.h) retaining_heads.safetensors. An empty part is no file.
 */
#include <math.h>

#include "engine/model/model_internal.h"
#include "tests/fuzz/fuzz_folder.h"

#define N_JSON  3
#define N_FILES 4

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const file_names[N_FILES] = {"config.json", "generation_config.json", "sluice_profile.json",
                                                "retaining_heads.safetensors"};

static void check_dimensions(const struct sl_model_config *c) {
    require(c->family != NULL && c->n_layers >= 1 && c->n_layers <= SL_MAX_LAYERS);
    require(c->n_heads >= 1 && c->n_heads <= SL_MAX_HEADS && c->n_kv_heads >= 1 && c->n_heads % c->n_kv_heads == 0);
    require(c->head_dim >= 8 && c->head_dim <= SL_MAX_STRETCHES * 2 && c->head_dim % 8 == 0);
    require(c->rotary_dim >= 8 && c->rotary_dim <= c->head_dim && c->rotary_dim % 8 == 0);
    require(c->hidden >= 1 && c->intermediate >= 1 && c->n_vocab >= 1 && c->max_positions >= 1);
    require(c->norm_eps > 0.0f && isfinite(c->norm_eps) && c->activation != SL_ACT_NONE && c->window >= 0);
    require(c->bos_id >= -1 && c->bos_id < c->n_vocab && c->ends.n >= c->n_listed_ends && c->ends.n <= SL_MAX_EOS);
    for (int i = 0; i < c->ends.n; i++) {
        require(c->ends.ids[i] >= 0 && c->ends.ids[i] < c->n_vocab);
    }
    const struct sl_model_sampling *s = &c->sampling;
    require(s->temperature >= 0 && s->temperature <= 100 && s->top_k >= 0 && s->top_p >= 0 && s->top_p <= 1);
    require(s->repetition_penalty >= 0 && s->repetition_penalty <= 100 && strlen(s->left_out) < sizeof s->left_out);
    for (int l = c->n_layers; l < SL_MAX_LAYERS; l++) {
        require(!((c->dense_layers[l / 64] | c->window_layers[l / 64]) >> (l % 64) & 1));
    }
}

// Every frequency at the last position is an angle.
static void check_rope(const struct sl_model_config *c) {
    double *inv_freq = malloc((size_t)(c->rotary_dim / 2) * sizeof *inv_freq); // exactly: writes past its end are seen
    require(inv_freq != NULL && isfinite(c->rope.scale) && c->rope.scale > 0.0);
    for (int set = 0; set < SL_MAX_ROPE_SETS; set++) {
        if (set != sl_model_rope_set(c, 1) && set != sl_model_rope_set(c, c->max_positions)) {
            continue;
        }
        sl_rope_inv_freq(c, set, inv_freq);
        for (int i = 0; i < c->rotary_dim / 2; i++) {
            require(inv_freq[i] >= 0.0 && isfinite(inv_freq[i] * (double)c->max_positions));
        }
    }
    free(inv_freq);
}

// A page of every format, and a session over an arena of no pages: its tables have the model's geometry.
static void check_sizes(const struct sl_model_config *c) {
    struct sl_page_layout layouts[SL_MAX_LAYERS];
    for (int format = 0; format < SL_KV_N_FORMATS; format++) {
        enum sl_status status = sl_page_layout_init(&layouts[0], (enum sl_kv_format)format, c->head_dim, 1, true);
        require(status == SL_OK || (sl_kv_format_is_quantized((enum sl_kv_format)format) && c->head_dim % 64 != 0));
    }
    for (int l = 0; l < c->n_layers; l++) {
        require(sl_page_layout_init(&layouts[l], SL_KV_F16, c->head_dim, 0, false) == SL_OK);
    }
    void *memory = aligned_alloc(SL_ARENA_UNIT, SL_ARENA_UNIT);
    struct sl_arena *arena = NULL;
    require(memory != NULL && sl_arena_create(memory, SL_ARENA_UNIT, &arena, NULL) == SL_OK);
    struct sl_session_config config = {sl_model_geometry(c), SL_POSITION_ORIGINAL, 64, layouts, layouts};
    struct sl_session *session = NULL;
    require(sl_session_create(&config, arena, &session, NULL) == SL_OK);
    sl_session_destroy(&session);
    sl_arena_destroy(&arena);
    free(memory);
}

static void check_model(bool has_heads) {
    struct sl_model_config config;
    struct sl_error err = {0};
    if (sl_model_config_load(fuzz_folder(), &config, &err) != SL_OK) {
        require(err.text[0] != '\0');
        return;
    }
    require((config.retaining_hidden > 0) == has_heads);
    check_dimensions(&config);
    check_rope(&config);
    check_sizes(&config);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    bool is_there[N_FILES] = {false};
    const char *rest = (const char *)data, *part;
    size_t rest_bytes = size, part_bytes;
    for (int i = 0; i < N_FILES && fuzz_next_part(&rest, &rest_bytes, &part, &part_bytes); i++) {
        is_there[i] = part_bytes > 0;
        if (is_there[i] && i < N_JSON) {
            fuzz_folder_write(file_names[i], part, part_bytes);
        } else if (is_there[i]) {
            fuzz_folder_write_tensors(file_names[i], part, part_bytes);
        }
    }
    check_model(is_there[N_FILES - 1]);
    for (int i = 0; i < N_FILES; i++) {
        if (is_there[i]) {
            fuzz_folder_remove(file_names[i]);
        }
    }
    return 0;
}
