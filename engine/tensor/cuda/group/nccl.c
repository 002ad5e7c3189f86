// SPDX-License-Identifier: Apache-2.0
#include "engine/tensor/cuda/group/nccl.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <string.h>

#include "base/locked.h"
#include "base/log.h"

#define NAME "libnccl.so.2"

static struct {
    pthread_mutex_t lock;
    void *library; // NULL: not loaded yet
    struct nccl_functions functions;
} nccl = {.lock = PTHREAD_MUTEX_INITIALIZER};

static bool find_functions(void *library, const char *path, struct nccl_functions *f, struct sl_error *err) {
    const struct {
        const char *name;
        void *to;
    } wanted[] = {
        {"ncclGetVersion", &f->GetVersion},
        {"ncclGetUniqueId", &f->GetUniqueId},
        {"ncclCommInitRankConfig", &f->CommInitRankConfig},
        {"ncclCommGetAsyncError", &f->CommGetAsyncError},
        {"ncclCommDestroy", &f->CommDestroy},
        {"ncclCommAbort", &f->CommAbort},
        {"ncclAllGather", &f->AllGather},
        {"ncclGetErrorString", &f->GetErrorString},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof wanted[0]; i++) {
        void *found = dlsym(library, wanted[i].name);
        if (found == NULL) {
            sl_fail(err, SL_ERR_UNSUPPORTED, "%s has no %s: version 2.14 of NCCL or a newer one is needed", path,
                    wanted[i].name);
            return false;
        }
        memcpy(wanted[i].to, &found, sizeof found);
    }
    return true;
}

static bool load(const char *path, struct sl_error *err) {
    int version = 0;
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) {
        sl_fail(err, SL_ERR_UNSUPPORTED,
                "%s: install version 2 of NCCL (libnccl2) where the loader finds it, or compute on one device",
                dlerror());
        return false;
    }
    bool good = find_functions(library, path, &nccl.functions, err);
    if (good && (nccl.functions.GetVersion(&version) != NCCL_SUCCESS || version < NCCL_LEAST_VERSION)) {
        sl_fail(err, SL_ERR_UNSUPPORTED, "%s is version %d, %d (2.14) or a newer one is needed", path, version,
                NCCL_LEAST_VERSION);
        good = false;
    }
    if (!good) {
        (void)dlclose(library);
        return false;
    }
    nccl.library = library;
    sl_log_info("cuda", "nccl=%d", version);
    return true;
}

const struct nccl_functions *sl_nccl_open(const char *path, struct sl_error *err) {
    SL_LOCKED(&nccl.lock);
    bool there = nccl.library != NULL || load(path != NULL ? path : NAME, err);
    return there ? &nccl.functions : NULL;
}

void sl_nccl_close(void) {
    SL_LOCKED(&nccl.lock);
    if (nccl.library != NULL) {
        (void)dlclose(nccl.library);
        nccl.library = NULL;
    }
}
