// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: shared by the tests of the fabric: a grant that records its events, a ship of a pattern into it.
 * Threads: events come from the progress thread; everything in a receive buffer is under its lock.
 */
#pragma once

// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on
#include <pthread.h>
#include <stdbool.h>
#include <sys/types.h>

#include "net/fabric/fabric.h"
#include "tests/unit/slowness.h"

// The heartbeat where peers are to be lost, which takes three of them. On a busy machine a thread may get no CPU for some hundred ms.
#define QUICK_HEARTBEAT_MS (300 * SLOWNESS)
#define CALM_HEARTBEAT_MS  3000 // where no peer is lost by silence, however busy the machine

struct receive_buffer {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    int n_completed, n_failed, n_released;
    bool event_after_release;
    enum sl_status status;
    char text[256];
    uint8_t header[256];
    size_t header_bytes, body_bytes;
    struct sl_grant *grant;
    uint8_t *block, *ticket;
    size_t ticket_bytes;
};

// Returns the folder of an authority and the certificate worker-kvstore-a of this run (tools/test-ca.sh).
const char *certificates(void);
// Returns whether messages go over a link of ours, and not over UCX.
bool is_link(const char *transport);
// transport: of sl_fabric_config, or "tls": tcp with certificates.
struct sl_fabric *start_fabric(const char *transport, const char *listen, const char *inject, int64_t heartbeat_ms);
uint8_t *make_region(struct sl_fabric *fabric, size_t bytes);
// Its lock, nothing noted yet; what notes events in it, for a grant that is not opened by
// open_receive_buffer().
void init_receive_buffer(struct receive_buffer *receive_buffer);
extern const struct sl_grant_events receive_buffer_events;
void open_receive_buffer(struct receive_buffer *receive_buffer, struct sl_fabric *fabric, void *block, size_t bytes,
                         int64_t deadline_ms);
// Waits until the grant has ended, closes it, waits for its release, checks that events came once and in order.
void close_receive_buffer(struct receive_buffer *receive_buffer);
// Waits at most ms; false: it has neither completed nor failed.
bool wait_receive_buffer(struct receive_buffer *receive_buffer, int64_t ms);
bool wait_released(struct receive_buffer *receive_buffer, int64_t ms);
void fill_pattern(uint8_t *data, size_t bytes, uint64_t seed);
void assert_idle(struct sl_fabric *fabric);  // every gauge of something that is open is 0
void stop_fabric(struct sl_fabric **fabric); // assert_idle, then destroy

/*
 * Another process of this program, with the arguments "TRANSPORT ROLE", started so that nothing of UCX is inherited. It
 * reads what the parent writes to `to` at descriptor 3, and writes to descriptor 4 what the parent reads from `from`.
 */
struct child {
    pid_t pid;
    int to, from;
};
struct child start_child(const char *transport, const char *role);
void end_child(struct child *child); // kills it
void read_all(int fd, void *data, size_t bytes);
void write_all(int fd, const void *data, size_t bytes);
