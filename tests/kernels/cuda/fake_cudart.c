// SPDX-License-Identifier: Apache-2.0
// Purpose: see fake_cudart.h. What CUDA documents of each call, as far as the driver asks for it.
#include "tests/kernels/cuda/fake_cudart.h"

#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

struct fake_cudart fake_cudart = {.driver = CUDART_VERSION};

static cudaError_t last; // kept until it is asked for

static cudaError_t say(cudaError_t error) {
    last = error != cudaSuccess ? error : last;
    return error;
}

cudaError_t cudaGetLastError(void) {
    cudaError_t error = last;
    last = cudaSuccess;
    return error;
}

const char *cudaGetErrorString(cudaError_t error) {
    return error == cudaErrorInvalidValue ? "invalid argument" : "of the fake runtime";
}

// --- the device ------------------------------------------------------------------------------------------------------

cudaError_t cudaDriverGetVersion(int *version) {
    *version = fake_cudart.driver;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *n) {
    *n = fake_cudart.driver / 1000 >= CUDART_VERSION / 1000;
    return say(*n > 0 ? cudaSuccess : cudaErrorInsufficientDriver);
}

cudaError_t cudaSetDevice(int index) {
    return say(index == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int index) {
    *value = attribute == cudaDevAttrComputeCapabilityMajor ? 8 : 0;
    return say(index == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int index) {
    memset(properties, 0, sizeof *properties);
    return say(index == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int from, int to) {
    *can = from == to;
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int to, unsigned flags) {
    return say(flags == 0 && to == 0 ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t cudaDeviceFlushGPUDirectRDMAWrites(enum cudaFlushGPUDirectRDMAWritesTarget target,
                                               enum cudaFlushGPUDirectRDMAWritesScope scope) {
    (void)target;
    (void)scope;
    return say(cudaErrorNotSupported);
}

// --- memory ----------------------------------------------------------------------------------------------------------

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *all) {
    *free_bytes = *all = (size_t)1 << 30;
    return cudaSuccess;
}

static cudaError_t take(void **block, size_t bytes) {
    *block = aligned_alloc(256, (bytes + 255) / 256 * 256);
    return say(*block != NULL ? cudaSuccess : cudaErrorMemoryAllocation);
}

cudaError_t cudaMalloc(void **block, size_t bytes) {
    return take(block, bytes);
}

cudaError_t cudaHostAlloc(void **block, size_t bytes, unsigned flags) {
    (void)flags;
    return take(block, bytes);
}

// NULL is fine, as CUDA says.
cudaError_t cudaFree(void *block) {
    free(block);
    return cudaSuccess;
}

// And here it is not.
cudaError_t cudaFreeHost(void *block) {
    fake_cudart.n_freed_null += block == NULL;
    free(block);
    return say(block != NULL ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaHostRegister(void *base, size_t bytes, unsigned flags) {
    (void)base;
    (void)bytes;
    (void)flags;
    return say(cudaErrorNotSupported);
}

cudaError_t cudaHostUnregister(void *base) {
    (void)base;
    return say(cudaErrorHostMemoryNotRegistered);
}

// --- queues and events: work is done when it is queued -----------------------------------------------------------------

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    (void)flags;
    return take((void **)stream, 1);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    free(stream);
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t stream) {
    (void)stream;
    return say(fake_cudart.hangs ? cudaErrorNotReady : cudaSuccess);
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    (void)stream;
    (void)event;
    (void)flags;
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream) {
    (void)kind;
    (void)stream;
    memcpy(to, from, bytes);
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    (void)flags;
    return take((void **)event, 1);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    free(event);
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    (void)event;
    (void)stream;
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    (void)event;
    return say(fake_cudart.hangs ? cudaErrorNotReady : cudaSuccess);
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    (void)event;
    while (fake_cudart.hangs) { // a caller waits for ever
    }
    return cudaSuccess;
}
