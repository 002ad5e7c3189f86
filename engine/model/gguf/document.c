// SPDX-License-Identifier: Apache-2.0
#include "engine/model/gguf/document.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json_file.h"
#include "base/model_place.h"

// Finds the GGUF file of a model. *path_out is "" if `model` is a folder of documents, or does not exist: the reader
// of the documents reports that.
static enum sl_status find_gguf(const char *model, char path_out[PATH_MAX], struct sl_error *err) {
    struct stat st;
    path_out[0] = '\0';
    if (stat(model, &st) != 0) {
        return SL_OK;
    }
    if (!S_ISDIR(st.st_mode)) {
        return (size_t)snprintf(path_out, PATH_MAX, "%s", model) < PATH_MAX
                   ? SL_OK
                   : sl_fail(err, SL_ERR_INVALID, "%.64s...: the path is too long", model);
    }
    if (!sl_model_in(model, path_out) || strcmp(path_out, model) == 0) {
        path_out[0] = '\0';
    }
    return SL_OK;
}

enum sl_status sl_model_gguf_open(const char *model, struct sl_gguf **gguf_out, struct sl_error *err) {
    char path[PATH_MAX];
    enum sl_status status = find_gguf(model, path, err);
    *gguf_out = NULL;
    return status == SL_OK && path[0] != '\0' ? sl_gguf_open(path, gguf_out, err) : status;
}

static enum sl_status load_from_folder(const char *folder, const char *name, json_t **root_out, struct sl_error *err) {
    enum sl_status status = sl_json_file_load(folder, name, root_out, err);
    SL_FAIL_IF(status == SL_ERR_NOT_FOUND && strcmp(name, "config.json") == 0 && access(folder, F_OK) == 0, err, status,
               "%s has neither a config.json nor exactly one .gguf", folder);
    return status;
}

enum sl_status sl_model_document_load(const char *model, const char *name, json_t **root_out, struct sl_error *err) {
    static const struct {
        const char *name;
        enum sl_status (*make)(const struct sl_gguf *, json_t **, struct sl_error *);
    } documents[] = {{"config.json", sl_gguf_config},
                     {"generation_config.json", sl_gguf_generation},
                     {"tokenizer.json", sl_gguf_tokenizer},
                     {"tokenizer_config.json", sl_gguf_tokenizer_config}};
    for (size_t i = 0; i < sizeof documents / sizeof documents[0]; i++) {
        if (strcmp(name, documents[i].name) != 0) {
            continue;
        }
        struct sl_gguf *gguf = NULL;
        enum sl_status status = sl_model_gguf_open(model, &gguf, err);
        if (status != SL_OK || gguf == NULL) {
            return status != SL_OK ? status : load_from_folder(model, name, root_out, err);
        }
        status = documents[i].make(gguf, root_out, err);
        if (status != SL_OK) {
            sl_error_prefix(err, model);
        }
        sl_gguf_close(&gguf);
        return status;
    }
    return sl_json_file_load(model, name, root_out, err);
}

enum sl_status sl_model_document_load_optional(const char *model, const char *name, json_t **root_out,
                                               struct sl_error *err) {
    struct sl_error why = {0};
    *root_out = NULL;
    enum sl_status status = sl_model_document_load(model, name, root_out, &why);
    return status == SL_OK || status == SL_ERR_NOT_FOUND ? SL_OK : sl_fail(err, status, "%s", why.text);
}
