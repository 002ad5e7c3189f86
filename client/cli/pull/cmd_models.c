// SPDX-License-Identifier: Apache-2.0
// Purpose: `sluice models`: lists the models that --model NAME finds here, and the others that `sluice pull` knows.
#include <ctype.h>
#include <dirent.h>
#include <jansson.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/close.h"
#include "base/array.h"
#include "base/json_file.h"
#include "base/model_place.h"
#include "client/cli/message_json.h"
#include "client/cli/pull/catalog.h"
#include "client/cli/pull/pull.h"
#include "client/cli/table.h"
#include "client/cli/tool.h"
#include "engine/model/gguf/document.h"
#include "engine/model/model.h"

struct models_config {
    struct sl_tool_config tool;
    const char *catalog;
    bool available;
};

static const struct sl_option options[] = {
    {"available", 0, SL_OPTION_FLAG, NULL, NULL, "list what `sluice pull` can get, with sizes and licenses",
     SL_FIELD(models_config, available)},
    {"catalog", 0, SL_OPTION_STRING, "", "FILE", "JSON with further models (client/cli/pull/catalog.h)",
     SL_FIELD(models_config, catalog)},
    SL_LOCAL_TOOL_OPTIONS,
};

static const struct sl_program program = {
    .name = "sluice models",
    .usage = "[options]",
    .summary =
        "List the models that --model NAME finds: those that `sluice pull` has brought, and those that came with the "
        "programs. Then what it could bring.",
    SL_OPTIONS(options),
};

struct found {
    char name[SL_MODEL_NAME_BYTES], family[64], path[PATH_MAX];
    char sampling[128]; // the model's own sampling settings (engine/model/generation/generation.h)
    int64_t bytes;
};

struct listing {
    struct found *models; // [n]
    size_t n, allocated;
};

static int64_t bytes_in(const char *folder) {
    int64_t total = 0;
    char path[PATH_MAX];
    struct stat file;
    struct sl_error ignored;
    DIR *dir = opendir(folder);
    for (const struct dirent *entry; dir && (entry = readdir(dir));) {
        if (sl_model_path(folder, entry->d_name, path, sizeof path, &ignored) == SL_OK && stat(path, &file) == 0 &&
            S_ISREG(file.st_mode)) {
            total += file.st_size;
        }
    }
    sl_close_folder(dir);
    return total;
}

// Writes the family: "llama" for a config.json's LlamaForCausalLM, the same word as in a GGUF file; "-": not readable.
static void find_family(const char *folder, char family_out[64]) {
    json_t *root;
    struct sl_error ignored;
    snprintf(family_out, 64, "-");
    if (sl_model_document_load(folder, "config.json", &root, &ignored) == SL_OK) {
        const char *name = json_string_value(json_array_get(json_object_get(root, "architectures"), 0));
        if (name && name[0]) {
            const char *end = strstr(name, "ForCausalLM");
            snprintf(family_out, 64, "%.*s", end ? (int)(end - name) : 63, name);
        }
        json_decref(root);
    }
    for (char *c = family_out; *c; c++) {
        *c = (char)tolower((unsigned char)*c);
    }
}

// Writes the model's sampling settings; "-": it has none, or they cannot be read.
static void find_sampling(const char *model, char sampling_out[128]) {
    struct sl_model_config config;
    struct sl_error ignored;
    snprintf(sampling_out, 128, "-");
    if (sl_model_config_load(model, &config, &ignored) == SL_OK &&
        sl_model_sampling_text(&config.sampling, sampling_out, 128)[0] == '\0') {
        snprintf(sampling_out, 128, "-");
    }
}

static bool is_listed(const struct listing *listing, const char *name) {
    for (size_t i = 0; i < listing->n; i++) {
        if (strcmp(listing->models[i].name, name) == 0) {
            return true;
        }
    }
    return false;
}

static enum sl_status add(struct listing *listing, const char *place, const char *name, struct sl_error *err) {
    char folder[PATH_MAX];
    struct found found = {0};
    if (!sl_model_name_valid(name) || is_listed(listing, name) || // --model takes the first of two models with one name
        sl_model_path(place, name, folder, sizeof folder, err) != SL_OK || !sl_model_in(folder, found.path)) {
        return SL_OK;
    }
    char *real = realpath(found.path, NULL); // users do not expect paths such as "/usr/bin/../share"
    snprintf(found.path, sizeof found.path, "%s", real ? real : folder);
    free(real);
    strcpy(found.name, name);
    found.bytes = bytes_in(folder);
    find_family(folder, found.family);
    find_sampling(folder, found.sampling);
    SL_FAIL_IF(!SL_GROW(listing->models, listing->n, listing->allocated), err, SL_ERR_EXHAUSTED, "out of memory");
    listing->models[listing->n++] = found;
    return SL_OK;
}

static int by_name(const void *a, const void *b) {
    return strcmp(((const struct found *)a)->name, ((const struct found *)b)->name);
}

static enum sl_status find_all(struct listing *listing, struct sl_error *err) {
    char place[PATH_MAX];
    enum sl_status status = SL_OK;
    for (int i = 0; i < SL_MODEL_PLACES && status == SL_OK; i++) {
        DIR *dir = sl_model_place(i, place) ? opendir(place) : NULL;
        for (const struct dirent *entry; dir && status == SL_OK && (entry = readdir(dir));) {
            status = add(listing, place, entry->d_name, err);
        }
        sl_close_folder(dir);
    }
    if (listing->n > 1) {
        qsort(listing->models, listing->n, sizeof *listing->models, by_name);
    }
    return status;
}

static void print_json(const struct listing *listing, const struct sl_catalog *catalog) {
    for (size_t i = 0; i < listing->n; i++) {
        const struct found *found = &listing->models[i];
        sl_json_print(json_pack("{s:s, s:b, s:o, s:s, s:I, s:o}", "name", found->name, "here", true, "family",
                                sl_text_json(found->family), "sampling", found->sampling, "bytes",
                                (json_int_t)found->bytes, "path", sl_text_json(found->path)),
                      JSON_COMPACT, stdout);
    }
    const struct sl_catalog_model *model;
    for (int i = 0; (model = sl_catalog_get(catalog, i)); i++) {
        if (!is_listed(listing, model->name)) {
            sl_json_print(json_pack("{s:s, s:b, s:s, s:s}", "name", model->name, "here", false, "family", model->family,
                                    "summary", model->summary),
                          JSON_COMPACT, stdout);
        }
    }
}

static void print_table(const struct listing *listing, const struct sl_catalog *catalog) {
    static const struct sl_column columns[] = {
        {"MODEL", false}, {"SIZE", true}, {"FAMILY", false}, {"SAMPLING", false}, {"WHERE", false}};
    struct sl_table table = SL_TABLE(columns);
    char bytes[32];
    for (size_t i = 0; i < listing->n; i++) {
        const struct found *found = &listing->models[i];
        sl_table_add(&table, "%s\t%s\t%s\t%s\t%s", found->name,
                     sl_format_bytes((double)found->bytes, bytes, sizeof bytes), found->family, found->sampling,
                     found->path);
    }
    const struct sl_catalog_model *model;
    for (int i = 0; (model = sl_catalog_get(catalog, i)); i++) {
        if (!is_listed(listing, model->name)) {
            sl_table_add(&table, "%s\t-\t%s\t-\tnot here: sluice pull %s", model->name, model->family, model->name);
        }
    }
    sl_table_finish(&table, stdout);
}

static void print_available_json(const struct listing *listing, const struct sl_catalog *catalog) {
    const struct sl_catalog_model *model;
    for (int i = 0; (model = sl_catalog_get(catalog, i)); i++) {
        int64_t bytes = sl_catalog_wheel_bytes(model);
        sl_json_print(json_pack("{s:s, s:b, s:s, s:s, s:o, s:i, s:s}", "name", model->name, "here",
                                is_listed(listing, model->name), "family", model->family, "license", model->license,
                                "download_bytes", bytes > 0 ? json_integer(bytes) : json_null(), "packages",
                                model->n_parts, "summary", model->summary),
                      JSON_COMPACT, stdout);
    }
}

static void print_available(const struct listing *listing, const struct sl_catalog *catalog) {
    static const struct sl_column columns[] = {
        {"MODEL", false}, {"DOWNLOAD", true}, {"LICENSE", false}, {"HERE", false}, {"WHAT", false}};
    struct sl_table table = SL_TABLE(columns);
    const struct sl_catalog_model *model;
    char text[32];
    for (int i = 0; (model = sl_catalog_get(catalog, i)); i++) {
        int64_t bytes = sl_catalog_wheel_bytes(model);
        sl_table_add(&table, "%s\t%s\t%s\t%s\t%s", model->name,
                     bytes > 0 ? sl_format_bytes((double)bytes, text, sizeof text) : "-",
                     model->license[0] ? model->license : "-", is_listed(listing, model->name) ? "yes" : "no",
                     model->summary);
    }
    sl_table_finish(&table, stdout);
}

static void print(const struct models_config *config, const struct listing *listing, const struct sl_catalog *catalog) {
    if (config->available) {
        config->tool.json ? print_available_json(listing, catalog) : print_available(listing, catalog);
    } else {
        config->tool.json ? print_json(listing, catalog) : print_table(listing, catalog);
    }
}

static enum sl_status run(void *config, struct sl_error *err) {
    const struct models_config *models = config;
    struct sl_catalog *catalog = NULL;
    struct listing listing = {0};
    enum sl_status status = sl_catalog_open(models->catalog, &catalog, err);
    SL_THEN(status, find_all(&listing, err));
    if (status == SL_OK) {
        print(models, &listing, catalog);
    }
    free(listing.models);
    sl_catalog_close(&catalog);
    return status;
}

SL_COMMAND_RUN(sl_command_models, models_config, program, run)
