// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: reads members of a tokenizer's JSON, and rejects unknown ones by name.
 */
#include <stdio.h>
#include <string.h>

#include "engine/text/tokenizer/tokenizer_internal.h"

enum sl_status sl_json_only(const json_t *object, const char *what, const char *const *keys, struct sl_error *err) {
    SL_FAIL_IF(!json_is_object(object), err, SL_ERR_INVALID, "%.64s is missing or not an object", what);
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value) {
        const char *const *known = keys;
        while (*known && strcmp(*known, key) != 0) {
            known++;
        }
        SL_FAIL_IF(!*known, err, SL_ERR_UNSUPPORTED, "%.64s has \"%.64s\", which is not supported", what, key);
    }
    return SL_OK;
}

enum sl_status sl_json_bool(const json_t *object, const char *what, const char *key, bool fallback, bool *value_out,
                            struct sl_error *err) {
    const json_t *value = json_object_get(object, key);
    SL_FAIL_IF(value && !json_is_null(value) && !json_is_boolean(value), err, SL_ERR_INVALID,
               "%.64s: \"%s\" is neither true nor false", what, key);
    *value_out = json_is_boolean(value) ? json_is_true(value) : fallback;
    return SL_OK;
}

enum sl_status sl_json_text(const json_t *object, const char *what, const char *key, const char **text_out,
                            struct sl_error *err) {
    const char *text = json_string_value(json_object_get(object, key));
    SL_FAIL_IF(!text || !text[0], err, SL_ERR_INVALID, "%.64s: \"%s\" is missing, empty or not a text", what, key);
    *text_out = text;
    return SL_OK;
}

enum sl_status sl_json_replace(const json_t *step, const char *what, const char **from_out, const char **to_out,
                               struct sl_error *err) {
    static const char *const keys[] = {"type", "pattern", "content", NULL}, *const pattern_keys[] = {"String", NULL};
    const json_t *pattern = json_object_get(step, "pattern");
    const char *from = NULL, *to = json_string_value(json_object_get(step, "content"));
    SL_TRY(sl_json_only(step, what, keys, err));
    SL_TRY(sl_json_only(pattern, what, pattern_keys, err));
    SL_TRY(sl_json_text(pattern, what, "String", &from, err));
    SL_FAIL_IF(!to, err, SL_ERR_INVALID, "%s: \"content\" is missing or not a text", what);
    *from_out = from;
    *to_out = to;
    return SL_OK;
}

bool sl_json_is_type(const json_t *object, const char *type) {
    const char *value = json_string_value(json_object_get(object, "type"));
    return value && strcmp(value, type) == 0;
}

// --- steps -----------------------------------------------------------------------------------------------------------
static enum sl_status add_step(const json_t *step, const char *part_name, const struct sl_json_step *kinds, void *part,
                               struct sl_error *err) {
    const char *type = json_string_value(json_object_get(step, "type"));
    SL_FAIL_IF(!type, err, SL_ERR_INVALID, "%s: a step is not an object with a type", part_name);
    char what[64];
    snprintf(what, sizeof(what), "%s %.32s", part_name, type);
    for (; kinds->type; kinds++) {
        if (strcmp(kinds->type, type) == 0) {
            return kinds->add(part, step, what, err);
        }
    }
    return sl_fail(err, SL_ERR_UNSUPPORTED, "%s is not supported", what);
}

enum sl_status sl_json_steps(const json_t *root, const char *part_name, const char *list_key,
                             const struct sl_json_step *kinds, void *part, struct sl_error *err) {
    const char *const keys[] = {"type", list_key, NULL};
    const json_t *json = json_object_get(root, part_name), *steps = json_object_get(json, list_key);
    if (!json || json_is_null(json)) {
        return SL_OK;
    }
    if (!sl_json_is_type(json, "Sequence")) {
        return add_step(json, part_name, kinds, part, err);
    }
    SL_TRY(sl_json_only(json, part_name, keys, err));
    SL_FAIL_IF(!json_is_array(steps), err, SL_ERR_INVALID, "%s: %s is missing or not an array", part_name, list_key);
    for (size_t i = 0; i < json_array_size(steps); i++) {
        SL_TRY(add_step(json_array_get(steps, i), part_name, kinds, part, err));
    }
    return SL_OK;
}
