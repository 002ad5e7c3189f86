// SPDX-License-Identifier: Apache-2.0
#include "base/model_place.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static bool exists(const char *path) {
    struct stat found;
    return stat(path, &found) == 0;
}

static bool joined(const char *a, const char *b, char path_out[PATH_MAX]) {
    char path[PATH_MAX];
    bool fits = (size_t)snprintf(path, sizeof path, "%s%s", a, b) < sizeof path;
    if (fits) {
        strcpy(path_out, path);
    }
    return fits;
}

enum sl_status sl_program_folder(char path_out[PATH_MAX], struct sl_error *err) {
    ssize_t n = readlink("/proc/self/exe", path_out, PATH_MAX - 1);
    SL_FAIL_IF(n < 0, err, SL_ERR_IO, "the folder of this program cannot be found: /proc/self/exe: %m");
    SL_FAIL_IF(n == PATH_MAX - 1, err, SL_ERR_RANGE, "the path of this program has more than %d bytes", PATH_MAX - 2);
    path_out[n] = '\0';
    *strrchr(path_out, '/') = '\0';
    return SL_OK;
}

static bool beside_program(const char *below, char path_out[PATH_MAX]) {
    char bin[PATH_MAX];
    return sl_program_folder(bin, NULL) == SL_OK && joined(bin, below, path_out);
}

bool sl_model_place(int i, char path_out[PATH_MAX]) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    switch (i) {
    case 0:
        if (cache && cache[0] == '/') { // the XDG specification says that relative paths are ignored
            return joined(cache, "/sluice/models", path_out);
        }
        return home && home[0] && joined(home, "/.cache/sluice/models", path_out);
    case 1:
        return beside_program("/../share/sluice/models", path_out);
    case 2:
        return beside_program("/../../models", path_out);
    default:
        return false;
    }
}

bool sl_model_name_valid(const char *name) {
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    size_t n = strlen(name);
    return n > 0 && n < SL_MODEL_NAME_BYTES && name[0] != '.' && strspn(name, allowed) == n;
}

bool sl_model_is_gguf(const char *name) {
    const char *end = strrchr(name, '.');
    return end && name[0] != '.' && strcasecmp(end, ".gguf") == 0;
}

bool sl_model_in(const char *folder, char path_out[PATH_MAX]) {
    char path[PATH_MAX], file[PATH_MAX];
    if (joined(folder, "/config.json", path) && exists(path)) {
        return joined(folder, "", path_out);
    }
    DIR *dir = opendir(folder);
    if (!dir) {
        return false;
    }
    int n = 0;
    for (const struct dirent *entry; (entry = readdir(dir));) {
        if (sl_model_is_gguf(entry->d_name) && joined(folder, "/", path) && joined(path, entry->d_name, file)) {
            n++;
        }
    }
    closedir(dir);
    return n == 1 && joined(file, "", path_out);
}

bool sl_model_find(const char *text, char path_out[PATH_MAX]) {
    if (strchr(text, '/') || exists(text)) {
        return joined(text, "", path_out);
    }
    char place[PATH_MAX], folder[PATH_MAX], model[PATH_MAX];
    for (int i = 0; i < SL_MODEL_PLACES && sl_model_name_valid(text); i++) {
        if (sl_model_place(i, place) && joined(place, "/", folder) && joined(folder, text, folder) &&
            sl_model_in(folder, model)) {
            return joined(folder, "", path_out);
        }
    }
    return false;
}
