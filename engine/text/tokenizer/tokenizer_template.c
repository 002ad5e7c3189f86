// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the special tokens around a text, from tokenizer.json's post_processor and the model's configuration.
 */
#include <string.h>

#include "engine/text/tokenizer/tokenizer_internal.h"

// --- the file's post_processor ---------------------------------------------------------------------------------------
struct loading {
    struct sl_template *template;
    int32_t n_vocab;
    bool seen; // a TemplateProcessing step has been read
};

// Appends the ids of the special token `name`, as the post_processor lists them.
static enum sl_status add_special(const struct loading *loading, const json_t *listed, const char *name, int32_t *ids,
                                  int *n_ids, struct sl_error *err) {
    const json_t *values = name ? json_object_get(json_object_get(listed, name), "ids") : NULL;
    SL_FAIL_IF(json_array_size(values) == 0, err, SL_ERR_INVALID, "post_processor: special token \"%.64s\" has no ids",
               name ? name : "(none)");
    for (size_t i = 0; i < json_array_size(values); i++) {
        const json_t *value = json_array_get(values, i);
        SL_FAIL_IF(!json_is_integer(value) || json_integer_value(value) < 0 ||
                       json_integer_value(value) >= loading->n_vocab,
                   err, SL_ERR_INVALID, "post_processor: special token \"%.64s\" has an unknown id", name);
        SL_FAIL_IF(*n_ids == SL_MAX_TEMPLATE, err, SL_ERR_UNSUPPORTED,
                   "post_processor TemplateProcessing has more than %d special tokens on one side of a text",
                   SL_MAX_TEMPLATE);
        ids[(*n_ids)++] = (int32_t)json_integer_value(value);
    }
    return SL_OK;
}

// Reads a template for one text with special tokens on either side; "pair" is for two texts, which no caller encodes.
static enum sl_status add_template(void *part, const json_t *step, const char *what, struct sl_error *err) {
    struct loading *loading = part;
    struct sl_template *template = loading->template;
    const json_t *single = json_object_get(step, "single"), *listed = json_object_get(step, "special_tokens");
    size_t n_texts = 0;
    SL_FAIL_IF(loading->seen, err, SL_ERR_UNSUPPORTED, "%s is there twice, which is not supported", what);
    loading->seen = true;
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *place = json_array_get(single, i), *special = json_object_get(place, "SpecialToken");
        if (!special && json_object_get(place, "Sequence")) {
            n_texts++;
            continue;
        }
        const char *name = json_string_value(json_object_get(special, "id"));
        SL_TRY(n_texts == 0 ? add_special(loading, listed, name, template->before, &template->n_before, err)
                            : add_special(loading, listed, name, template->after, &template->n_after, err));
    }
    SL_FAIL_IF(n_texts != 1, err, SL_ERR_UNSUPPORTED, "%s has the text %zu times in \"single\"; only once is supported",
               what, n_texts);
    return SL_OK;
}

// Adjusts offsets, not ids.
static enum sl_status add_byte_level(void *, const json_t *, const char *, struct sl_error *) {
    return SL_OK;
}

static const struct sl_json_step kinds[] = {
    {"ByteLevel", add_byte_level},
    {"TemplateProcessing", add_template},
    {NULL, NULL},
};

// --- the configuration -----------------------------------------------------------------------------------------------
static int32_t id_of_text(const json_t *root, const char *text) {
    const json_t *added = json_object_get(root, "added_tokens");
    for (size_t i = 0; i < json_array_size(added); i++) {
        const json_t *token = json_array_get(added, i);
        if (strcmp(json_string_value(json_object_get(token, "content")), text) == 0) {
            return (int32_t)json_integer_value(json_object_get(token, "id"));
        }
    }
    const json_t *id = json_object_get(json_object_get(json_object_get(root, "model"), "vocab"), text);
    return id ? (int32_t)json_integer_value(id) : -1;
}

// Returns the begin token that tokenizer_config.json, or else generation_config.json, names.
static enum sl_status named_begin(const json_t *root, const json_t *config, const json_t *generation, int32_t n_vocab,
                                  int32_t *begin_id_out, struct sl_error *err) {
    const json_t *named = json_object_get(config, "bos_token");
    const char *text = json_string_value(json_is_object(named) ? json_object_get(named, "content") : named);
    const json_t *number = json_object_get(generation, "bos_token_id");
    int32_t id = -1;
    if (text) {
        id = id_of_text(root, text);
    } else if (json_is_integer(number) && json_integer_value(number) >= 0 && json_integer_value(number) < n_vocab) {
        id = (int32_t)json_integer_value(number);
    }
    SL_FAIL_IF(id < 0, err, SL_ERR_INVALID,
               "tokenizer_config.json says add_bos_token, but the begin token \"%.64s\" is not in the vocabulary",
               text ? text : "(none)");
    *begin_id_out = id;
    return SL_OK;
}

// Applies add_bos_token or add_eos_token if present; otherwise the template of tokenizer.json decides.
static enum sl_status obey_configuration(struct sl_template *template, const json_t *root, const json_t *config,
                                         const json_t *generation, int32_t n_vocab, struct sl_error *err) {
    static const char what[] = "tokenizer_config.json";
    bool begin = false, end = false;
    SL_TRY(sl_json_bool(config, what, "add_bos_token", template->n_before > 0, &begin, err));
    SL_TRY(sl_json_bool(config, what, "add_eos_token", template->n_after > 0, &end, err));
    SL_FAIL_IF(end && template->n_after == 0, err, SL_ERR_UNSUPPORTED,
               "%s sets add_eos_token, which is not supported unless tokenizer.json's template has it", what);
    if (begin && template->n_before == 0) {
        SL_TRY(named_begin(root, config, generation, n_vocab, &template->before[0], err));
        template->n_before = 1;
    }
    template->n_before = begin ? template->n_before : 0;
    template->n_after = end ? template->n_after : 0;
    return SL_OK;
}

enum sl_status sl_template_load(struct sl_template *template, const json_t *root, const json_t *config,
                                const json_t *generation, int32_t n_vocab, struct sl_error *err) {
    *template = (struct sl_template){0};
    struct loading loading = {.template = template, .n_vocab = n_vocab};
    SL_TRY(sl_json_steps(root, "post_processor", "processors", kinds, &loading, err));
    return obey_configuration(template, root, config, generation, n_vocab, err);
}
