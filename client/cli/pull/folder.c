// SPDX-License-Identifier: Apache-2.0
#include "client/cli/pull/folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json_file.h"
#include "base/model_place.h"
#include "client/cli/message_json.h"

static const char origin_file[] = "origin.json";

static bool has(const json_t *files, const char *name) {
    size_t i;
    const json_t *file;
    json_array_foreach(files, i, file) {
        if (json_is_string(file) && strcmp(json_string_value(file), name) == 0) {
            return true;
        }
    }
    return false;
}

// Takes only names without a folder, so that an origin.json that was edited by hand cannot make us remove other files.
static bool take_files(const char *folder, const json_t *origin, json_t *files) {
    const json_t *named = json_object_get(origin, "files"), *file;
    char only[PATH_MAX];
    size_t i;
    if (!origin) {
        return true;
    }
    if (!named) { // written by an older version without the list: such a folder has one file
        return !sl_model_in(folder, only) || strcmp(only, folder) == 0 ||
               json_array_append_new(files, json_string(strrchr(only, '/') + 1)) == 0;
    }
    json_array_foreach(named, i, file) {
        const char *name = json_string_value(file);
        if (name && !strchr(name, '/') && sl_model_is_gguf(name) &&
            json_array_append_new(files, json_string(name)) != 0) {
            return false;
        }
    }
    return true;
}

static enum sl_status refuse_others(const char *folder, const json_t *files, struct sl_error *err) {
    enum sl_status status = SL_OK;
    DIR *dir = opendir(folder);
    SL_FAIL_IF(!dir, err, SL_ERR_IO, "%s: cannot be read: %s", folder, strerror(errno));
    for (const struct dirent *entry; status == SL_OK && (entry = readdir(dir));) {
        const char *name = entry->d_name;
        if (strcmp(name, "config.json") == 0 || (sl_model_is_gguf(name) && !has(files, name))) {
            status = sl_fail(err, SL_ERR_PRECONDITION,
                             "%s: holds a model that `sluice pull` has not brought (%.100s): give the folder another "
                             "name, or remove it",
                             folder, name);
        }
    }
    closedir(dir);
    return status;
}

enum sl_status sl_folder_look(const char *folder, const struct sl_catalog_model *model,
                              struct sl_folder_state *state_out, char path_out[PATH_MAX], struct sl_error *err) {
    struct sl_folder_state state = {.files = json_array()};
    json_t *origin = NULL;
    enum sl_status status = sl_json_file_load(folder, origin_file, &origin, err);
    if (status == SL_OK || status == SL_ERR_NOT_FOUND) {
        status = sl_model_path(folder, model->file, path_out, PATH_MAX, err);
    }
    SL_THEN(status, state.files && take_files(folder, origin, state.files)
                        ? refuse_others(folder, state.files, err)
                        : sl_fail(err, SL_ERR_EXHAUSTED, "out of memory"));
    if (status == SL_OK) {
        const char *sha256 = json_string_value(json_object_get(origin, "sha256"));
        const json_t *bytes = json_object_get(origin, "bytes");
        struct stat there;
        state.whole = sha256 && strcmp(sha256, model->sha256) == 0 && json_is_integer(bytes) &&
                      stat(path_out, &there) == 0 && S_ISREG(there.st_mode) &&
                      there.st_size == json_integer_value(bytes);
        *state_out = state;
    } else {
        json_decref(state.files);
    }
    json_decref(origin);
    return status;
}

void sl_folder_state_cleanup(struct sl_folder_state *state) {
    json_decref(state->files);
    *state = (struct sl_folder_state){0};
}

static json_t *texts_of(const struct sl_catalog_model *model, bool wheels) {
    json_t *list = json_array();
    for (int i = 0; i < model->n_parts && list; i++) {
        json_t *text = json_string(wheels ? model->parts[i].wheel : model->parts[i].package);
        if (model->n_parts == 1) {
            json_decref(list);
            return text;
        }
        json_array_append_new(list, text);
    }
    return list;
}

// Writes origin.json. Releases files. bytes < 0: not known yet.
static enum sl_status write_origin(const char *folder, const struct sl_catalog_model *model, json_t *files,
                                   int64_t bytes, struct sl_error *err) {
    char path[PATH_MAX];
    json_t *origin =
        json_pack("{s:o, s:o, s:s, s:s, s:s, s:o}", "package", texts_of(model, false), "wheel", texts_of(model, true),
                  "sha256", model->sha256, "license", model->license, "family", model->family, "files", files);
    SL_FAIL_OR(!origin || (bytes >= 0 && json_object_set_new(origin, "bytes", json_integer(bytes)) != 0),
               json_decref(origin), err, SL_ERR_EXHAUSTED, "out of memory");
    enum sl_status status = sl_model_path(folder, origin_file, path, sizeof path, err);
    SL_THEN(status, sl_json_file_write(path, origin, JSON_INDENT(2), err));
    json_decref(origin);
    return status;
}

enum sl_status sl_folder_begin(const char *folder, const struct sl_catalog_model *model,
                               const struct sl_folder_state *state, struct sl_error *err) {
    json_t *files = json_copy(state->files);
    if (files && !has(files, model->file)) {
        json_array_append_new(files, json_string(model->file));
    }
    return write_origin(folder, model, files, -1, err);
}

enum sl_status sl_folder_finish(const char *folder, const struct sl_catalog_model *model,
                                const struct sl_folder_state *state, int64_t bytes, struct sl_error *err) {
    char path[PATH_MAX];
    size_t i;
    const json_t *file;
    json_array_foreach(state->files, i, file) {
        const char *name = json_string_value(file);
        SL_FAIL_IF(strcmp(name, model->file) != 0 && sl_model_path(folder, name, path, sizeof path, err) == SL_OK &&
                       unlink(path) != 0 && errno != ENOENT,
                   err, SL_ERR_IO, "%s: of an older version, cannot be removed: %s", path, strerror(errno));
    }
    return write_origin(folder, model, json_pack("[s]", model->file), bytes, err);
}

void sl_folder_undo(const char *folder, const struct sl_catalog_model *model, const struct sl_folder_state *state) {
    const char *const names[] = {model->file, origin_file};
    char path[PATH_MAX];
    struct sl_error ignored;
    for (int i = 0; i < 2 && json_array_size(state->files) == 0; i++) {
        if (sl_model_path(folder, names[i], path, sizeof path, &ignored) == SL_OK) {
            unlink(path);
        }
    }
}
