// SPDX-License-Identifier: Apache-2.0
#include "harness.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/thread.h"
#include "tests/certificates.h"

static void on_complete(void *arg, const void *header, size_t header_bytes, size_t body_bytes) {
    struct receive_buffer *receive_buffer = arg;
    pthread_mutex_lock(&receive_buffer->lock);
    receive_buffer->event_after_release |= receive_buffer->n_released > 0;
    receive_buffer->n_completed++;
    receive_buffer->header_bytes = header_bytes;
    memcpy(receive_buffer->header, header,
           header_bytes < sizeof receive_buffer->header ? header_bytes : sizeof receive_buffer->header);
    receive_buffer->body_bytes = body_bytes;
    pthread_cond_broadcast(&receive_buffer->changed);
    pthread_mutex_unlock(&receive_buffer->lock);
}

static void on_failure(void *arg, enum sl_status status, const char *text) {
    struct receive_buffer *receive_buffer = arg;
    pthread_mutex_lock(&receive_buffer->lock);
    receive_buffer->event_after_release |= receive_buffer->n_released > 0;
    receive_buffer->n_failed++;
    receive_buffer->status = status;
    snprintf(receive_buffer->text, sizeof receive_buffer->text, "%s", text);
    pthread_cond_broadcast(&receive_buffer->changed);
    pthread_mutex_unlock(&receive_buffer->lock);
}

static void on_release(void *arg) {
    struct receive_buffer *receive_buffer = arg;
    pthread_mutex_lock(&receive_buffer->lock);
    receive_buffer->n_released++;
    pthread_cond_broadcast(&receive_buffer->changed);
    pthread_mutex_unlock(&receive_buffer->lock);
}

const char *certificates(void) {
    const char *dir = test_certificates("worker/kvstore/a");
    assert_non_null(dir);
    return dir;
}

bool is_link(const char *transport) {
    return strcmp(transport, "tcp") == 0 || strcmp(transport, "tls") == 0;
}

struct sl_fabric *start_fabric(const char *transport, const char *listen, const char *inject, int64_t heartbeat_ms) {
    struct test_files at;
    struct sl_fabric_config config = {
        .listen = listen, .transport = transport, .heartbeat_ms = heartbeat_ms, .inject = inject, .insecure = true};
    if (strcmp(transport, "tls") == 0) {
        config.transport = "tcp";
        config.tls = test_files_of(certificates(), "worker-kvstore-a", &at);
    }
    struct sl_fabric *fabric = NULL;
    struct sl_error err = {0};
    if (sl_fabric_create(&config, &fabric, &err) != SL_OK) {
        fail_msg("cannot start: %s", err.text);
    }
    return fabric;
}

uint8_t *make_region(struct sl_fabric *fabric, size_t bytes) {
    void *base = NULL;
    struct sl_error err = {0};
    if (sl_fabric_region_create(fabric, bytes, 0, &base, &err) != SL_OK) {
        fail_msg("no region: %s", err.text);
    }
    assert_int_equal((uintptr_t)base % 4096, 0);
    return base;
}

const struct sl_grant_events receive_buffer_events = {on_complete, on_failure, on_release};

void init_receive_buffer(struct receive_buffer *receive_buffer) {
    memset(receive_buffer, 0, sizeof *receive_buffer);
    pthread_mutex_init(&receive_buffer->lock, NULL);
    sl_cond_init(&receive_buffer->changed);
}

void open_receive_buffer(struct receive_buffer *receive_buffer, struct sl_fabric *fabric, void *block, size_t bytes,
                         int64_t deadline_ms) {
    init_receive_buffer(receive_buffer);
    receive_buffer->block = block;
    struct sl_error err = {0};
    if (sl_grant_open(fabric,
                      &(struct sl_grant_plan){.block = block,
                                              .bytes = bytes,
                                              .deadline_ns = sl_deadline_in_ms(deadline_ms),
                                              .events = &receive_buffer_events,
                                              .arg = receive_buffer},
                      &receive_buffer->grant, &receive_buffer->ticket, &receive_buffer->ticket_bytes, &err) != SL_OK) {
        fail_msg("no grant: %s", err.text);
    }
    assert_true(receive_buffer->ticket_bytes <= SL_TICKET_MAX_BYTES);
}

bool wait_receive_buffer(struct receive_buffer *receive_buffer, int64_t ms) {
    int64_t deadline = sl_deadline_in_ms(ms);
    pthread_mutex_lock(&receive_buffer->lock);
    while (receive_buffer->n_completed + receive_buffer->n_failed == 0 &&
           sl_cond_wait_until(&receive_buffer->changed, &receive_buffer->lock, deadline) == SL_OK) {
    }
    bool over = receive_buffer->n_completed + receive_buffer->n_failed > 0;
    pthread_mutex_unlock(&receive_buffer->lock);
    return over;
}

bool wait_released(struct receive_buffer *receive_buffer, int64_t ms) {
    int64_t deadline = sl_deadline_in_ms(ms);
    pthread_mutex_lock(&receive_buffer->lock);
    while (receive_buffer->n_released == 0 &&
           sl_cond_wait_until(&receive_buffer->changed, &receive_buffer->lock, deadline) == SL_OK) {
    }
    bool released = receive_buffer->n_released > 0;
    pthread_mutex_unlock(&receive_buffer->lock);
    return released;
}

void close_receive_buffer(struct receive_buffer *receive_buffer) {
    sl_grant_close(&receive_buffer->grant);
    assert_null(receive_buffer->grant);
    assert_true(wait_released(receive_buffer, 10000));
    assert_true(receive_buffer->n_completed + receive_buffer->n_failed <= 1);
    assert_int_equal(receive_buffer->n_released, 1);
    assert_false(receive_buffer->event_after_release);
    free(receive_buffer->ticket);
    pthread_mutex_destroy(&receive_buffer->lock);
    pthread_cond_destroy(&receive_buffer->changed);
}

void fill_pattern(uint8_t *data, size_t bytes, uint64_t seed) {
    uint64_t x = seed * 2654435761u + 88172645463325252u;
    for (size_t i = 0; i < bytes; i++) {
        if (i % 8 == 0) {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
        }
        data[i] = (uint8_t)(x >> (i % 8 * 8));
    }
}

void assert_idle(struct sl_fabric *fabric) {
    struct sl_fabric_stats stats;
    int64_t deadline = sl_deadline_in_ms(2000);
    do { // a gauge falls just before or after the callback that the test has seen
        sl_fabric_get_stats(fabric, &stats);
    } while (stats.grants_open + stats.grants_quarantined + stats.ships_open + stats.connections_open +
                     stats.requests_open + stats.incoming_open + stats.windows_open + stats.fetches_open >
                 0 &&
             sl_now_ns() < deadline);
    assert_int_equal(stats.grants_open, 0);
    assert_int_equal(stats.grants_quarantined, 0);
    assert_int_equal(stats.ships_open, 0);
    assert_int_equal(stats.connections_open, 0);
    assert_int_equal(stats.requests_open, 0);
    assert_int_equal(stats.incoming_open, 0);
    assert_int_equal(stats.windows_open, 0);
    assert_int_equal(stats.fetches_open, 0);
}

void stop_fabric(struct sl_fabric **fabric) {
    assert_idle(*fabric);
    sl_fabric_destroy(fabric);
    assert_null(*fabric);
}

struct child start_child(const char *transport, const char *role) {
    if (strcmp(transport, "tls") == 0) {
        certificates(); // of one authority for both
    }
    int down[2], up[2];
    assert_int_equal(pipe(down), 0);
    assert_int_equal(pipe(up), 0);
    struct child child = {fork(), down[1], up[0]};
    if (child.pid == 0) {
        dup2(down[0], 3);
        dup2(up[1], 4);
        prctl(PR_SET_PDEATHSIG, SIGKILL); // also where a test has failed
        close(5);                         // whatever else is open dies with this program
        execl("/proc/self/exe", "child", transport, role, (char *)NULL);
        _exit(127);
    }
    close(down[0]);
    close(up[1]);
    return child;
}

void end_child(struct child *child) {
    kill(child->pid, SIGKILL);
    waitpid(child->pid, NULL, 0);
    close(child->to);
    close(child->from);
}

void read_all(int fd, void *data, size_t bytes) {
    for (size_t n = 0; n < bytes;) {
        ssize_t got = read(fd, (char *)data + n, bytes - n);
        assert_true(got > 0);
        n += (size_t)got;
    }
}

void write_all(int fd, const void *data, size_t bytes) {
    assert_int_equal(write(fd, data, bytes), (ssize_t)bytes);
}
