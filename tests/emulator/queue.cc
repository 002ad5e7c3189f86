// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: work in order, and events between queues.
 *
 * Design: a queue does nothing until a thread waits for all of it or for an event in it. Then its steps run in order on
 *         that thread. Where a step comes after an event of another queue, that queue runs first, up to the event.
 */
#include <cstring>
#include <deque>

#include "tests/emulator/emulator.h"
#include "tests/emulator/machine.h"

struct gpu_event {
    gpu_queue *by; // the queue that recorded it last
    uint64_t n_recorded, n_reached;
};

struct step { // one step of a queue
    const char *kernel;
    std::function<void()> work;
    gpu_event *record, *behind;
    uint64_t number; // the number of the record that it records or waits for
};

struct gpu_queue {
    int device;
    std::deque<step> steps;
};

namespace emu {

static bool eager;
static uint64_t n_before_failure; // kernels until the failing one; 0: none will fail
static const char *failed;
static int failing_device, failed_device;
static int stalled_device;
static uint64_t n_before_stall; // kernels of that device until the stalling one; 0: none will stall
using guard = std::lock_guard<std::recursive_mutex>;

// Returns true where the step can run: the event before it has been reached, and the step ends.
static bool can_do(const gpu_queue *queue, const step &next);

// Runs steps in order, until `until` was reached `number` times or a step never ends; NULL: to the end.
static void advance(gpu_queue *queue, const gpu_event *until, uint64_t number) {
    open_devices(true);
    while (!queue->steps.empty() && (until == nullptr || until->n_reached < number) &&
           can_do(queue, queue->steps.front())) {
        step next = std::move(queue->steps.front());
        queue->steps.pop_front();
        bool may_fail = next.kernel != nullptr && (failing_device < 0 || failing_device == queue->device);
        if (may_fail && n_before_failure > 0 && --n_before_failure == 0) {
            failed = next.kernel;
            failed_device = queue->device;
        }
        if (failed != nullptr) {
            continue;
        }
        if (next.work && !sl_emu_is_dry()) {
            next.work();
        }
        if (next.record != nullptr) {
            next.record->n_reached = next.number;
        }
    }
    open_devices(false);
}

static bool can_do(const gpu_queue *queue, const step &next) {
    if (next.behind != nullptr && next.behind->n_reached < next.number && failed == nullptr) {
        gpu_event *behind = next.behind;
        uint64_t number = next.number;
        advance(behind->by, behind, number);
        return behind->n_reached >= number || failed != nullptr;
    }
    if (next.kernel != nullptr && queue->device == stalled_device && n_before_stall > 0) {
        n_before_stall -= n_before_stall > 1;
        return n_before_stall > 1;
    }
    return true;
}

// Checks, as CUDA does, that the launching thread uses the queue's device. Also requires the kernel's own name, which
// failures report.
static void add(gpu_queue *queue, step next) {
    if (next.kernel != nullptr && queue->device != used_device()) {
        die("a kernel on a queue of a device that its thread does not use", next.kernel, 0);
    }
    if (next.kernel != nullptr && strcmp(next.kernel, "kernel") == 0) {
        die("a kernel launched through a variable, whose name nobody will know", next.kernel, 0);
    }
    queue->steps.push_back(std::move(next));
    if (eager) {
        advance(queue, nullptr, 0);
    }
}

void enqueue(gpu_queue *queue, const char *kernel, std::function<void()> work) {
    guard lock(m.lock);
    add(queue, {kernel, std::move(work), nullptr, nullptr, 0});
}

} // namespace emu

struct gpu_queue *sl_emu_queue_open(void) {
    return new gpu_queue{emu::used_device(), {}};
}

void sl_emu_wait(struct gpu_queue *queue) {
    emu::guard lock(emu::m.lock);
    emu::advance(queue, nullptr, 0);
}

void sl_emu_queue_close(struct gpu_queue **queue) {
    if (*queue != nullptr) {
        sl_emu_wait(*queue);
        delete *queue;
        *queue = nullptr;
    }
}

void sl_emu_copy(struct gpu_queue *queue, void *to, const void *from, size_t bytes) {
    emu::enqueue(queue, nullptr, [=] { memcpy(to, from, bytes); });
}

struct gpu_event *sl_emu_event_open(void) {
    return new gpu_event{};
}

void sl_emu_event_close(struct gpu_event **event) {
    delete *event;
    *event = nullptr;
}

void sl_emu_event_record(struct gpu_event *event, struct gpu_queue *queue) {
    emu::guard lock(emu::m.lock);
    event->by = queue;
    event->n_recorded++;
    emu::add(queue, {nullptr, nullptr, event, nullptr, event->n_recorded});
}

void sl_emu_event_before(struct gpu_event *event, struct gpu_queue *queue) {
    emu::guard lock(emu::m.lock);
    if (event->n_recorded > 0) {
        emu::add(queue, {nullptr, nullptr, nullptr, event, event->n_recorded});
    }
}

bool sl_emu_event_reached(struct gpu_event *event) {
    emu::guard lock(emu::m.lock);
    return event->n_reached == event->n_recorded;
}

bool sl_emu_event_wait(struct gpu_event *event) {
    emu::guard lock(emu::m.lock);
    uint64_t number = event->n_recorded;
    if (event->n_reached < number) {
        emu::advance(event->by, event, number);
    }
    return event->n_reached >= number || emu::failed != nullptr;
}

void sl_emu_stall_at(int device, uint64_t n) {
    emu::guard lock(emu::m.lock);
    emu::stalled_device = device;
    emu::n_before_stall = n > 0 ? n + 1 : 0;
}

void sl_emu_set_eager(bool eager) {
    emu::guard lock(emu::m.lock);
    emu::eager = eager;
}

void sl_emu_fail_at(int device, uint64_t n) {
    emu::guard lock(emu::m.lock);
    emu::failing_device = device;
    emu::n_before_failure = n;
    emu::failed = nullptr;
}

const char *sl_emu_failed(void) {
    emu::guard lock(emu::m.lock);
    return emu::failed;
}

int sl_emu_failed_device(void) {
    emu::guard lock(emu::m.lock);
    return emu::failed_device;
}
