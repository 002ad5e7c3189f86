// SPDX-License-Identifier: Apache-2.0
#include "engine/model/gguf/gguf_json.h"

void sl_json_put(json_t *object, const char *key, json_t *value, bool *ok) {
    if (json_object_set_new(object, key, value) != 0) {
        *ok = false;
    }
}

json_t *sl_gguf_json_text(struct sl_gguf_text text) {
    return json_stringn(text.at != NULL ? text.at : "", text.n_bytes);
}
