// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: XXH3 of data to be sent, 64 bits with a seed. It gives the bits of base/hash.h, so that the GPU and the host
 *          compute the same digests. A block digests a piece.
 *
 *     a stripe is 64 bytes, eight lanes of 8; a round is 16 stripes. For lane i of a stripe with the value v and the
 *     key k = v ^ secret:
 *         acc[i] += low32(k) * high32(k)      acc[i ^ 1] += v
 *     after each round acc = (acc ^ acc >> 47 ^ secret) * prime; then come the remaining bytes, and the last 64 once
 *     more; then lanes are multiplied in pairs and folded.
 *
 * Design: the sum that a round adds does not depend on earlier rounds. So all threads compute ROUNDS of these sums,
 *         eight threads for each round, into shared memory, and eight threads compute the chain of one multiplication
 *         for each round. Parts of a piece are digested in order, because each one's digest is the seed of the next.
 *         240 bytes and fewer have formulas of their own, which every thread computes.
 */
#include "engine/tensor/cuda/attention/launch.h"
#include "engine/tensor/cuda/gpu.h"

constexpr uint32_t STRIPE = 64, LANES = 8, ROUND = 1024, STRIPES = ROUND / STRIPE, ROUNDS = 32,
                   THREADS = ROUNDS * LANES;
constexpr uint32_t SECRET_WORDS = 24, LONG_BYTES = 241;

constexpr uint64_t P32_1 = 0x9e3779b1, P32_2 = 0x85ebca77, P32_3 = 0xc2b2ae3d;
constexpr uint64_t P64_1 = 0x9e3779b185ebca87, P64_2 = 0xc2b2ae3d27d4eb4f, P64_3 = 0x165667b19e3779f9,
                   P64_4 = 0x85ebca77c2b2ae63, P64_5 = 0x27d4eb2f165667c5;
constexpr uint64_t MIX_1 = 0x165667919e3779f9, MIX_2 = 0x9fb21c651e98df25;

// The algorithm's 192 bytes, in little endian.
static __device__ const uint64_t SECRET[SECRET_WORDS] = {
    0xbe4ba423396cfeb8, 0x1cad21f72c81017c, 0xdb979083e96dd4de, 0x1f67b3b7a4a44072, 0x78e5c0cc4ee679cb,
    0x2172ffcc7dd05a82, 0x8e2443f7744608b8, 0x4c263a81e69035e0, 0xcb00c391bb52283c, 0xa32e531b8b65d088,
    0x4ef90da297486471, 0xd8acdea946ef1938, 0x3f349ce33f76faa8, 0x1d4f0bc7c7bbdcf9, 0x3159b4cd4be0518a,
    0x647378d9c97e9fc8, 0xc3ebd33483acc5ea, 0xeb6313faffa081c5, 0x49daf0b751dd0d17, 0x9e68d429265516d3,
    0xfca1477d58be162b, 0xce31d07ad1b8f88f, 0x280416958f3acb45, 0x7e404bbbcafbd7af};

// --- bytes -----------------------------------------------------------------------------------------------------------

GPU_DEVICE uint64_t read_bytes(const unsigned char *at, uint32_t n) {
    uint64_t x = 0;
    for (uint32_t i = 0; i < n; i++) {
        x |= (uint64_t)at[i] << 8 * i;
    }
    return x;
}

GPU_DEVICE uint64_t read64(const unsigned char *at) {
    return ((uintptr_t)at & 7) == 0 ? *(const uint64_t *)at : read_bytes(at, 8);
}

GPU_DEVICE uint64_t swap32(uint64_t x) {
    return (x & 0xff) << 24 | (x & 0xff00) << 8 | (x >> 8 & 0xff00) | (x >> 24 & 0xff);
}

GPU_DEVICE uint64_t swap64(uint64_t x) {
    return swap32(x & 0xffffffff) << 32 | swap32(x >> 32);
}

// Returns eight bytes of a secret, from any byte on.
GPU_DEVICE uint64_t secret_at(const uint64_t *secret, uint32_t at) {
    uint32_t shift = at % 8 * 8;
    return shift == 0 ? secret[at / 8] : secret[at / 8] >> shift | secret[at / 8 + 1] << (64 - shift);
}

// --- mixing ----------------------------------------------------------------------------------------------------------

GPU_DEVICE uint64_t rotate_left(uint64_t x, uint32_t by) {
    return x << by | x >> (64 - by);
}

GPU_DEVICE uint64_t fold(uint64_t a, uint64_t b) {
    return a * b ^ __umul64hi(a, b);
}

GPU_DEVICE uint64_t finish(uint64_t x) {
    x = (x ^ x >> 37) * MIX_1;
    return x ^ x >> 32;
}

GPU_DEVICE uint64_t finish_tiny(uint64_t x) {
    x = (x ^ x >> 33) * P64_2;
    x = (x ^ x >> 29) * P64_3;
    return x ^ x >> 32;
}

GPU_DEVICE uint64_t mix16(const unsigned char *at, uint32_t secret, uint64_t seed) {
    return fold(read64(at) ^ (secret_at(SECRET, secret) + seed),
                read64(at + 8) ^ (secret_at(SECRET, secret + 8) - seed));
}

// --- 240 bytes and less ----------------------------------------------------------------------------------------------

GPU_DEVICE uint64_t digest_tiny(const unsigned char *at, uint32_t n, uint64_t seed) { // n <= 16
    if (n > 8) {
        uint64_t low = read64(at) ^ ((SECRET[3] ^ SECRET[4]) + seed);
        uint64_t high = read64(at + n - 8) ^ ((SECRET[5] ^ SECRET[6]) - seed);
        return finish(n + swap64(low) + high + fold(low, high));
    }
    if (n >= 4) {
        uint64_t turned = seed ^ swap32(seed & 0xffffffff) << 32;
        uint64_t x = read_bytes(at + n - 4, 4) + (read_bytes(at, 4) << 32);
        x ^= (SECRET[1] ^ SECRET[2]) - turned;
        x ^= rotate_left(x, 49) ^ rotate_left(x, 24);
        x *= MIX_2;
        x ^= (x >> 35) + n;
        x *= MIX_2;
        return x ^ x >> 28;
    }
    if (n > 0) {
        uint64_t x = (uint64_t)at[0] << 16 | (uint64_t)at[n >> 1] << 24 | at[n - 1] | (uint64_t)n << 8;
        return finish_tiny(x ^ (((SECRET[0] ^ SECRET[0] >> 32) & 0xffffffff) + seed));
    }
    return finish_tiny(seed ^ SECRET[7] ^ SECRET[8]);
}

GPU_DEVICE uint64_t digest_short(const unsigned char *at, uint32_t n, uint64_t seed) {
    if (n <= 16) {
        return digest_tiny(at, n, seed);
    }
    uint64_t acc = n * P64_1;
    if (n <= 128) {
        for (uint32_t i = 0; i <= (n - 1) / 32; i++) { // from both ends
            acc += mix16(at + 16 * i, 32 * i, seed) + mix16(at + n - 16 * (i + 1), 32 * i + 16, seed);
        }
        return finish(acc);
    }
    for (uint32_t i = 0; i < 8; i++) {
        acc += mix16(at + 16 * i, 16 * i, seed);
    }
    acc = finish(acc);
    for (uint32_t i = 8; i < n / 16; i++) {
        acc += mix16(at + 16 * i, 16 * (i - 8) + 3, seed);
    }
    return finish(acc + mix16(at + n - 16, 119, seed));
}

// --- more ------------------------------------------------------------------------------------------------------------

struct shared_state {
    uint64_t secret[SECRET_WORDS]; // with the seed added
    uint64_t sums[THREADS];        // [ROUNDS][LANES]
};

struct lane_sum {
    uint64_t products, values;
};

GPU_DEVICE void add_lane(lane_sum &sum, uint64_t value, uint64_t secret) {
    uint64_t key = value ^ secret;
    sum.products += (key & 0xffffffff) * (key >> 32);
    sum.values += value;
}

// Returns what a lane adds: its own products, and its neighbor's values. All threads must call it.
GPU_DEVICE uint64_t cross(const lane_sum &sum) {
    return sum.products + __shfl_xor_sync(~0u, sum.values, 1);
}

GPU_DEVICE uint64_t first_acc(uint32_t lane) {
    const uint64_t low = lane == 0 ? P32_3 : lane == 1 ? P64_1 : lane == 2 ? P64_2 : P64_3;
    const uint64_t high = lane == 4 ? P64_4 : lane == 5 ? P32_2 : lane == 6 ? P64_5 : P32_1;
    return lane < 4 ? low : high;
}

// Adds whole rounds, except the last bytes. Returns the new acc, which is valid in the first LANES threads.
GPU_DEVICE uint64_t add_rounds(shared_state &shared, const unsigned char *at, uint32_t n_rounds, uint64_t acc) {
    const uint32_t lane = threadIdx.x % LANES;
    for (uint32_t first = 0; first < n_rounds; first += ROUNDS) {
        uint32_t round = first + threadIdx.x / LANES;
        lane_sum sum = {0, 0};
        if (round < n_rounds) {
            const unsigned char *from = at + (size_t)round * ROUND + lane * 8;
            GPU_UNROLL
            for (uint32_t s = 0; s < STRIPES; s++) {
                add_lane(sum, read64(from + s * STRIPE), shared.secret[s + lane]);
            }
        }
        shared.sums[threadIdx.x] = cross(sum);
        __syncthreads();
        if (threadIdx.x < LANES) {
            for (uint32_t i = 0; i < ROUNDS && first + i < n_rounds; i++) {
                acc += shared.sums[i * LANES + lane];
                acc = (acc ^ acc >> 47 ^ shared.secret[STRIPES + lane]) * P32_1;
            }
        }
        __syncthreads();
    }
    return acc;
}

// Adds the stripes of an incomplete round, and the last 64 bytes.
GPU_DEVICE uint64_t add_rest(shared_state &shared, const unsigned char *at, uint32_t n, uint32_t n_rounds,
                             uint64_t acc) {
    const uint32_t lane = threadIdx.x % LANES, stripe = threadIdx.x / LANES;
    const uint32_t begin = n_rounds * ROUND, n_stripes = (n - 1 - begin) / STRIPE; // below STRIPES
    lane_sum sum = {0, 0};
    if (stripe < n_stripes) {
        add_lane(sum, read64(at + begin + stripe * STRIPE + lane * 8), shared.secret[stripe + lane]);
    } else if (stripe == STRIPES - 1) {
        add_lane(sum, read64(at + n - STRIPE + lane * 8), secret_at(shared.secret, 121 + lane * 8));
    }
    shared.sums[threadIdx.x] = cross(sum);
    __syncthreads();
    if (threadIdx.x < LANES) {
        for (uint32_t i = 0; i < STRIPES; i++) {
            acc += shared.sums[i * LANES + lane];
        }
    }
    return acc;
}

GPU_DEVICE uint64_t digest_long(shared_state &shared, const unsigned char *at, uint32_t n, uint64_t seed) {
    __syncthreads(); // all threads have folded the previous part
    if (threadIdx.x < SECRET_WORDS) {
        shared.secret[threadIdx.x] = SECRET[threadIdx.x] + (threadIdx.x % 2 == 0 ? seed : 0 - seed);
    }
    __syncthreads();
    const uint32_t n_rounds = (n - 1) / ROUND;
    uint64_t acc = add_rounds(shared, at, n_rounds, first_acc(threadIdx.x % LANES));
    acc = add_rest(shared, at, n, n_rounds, acc);
    if (threadIdx.x < LANES) {
        shared.sums[threadIdx.x] = acc;
    }
    __syncthreads();
    uint64_t x = n * P64_1;
    for (uint32_t i = 0; i < LANES; i += 2) {
        x += fold(shared.sums[i] ^ secret_at(shared.secret, 11 + 8 * i),
                  shared.sums[i + 1] ^ secret_at(shared.secret, 19 + 8 * i));
    }
    return finish(x);
}

static __global__ void __launch_bounds__(THREADS)
    digest(const gpu_digest *pieces, const uint32_t *part_bytes, uint64_t *out) {
    __shared__ shared_state shared;
    const gpu_digest piece = pieces[blockIdx.x];
    const unsigned char *at = (const unsigned char *)piece.data;
    uint64_t seed = 0;
    for (uint32_t i = 0; i < piece.n_parts; i++) {
        uint32_t n = part_bytes[piece.first_part + i];
        seed = n < LONG_BYTES ? digest_short(at, n, seed) : digest_long(shared, at, n, seed);
        at += n;
    }
    if (threadIdx.x == 0) {
        out[blockIdx.x] = seed;
    }
}

void sl_gpu_digest(struct gpu_queue *queue, const struct gpu_digest *pieces, uint32_t n, const uint32_t *part_bytes,
                   uint64_t *digests) {
    GPU_LAUNCH(digest, n, THREADS, 0, queue, pieces, part_bytes, digests);
}
