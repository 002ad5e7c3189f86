// SPDX-License-Identifier: Apache-2.0
// Purpose: checks at compile time, where NCCL's header is installed, that engine/tensor/cuda/group/nccl.h declares what
// it says. Nothing of it runs.
#include "engine/tensor/cuda/group/nccl.h"

#include <nccl.h>

#define SAME(theirs, ours) _Static_assert((int)(theirs) == (int)(ours), #theirs)
SAME(ncclSuccess, NCCL_SUCCESS);
SAME(ncclInProgress, NCCL_IN_PROGRESS);
SAME(ncclInt8, NCCL_INT8);
_Static_assert(sizeof(ncclUniqueId) == sizeof(struct nccl_id), "ncclUniqueId");
_Static_assert(offsetof(ncclConfig_t, size) == offsetof(struct nccl_config, size) &&
                   offsetof(ncclConfig_t, magic) == offsetof(struct nccl_config, magic) &&
                   offsetof(ncclConfig_t, version) == offsetof(struct nccl_config, version) &&
                   offsetof(ncclConfig_t, blocking) == offsetof(struct nccl_config, blocking) &&
                   offsetof(ncclConfig_t, cgaClusterSize) < sizeof(struct nccl_config),
               "ncclConfig_t");

_Static_assert(NCCL_VERSION(2, 14, 0) == NCCL_LEAST_VERSION, "NCCL_VERSION");

#define TAKES(name, ...) __builtin_types_compatible_p(__typeof__(name), __VA_ARGS__)
_Static_assert(TAKES(ncclGetVersion, ncclResult_t(int *)), "ncclGetVersion");
_Static_assert(TAKES(ncclGetUniqueId, ncclResult_t(ncclUniqueId *)), "ncclGetUniqueId");
_Static_assert(TAKES(ncclCommInitRankConfig, ncclResult_t(ncclComm_t *, int, ncclUniqueId, int, ncclConfig_t *)),
               "ncclCommInitRankConfig");
_Static_assert(TAKES(ncclCommGetAsyncError, ncclResult_t(ncclComm_t, ncclResult_t *)), "ncclCommGetAsyncError");
_Static_assert(TAKES(ncclCommDestroy, ncclResult_t(ncclComm_t)), "ncclCommDestroy");
_Static_assert(TAKES(ncclCommAbort, ncclResult_t(ncclComm_t)), "ncclCommAbort");
_Static_assert(TAKES(ncclAllGather,
                     ncclResult_t(const void *, void *, size_t, ncclDataType_t, ncclComm_t, cudaStream_t)),
               "ncclAllGather");
_Static_assert(TAKES(ncclGetErrorString, const char *(ncclResult_t)), "ncclGetErrorString");
