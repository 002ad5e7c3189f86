// SPDX-License-Identifier: Apache-2.0
// Purpose: CUDA's bf16, of which kernels use nothing: a bf16 is the upper half of an f32.
#pragma once
