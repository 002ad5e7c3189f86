// SPDX-License-Identifier: Apache-2.0
// Purpose: which file a model is, and its documents. See document.h.
#include "model/gguf/document.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json_file.h"

static bool is_gguf_name(const char *name) {
    size_t n = strlen(name);
    return n > 5 && name[0] != '.' && strcmp(name + n - 5, ".gguf") == 0;
}

// The one .gguf of a folder: *name_out[0] is 0 where there is none.
static enum sl_status only_gguf(const char *folder, char name_out[NAME_MAX + 1], struct sl_error *err) {
    DIR *dir = opendir(folder);
    name_out[0] = '\0';
    if (dir == NULL) {
        return sl_fail(err, errno == ENOENT ? SL_ERR_NOT_FOUND : SL_ERR_IO, "%s: %s", folder, strerror(errno));
    }
    enum sl_status status = SL_OK;
    for (const struct dirent *entry = readdir(dir); entry != NULL && status == SL_OK; entry = readdir(dir)) {
        if (!is_gguf_name(entry->d_name)) {
            continue;
        }
        if (name_out[0] != '\0') {
            status =
                sl_fail(err, SL_ERR_INVALID, "%s: has no config.json but %.96s and %.96s: name the file that is meant",
                        folder, name_out, entry->d_name);
        }
        snprintf(name_out, NAME_MAX + 1, "%s", entry->d_name);
    }
    closedir(dir);
    return status;
}

// *path_out[0] is 0 where `model` is a folder of documents, or is not there at all: whoever reads those will say so.
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
    char name[NAME_MAX + 1];
    enum sl_status status = sl_model_path(model, "config.json", path_out, PATH_MAX, err);
    if (status != SL_OK) {
        return status;
    }
    if (access(path_out, F_OK) == 0) {
        path_out[0] = '\0';
        return SL_OK;
    }
    path_out[0] = '\0';
    status = only_gguf(model, name, err);
    return status == SL_OK && name[0] != '\0' ? sl_model_path(model, name, path_out, PATH_MAX, err) : status;
}

enum sl_status sl_model_gguf_open(const char *model, struct sl_gguf **gguf_out, struct sl_error *err) {
    char path[PATH_MAX];
    enum sl_status status = find_gguf(model, path, err);
    *gguf_out = NULL;
    return status == SL_OK && path[0] != '\0' ? sl_gguf_open(path, gguf_out, err) : status;
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
            return status != SL_OK ? status : sl_json_file_load(model, name, root_out, err);
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
