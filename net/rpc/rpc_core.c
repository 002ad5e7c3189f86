// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the completion queue of the process, and bytes to messages and back.
 *
 * Design: one queue for all servers and channels; rpc_pollers.c has the threads that poll it.
 *
 *         sl_rpc_shutdown() joins the pollers and destroys the queue, but leaves gRPC core itself initialised: its own
 *         shutdown sometimes waits ten seconds for a background poller, and a process that stops serving gains nothing
 *         from it. What remains is reachable from gRPC's globals, so leak checkers stay silent.
 *
 * Threads: init and shutdown by one thread; everything else by any.
 */
#include <assert.h>
#include <dlfcn.h>
#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/support/log.h>
#include <grpc/support/time.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/fiber/fiber.h"
#include "base/locals.h"
#include "base/log.h"
#include "net/rpc/rpc_internal.h"
#include "net/rpc/rpc_tsan.h"
#include "net/rpc/rpc_wire.h"

// One gRPC core per process, so one of these.
static struct {
    grpc_completion_queue *queue;
    atomic_int live_calls;
} runtime;

// ---- life cycle ----------------------------------------------------------------------------------------------------

// Logs at level debug only, because gRPC's ERROR is often a normal event for us (a peer went away).
static void log_line(gpr_log_func_args *line) {
    const char *file = strrchr(line->file, '/');
    sl_log_debug("grpc", "%s (%s:%d)", line->message, file ? file + 1 : line->file, line->line);
}

/*
 * Debian builds Abseil, which gRPC uses, with its detector of deadlocks. It records for each mutex which others were locked before it, in
 * sets that only grow: about 100 bytes a call. gRPC's C interface cannot switch it off, so this looks for Abseil's function, whose name
 * contains Debian's version of Abseil. Another build needs no such call, or is recognized by the test of this function.
 */
bool sl_rpc_stop_lock_records(void) {
    enum { IGNORE = 0 }; // absl::OnDeadlockCycle::kIgnore
    void (*set_mode)(int mode);
    void *found = dlsym(RTLD_DEFAULT, "_ZN4absl7debian329SetMutexDeadlockDetectionModeENS0_15OnDeadlockCycleE");
    if (found == NULL) {
        return false;
    }
    memcpy(&set_mode, &found, sizeof set_mode); // ISO C has no conversion between the two kinds of pointers
    set_mode(IGNORE);
    return true;
}

void sl_rpc_init(void) {
    assert(!runtime.queue);
    (void)sl_rpc_stop_lock_records();
    gpr_set_log_function(log_line);
    grpc_init();
    runtime.queue = grpc_completion_queue_create_for_next(NULL);
    sl_rpc_pollers_start(runtime.queue);
}

static atomic_bool reads_little_ahead;

void sl_rpc_read_little_ahead(void) {
    atomic_store(&reads_little_ahead, true);
}

bool sl_rpc_reads_far_ahead(void) {
    return !atomic_load(&reads_little_ahead);
}

bool sl_rpc_is_up(void) {
    return runtime.queue != NULL;
}

const char *sl_rpc_library_version(void) {
    return grpc_version_string();
}

void sl_rpc_shutdown(void) {
    if (!runtime.queue) {
        return;
    }
    grpc_completion_queue_shutdown(runtime.queue);
    sl_rpc_pollers_join();
    grpc_completion_queue_destroy(runtime.queue);
    runtime.queue = NULL;
}

grpc_completion_queue *sl_rpc_queue(void) {
    assert(runtime.queue && "sl_rpc_init() first");
    return runtime.queue;
}

int sl_rpc_live_calls(void) {
    return atomic_load(&runtime.live_calls);
}

void sl_rpc_live_calls_add(int n) {
    atomic_fetch_add(&runtime.live_calls, n);
}

// ---- operations ----------------------------------------------------------------------------------------------------

struct batch {
    grpc_call *call;
    const grpc_op *ops;
    size_t n_ops;
    void *tag;
    grpc_call_error error;
};

static void start_batch(void *arg) {
    struct batch *batch = arg;
    batch->error = grpc_call_start_batch(batch->call, batch->ops, batch->n_ops, batch->tag, NULL);
}

/*
 * Starts a batch from a fiber. gRPC often completes a send at once: then the tag runs here, where the queue would wake a polling
 * thread for it. The tag may be another call's, so a caller must hold no lock that a tag takes.
 */
static void start_from_fiber(void *arg) {
    static _Thread_local bool is_in_tag;
    if (is_in_tag) {
        start_batch(arg);
        return;
    }
    void *tag;
    int ok;
    grpc_completion_queue_thread_local_cache_init(runtime.queue);
    start_batch(arg);
    if (grpc_completion_queue_thread_local_cache_flush(runtime.queue, &tag, &ok)) {
        struct sl_locals *of_fiber = sl_locals();
        sl_locals_use(NULL); // what it logs is not of the fiber's job
        is_in_tag = true;
        sl_rpc_tags_run(tag, ok);
        is_in_tag = false;
        sl_locals_use(of_fiber);
    }
}

enum sl_status sl_rpc_batch_start(grpc_call *call, const grpc_op *ops, size_t n_ops, struct sl_rpc_tag *tag) {
    struct batch batch = {.call = call, .ops = ops, .n_ops = n_ops, .tag = tag};
    SL_RPC_HAND_OVER(tag);
    if (sl_fiber_current()) {
        sl_fiber_call(start_from_fiber, &batch);
    } else {
        start_batch(&batch);
    }
    if (batch.error == GRPC_CALL_OK) {
        return SL_OK;
    }
    sl_log_error("rpc", "grpc_call_start_batch: %s", grpc_call_error_to_string(batch.error));
    return SL_ERR_INTERNAL;
}

struct waiter {
    struct sl_rpc_tag tag;
    pthread_mutex_t mutex;
    struct sl_bell bell;
    bool done, ok;
};

static void wake(struct sl_rpc_tag *tag, bool ok) {
    struct waiter *waiter = (struct waiter *)tag;
    pthread_mutex_lock(&waiter->mutex);
    waiter->done = true;
    waiter->ok = ok;
    sl_bell_ring(&waiter->bell, &waiter->mutex, 1); // the waiter may be freed from here on
}

// Waits until it is done, or the deadline. Lock held.
static void await(struct waiter *waiter, int64_t deadline_ns, void (*look_fn)(void *arg), void *arg) {
    for (bool is_over = false; !waiter->done && !is_over;) {
        const int64_t look_ns = look_fn ? sl_deadline_in_ms(SL_RPC_LOOK_MS) : SL_NO_DEADLINE;
        const int64_t until_ns = deadline_ns < look_ns ? deadline_ns : look_ns;
        is_over = sl_bell_wait(&waiter->bell, &waiter->mutex, until_ns) == SL_ERR_DEADLINE && until_ns == deadline_ns;
        if (look_fn && !waiter->done && !is_over) {
            pthread_mutex_unlock(&waiter->mutex);
            look_fn(arg);
            pthread_mutex_lock(&waiter->mutex);
        }
    }
}

enum sl_status sl_rpc_batch_run(grpc_call *call, const grpc_op *ops, size_t n_ops, int64_t deadline_ns) {
    return sl_rpc_batch_run_looking(call, ops, n_ops, deadline_ns, NULL, NULL);
}

enum sl_status sl_rpc_batch_run_looking(grpc_call *call, const grpc_op *ops, size_t n_ops, int64_t deadline_ns,
                                        void (*look_fn)(void *arg), void *arg) {
    struct waiter waiter = {.tag = {wake}};
    pthread_mutex_init(&waiter.mutex, NULL);
    enum sl_status status = sl_rpc_batch_start(call, ops, n_ops, &waiter.tag);
    if (status == SL_OK) {
        pthread_mutex_lock(&waiter.mutex);
        await(&waiter, deadline_ns, look_fn, arg);
        if (!waiter.done) {
            pthread_mutex_unlock(&waiter.mutex);
            grpc_call_cancel_with_status(call, GRPC_STATUS_DEADLINE_EXCEEDED, "the time for a message is over", NULL);
            pthread_mutex_lock(&waiter.mutex);
        }
        // The call's deadline, its cancellation, and keepalive bound this wait: gRPC completes every operation by then.
        while (!waiter.done) {
            sl_bell_wait(&waiter.bell, &waiter.mutex, SL_NO_DEADLINE);
        }
        pthread_mutex_unlock(&waiter.mutex);
        status = waiter.ok ? SL_OK : SL_ERR_CANCELLED;
    }
    pthread_mutex_destroy(&waiter.mutex);
    return status;
}

// ---- bytes and messages --------------------------------------------------------------------------------------------

grpc_byte_buffer *sl_rpc_message_pack(const ProtobufCMessage *message) {
    grpc_slice slice = grpc_slice_malloc(protobuf_c_message_get_packed_size(message));
    protobuf_c_message_pack(message, GRPC_SLICE_START_PTR(slice));
    grpc_byte_buffer *bytes = grpc_raw_byte_buffer_create(&slice, 1); // takes a reference of its own
    grpc_slice_unref(slice);
    return bytes;
}

enum sl_status sl_rpc_message_unpack(grpc_byte_buffer *bytes, const char *what, const ProtobufCMessageDescriptor *type,
                                     struct sl_rpc_account *account, ProtobufCMessage **message_out,
                                     struct sl_error *err) {
    ProtobufCAllocator allocator;
    if (account) {
        allocator = sl_rpc_account_allocator(account);
        // The whole message in one piece: counted once more
        SL_FAIL_IF(!sl_rpc_account_take(account, grpc_byte_buffer_length(bytes)), err, SL_ERR_EXHAUSTED,
                   "no memory for %s", what);
    }
    grpc_byte_buffer_reader reader;
    SL_FAIL_IF(!grpc_byte_buffer_reader_init(&reader, bytes), err, SL_ERR_INVALID,
               "%s is compressed, and does not decompress", what);
    grpc_slice slice = grpc_byte_buffer_reader_readall(&reader);
    grpc_byte_buffer_reader_destroy(&reader);
    const struct sl_rpc_span span = {GRPC_SLICE_START_PTR(slice), GRPC_SLICE_LENGTH(slice)};
    enum sl_status status = sl_rpc_strings_check(type, span, err);
    if (status == SL_OK) {
        ProtobufCMessage *message = protobuf_c_message_unpack(type, account ? &allocator : NULL, span.bytes, span.data);
        if (message) {
            *message_out = message;
        } else {
            status = sl_fail(err, SL_ERR_INVALID, "%s is not a %s", what, type->name);
        }
    }
    grpc_slice_unref(slice); // unpacking has made copies
    return status;
}

// ---- deadlines: passed on as differences, so that it does not matter which monotonic clock gRPC reads

gpr_timespec sl_rpc_deadline_to_timespec(int64_t deadline_ns) {
    if (deadline_ns == SL_NO_DEADLINE) {
        return gpr_inf_future(GPR_CLOCK_MONOTONIC);
    }
    return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_nanos(deadline_ns - sl_now_ns(), GPR_TIMESPAN));
}

int64_t sl_rpc_deadline_from_timespec(gpr_timespec deadline) {
    if (gpr_time_cmp(deadline, gpr_inf_future(deadline.clock_type)) == 0) {
        return SL_NO_DEADLINE;
    }
    const gpr_timespec left =
        gpr_time_sub(gpr_convert_clock_type(deadline, GPR_CLOCK_MONOTONIC), gpr_now(GPR_CLOCK_MONOTONIC));
    // A deadline more than a century away counts as none; the check also keeps the product below in range.
    if (left.tv_sec > (int64_t)100 * 365 * 24 * 3600) {
        return SL_NO_DEADLINE;
    }
    return sl_now_ns() + left.tv_sec * SL_NS_PER_S + left.tv_nsec;
}
