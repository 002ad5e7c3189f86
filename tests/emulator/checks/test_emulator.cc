// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: holds the emulated GPU to what CUDA promises to kernels and to hosts, and shows that it ends a program that
 *          relies on more. Races: planted_races.cc.
 */
#include <csetjmp>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sys/wait.h>
#include <unistd.h>

extern "C" {
#include <cmocka.h>
}

#include "tests/emulator/emulator.h"
#include "engine/tensor/cuda/gpu.h"

static struct gpu_queue *queue;

template <class T> static T *on_device(size_t n) {
    return (T *)sl_emu_alloc(n * sizeof(T));
}

template <class T> static void upload(T *to, const T *from, size_t n) {
    sl_emu_copy(queue, to, from, n * sizeof(T));
}

template <class T> static void download(T *to, const T *from, size_t n) {
    sl_emu_copy(queue, to, from, n * sizeof(T));
    sl_emu_wait(queue);
}

static int open_queue(void **) {
    queue = sl_emu_queue_open();
    return 0;
}

static int close_queue(void **) {
    sl_emu_queue_close(&queue);
    sl_emu_set_order(0);
    sl_emu_set_eager(false);
    assert_int_equal(sl_emu_used(), 0);
    return 0;
}

// --- what must end the program ---------------------------------------------------------------------------------------

// Runs fn in a process of its own, which must die by `signal` and, if `text` is set, say it.
static void assert_dies(void (*fn)(), int signal, const char *text) {
    int pipe_ends[2], status;
    char said[2000] = "";
    assert_int_equal(pipe(pipe_ends), 0);
    pid_t child = fork();
    if (child == 0) {
        dup2(pipe_ends[1], 2);
        struct sigaction plain = {};
        plain.sa_handler = SIG_DFL;
        sigaction(SIGABRT, &plain, nullptr); // a sanitizer's and cmocka's handlers
        sigaction(SIGSEGV, &plain, nullptr);
        fn();
        _exit(0);
    }
    close(pipe_ends[1]);
    for (size_t n = 0; n + 1 < sizeof said;) {
        ssize_t got = read(pipe_ends[0], said + n, sizeof said - 1 - n);
        if (got <= 0) {
            break;
        }
        n += (size_t)got;
    }
    close(pipe_ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (!WIFSIGNALED(status) || WTERMSIG(status) != signal || strstr(said, text) == nullptr) {
        fail_msg("expected '%s' and signal %d; status %d, said: %s", text, signal, status, said);
    }
}

static __global__ void half_a_warp(float *out) {
    float x = 0;
    if (threadIdx.x < 16) {
        x = __shfl_xor_sync(~0u, 1.0f, 1);
    }
    out[threadIdx.x] = x;
}

static __global__ void two_barriers(float *out) {
    if (threadIdx.x < 32) {
        __syncthreads();
    } else {
        __syncthreads();
    }
    out[threadIdx.x] = 1;
}

static __global__ void no_wait(float *out, const float *in) {
    __shared__ __attribute__((aligned(16))) float tile[4];
    if (threadIdx.x == 0) {
        gpu::cp_async16(tile, in);
    }
    gpu::cp_async_commit();
    __syncthreads();
    out[threadIdx.x] = tile[threadIdx.x % 4];
}

static __global__ void outside_of_the_mask(float *out) {
    if (threadIdx.x < 16) {
        out[threadIdx.x] = __shfl_sync(0xffffu, 1.0f, 20);
    }
}

static __global__ void past_the_end(float *out, int n) {
    if (threadIdx.x == 0) {
        out[n] = 0;
    }
}

static __global__ void fill(float *out, float x) {
    out[blockIdx.x * blockDim.x + threadIdx.x] = x;
}

static void lanes_never_meet() {
    GPU_LAUNCH(half_a_warp, 1, 32, 0, queue, on_device<float>(32));
    sl_emu_wait(queue);
}

static void threads_at_two_barriers() {
    GPU_LAUNCH(two_barriers, 1, 64, 0, queue, on_device<float>(64));
    sl_emu_wait(queue);
}

static void copy_not_waited_for() {
    GPU_LAUNCH(no_wait, 1, 64, 0, queue, on_device<float>(64), on_device<float>(4));
    sl_emu_wait(queue);
}

static void lane_outside_of_the_mask() {
    GPU_LAUNCH(outside_of_the_mask, 1, 32, 0, queue, on_device<float>(32));
    sl_emu_wait(queue);
}

static void written_past_the_end() {
    float *out = on_device<float>(30);
    GPU_LAUNCH(past_the_end, 1, 32, 0, queue, out, 30);
    sl_emu_wait(queue);
    sl_emu_free(out);
}

static void host_reads_device_memory() {
    float *out = on_device<float>(32);
    GPU_LAUNCH(fill, 1, 32, 0, queue, out, 1.0f);
    sl_emu_wait(queue);
    _exit(*(volatile float *)out == 1.0f);
}

static void host_writes_device_memory() {
    *(volatile float *)on_device<float>(32) = 1;
}

// --- products in the background --------------------------------------------------------------------------------------

enum plant { NONE, NO_FENCE, NO_ORDER, NO_WAIT, TOO_EARLY, OTHER_MATRIX, NOT_SWIZZLED, THREE_WARPS };
enum { A_UNITS = 64 * 8, B_UNITS = 256 * 8 };

// d = a b^T, a [64][64] and b [256][64]: four products of 16. Twice over the same stage, so that the second copy could come too early.
static __global__ void background(const uint16_t *ab, float *d_out, enum plant plant) {
    GPU_DYNAMIC_SHARED(char, shared);
    uint4 *a = (uint4 *)(shared + ((1024 - gpu::shared_address(shared) % 1024) & 1023)), *b = a + A_UNITS;
    float d[128] = {};
    for (int round = 0; round < 2; round++) {
        for (uint32_t i = threadIdx.x; i < A_UNITS + B_UNITS; i += blockDim.x) {
            uint32_t at = plant == NOT_SWIZZLED ? i : i / 8 * 8 + (i % 8 ^ i / 8 % 8);
            gpu::cp_async16(a + at, ab + 8 * i);
        }
        gpu::cp_async_commit();
        gpu::cp_async_wait<0>();
        if (plant != NO_FENCE) {
            gpu::fence_proxy_async();
        }
        __syncthreads();
        if (plant != NO_ORDER) {
            gpu::wgmma_fence();
        }
        for (uint32_t i = 0; i < 4; i++) {
            uint32_t other = plant == OTHER_MATRIX && threadIdx.x == 77;
            gpu::wgmma_m64n256k16_bf16(d, gpu::wgmma_matrix(a, i ^ other), gpu::wgmma_matrix(b, i));
        }
        gpu::wgmma_commit();
        if (plant != (round > 0 ? NO_WAIT : TOO_EARLY)) {
            gpu::wgmma_wait_for(d);
        }
        __syncthreads();
    }
    for (int i = 0; i < 128; i++) {
        d_out[threadIdx.x * 128 + i] = d[i];
    }
}

static void run_background(float *d, enum plant plant) {
    static uint16_t ab[8 * (A_UNITS + B_UNITS)];
    size_t n = sizeof ab / sizeof ab[0];
    uint16_t *in = on_device<uint16_t>(n);
    float *out = on_device<float>(128 * 128);
    for (size_t i = 0; i < n; i++) {
        ab[i] = gpu::f32_to_bf16((float)((int)(i * 37 % 101) - 50) / 16);
    }
    upload(in, ab, n);
    GPU_LAUNCH(background, 1, plant == THREE_WARPS ? 96 : 128, 1024 + 16 * (A_UNITS + B_UNITS), queue, in, out, plant);
    download(d, out, 128 * 128);
    sl_emu_free(in), sl_emu_free(out);
}

static float sums[128 * 128];
#define PLANTED(name, plant)                                                                                           \
    static void name() {                                                                                               \
        run_background(sums, plant);                                                                                   \
    }
PLANTED(copies_not_fenced, NO_FENCE)
PLANTED(registers_not_ordered, NO_ORDER)
PLANTED(products_not_waited_for, NO_WAIT)
PLANTED(copied_over_too_early, TOO_EARLY)
PLANTED(not_the_same_matrix, OTHER_MATRIX)
PLANTED(by_three_warps, THREE_WARPS)

static bool is_product(float times) {
    for (int t = 0; t < 128; t++) {
        for (int i = 0; i < 128; i++) {
            int row = t / 32 * 16 + t % 32 / 4 + i % 4 / 2 * 8, column = i / 4 * 8 + t % 4 * 2 + i % 2;
            float want = 0;
            for (int k = 0; k < 64; k++) {
                want += (float)((row * 64 + k) * 37 % 101 - 50) / 16 *
                        (float)(((64 + column) * 64 + k) * 37 % 101 - 50) / 16;
            }
            if (!(fabsf(sums[t * 128 + i] - times * want) <= 1e-2f)) {
                return false;
            }
        }
    }
    return true;
}

static void test_products_in_the_background(void **) {
    for (unsigned order = 0; order < 4; order++) { // late, at once, some of both
        sl_emu_set_order(order);
        run_background(sums, NONE);
        assert_true(is_product(2));
        run_background(sums, NOT_SWIZZLED);
        assert_false(is_product(2));
    }
}

static void test_emulator_ends_what_is_wrong(void **) {
    for (unsigned order = 0; order < 2; order++) {
        sl_emu_set_order(order);
        assert_dies(copies_not_fenced, SIGABRT, "wgmma reads what was copied without fence_proxy_async() behind it");
        assert_dies(registers_not_ordered, SIGABRT, "wgmma without wgmma_fence() before it");
        assert_dies(products_not_waited_for, SIGABRT, "the thread ends before its products");
        assert_dies(copied_over_too_early, SIGABRT, "a copy to what a wgmma may still read");
        assert_dies(not_the_same_matrix, SIGABRT, "threads of four warps multiply different matrices");
        assert_dies(by_three_warps, SIGABRT, "wgmma by less than four warps");
    }
    sl_emu_set_order(0);
    assert_dies(lanes_never_meet, SIGABRT, "kernel half_a_warp, block (0,0,0), thread 0: waits for ever");
    assert_dies(threads_at_two_barriers, SIGABRT, "threads of a block wait at different barriers");
    assert_dies(copy_not_waited_for, SIGABRT, "the thread ends before its asynchronous copies");
    assert_dies(lane_outside_of_the_mask, SIGABRT, "a shuffle from a lane that takes no part");
    assert_dies(written_past_the_end, SIGABRT, "byte 0 behind a block of 120 was written");
    assert_dies(host_reads_device_memory, SIGSEGV, "");
    assert_dies(host_writes_device_memory, SIGSEGV, "");
}

// --- order -----------------------------------------------------------------------------------------------------------

static void test_queue_does_nothing_until_somebody_waits(void **) {
    float *x = on_device<float>(64), got[64], one = 0;
    for (int eager = 0; eager < 2; eager++) {
        struct gpu_event *event = sl_emu_event_open();
        assert_true(sl_emu_event_reached(event)); // nothing was recorded
        sl_emu_set_eager(eager);
        memset(got, 0, sizeof got);
        GPU_LAUNCH(fill, 2, 32, 0, queue, x, one = 5);
        one = 7; // arguments were taken
        sl_emu_copy(queue, got, x, sizeof got);
        sl_emu_event_record(event, queue);
        sl_emu_copy(queue, &one, x, sizeof one); // after the event
        assert_int_equal(sl_emu_event_reached(event), eager);
        assert_true(got[63] == (eager ? 5 : 0));
        sl_emu_event_wait(event);
        assert_true(sl_emu_event_reached(event));
        assert_true(got[63] == 5);
        assert_true(one == (eager ? 5 : 7));
        sl_emu_wait(queue);
        assert_true(one == 5);
        sl_emu_event_close(&event);
    }
    sl_emu_free(x);
}

static void test_queue_comes_behind_an_event_of_another(void **) {
    struct gpu_queue *other = sl_emu_queue_open();
    struct gpu_event *event = sl_emu_event_open();
    float *x = on_device<float>(32), got[32] = {0};
    GPU_LAUNCH(fill, 1, 32, 0, other, x, 1.0f);
    sl_emu_event_record(event, other);
    sl_emu_event_before(event, queue);
    sl_emu_copy(queue, got, x, sizeof got);
    GPU_LAUNCH(fill, 1, 32, 0, other, x, 2.0f); // no thread has waited for it
    sl_emu_event_record(event, other);          // and the event that is meant is the one before
    sl_emu_wait(queue);
    assert_true(got[31] == 1);
    sl_emu_queue_close(&other);
    sl_emu_event_close(&event);
    sl_emu_free(x);
}

static __global__ void note_order(uint32_t *counter, uint32_t *turn) {
    turn[blockIdx.x * blockDim.x + threadIdx.x] = atomicAdd(counter, 1);
}

static void test_order_of_threads_and_blocks(void **) {
    enum { BLOCKS = 4, THREADS = 64, N = BLOCKS * THREADS };
    uint32_t *counter = on_device<uint32_t>(1), *turn = on_device<uint32_t>(N), got[3][N], zero = 0;
    for (unsigned order = 0; order < 3; order++) {
        bool seen[N] = {};
        sl_emu_set_order(order);
        upload(counter, &zero, 1);
        GPU_LAUNCH(note_order, BLOCKS, THREADS, 0, queue, counter, turn);
        download(got[order], turn, N);
        for (uint32_t i = 0; i < N; i++) {
            assert_true(got[order][i] < N && !seen[got[order][i]]);
            seen[got[order][i]] = true;
            assert_true(order != 0 || got[0][i] == i);
            assert_true(order != 1 || got[1][i] == N - 1 - i);
        }
    }
    assert_memory_not_equal(got[2], got[0], sizeof got[0]);
    assert_memory_not_equal(got[2], got[1], sizeof got[0]);
    sl_emu_free(counter);
    sl_emu_free(turn);
}

// --- memory ----------------------------------------------------------------------------------------------------------

static __global__ void read_shared(float *out) {
    __shared__ float fixed[32];
    GPU_DYNAMIC_SHARED(float, dynamic);
    out[64 * blockIdx.x + threadIdx.x] = fixed[threadIdx.x];
    out[64 * blockIdx.x + 32 + threadIdx.x] = dynamic[threadIdx.x];
    fixed[threadIdx.x] = 1;
    dynamic[threadIdx.x] = 1;
}

static void test_memory_that_nobody_wrote_is_nan(void **) {
    float *x = on_device<float>(128), got[128];
    download(got, x, 128);
    for (int round = 0; round < 2; round++) { // of the device, then shared memory of two blocks
        for (float y : got) {
            assert_true(y != y);
        }
        GPU_LAUNCH(read_shared, 2, 32, 32 * sizeof(float), queue, x);
        download(got, x, 128);
    }
    sl_emu_free(x);
}

static void test_memory_is_given_out_again(void **) {
    char *a = on_device<char>(1000), *b = on_device<char>(5000), *c = on_device<char>(70000);
    assert_true(((uintptr_t)a | (uintptr_t)b | (uintptr_t)c) % 256 == 0);
    assert_int_equal(sl_emu_used(), 76000);
    sl_emu_free(b);
    char *d = on_device<char>(4000);
    assert_ptr_equal(d, b);
    assert_null(sl_emu_alloc(0));
    assert_null(sl_emu_alloc((size_t)1 << 60));
    sl_emu_free(a), sl_emu_free(c), sl_emu_free(d), sl_emu_free(nullptr);
}

// --- warps -----------------------------------------------------------------------------------------------------------

static __global__ void shuffles(int *out) {
    int lane = (int)threadIdx.x;
    out[lane] = __shfl_xor_sync(~0u, lane, 5);
    out[32 + lane] = __shfl_down_sync(~0u, lane, 3);
    out[64 + lane] = __shfl_up_sync(~0u, lane, 3, 8);
    out[96 + lane] = __shfl_sync(~0u, lane, 2, 8);
    out[128 + lane] = (int)__ballot_sync(~0u, lane % 3 == 0);
    out[160 + lane] = lane < 20 ? (int)__ballot_sync(0xfffffu, 1) : 0;
    out[192 + lane] = __syncthreads_count(lane < 7);
    out[224 + lane] = (int)(__shfl_xor_sync(~0u, (double)lane, 16) * 2);
}

static void test_warp_hands_over_registers(void **) {
    int *x = on_device<int>(256), got[256];
    for (unsigned order = 0; order < 3; order++) {
        sl_emu_set_order(order);
        GPU_LAUNCH(shuffles, 1, 32, 0, queue, x);
        download(got, x, 256);
        for (int l = 0; l < 32; l++) {
            assert_int_equal(got[l], l ^ 5);
            assert_int_equal(got[32 + l], l + 3 < 32 ? l + 3 : l);
            assert_int_equal(got[64 + l], l % 8 >= 3 ? l - 3 : l);
            assert_int_equal(got[96 + l], l / 8 * 8 + 2);
            assert_int_equal(got[128 + l], 0x49249249);
            assert_int_equal(got[160 + l], l < 20 ? 0xfffff : 0);
            assert_int_equal(got[192 + l], 7);
            assert_int_equal(got[224 + l], 2 * (l ^ 16));
        }
    }
    sl_emu_free(x);
}

// One product by ldmatrix and mma, A [16][16] and B [8][16] of 16 bits by way of shared memory and cp.async.
static __global__ void multiply(const uint16_t *ab, bool f16, float *d_out, uint32_t *transposed_out) {
    __shared__ __attribute__((aligned(16))) uint16_t tile[24 * 16];
    int lane = (int)threadIdx.x;
    for (int i = lane; i < 24 * 2; i += 32) {
        gpu::cp_async16(tile + 8 * i, ab + 8 * i);
    }
    gpu::cp_async_commit();
    gpu::cp_async_wait<0>();
    __syncthreads();
    uint32_t a[4], b[4];
    gpu::ldmatrix_x4(a, tile + lane % 16 * 16 + lane / 16 * 8);
    gpu::ldmatrix_x4(b, tile + 256 + lane % 8 * 16 + lane / 8 % 2 * 8);
    const uint32_t pair[2] = {b[0], b[1]};
    float d[4] = {1, 2, 3, 4};
    if (f16) {
        gpu::mma_f16(d, a, pair);
    } else {
        gpu::mma_bf16(d, a, pair);
    }
    for (int i = 0; i < 4; i++) {
        d_out[4 * lane + i] = d[i];
    }
    transposed_out[lane] = gpu::transpose_8x8(a[0]);
}

static void test_products_of_matrices(void **) {
    uint16_t ab[24 * 16], *in = on_device<uint16_t>(24 * 16);
    float *out = on_device<float>(128), got[128];
    uint32_t *transposed = on_device<uint32_t>(32), turned[32];
    for (int f16 = 0; f16 < 2; f16++) {
        for (int i = 0; i < 24 * 16; i++) {
            float x = (float)(i * 37 % 101 - 50) / 16;
            ab[i] = f16 ? gpu::f32_to_f16(x) : gpu::f32_to_bf16(x);
        }
        upload(in, ab, 24 * 16);
        GPU_LAUNCH(multiply, 1, 32, 0, queue, in, f16 != 0, out, transposed);
        download(got, out, 128);
        download(turned, transposed, 32);
        for (int l = 0; l < 32; l++) {
            for (int i = 0; i < 4; i++) {
                int row = l / 4 + i / 2 * 8, column = l % 4 * 2 + i % 2;
                float want = (float)(i + 1);
                for (int k = 0; k < 16; k++) {
                    uint16_t a = ab[row * 16 + k], b = ab[256 + column * 16 + k];
                    want += f16 ? gpu::f16_to_f32(a) * gpu::f16_to_f32(b) : gpu::bf16_to_f32(a) * gpu::bf16_to_f32(b);
                }
                assert_true(fabsf(got[4 * l + i] - want) <= 1e-3f);
            }
            assert_int_equal(turned[l], ab[l % 4 * 32 + l / 4] | (uint32_t)ab[l % 4 * 32 + 16 + l / 4] << 16);
        }
    }
    sl_emu_free(in), sl_emu_free(out), sl_emu_free(transposed);
}

int main() {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_emulator_ends_what_is_wrong, open_queue, close_queue),
        cmocka_unit_test_setup_teardown(test_queue_does_nothing_until_somebody_waits, open_queue, close_queue),
        cmocka_unit_test_setup_teardown(test_queue_comes_behind_an_event_of_another, open_queue, close_queue),
        cmocka_unit_test_setup_teardown(test_order_of_threads_and_blocks, open_queue, close_queue),
        cmocka_unit_test_setup_teardown(test_memory_that_nobody_wrote_is_nan, open_queue, close_queue),
        cmocka_unit_test_setup_teardown(test_memory_is_given_out_again, open_queue, close_queue),
        cmocka_unit_test_setup_teardown(test_warp_hands_over_registers, open_queue, close_queue),
        cmocka_unit_test_setup_teardown(test_products_of_matrices, open_queue, close_queue),
        cmocka_unit_test_setup_teardown(test_products_in_the_background, open_queue, close_queue),
    };
    return cmocka_run_group_tests(tests, nullptr, nullptr);
}
