// SPDX-License-Identifier: Apache-2.0
#include "engine/runtime/plugin.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum sl_status sl_plugin_load(const char *path, const struct sl_plugin **plugin_out, struct sl_error *err) {
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    SL_FAIL_IF(library == NULL, err, SL_ERR_UNSUPPORTED, "%s cannot be loaded: %s", path, dlerror());
    sl_plugin_get_fn get = (sl_plugin_get_fn)dlsym(library, SL_PLUGIN_GETTER);
    if (get == NULL) {
        dlclose(library);
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s is not a plugin of Sluice: it has no %s()", path, SL_PLUGIN_GETTER);
    }
    const struct sl_plugin *plugin = get();
    if (plugin->abi != SL_PLUGIN_ABI) {
        enum sl_status status =
            sl_fail(err, SL_ERR_UNSUPPORTED, "%s has interface %u, this program %u: build both from the same sources",
                    path, plugin->abi, SL_PLUGIN_ABI);
        dlclose(library);
        return status;
    }
    *plugin_out = plugin;
    return SL_OK;
}

enum sl_status sl_plugin_find(const char *name, const struct sl_plugin **plugin_out, struct sl_error *err) {
    char path[PATH_MAX], file[NAME_MAX];
    int bytes = snprintf(file, sizeof file, "libsluice_%s.so", name) + 1;
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - (size_t)bytes - 1);
    char *last = NULL;
    if (length > 0) {
        path[length] = '\0';
        last = strrchr(path, '/');
    }
    if (last != NULL) {
        memcpy(last + 1, file, (size_t)bytes);
        if (access(path, F_OK) == 0) {
            return sl_plugin_load(path, plugin_out, err);
        }
    }
    void *elsewhere = dlopen(file, RTLD_LAZY | RTLD_LOCAL);
    if (elsewhere == NULL) {
        return sl_fail(err, SL_ERR_UNSUPPORTED, "%s is not beside the program; `make %s` builds it", file,
                       strcmp(name, "cuda") == 0 ? "gpu" : "programs");
    }
    dlclose(elsewhere);
    return sl_plugin_load(file, plugin_out, err);
}
