// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the normalizer: steps that rewrite a text before it is cut, and the rewriting that other parts share.
 *
 * To add a step: a function that rewrites, one that parses it from JSON, and a line in kinds[].
 */
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "engine/text/tokenizer/tokenizer_internal.h"

// --- rewriting -------------------------------------------------------------------------------------------------------
void sl_text_cleanup(struct sl_text *text) {
    free(text->owned);
    *text = (struct sl_text){0};
}

static void own(struct sl_text *text, char *bytes, size_t n_bytes) {
    free(text->owned);
    *text = (struct sl_text){bytes, n_bytes, bytes};
}

bool sl_text_begins(const struct sl_text *text, const char *prefix) {
    size_t n = strlen(prefix);
    return text->n_bytes >= n && memcmp(text->bytes, prefix, n) == 0;
}

enum sl_status sl_text_prepend(struct sl_text *text, const char *prefix) {
    size_t n_prefix = strlen(prefix), n_bytes = text->n_bytes + n_prefix;
    char *bytes = malloc(n_bytes + 1);
    if (!bytes) {
        return SL_ERR_EXHAUSTED;
    }
    memcpy(bytes, prefix, n_prefix);
    memcpy(bytes + n_prefix, text->bytes, text->n_bytes);
    own(text, bytes, n_bytes);
    return SL_OK;
}

enum sl_status sl_text_replace(struct sl_text *text, const char *from, const char *to) {
    size_t n_from = strlen(from), n_to = strlen(to), n_found = 0;
    const char *at = text->bytes, *end = text->bytes + text->n_bytes;
    for (const char *found; (found = memmem(at, (size_t)(end - at), from, n_from)); at = found + n_from) {
        n_found++;
    }
    if (n_found == 0) {
        return SL_OK;
    }
    size_t n_bytes = text->n_bytes - n_found * n_from + n_found * n_to;
    char *bytes = malloc(n_bytes + 1), *out = bytes;
    if (!bytes) {
        return SL_ERR_EXHAUSTED;
    }
    at = text->bytes;
    for (const char *found; (found = memmem(at, (size_t)(end - at), from, n_from)); at = found + n_from) {
        memcpy(out, at, (size_t)(found - at));
        out += found - at;
        memcpy(out, to, n_to);
        out += n_to;
    }
    memcpy(out, at, (size_t)(end - at));
    own(text, bytes, n_bytes);
    return SL_OK;
}

// --- steps -----------------------------------------------------------------------------------------------------------
static enum sl_status run_nfc(const struct sl_rewrite *, struct sl_text *text) {
    return sl_text_nfc(text);
}

static enum sl_status run_prepend(const struct sl_rewrite *rewrite, struct sl_text *text) {
    return text->n_bytes == 0 ? SL_OK : sl_text_prepend(text, rewrite->to);
}

static enum sl_status run_replace(const struct sl_rewrite *rewrite, struct sl_text *text) {
    return sl_text_replace(text, rewrite->from, rewrite->to);
}

// Adds a step; copies `from` and `to`, which may be NULL.
static enum sl_status add(struct sl_normalizer *normalizer, const char *what,
                          enum sl_status (*run)(const struct sl_rewrite *, struct sl_text *), const char *from,
                          const char *to, struct sl_error *err) {
    SL_FAIL_IF(normalizer->n_steps == SL_MAX_STEPS, err, SL_ERR_UNSUPPORTED, "normalizer: more than %d steps",
               SL_MAX_STEPS);
    struct sl_rewrite rewrite = {run, from ? strdup(from) : NULL, to ? strdup(to) : NULL};
    if ((from && !rewrite.from) || (to && !rewrite.to)) {
        free(rewrite.from);
        free(rewrite.to);
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for %s", what);
    }
    normalizer->steps[normalizer->n_steps++] = rewrite;
    const char *const parts[] = {what, from, to};
    for (size_t i = 0; i < sizeof(parts) / sizeof(*parts); i++) {
        const char *part = parts[i] ? parts[i] : "";
        normalizer->digest = sl_hash(part, strlen(part) + 1, normalizer->digest);
    }
    return SL_OK;
}

static enum sl_status add_nfc(void *part, const json_t *step, const char *what, struct sl_error *err) {
    static const char *const keys[] = {"type", NULL};
    SL_TRY(sl_json_only(step, what, keys, err));
    return add(part, what, run_nfc, NULL, NULL, err);
}

static enum sl_status add_prepend(void *part, const json_t *step, const char *what, struct sl_error *err) {
    static const char *const keys[] = {"type", "prepend", NULL};
    const char *prefix = NULL;
    SL_TRY(sl_json_only(step, what, keys, err));
    SL_TRY(sl_json_text(step, what, "prepend", &prefix, err));
    return add(part, what, run_prepend, NULL, prefix, err);
}

static enum sl_status add_replace(void *part, const json_t *step, const char *what, struct sl_error *err) {
    const char *from, *to;
    SL_TRY(sl_json_replace(step, what, &from, &to, err));
    return add(part, what, run_replace, from, to, err);
}

// --- the whole -------------------------------------------------------------------------------------------------------
static const struct sl_json_step kinds[] = {
    {"NFC", add_nfc},
    {"Prepend", add_prepend},
    {"Replace", add_replace},
    {NULL, NULL},
};

enum sl_status sl_normalizer_load(struct sl_normalizer *normalizer, const json_t *root, struct sl_error *err) {
    *normalizer = (struct sl_normalizer){0};
    enum sl_status status = sl_json_steps(root, "normalizer", "normalizers", kinds, normalizer, err);
    if (status != SL_OK) {
        sl_normalizer_cleanup(normalizer);
    }
    return status;
}

void sl_normalizer_cleanup(struct sl_normalizer *normalizer) {
    for (int i = 0; i < normalizer->n_steps; i++) {
        free(normalizer->steps[i].from);
        free(normalizer->steps[i].to);
    }
    *normalizer = (struct sl_normalizer){0};
}

enum sl_status sl_normalizer_run(const struct sl_normalizer *normalizer, struct sl_text *text) {
    for (int i = 0; i < normalizer->n_steps; i++) {
        SL_TRY(normalizer->steps[i].run(&normalizer->steps[i], text));
    }
    return SL_OK;
}
