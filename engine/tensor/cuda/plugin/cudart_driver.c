// SPDX-License-Identifier: Apache-2.0
/*
 * Design: CUDA keeps a current device for each thread; ours is set before calls and launches. Several devices of a
 *         process reach each other's memory (peer access), by addresses that they share.
 *         Failures arrive late, and do not name the kernel: the names of the last queued operations are kept with the
 *         first failure.
 * Threads: any.
 */
#include "engine/tensor/cuda/plugin/cudart_driver.h"

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/locked.h"
#include "engine/tensor/cuda/launching.h"

#define LEAST_CAPABILITY 80 // bf16 tensor cores, cp.async
#define N_RECENT         4  // names that a failure reports
#define MOST_DEVICES     16
#if CUDART_VERSION >= 13000
#define LEAST_DRIVER "580" // its release, for people
#else
#define LEAST_DRIVER "525"
#endif

static struct {
    pthread_mutex_t lock; // protects opening, and the first failure
    int opened[MOST_DEVICES];
    _Atomic int n_opened;
    _Atomic bool failed;
    struct sl_error first;
    const char *_Atomic recent[N_RECENT];
    _Atomic unsigned n_queued;
} cuda = {.lock = PTHREAD_MUTEX_INITIALIZER};

static _Thread_local int current = -1; // this thread's device; -1: not set yet

// --- failures --------------------------------------------------------------------------------------------------------

static void note_queued(const char *what) {
    atomic_store(&cuda.recent[atomic_fetch_add(&cuda.n_queued, 1) % N_RECENT], what);
}

// Lists the names, the newest last: "copy, norm_rows, matmul".
static void list_recent(char *text, size_t bytes) {
    unsigned end = atomic_load(&cuda.n_queued), begin = end > N_RECENT ? end - N_RECENT : 0;
    size_t used = 0;
    text[0] = '\0';
    for (unsigned i = begin; i < end && used < bytes; i++) {
        const char *name = atomic_load(&cuda.recent[i % N_RECENT]);
        used += (size_t)snprintf(text + used, bytes - used, "%s%s", i > begin ? ", " : "", name);
    }
}

// Returns the device that failed: every call fails on it. Returns this thread's where all others answer.
static int find_failed(void) {
    int found = -1;
    for (int i = 0; i < atomic_load(&cuda.n_opened) && found < 0; i++) {
        cudaError_t error = cudaSetDevice(cuda.opened[i]);
        error = error == cudaSuccess ? cudaStreamQuery(NULL) : error;
        found = error != cudaSuccess && error != cudaErrorNotReady ? cuda.opened[i] : -1;
        (void)cudaGetLastError();
    }
    if (current >= 0) {
        (void)cudaSetDevice(current);
        (void)cudaGetLastError();
    }
    return found >= 0 ? found : current;
}

static void note_failure(cudaError_t error, const char *where) {
    char recent[160];
    SL_LOCKED(&cuda.lock);
    if (!atomic_load(&cuda.failed)) {
        list_recent(recent, sizeof recent);
        sl_fail(&cuda.first, SL_ERR_INTERNAL,
                "device %d: %s: %s (CUDA says %d); queued last: %s. CUDA_LAUNCH_BLOCKING=1 finds the one that failed",
                find_failed(), where, cudaGetErrorString(error), (int)error, recent);
        atomic_store(&cuda.failed, true);
    }
}

// Returns true for success; else keeps the error for the next wait.
static bool check(cudaError_t error, const char *where) {
    if (error != cudaSuccess) {
        (void)cudaGetLastError(); // otherwise the next launch would report it
        note_failure(error, where);
    }
    return error == cudaSuccess;
}

static void use(int index) {
    if (current != index && check(cudaSetDevice(index), "cudaSetDevice")) {
        current = index;
    }
}

// Gives threads that only wait and copy a device: the first one that was opened.
static void make_current(void) {
    if (current < 0) {
        use(cuda.opened[0]);
    }
}

void sl_cuda_launching(const char *what) {
    make_current();
    note_queued(what);
}

void sl_cuda_launched(void) {
    check(cudaGetLastError(), "launch");
}

// --- the device ------------------------------------------------------------------------------------------------------

// Reads "550.54.14", as the kernel's module reports; "" where it reports nothing.
static void read_release(char *text, size_t bytes) {
    char line[256] = "", digits[32] = "";
    FILE *file = fopen("/proc/driver/nvidia/version", "r");
    if (file != NULL) {
        const char *said = fgets(line, sizeof line, file);
        const char *module = said != NULL ? strstr(said, "Kernel Module") : NULL;
        module = module != NULL ? strpbrk(module, "0123456789") : NULL;
        if (module == NULL || sscanf(module, "%31[0-9.]", digits) != 1) {
            digits[0] = '\0';
        }
        fclose(file);
    }
    snprintf(text, bytes, "%s", digits);
}

// Refuses a driver that is too old: drivers run programs of every toolkit of their own major version, and of older
// ones.
static enum sl_status refuse_driver(int driver, struct sl_error *err) {
    char release[32];
    read_release(release, sizeof release);
    return sl_fail(
        err, SL_ERR_UNSUPPORTED,
        "the NVIDIA driver %s%sis for CUDA %d.%d, and this plugin, of CUDA %d.%d, needs driver %s or newer: update the "
        "driver, or build the plugin with a toolkit of CUDA %d (12.8 or newer)",
        release, release[0] ? " " : "", driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000,
        CUDART_VERSION % 1000 / 10, LEAST_DRIVER, driver / 1000);
}

static enum sl_status find_device(int index, struct sl_error *err) {
    int n = 0, driver = 0, major = 0, minor = 0;
    (void)cudaDriverGetVersion(&driver); // 0: no driver
    cudaError_t error = cudaGetDeviceCount(&n);
    if (error == cudaErrorInsufficientDriver && driver > 0) {
        return refuse_driver(driver, err);
    }
    SL_FAIL_IF(error != cudaSuccess, err, SL_ERR_UNSUPPORTED, "no NVIDIA driver (CUDA says %d); nvidia-smi must work",
               (int)error);
    SL_FAIL_IF(index >= n, err, SL_ERR_UNSUPPORTED, "there is no device %d: CUDA finds %d", index, n);
    (void)cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index);
    (void)cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index);
    SL_FAIL_IF(10 * major + minor < LEAST_CAPABILITY, err, SL_ERR_UNSUPPORTED,
               "device %d has compute capability %d.%d, %d.%d is needed", index, major, minor, LEAST_CAPABILITY / 10,
               LEAST_CAPABILITY % 10);
    error = cudaSetDevice(index);
    current = error == cudaSuccess ? index : -1;
    return error == cudaSuccess ? SL_OK
                                : sl_fail(err, SL_ERR_UNSUPPORTED, "device %d cannot be used: %s (CUDA says %d)", index,
                                          cudaGetErrorString(error), (int)error);
}

// Lets device `from` read and write the memory of `to` from now on.
static enum sl_status reach(int from, int to, struct sl_error *err) {
    int can = 0;
    cudaError_t error = cudaDeviceCanAccessPeer(&can, from, to);
    error = error == cudaSuccess ? cudaSetDevice(from) : error;
    current = error == cudaSuccess ? from : -1;
    if (error == cudaSuccess && can) {
        error = cudaDeviceEnablePeerAccess(to, 0);
        error = error == cudaErrorPeerAccessAlreadyEnabled ? cudaSuccess : error;
    }
    (void)cudaGetLastError();
    return error == cudaSuccess && can
               ? SL_OK
               : sl_fail(err, SL_ERR_UNSUPPORTED,
                         "device %d does not reach the memory of device %d (CUDA says %d): they cannot be ranks of one "
                         "model; see nvidia-smi topo -p2p rw",
                         from, to, (int)error);
}

static bool is_open(int index) {
    for (int i = 0; i < atomic_load(&cuda.n_opened); i++) {
        if (cuda.opened[i] == index) {
            return true;
        }
    }
    return false;
}

static enum sl_status open_device(int index, struct sl_error *err) {
    enum sl_status status = SL_OK;
    pthread_mutex_lock(&cuda.lock);
    int n = atomic_load(&cuda.n_opened);
    if (!is_open(index)) {
        status = n < MOST_DEVICES ? find_device(index, err)
                                  : sl_fail(err, SL_ERR_UNSUPPORTED, "%d devices are open already", n);
        for (int i = 0; i < n && status == SL_OK; i++) {
            status = reach(cuda.opened[i], index, err);
            SL_THEN(status, reach(index, cuda.opened[i], err));
        }
        if (status == SL_OK) {
            cuda.opened[n] = index;
            atomic_store(&cuda.n_opened, n + 1);
        }
    }
    pthread_mutex_unlock(&cuda.lock);
    if (status == SL_OK) {
        use(index);
    }
    return status;
}

bool sl_cudart_has_several(void) {
    return atomic_load(&cuda.n_opened) > 1;
}

bool sl_cudart_has_wgmma(void) {
    int major = 0, minor = 0;
    make_current();
    return cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, current) == cudaSuccess &&
           cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, current) == cudaSuccess && major == 9 &&
           minor == 0;
}

void sl_cudart_describe(int index, char *text, size_t bytes) {
    struct cudaDeviceProp device;
    int driver = 0;
    if (cudaGetDeviceProperties(&device, index) != cudaSuccess || cudaDriverGetVersion(&driver) != cudaSuccess) {
        snprintf(text, bytes, "device %d", index);
        return;
    }
    snprintf(text, bytes, "%s, compute capability %d.%d, %d multiprocessors, %.1f GiB, driver for CUDA %d.%d",
             device.name, device.major, device.minor, device.multiProcessorCount,
             (double)device.totalGlobalMem / (1 << 30), driver / 1000, driver % 1000 / 10);
}

// --- memory ----------------------------------------------------------------------------------------------------------

/*
 * All registered memory is from cudaMalloc(), so support with virtual memory management
 * (cudaDevAttrGPUDirectRDMAWithCudaVMMSupported) does not matter. An RDMA device reads what kernels wrote once the host
 * has seen their event. Kernels see what it writes after a flush, or at once where the device orders it so.
 */
static bool network_reaches(void) {
    int supported = 0;
    make_current();
    return cudaDeviceGetAttribute(&supported, cudaDevAttrGPUDirectRDMASupported, current) == cudaSuccess && supported;
}

static void *network_view(void *block) {
    make_current(); // UCX asks CUDA about the block on this thread
    return block;
}

static enum sl_status say_failure(struct sl_error *err) {
    if (!atomic_load(&cuda.failed)) {
        return SL_OK;
    }
    if (err != NULL) {
        *err = cuda.first; // written once, before `failed`
    }
    return SL_ERR_INTERNAL;
}

static enum sl_status network_flush(void *block, const void *seen, size_t bytes, struct sl_error *err) {
    int ordering = cudaGPUDirectRDMAWritesOrderingNone, options = 0;
    (void)block, (void)seen, (void)bytes; // flushes everything that has arrived
    make_current();
    if (cudaDeviceGetAttribute(&ordering, cudaDevAttrGPUDirectRDMAWritesOrdering, current) != cudaSuccess ||
        cudaDeviceGetAttribute(&options, cudaDevAttrGPUDirectRDMAFlushWritesOptions, current) != cudaSuccess) {
        (void)cudaGetLastError();
        return sl_fail(err, SL_ERR_UNSUPPORTED, "device %d does not say when it sees what RDMA wrote", current);
    }
    if (ordering >= cudaGPUDirectRDMAWritesOrderingOwner) {
        return SL_OK;
    }
    SL_FAIL_IF((options & cudaFlushGPUDirectRDMAWritesOptionHost) == 0, err, SL_ERR_UNSUPPORTED,
               "device %d neither orders what RDMA writes nor can be told to", current);
    check(cudaDeviceFlushGPUDirectRDMAWrites(cudaFlushGPUDirectRDMAWritesTargetCurrentDevice,
                                             cudaFlushGPUDirectRDMAWritesToOwner),
          "cudaDeviceFlushGPUDirectRDMAWrites");
    return say_failure(err);
}

static size_t room(void) {
    size_t free_bytes = 0, all = 0;
    make_current();
    return check(cudaMemGetInfo(&free_bytes, &all), "cudaMemGetInfo") ? free_bytes : 0;
}

static void *alloc(size_t bytes) {
    void *block = NULL;
    make_current();
    cudaError_t error = cudaMalloc(&block, bytes);
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return NULL;
    }
    return check(error, "cudaMalloc") ? block : NULL;
}

static void free_block(void *block) {
    if (block != NULL) {
        make_current();
        check(cudaFree(block), "cudaFree");
    }
}

static void *alloc_shared(size_t bytes) {
    void *block = NULL;
    make_current();
    cudaError_t error = cudaHostAlloc(&block, bytes, cudaHostAllocPortable | cudaHostAllocMapped);
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return NULL;
    }
    return check(error, "cudaHostAlloc") ? block : NULL;
}

// CUDA rejects NULL as invalid, and the device would count as failed from then on.
static void free_shared(void *block) {
    if (block != NULL) {
        make_current();
        check(cudaFreeHost(block), "cudaFreeHost");
    }
}

static enum sl_status share(void *base, size_t bytes, struct sl_error *err) {
    int same = 0;
    make_current();
    (void)cudaDeviceGetAttribute(&same, cudaDevAttrCanUseHostPointerForRegisteredMem, current);
    SL_FAIL_IF(!same, err, SL_ERR_UNSUPPORTED, "device %d does not reach registered memory by the host's addresses",
               current);
    cudaError_t error = cudaHostRegister(base, bytes, cudaHostRegisterPortable | cudaHostRegisterMapped);
    if (error == cudaSuccess || error == cudaErrorHostMemoryAlreadyRegistered) {
        (void)cudaGetLastError();
        return SL_OK;
    }
    (void)cudaGetLastError();
    return sl_fail(err, SL_ERR_EXHAUSTED, "%zu bytes cannot be pinned for device %d: %s (CUDA says %d); see ulimit -l",
                   bytes, current, cudaGetErrorString(error), (int)error);
}

static void end_sharing(void *base) {
    make_current();
    check(cudaHostUnregister(base), "cudaHostUnregister");
}

// --- queues and events -----------------------------------------------------------------------------------------------

static struct gpu_queue *queue_open(void) {
    cudaStream_t stream = NULL;
    make_current();
    return check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate")
               ? (struct gpu_queue *)stream
               : NULL;
}

static void queue_close(struct gpu_queue **queue) {
    make_current();
    check(cudaStreamDestroy((cudaStream_t)*queue), "cudaStreamDestroy");
    *queue = NULL;
}

static void copy(struct gpu_queue *queue, void *to, const void *from, size_t bytes) {
    sl_cuda_launching("copy");
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, (cudaStream_t)queue), "copy");
}

static struct gpu_event *event_open(void) {
    cudaEvent_t event = NULL;
    make_current();
    return check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate")
               ? (struct gpu_event *)event
               : NULL;
}

static void event_close(struct gpu_event **event) {
    make_current();
    check(cudaEventDestroy((cudaEvent_t)*event), "cudaEventDestroy");
    *event = NULL;
}

static void event_record(struct gpu_event *event, struct gpu_queue *queue) {
    make_current();
    check(cudaEventRecord((cudaEvent_t)event, (cudaStream_t)queue), "cudaEventRecord");
}

static void event_before(struct gpu_event *event, struct gpu_queue *queue) {
    make_current();
    check(cudaStreamWaitEvent((cudaStream_t)queue, (cudaEvent_t)event, 0), "cudaStreamWaitEvent");
}

// Returns true also for a device that has failed, which reaches no further events: the next wait reports the failure.
static bool event_reached(struct gpu_event *event) {
    make_current();
    cudaError_t error = cudaEventQuery((cudaEvent_t)event);
    if (error == cudaErrorNotReady) {
        (void)cudaGetLastError();
        return false;
    }
    check(error, "cudaEventQuery");
    return true;
}

static enum sl_status event_wait(struct gpu_event *event, struct sl_error *err) {
    make_current();
    check(cudaEventSynchronize((cudaEvent_t)event), "wait");
    return say_failure(err);
}

static enum sl_status queue_look(struct gpu_queue *queue, struct sl_error *err) {
    make_current();
    cudaError_t error = cudaStreamQuery((cudaStream_t)queue);
    if (error == cudaErrorNotReady) {
        (void)cudaGetLastError();
    } else {
        check(error, "cudaStreamQuery");
    }
    return say_failure(err);
}

// Polls: most waits are short, and a long one costs a poll every 50 us.
static bool event_wait_until(struct gpu_event *event, int64_t until_ns) {
    const struct timespec pause = {.tv_nsec = 50000};
    bool reached = event_reached(event);
    for (int looks = 0; !reached && sl_now_ns() < until_ns; looks++) {
        if (looks > 2000) {
            nanosleep(&pause, NULL);
        }
        reached = event_reached(event);
    }
    return reached;
}

const struct gpu_driver sl_gpu_cudart = {
    .name = "cuda",
    .ring_bytes = (size_t)32 << 20,
    .open = open_device,
    .use = use,
    .room = room,
    .network_reaches = network_reaches,
    .network_view = network_view,
    .network_flush = network_flush,
    .alloc = alloc,
    .free = free_block,
    .alloc_shared = alloc_shared,
    .free_shared = free_shared,
    .share = share,
    .unshare = end_sharing,
    .queue_open = queue_open,
    .queue_close = queue_close,
    .queue_look = queue_look,
    .copy = copy,
    .event_open = event_open,
    .event_close = event_close,
    .event_record = event_record,
    .event_before = event_before,
    .event_reached = event_reached,
    .event_wait = event_wait,
    .event_wait_until = event_wait_until,
};
