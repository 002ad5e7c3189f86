// SPDX-License-Identifier: Apache-2.0
// Purpose: CUDA's f16, as bits.
#pragma once

typedef unsigned short __half;
typedef unsigned __half2;
__device__ float __half2float(__half);
__device__ __half __float2half_rn(float);
__device__ __half __ushort_as_half(unsigned short);
__device__ unsigned short __half_as_ushort(__half);
__device__ __half2 __hsub2(__half2, __half2);
__device__ __half2 __hmul2(__half2, __half2);
__device__ __half2 __hfma2(__half2, __half2, __half2);
