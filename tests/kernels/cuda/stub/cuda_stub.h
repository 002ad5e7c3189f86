// SPDX-License-Identifier: Apache-2.0
// Purpose: as much of CUDA as clang needs to compile our kernels where CUDA is not installed: declarations, and no definitions.
#pragma once

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#define __device__             __attribute__((device))
#define __host__               __attribute__((host))
#define __global__             __attribute__((global))
#define __shared__             __attribute__((shared))
#define __forceinline__        inline __attribute__((always_inline))
#define __launch_bounds__(...) __attribute__((launch_bounds(__VA_ARGS__)))
#define __align__(n)           __attribute__((aligned(n)))

struct dim3 {
    unsigned x, y, z;
    __host__ __device__ dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct __align__(8) uint2 {
    unsigned x, y;
};
struct __align__(16) uint4 {
    unsigned x, y, z, w;
};
struct __align__(8) float2 {
    float x, y;
};
struct __align__(16) float4 {
    float x, y, z, w;
};
typedef struct CUstream_st *cudaStream_t;

extern "C" int cudaConfigureCall(dim3, dim3, size_t = 0, cudaStream_t = 0);
extern "C" unsigned __cudaPushCallConfiguration(dim3, dim3, size_t = 0, cudaStream_t = 0);
extern "C" int cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, cudaStream_t);
enum { cudaFuncAttributeMaxDynamicSharedMemorySize = 8 };
template <class T> int cudaFuncSetAttribute(T *, int, int);

extern const __device__ dim3 threadIdx, blockIdx, blockDim, gridDim;

__device__ void __syncthreads();
__device__ int __syncthreads_count(int);
__device__ void __syncwarp(unsigned = ~0u);
template <class T> __device__ T __shfl_xor_sync(unsigned, T, int, int = 32);
template <class T> __device__ T __shfl_up_sync(unsigned, T, unsigned, int = 32);
template <class T> __device__ T __shfl_down_sync(unsigned, T, unsigned, int = 32);
template <class T> __device__ T __shfl_sync(unsigned, T, int, int = 32);
__device__ unsigned __ballot_sync(unsigned, int);
__device__ int __popc(unsigned);
__device__ unsigned __byte_perm(unsigned, unsigned, unsigned);
__device__ size_t __cvta_generic_to_shared(const void *);
__device__ float __uint_as_float(unsigned);
__device__ unsigned __float_as_uint(float);
__device__ unsigned atomicAdd(unsigned *, unsigned);
__device__ unsigned atomicMin(unsigned *, unsigned);
__device__ unsigned atomicMax(unsigned *, unsigned);
__device__ float fmaxf(float, float);
__device__ float fminf(float, float);
__device__ float expf(float);
__device__ float exp2f(float);
__device__ double exp(double);
__device__ double log(double);
__device__ unsigned long long __umul64hi(unsigned long long, unsigned long long);
__device__ float fmaf(float, float, float);
__device__ float logf(float);
__device__ float sqrtf(float);
__device__ float rintf(float);
__device__ float erff(float);
__device__ float tanhf(float);
__device__ double fmax(double, double);
__device__ double sqrt(double);
__device__ double cos(double);
__device__ double sin(double);
