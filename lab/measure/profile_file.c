// SPDX-License-Identifier: Apache-2.0
#include "lab/measure/profile_file.h"

#include "base/json_file.h"

void sl_profile_choose(const struct sl_attention_profile *profile, double threshold, struct sl_layers *dense_out) {
    *dense_out = (struct sl_layers){0};
    sl_layers_add(dense_out, 0);
    for (int l = 1; l < profile->n_layers; l++) {
        if (sl_attention_of_layer(profile, l, SL_ATTENTION_DENSE) > threshold) {
            sl_layers_add(dense_out, l);
        }
    }
}

static json_t *attention_json(const struct sl_attention_profile *profile) {
    json_t *attention = json_pack("{s:i, s:i}", "queries", SL_ATTENTION_QUERIES, "texts", profile->n_texts);
    for (int s = 0; s < SL_N_ATTENTION_STATISTICS; s++) {
        json_t *layers = json_array();
        for (int l = 0; l < profile->n_layers; l++) {
            json_t *heads = json_array();
            for (int h = 0; h < profile->n_kv_heads; h++) {
                json_array_append_new(heads, json_real(sl_attention_of_head(profile, l, h, s)));
            }
            json_array_append_new(layers, heads);
        }
        json_object_set_new(attention, sl_attention_names[s], layers);
    }
    return attention;
}

json_t *sl_profile_json(const struct sl_attention_profile *profile, double threshold, const struct sl_layers *dense) {
    json_t *preference = json_array(), *layers = json_array();
    for (int l = 0; l < profile->n_layers; l++) {
        json_array_append_new(preference, json_real(sl_attention_of_layer(profile, l, SL_ATTENTION_DENSE)));
        if (sl_layers_has(dense, l)) {
            json_array_append_new(layers, json_integer(l));
        }
    }
    return json_pack("{s:i, s:o, s:f, s:o, s:o}", "version", 1, "dense_preference", preference, "threshold", threshold,
                     "dense_layers", layers, "attention", attention_json(profile));
}

enum sl_status sl_profile_path(const char *model_dir, char *path_out, size_t path_bytes, struct sl_error *err) {
    return sl_model_path(model_dir, "sluice_profile.json", path_out, path_bytes, err);
}

enum sl_status sl_profile_write(const char *path, const json_t *profile, struct sl_error *err) {
    return sl_json_file_write(path, profile, JSON_REAL_PRECISION(6), err);
}
