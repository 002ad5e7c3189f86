// SPDX-License-Identifier: Apache-2.0
#include "desk.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/thread.h"

void make_request(uint8_t *request, size_t request_bytes, uint64_t seed, size_t answer_bytes, uint64_t work_ms) {
    struct desk_request head = {seed, answer_bytes, work_ms};
    memcpy(request, &head, sizeof head);
    fill_pattern(request + sizeof head, request_bytes - sizeof head, seed);
}

bool answer_is_right(const uint8_t *answer, size_t bytes, uint64_t seed) {
    uint8_t *expected = malloc(bytes + 1);
    fill_pattern(expected, bytes, seed + 1);
    bool right = memcmp(answer, expected, bytes) == 0;
    free(expected);
    return right;
}

struct answer {
    struct desk *desk;
    uint8_t data[];
};

static void release(void *arg) {
    struct answer *answer = arg;
    pthread_mutex_lock(&answer->desk->lock);
    answer->desk->n_released++;
    pthread_cond_broadcast(&answer->desk->changed);
    pthread_mutex_unlock(&answer->desk->lock);
    free(answer);
}

// Returns whether the request was what make_request() makes.
static bool respond(struct desk *desk, struct sl_question *question) {
    size_t bytes = 0;
    const uint8_t *request = sl_question_request(question, &bytes);
    struct desk_request head = {0};
    bool right = bytes >= sizeof head;
    if (right) {
        memcpy(&head, request, sizeof head);
        uint8_t *expected = malloc(bytes);
        fill_pattern(expected, bytes - sizeof head, head.seed);
        right = memcmp(request + sizeof head, expected, bytes - sizeof head) == 0;
        free(expected);
    }
    if (head.work_ms > 0) {
        sl_sleep_ms((int64_t)head.work_ms);
    }
    struct answer *answer = malloc(sizeof *answer + head.answer_bytes);
    answer->desk = desk;
    fill_pattern(answer->data, head.answer_bytes, head.seed + 1);
    sl_question_answer(&question, answer->data, head.answer_bytes, release, answer);
    return right && !question;
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
        struct sl_question *question = desk->queue[desk->first++ % (2 * SL_ASK_MAX_QUESTIONS)];
        desk->n_void += sl_question_is_void(question);
        pthread_mutex_unlock(&desk->lock);
        bool right = respond(desk, question);
        pthread_mutex_lock(&desk->lock);
        desk->n_wrong += !right;
    }
    pthread_mutex_unlock(&desk->lock);
    return NULL;
}

static void on_question(void *arg, struct sl_question *question) {
    struct desk *desk = arg;
    pthread_mutex_lock(&desk->lock);
    desk->queue[desk->last++ % (2 * SL_ASK_MAX_QUESTIONS)] = question;
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
    sl_fabric_on_question(fabric, on_question, desk);
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
