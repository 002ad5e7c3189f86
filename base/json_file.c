// SPDX-License-Identifier: Apache-2.0
#include "base/json_file.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/whole_file.h"

#define MAX_JSON_FILE_BYTES (64 << 20) // the index of a model with a thousand shards is a few MiB

enum sl_status sl_model_path(const char *dir, const char *name, char *buf, size_t buf_bytes, struct sl_error *err) {
    struct stat st;
    bool is_file = stat(dir, &st) == 0 && S_ISREG(st.st_mode);
    int length = snprintf(buf, buf_bytes, "%s%c%s", dir, is_file ? '.' : '/', name);
    SL_FAIL_IF(length < 0 || (size_t)length >= buf_bytes, err, SL_ERR_INVALID, "path of %.64s is longer than %zu bytes",
               name, buf_bytes);
    return SL_OK;
}

bool sl_is_lfs_pointer(const void *begin, size_t n_bytes) {
    static const char pointer[] = "version https://git-lfs";
    return n_bytes >= sizeof pointer - 1 && memcmp(begin, pointer, sizeof pointer - 1) == 0;
}

enum sl_status sl_json_file_load(const char *dir, const char *name, json_t **root_out, struct sl_error *err) {
    char path[PATH_MAX];
    SL_TRY(sl_model_path(dir, name, path, sizeof path, err));
    FILE *file = fopen(path, "rb");
    SL_FAIL_IF(file == NULL, err, errno == ENOENT ? SL_ERR_NOT_FOUND : SL_ERR_IO, "%s: %s", path, strerror(errno));
    struct stat st;
    SL_FAIL_OR(fstat(fileno(file), &st) != 0 || !S_ISREG(st.st_mode), fclose(file), err, SL_ERR_IO,
               "%s: not a regular file", path);
    SL_FAIL_OR(st.st_size > MAX_JSON_FILE_BYTES, fclose(file), err, SL_ERR_INVALID,
               "%s: %lld bytes, expected at most %d", path, (long long)st.st_size, MAX_JSON_FILE_BYTES);
    json_error_t json_error;
    json_t *root = json_loadf(file, JSON_REJECT_DUPLICATES, &json_error);
    char begin[32];
    rewind(file);
    const bool is_pointer = root == NULL && sl_is_lfs_pointer(begin, fread(begin, 1, sizeof begin, file));
    fclose(file);
    SL_FAIL_IF(is_pointer, err, SL_ERR_INVALID, "%s: " SL_LFS_POINTER_TEXT, path);
    SL_FAIL_IF(root == NULL, err, SL_ERR_INVALID, "%s:%d: %s", path, json_error.line, json_error.text);
    SL_FAIL_OR(!json_is_object(root), json_decref(root), err, SL_ERR_INVALID, "%s: not a JSON object", path);
    *root_out = root;
    return SL_OK;
}

enum sl_status sl_json_file_write(const char *path, const json_t *json, size_t flags, struct sl_error *err) {
    struct sl_whole_file whole;
    SL_TRY(sl_whole_file_open(&whole, path, err));
    SL_FAIL_OR(!json || (json_dumpf(json, whole.file, flags) != 0 && !ferror(whole.file)),
               sl_whole_file_abandon(&whole), err, SL_ERR_EXHAUSTED, "%s: out of memory", path);
    fputc('\n', whole.file);
    return sl_whole_file_finish(&whole, err);
}

json_t *sl_text_json(const char *text) {
    json_t *json = json_string(text);
    if (json) {
        return json;
    }
    char *copy = strdup(text);
    if (!copy) {
        return NULL;
    }
    for (char *c = copy; *c; c++) {
        *c = (unsigned char)*c < 0x80 ? *c : '?';
    }
    json = json_string(copy);
    free(copy);
    return json;
}
