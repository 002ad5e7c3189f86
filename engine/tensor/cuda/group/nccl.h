// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: NCCL as far as we call it, loaded where it is: nothing links it, and nothing is built against its header, so that what calls it can be
 *          tried where there is neither. engine/tensor/cuda/plugin/nccl_check.c holds these declarations to the header where that is there.
 */
#pragma once

#include <stddef.h>

#include "base/status.h"

#define NCCL_LEAST_VERSION 21400 // communicators that do not block
#define NCCL_CONFIG_MAGIC  0xcafebeefu

enum { NCCL_SUCCESS = 0, NCCL_IN_PROGRESS = 7 }; // of ncclResult_t
enum { NCCL_INT8 = 0 };                          // of ncclDataType_t

struct nccl_comm; // ncclComm_t leads to it

struct nccl_id { // ncclUniqueId
    char bytes[128];
};

struct nccl_config { // ncclConfig_t as 2.14 had it: its size and version say so
    size_t size;
    unsigned magic, version;
    int blocking;
};

// Their names are nccl and these.
struct nccl_functions {
    int (*GetVersion)(int *version_out);
    int (*GetUniqueId)(struct nccl_id *id_out);
    int (*CommInitRankConfig)(struct nccl_comm **comm_out, int size, struct nccl_id id, int rank,
                              struct nccl_config *config);
    int (*CommGetAsyncError)(struct nccl_comm *comm, int *result_out);
    int (*CommDestroy)(struct nccl_comm *comm);
    int (*CommAbort)(struct nccl_comm *comm);
    int (*AllGather)(const void *part, void *parts, size_t n, int type, struct nccl_comm *comm, void *stream);
    const char *(*GetErrorString)(int result);
};

/*
 * The library at `path`, NULL: libnccl.so.2 where the loader finds it. Once it is there later calls return the same, whatever they ask for: it
 * stays, as CUDA's does. Any thread. NULL: SL_ERR_UNSUPPORTED: it cannot be loaded, lacks a function, or is too old; says what to do.
 */
const struct nccl_functions *sl_nccl_open(const char *path, struct sl_error *err);

// For tests, of another one: nobody uses it any more.
void sl_nccl_close(void);
