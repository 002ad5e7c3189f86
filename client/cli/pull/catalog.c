// SPDX-License-Identifier: Apache-2.0
#include "client/cli/pull/catalog.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/similar.h"

enum { MAX_PARTS = 1024 };

// catalog.json, compiled in by CMake.
extern const uint8_t sl_catalog_known[];

struct sl_catalog {
    json_t *added, *known;           // own the texts of the models; added NULL: there are none
    struct sl_catalog_model *models; // [n], which own their parts
    int n;
};

static bool digest_valid(const char *sha256) {
    return strlen(sha256) == SL_SHA256_HEX_BYTES - 1 && strspn(sha256, "0123456789abcdef") == SL_SHA256_HEX_BYTES - 1;
}

static bool plain_name(const char *text) {
    return text[0] && !strpbrk(text, "/\\?#%") && strcmp(text, "..") != 0;
}

struct row {
    const char *where; // "FILE: NAME"
    json_t *json;
    struct sl_error *err;
};

enum { TEXT, BYTES, LIST };

struct key {
    const char *name;
    int kind;
    bool needed;
};

#define PART_KEYS                                                                                                      \
    {"package", TEXT, true}, {"wheel", TEXT, true}, {"sha256", TEXT, true}, {                                          \
        "file", TEXT, true                                                                                             \
    }

static const struct key only_keys[] = {PART_KEYS,
                                       {"wheel_bytes", BYTES, false},
                                       {"license", TEXT, false},
                                       {"summary", TEXT, false},
                                       {"license_file", TEXT, false},
                                       {"family", TEXT, false},
                                       {NULL}};
static const struct key joined_keys[] = {
    {"sha256", TEXT, true},   {"file", TEXT, true},          {"parts", LIST, true},   {"license", TEXT, false},
    {"summary", TEXT, false}, {"license_file", TEXT, false}, {"family", TEXT, false}, {NULL}};
static const struct key part_keys[] = {PART_KEYS, {"wheel_bytes", BYTES, true}, {"bytes", BYTES, true}, {NULL}};

static bool has_kind(const json_t *value, int kind) {
    return kind == TEXT ? json_is_string(value) : kind == LIST ? json_is_array(value) : json_integer_value(value) > 0;
}

static enum sl_status check_keys(const struct row *row, const struct key *keys) {
    static const char *const kinds[] = {"a text", "a number of bytes", "a list"};
    const char *name;
    json_t *value;
    SL_FAIL_IF(!json_is_object(row->json), row->err, SL_ERR_INVALID, "%s is not an object", row->where);
    json_object_foreach(row->json, name, value) {
        int i = 0;
        while (keys[i].name && strcmp(keys[i].name, name) != 0) {
            i++;
        }
        SL_FAIL_IF(!keys[i].name, row->err, SL_ERR_INVALID, "%s: there is no setting \"%.64s\"", row->where, name);
        SL_FAIL_IF(!has_kind(value, keys[i].kind), row->err, SL_ERR_INVALID, "%s: \"%s\" is not %s", row->where, name,
                   kinds[keys[i].kind]);
    }
    for (int i = 0; keys[i].name; i++) {
        SL_FAIL_IF(keys[i].needed && !json_object_get(row->json, keys[i].name), row->err, SL_ERR_INVALID,
                   "%s has no \"%s\"", row->where, keys[i].name);
    }
    return SL_OK;
}

static const char *text_of(const struct row *row, const char *key) {
    const char *text = json_string_value(json_object_get(row->json, key));
    return text ? text : "";
}

static enum sl_status check_digest(const struct row *row) {
    return digest_valid(text_of(row, "sha256"))
               ? SL_OK
               : sl_fail(row->err, SL_ERR_INVALID, "%s: \"sha256\" does not have 64 digits 0 to f", row->where);
}

static enum sl_status take_part(const struct row *row, struct sl_catalog_part *part_out) {
    const char *package = text_of(row, "package"), *wheel = text_of(row, "wheel");
    SL_FAIL_IF(!plain_name(package) || !plain_name(wheel), row->err, SL_ERR_INVALID,
               "%s: \"%s\" or \"%s\" cannot be a name", row->where, package, wheel);
    *part_out = (struct sl_catalog_part){.package = package,
                                         .wheel = wheel,
                                         .sha256 = text_of(row, "sha256"),
                                         .file = text_of(row, "file"),
                                         .wheel_bytes = json_integer_value(json_object_get(row->json, "wheel_bytes")),
                                         .bytes = json_integer_value(json_object_get(row->json, "bytes"))};
    return check_digest(row);
}

// Reads the parts of a model. The catalog frees them, also after a failure.
static enum sl_status take_parts(const struct row *row, struct sl_catalog_model *model) {
    const json_t *list = json_object_get(row->json, "parts");
    size_t n = list ? json_array_size(list) : 1;
    SL_FAIL_IF(n < 1 || n > MAX_PARTS, row->err, SL_ERR_INVALID, "%s: %zu parts; 1 to %d are possible", row->where, n,
               MAX_PARTS);
    struct sl_catalog_part *parts = calloc(n, sizeof *parts);
    SL_FAIL_IF(!parts, row->err, SL_ERR_EXHAUSTED, "out of memory");
    model->parts = parts;
    model->n_parts = (int)n;
    enum sl_status status = list ? SL_OK : take_part(row, parts);
    for (size_t i = 0; list && i < n && status == SL_OK; i++) {
        char where[256];
        snprintf(where, sizeof where, "%.200s: part %zu", row->where, i + 1);
        struct row part = {where, json_array_get(list, i), row->err};
        status = check_keys(&part, part_keys);
        SL_THEN(status, take_part(&part, &parts[i]));
    }
    return status;
}

static enum sl_status take(const char *file, const char *name, json_t *json, struct sl_catalog_model *model,
                           struct sl_error *err) {
    char where[256];
    snprintf(where, sizeof where, "%.180s: %.64s", file, name);
    struct row row = {where, json, err};
    SL_TRY(check_keys(&row, json_object_get(json, "parts") ? joined_keys : only_keys));
    SL_FAIL_IF(!sl_model_name_valid(name), err, SL_ERR_INVALID, "%s: \"%s\" cannot be a name", file, name);
    SL_TRY(take_parts(&row, model));
    SL_TRY(check_digest(&row));
    const char *path = text_of(&row, "file"), *slash = strrchr(path, '/'), *base = slash ? slash + 1 : path;
    SL_FAIL_IF(!plain_name(base) || !sl_model_is_gguf(base), err, SL_ERR_INVALID,
               "%s: \"file\" is not a name of a .gguf file", where);
    model->name = name;
    model->file = base;
    model->sha256 = text_of(&row, "sha256");
    model->license_file = json_string_value(json_object_get(json, "license_file"));
    model->license = text_of(&row, "license");
    model->family = text_of(&row, "family");
    model->summary = text_of(&row, "summary");
    return SL_OK;
}

// Takes the models of a JSON object that are not in `but`.
static enum sl_status take_all(struct sl_catalog *catalog, const char *file, json_t *root, const json_t *but,
                               struct sl_error *err) {
    enum sl_status status = SL_OK;
    const char *name;
    json_t *value;
    json_object_foreach(root, name, value) {
        if (status == SL_OK && !json_object_get(but, name)) {
            status = take(file, name, value, &catalog->models[catalog->n++], err);
        }
    }
    return status;
}

enum sl_status sl_catalog_open(const char *file, struct sl_catalog **catalog_out, struct sl_error *err) {
    json_error_t why = {.text = ""};
    struct sl_catalog *catalog = calloc(1, sizeof *catalog);
    enum sl_status status = catalog ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
    if (status == SL_OK && file[0]) {
        catalog->added = json_load_file(file, JSON_REJECT_DUPLICATES, &why);
        if (!json_is_object(catalog->added)) {
            status =
                sl_fail(err, SL_ERR_INVALID, "%s: %s", file, catalog->added ? "it is not a JSON object" : why.text);
        }
    }
    if (status == SL_OK) {
        catalog->known = json_loads((const char *)sl_catalog_known, JSON_REJECT_DUPLICATES, &why);
        catalog->models =
            calloc(json_object_size(catalog->added) + json_object_size(catalog->known) + 1, sizeof *catalog->models);
        status = catalog->known && catalog->models
                     ? SL_OK
                     : sl_fail(err, SL_ERR_EXHAUSTED, "no memory for the known models %s", why.text);
    }
    SL_THEN(status, take_all(catalog, file, catalog->added, NULL, err));
    SL_THEN(status, take_all(catalog, "catalog.json", catalog->known, catalog->added, err));
    SL_TRY_OR(status, sl_catalog_close(&catalog));
    *catalog_out = catalog;
    return SL_OK;
}

void sl_catalog_close(struct sl_catalog **catalog_inout) {
    SL_TAKE_OR_RETURN(catalog, catalog_inout);
    for (int i = 0; i < catalog->n; i++) {
        free((struct sl_catalog_part *)catalog->models[i].parts);
    }
    json_decref(catalog->added);
    json_decref(catalog->known);
    free(catalog->models);
    free(catalog);
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

int64_t sl_catalog_wheel_bytes(const struct sl_catalog_model *model) {
    int64_t bytes = 0;
    for (int i = 0; i < model->n_parts; i++) {
        bytes += model->parts[i].wheel_bytes;
    }
    return bytes;
}
