// SPDX-License-Identifier: Apache-2.0
// Purpose: the exports of libsluice_cuda.so (engine/tensor/plugin.h): the table and the device over CUDA's runtime,
// with wgmma where the device has it, cuBLASLt where the environment asks for it, and the group of devices.
#include "engine/tensor/plugin.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "engine/tensor/cuda/group/nccl_group.h"
#include "engine/tensor/cuda/plugin/cudart_driver.h"
#include "engine/tensor/cuda/table/ops.h"
#include "engine/tensor/cuda/table/wgmma.h"
#if defined(SLUICE_CUBLASLT)
#include "engine/tensor/cuda/plugin/cublaslt.h"
#endif

// environment variable: whose products multiply rows of prompts; unset: wgmma's where available
#define GEMM "SLUICE_GEMM"

static struct {
    pthread_once_t driver_once, library_once, several_once, wgmma_once;
    struct gpu_driver driver;
    const struct gpu_library *library; // NULL: only our own kernels
} here = {.driver_once = PTHREAD_ONCE_INIT,
          .library_once = PTHREAD_ONCE_INIT,
          .several_once = PTHREAD_ONCE_INIT,
          .wgmma_once = PTHREAD_ONCE_INIT};

// --- products of a library -------------------------------------------------------------------------------------------

static const struct gpu_library *open_cublaslt(struct sl_error *err) {
#if defined(SLUICE_CUBLASLT)
    return sl_cublaslt_open(NULL, err);
#else
    sl_fail(err, SL_ERR_UNSUPPORTED, "the plugin was built without cublasLt.h");
    return NULL;
#endif
}

static bool is_asked(const char *name) {
    const char *asked = getenv(GEMM);
    return asked != NULL && strcmp(asked, name) == 0;
}

static void open_library(void) {
    struct sl_error err;
    if (is_asked("cublaslt")) {
        here.library = open_cublaslt(&err);
    } else {
        sl_fail(&err, SL_ERR_INVALID, GEMM " is \"%s\", expected own, wgmma or cublaslt", getenv(GEMM));
    }
    if (here.library == NULL) {
        sl_log_warn("cuda", "products=own reason=\"%s\"", err.text);
    }
}

static void say_several(void) {
    sl_log_warn("cuda", "products=own reason=\"what cuBLASLt is asked through belongs to one device\"");
}

static void say_no_wgmma(void) {
    sl_log_warn("cuda", "products=own reason=\"wgmma is compute capability 9.0's\"");
}

// Decides at every call: a process that has computed on one device may open others.
static const struct gpu_library *find_library(void) {
    if (is_asked("own")) {
        return NULL;
    }
    if (getenv(GEMM) == NULL || is_asked("wgmma")) {
        bool has = sl_cudart_has_wgmma();
        if (!has && is_asked("wgmma")) {
            pthread_once(&here.wgmma_once, say_no_wgmma);
        }
        return has ? &sl_gpu_wgmma : NULL;
    }
    if (!sl_cudart_has_several()) {
        pthread_once(&here.library_once, open_library);
        return here.library;
    }
    pthread_once(&here.several_once, say_several);
    return NULL;
}

// --- the plugin ------------------------------------------------------------------------------------------------------

static void make_driver(void) {
    here.driver = sl_gpu_cudart;
    here.driver.library = find_library;
}

static const struct gpu_driver *the_driver(void) {
    pthread_once(&here.driver_once, make_driver);
    return &here.driver;
}

static const struct sl_ops *fill(const struct sl_ops *host) {
    return sl_gpu_ops(the_driver(), host);
}

static enum sl_status open_device(int index, struct sl_team *team, struct sl_device **device_out,
                                  struct sl_error *err) {
    return sl_gpu_device_open(the_driver(), index, team, device_out, err);
}

static const struct sl_plugin plugin = {
    .abi = SL_PLUGIN_ABI,
    .name = "cuda",
    .ops = fill,
    .open = open_device,
    .describe = sl_cudart_describe,
    .group = &sl_group_nccl,
};

const struct sl_plugin *sl_plugin_get(void);

__attribute__((visibility("default"))) const struct sl_plugin *sl_plugin_get(void) {
    return &plugin;
}
