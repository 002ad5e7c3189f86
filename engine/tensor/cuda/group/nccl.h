// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the part of NCCL that we call, loaded at run time from wherever it is installed. Nothing links it or needs
 *          its header, so callers can be tested without both. engine/tensor/cuda/plugin/nccl_check.c compares these
 *          declarations with the header where that is installed.
 */
#pragma once

#include <stddef.h>

#include "base/status.h"

#define NCCL_LEAST_VERSION 21400 // the first version with nonblocking communicators
#define NCCL_CONFIG_MAGIC  0xcafebeefu

enum { NCCL_SUCCESS = 0, NCCL_IN_PROGRESS = 7 }; // values of ncclResult_t
enum { NCCL_INT8 = 0 };                          // values of ncclDataType_t

struct nccl_comm; // ncclComm_t points to it

struct nccl_id { // ncclUniqueId
    char bytes[128];
};

struct nccl_config { // ncclConfig_t of version 2.14: its size and version say so
    size_t size;
    unsigned magic, version;
    int blocking;
};

// Functions of NCCL; the names are these with the prefix nccl.
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
 * Returns the library at `path`, or for NULL libnccl.so.2 where the loader finds it. Once it is loaded later calls
 * return the same library, whatever they ask for: it stays loaded, as CUDA's does. Any thread. Returns NULL with
 * SL_ERR_UNSUPPORTED when it cannot be loaded, lacks a function, or is too old; the text says what to do.
 */
const struct nccl_functions *sl_nccl_open(const char *path, struct sl_error *err);

// Closes the library, for tests of another one. No thread may use it any more.
void sl_nccl_close(void);
