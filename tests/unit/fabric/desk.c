// SPDX-License-Identifier: Apache-2.0
#include "desk.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/thread.h"

void make_body(uint8_t *body, size_t body_bytes, uint64_t seed, size_t reply_bytes, uint64_t work_ms) {
    struct desk_body head = {seed, reply_bytes, work_ms};
    memcpy(body, &head, sizeof head);
    fill_pattern(body + sizeof head, body_bytes - sizeof head, seed);
}

bool reply_is_right(const uint8_t *reply, size_t bytes, uint64_t seed) {
    uint8_t *expected = malloc(bytes + 1);
    fill_pattern(expected, bytes, seed + 1);
    bool right = memcmp(reply, expected, bytes) == 0;
    free(expected);
    return right;
}

struct reply {
    struct desk *desk;
    uint8_t data[];
};

static void release(void *arg) {
    struct reply *reply = arg;
    pthread_mutex_lock(&reply->desk->lock);
    reply->desk->n_released++;
    pthread_cond_broadcast(&reply->desk->changed);
    pthread_mutex_unlock(&reply->desk->lock);
    free(reply);
}

// Returns whether the request was what make_body() makes.
static bool respond(struct desk *desk, struct sl_fabric_incoming *incoming) {
    size_t bytes = 0;
    const uint8_t *body = sl_fabric_incoming_body(incoming, &bytes);
    struct desk_body head = {0};
    bool right = bytes >= sizeof head;
    if (right) {
        memcpy(&head, body, sizeof head);
        uint8_t *expected = malloc(bytes);
        fill_pattern(expected, bytes - sizeof head, head.seed);
        right = memcmp(body + sizeof head, expected, bytes - sizeof head) == 0;
        free(expected);
    }
    if (head.work_ms > 0) {
        sl_sleep_ms((int64_t)head.work_ms);
    }
    struct reply *reply = malloc(sizeof *reply + head.reply_bytes);
    reply->desk = desk;
    fill_pattern(reply->data, head.reply_bytes, head.seed + 1);
    sl_fabric_incoming_reply(&incoming, reply->data, head.reply_bytes, release, reply);
    return right && !incoming;
}

static void *serve(void *arg) {
    struct desk *desk = arg;
    pthread_mutex_lock(&desk->lock);
    for (;;) {
        while (!desk->stopping && (desk->held || desk->first == desk->last)) {
            pthread_cond_wait(&desk->changed, &desk->lock);
        }
        if (desk->first == desk->last) {
            break;
        }
        struct sl_fabric_incoming *incoming = desk->queue[desk->first++ % (2 * SL_MAX_INCOMING)];
        desk->n_cancelled += sl_fabric_incoming_is_cancelled(incoming);
        pthread_mutex_unlock(&desk->lock);
        bool right = respond(desk, incoming);
        pthread_mutex_lock(&desk->lock);
        desk->n_wrong += !right;
    }
    pthread_mutex_unlock(&desk->lock);
    return NULL;
}

static void on_request(void *arg, struct sl_fabric_incoming *incoming) {
    struct desk *desk = arg;
    pthread_mutex_lock(&desk->lock);
    desk->queue[desk->last++ % (2 * SL_MAX_INCOMING)] = incoming;
    desk->n_taken++;
    pthread_cond_broadcast(&desk->changed);
    pthread_mutex_unlock(&desk->lock);
}

void open_desk(struct desk *desk, struct sl_fabric *fabric, int n_threads) {
    memset(desk, 0, sizeof *desk);
    pthread_mutex_init(&desk->lock, NULL);
    sl_cond_init(&desk->changed);
    desk->fabric = fabric;
    desk->n_threads = n_threads;
    for (int i = 0; i < n_threads; i++) {
        assert_int_equal(sl_thread_start("desk", serve, desk, &desk->threads[i], NULL), SL_OK);
    }
    sl_fabric_on_request(fabric, on_request, desk);
}

void hold_desk(struct desk *desk, bool held) {
    pthread_mutex_lock(&desk->lock);
    desk->held = held;
    pthread_cond_broadcast(&desk->changed);
    pthread_mutex_unlock(&desk->lock);
}

size_t desk_queued(struct desk *desk) {
    pthread_mutex_lock(&desk->lock);
    size_t n = desk->last - desk->first;
    pthread_mutex_unlock(&desk->lock);
    return n;
}

size_t desk_queued_cancelled(struct desk *desk) {
    size_t n = 0;
    pthread_mutex_lock(&desk->lock);
    for (size_t i = desk->first; i < desk->last; i++) {
        n += sl_fabric_incoming_is_cancelled(desk->queue[i % (2 * SL_MAX_INCOMING)]);
    }
    pthread_mutex_unlock(&desk->lock);
    return n;
}

size_t desk_read(struct desk *desk, const size_t *n) {
    pthread_mutex_lock(&desk->lock);
    size_t value = *n;
    pthread_mutex_unlock(&desk->lock);
    return value;
}

void close_desk(struct desk *desk) {
    pthread_mutex_lock(&desk->lock);
    desk->stopping = true;
    desk->held = false;
    pthread_cond_broadcast(&desk->changed);
    pthread_mutex_unlock(&desk->lock);
    for (int i = 0; i < desk->n_threads; i++) {
        pthread_join(desk->threads[i], NULL);
    }
    int64_t deadline = sl_deadline_in_ms(5000);
    pthread_mutex_lock(&desk->lock);
    while (desk->n_released < desk->n_taken && sl_cond_wait_until(&desk->changed, &desk->lock, deadline) == SL_OK) {
    }
    assert_int_equal(desk->n_released, desk->n_taken);
    assert_int_equal(desk->n_wrong, 0);
    pthread_mutex_unlock(&desk->lock);
    pthread_mutex_destroy(&desk->lock);
    pthread_cond_destroy(&desk->changed);
}
