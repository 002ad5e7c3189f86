// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the tile unit in plain C, so that tiers amx and amx2 are tested on processors without one. Included before
 *          the product's files by the compiler (-include); the intrinsics of the same names then end here.
 *
 * Invariants: as TDPBF16PS, an element adds the products of even k, and of odd k, each in ascending order; then both
 *             sums to itself. Subnormals are not flushed.
 */
#pragma once

#include <immintrin.h>
#include <stddef.h>

void soft_tile_config(const void *config);
void soft_tile_release(void);
void soft_tile_zero(int tile);
void soft_tile_load(int tile, const void *from, ptrdiff_t stride);
void soft_tile_store(int tile, void *to, ptrdiff_t stride);
void soft_tile_dpbf16(int sums, int left, int right);

#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_zero
#undef _tile_dpbf16ps
#define _tile_loadconfig(config)               soft_tile_config(config)
#define _tile_release()                        soft_tile_release()
#define _tile_zero(tile)                       soft_tile_zero(tile)
#define _tile_loadd(tile, from, stride)        soft_tile_load(tile, from, stride)
#define _tile_stream_loadd(tile, from, stride) soft_tile_load(tile, from, stride)
#define _tile_stored(tile, to, stride)         soft_tile_store(tile, to, stride)
#define _tile_dpbf16ps(sums, left, right)      soft_tile_dpbf16(sums, left, right)
