// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: asks between two fabrics of one process, and of two where one is killed: answers arrive whole and with whoever
 *          asked, every ending is told, nothing is written behind an end, and nothing is left behind.
 */
#include "fabric/ask.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/thread.h"
#include "desk.h"

#define MIB (1u << 20)

static const char *transport; // of the group that runs

struct pair {
    struct sl_fabric *asker, *answerer;
    struct sl_line *line;
    struct desk desk;
};

static struct sl_line *open_line(struct sl_fabric *fabric, const char *address, uint64_t epoch) {
    struct sl_line *line = NULL;
    struct sl_error err = {0};
    if (sl_line_open(fabric, address, epoch, &line, &err) != SL_OK) {
        fail_msg("no line: %s", err.text);
    }
    return line;
}

static void await_partings(struct sl_fabric *fabric) {
    struct sl_fabric_stats stats;
    int64_t deadline = sl_deadline_in_ms(5000);
    do {
        sl_fabric_get_stats(fabric, &stats);
    } while (stats.peers_connected > 0 && sl_now_ns() < deadline);
    assert_int_equal(stats.peers_connected, 0);
}

static void start_pair(struct pair *pair, int n_threads, const char *inject) {
    pair->answerer = start_fabric(transport, "127.0.0.1:0", inject, 500);
    pair->asker = start_fabric(transport, "127.0.0.1:0", NULL, 500);
    open_desk(&pair->desk, pair->answerer, n_threads);
    pair->line = open_line(pair->asker, sl_fabric_address(pair->answerer), sl_fabric_epoch(pair->answerer));
}

static void stop_pair(struct pair *pair) {
    sl_line_close(&pair->line);
    assert_null(pair->line);
    stop_fabric(&pair->asker);
    await_partings(pair->answerer); // a question that was given up may still be on its way to the desk
    close_desk(&pair->desk);
    stop_fabric(&pair->answerer);
}

static struct sl_ask *open_ask(struct sl_line *line, size_t request_bytes, uint64_t seed, size_t answer_bytes,
                               uint64_t work_ms, void *answer, size_t capacity, int64_t deadline_ms) {
    uint8_t *request = malloc(request_bytes);
    make_request(request, request_bytes, seed, answer_bytes, work_ms);
    struct sl_ask *ask = NULL;
    struct sl_error err = {0};
    if (sl_ask_open(line, request, request_bytes, answer, capacity, sl_deadline_in_ms(deadline_ms), &ask, &err) !=
        SL_OK) {
        fail_msg("no ask: %s", err.text);
    }
    memset(request, 0xdd, request_bytes); // it was copied
    free(request);
    return ask;
}

static enum sl_status wait_ask(struct sl_ask *ask, size_t *bytes_out) {
    struct sl_error err = {0};
    return sl_ask_wait(ask, sl_deadline_in_ms(20000), bytes_out, &err);
}

static void test_ask_is_answered_at_every_size(void **state) {
    (void)state;
    static const size_t sizes[] = {0, 1, 100, 4095, 8193, 32768, 65537, 262144, 262145, 600001, MIB};
    enum { N = sizeof sizes / sizeof *sizes };
    struct pair pair;
    start_pair(&pair, 1, NULL);
    uint8_t *answer = malloc(MIB + 64);
    for (size_t i = 0; i < 2 * N; i++) {
        size_t request_bytes = i < N ? sizes[N - 1 - i] : 64, answer_bytes = sizes[i % N];
        request_bytes = request_bytes < sizeof(struct desk_request) ? sizeof(struct desk_request) : request_bytes;
        memset(answer, 0xee, MIB + 64);
        struct sl_ask *ask = open_ask(pair.line, request_bytes, i, answer_bytes, 0, answer, answer_bytes, 20000);
        size_t bytes = 12345;
        assert_int_equal(wait_ask(ask, &bytes), SL_OK);
        assert_true(sl_ask_is_done(ask));
        assert_int_equal(bytes, answer_bytes);
        assert_true(answer_is_right(answer, bytes, i));
        for (size_t k = 0; k < 64; k++) { // not a byte beyond
            assert_int_equal(answer[bytes + k], 0xee);
        }
        sl_ask_close(&ask);
        assert_null(ask);
    }
    assert_string_equal(sl_line_transport(pair.line), strcmp(transport, "tcp") == 0 ? "tcp" : "shm");
    free(answer);
    stop_pair(&pair);
}

struct asker {
    struct sl_line *line;
    uint64_t seed;
    int n_asks, n_wrong;
};

// Eight asks at a time, of all sizes up to 40 KB.
static void *ask_many(void *arg) {
    enum { AT_ONCE = 8, CAPACITY = 40000 };
    struct asker *it = arg;
    uint8_t *answers = malloc(AT_ONCE * CAPACITY);
    for (int n = 0; n < it->n_asks; n += AT_ONCE) {
        struct sl_ask *asks[AT_ONCE];
        uint64_t seed = it->seed + (uint64_t)n;
        for (size_t i = 0; i < AT_ONCE; i++) {
            size_t bytes = (seed + i) * 7919 % CAPACITY;
            asks[i] = open_ask(it->line, 64 + bytes % 2000, seed + i, bytes, 0, answers + i * CAPACITY, bytes, 60000);
        }
        for (size_t i = 0; i < AT_ONCE; i++) {
            size_t bytes = 0;
            struct sl_error err = {0};
            enum sl_status status = sl_ask_wait(asks[i], SL_NO_DEADLINE, &bytes, &err);
            it->n_wrong += status != SL_OK || bytes != (seed + i) * 7919 % CAPACITY ||
                           !answer_is_right(answers + i * CAPACITY, bytes, seed + i);
            sl_ask_close(&asks[i]);
        }
    }
    free(answers);
    return NULL;
}

static void test_asks_of_many_threads_do_not_mix(void **state) {
    (void)state;
    enum { N = 4 };
    struct pair pair;
    start_pair(&pair, 2, NULL);
    struct asker askers[N];
    pthread_t threads[N];
    for (int i = 0; i < N; i++) {
        askers[i] = (struct asker){pair.line, (uint64_t)i << 32, 2504, 0};
        assert_int_equal(sl_thread_start("asker", ask_many, &askers[i], &threads[i], NULL), SL_OK);
    }
    for (int i = 0; i < N; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(askers[i].n_wrong, 0);
    }
    assert_int_equal(desk_read(&pair.desk, &pair.desk.n_taken), N * 2504);
    stop_pair(&pair);
}

static void test_deadline_ends_an_ask(void **state) {
    (void)state;
    struct pair pair;
    start_pair(&pair, 1, NULL);
    ask_many(&(struct asker){pair.line, 4, 8, 0}); // now the line is up, and what is asked arrives long before its end
    hold_desk(&pair.desk, true);
    uint8_t answer[1000];
    memset(answer, 0xee, sizeof answer);
    size_t bytes = 77;
    int64_t start = sl_now_ns();
    struct sl_ask *ask = open_ask(pair.line, 64, 1, sizeof answer, 0, answer, sizeof answer, 200 * SLOWNESS);
    struct sl_ask *unwatched = open_ask(pair.line, 64, 2, sizeof answer, 0, answer, sizeof answer, 100 * SLOWNESS);
    assert_int_equal(sl_ask_wait(ask, sl_deadline_in_ms(20), &bytes, NULL), SL_AGAIN);
    assert_int_equal(sl_ask_wait(ask, 0, &bytes, NULL), SL_AGAIN);
    assert_false(sl_ask_is_done(ask));
    assert_int_equal(wait_ask(ask, &bytes), SL_ERR_DEADLINE);
    assert_in_range((sl_now_ns() - start) / SL_NS_PER_MS, 200 * SLOWNESS - 1, 2000 * SLOWNESS);
    assert_true(sl_ask_is_done(unwatched)); // though nobody waited for it
    assert_int_equal(wait_ask(unwatched, &bytes), SL_ERR_DEADLINE);
    assert_int_equal(bytes, 77);
    int64_t deadline = sl_deadline_in_ms(20000);
    while (desk_queued(&pair.desk) < 2 && sl_now_ns() < deadline) {
        sl_sleep_ms(1);
    }
    assert_int_equal(desk_queued(&pair.desk), 2);
    sl_sleep_ms(50); // the answerer has heard of it
    hold_desk(&pair.desk, false);
    ask_many(&(struct asker){pair.line, 5, 8, 0}); // behind them
    assert_int_equal(desk_read(&pair.desk, &pair.desk.n_void), 2);
    for (size_t i = 0; i < sizeof answer; i++) {
        assert_int_equal(answer[i], 0xee);
    }
    sl_ask_close(&ask);
    sl_ask_close(&unwatched);
    stop_pair(&pair);
}

// Closed at every moment of their lives: what was the caller's buffer is never written again.
static void test_late_answers_are_not_written(void **state) {
    (void)state;
    enum { CAPACITY = 400000, N = 150 };
    struct pair pair;
    start_pair(&pair, 2, NULL);
    uint8_t *answer = malloc(CAPACITY);
    for (uint64_t i = 0; i < N; i++) {
        size_t answer_bytes = i % 3 == 0 ? CAPACITY : i % 3 == 1 ? 32768 : 100;
        size_t request_bytes = i % 7 == 0 ? 500000 : 64; // the former by rendezvous
        struct sl_ask *ask = open_ask(pair.line, request_bytes, i, answer_bytes, i % 4 == 0, answer, CAPACITY, 20000);
        int64_t until = sl_now_ns() + (int64_t)(i * i % 97) * 10000;
        while (sl_now_ns() < until) {
        }
        sl_ask_close(&ask);
        memset(answer, (int)i, CAPACITY);
        sl_sleep_ms(i % 5 == 0 ? 5 : 0);
        for (size_t k = 0; k < CAPACITY; k += 61) {
            assert_int_equal(answer[k], (uint8_t)i);
        }
    }
    free(answer);
    stop_pair(&pair);
}

static void test_answer_too_long_is_refused(void **state) {
    (void)state;
    struct pair pair;
    start_pair(&pair, 1, NULL);
    uint8_t answer[200];
    memset(answer, 0xee, sizeof answer);
    size_t bytes = 0;
    struct sl_ask *ask = open_ask(pair.line, 64, 1, 101, 0, answer, 100, 20000);
    struct sl_error err = {0};
    assert_int_equal(sl_ask_wait(ask, SL_NO_DEADLINE, &bytes, &err), SL_ERR_RANGE);
    assert_non_null(strstr(err.text, "longer than the 100 bytes"));
    for (size_t i = 0; i < sizeof answer; i++) {
        assert_int_equal(answer[i], 0xee);
    }
    sl_ask_close(&ask);
    uint8_t *request = calloc(1, SL_ASK_REQUEST_MAX_BYTES + 1);
    assert_int_equal(
        sl_ask_open(pair.line, request, SL_ASK_REQUEST_MAX_BYTES + 1, answer, 100, SL_NO_DEADLINE, &ask, NULL),
        SL_ERR_RANGE);
    free(request);
    stop_pair(&pair);
}

static void test_flood_of_questions_is_refused(void **state) {
    (void)state;
    enum { N = SL_ASK_MAX_QUESTIONS + 40 };
    struct pair pair;
    start_pair(&pair, 1, NULL);
    hold_desk(&pair.desk, true);
    struct sl_ask **asks = calloc(N, sizeof *asks);
    uint8_t *answers = malloc(N * 16);
    for (uint64_t i = 0; i < N; i++) {
        asks[i] = open_ask(pair.line, 64, i, 16, 0, answers + i * 16, 16, 20000);
    }
    size_t bytes = 0;
    for (size_t i = SL_ASK_MAX_QUESTIONS; i < N; i++) {
        assert_int_equal(wait_ask(asks[i], &bytes), SL_ERR_EXHAUSTED);
    }
    hold_desk(&pair.desk, false);
    for (size_t i = 0; i < SL_ASK_MAX_QUESTIONS; i++) {
        assert_int_equal(wait_ask(asks[i], &bytes), SL_OK);
        assert_true(answer_is_right(answers + i * 16, 16, i));
    }
    for (size_t i = 0; i < N; i++) {
        sl_ask_close(&asks[i]);
    }
    free(answers);
    free(asks);
    struct asker again = {pair.line, 9, 80, 0};
    ask_many(&again);
    assert_int_equal(again.n_wrong, 0);
    stop_pair(&pair);
}

// By their number and by the memory that their requests take.
static void test_memory_of_questions_is_bounded(void **state) {
    (void)state;
    enum { N = 256 }; // MiB: SL_QUESTIONS_MAX_BYTES
    struct pair pair;
    start_pair(&pair, 2, NULL);
    hold_desk(&pair.desk, true);
    struct sl_ask *asks[N + 1];
    uint8_t answers[N + 1];
    size_t bytes = 0;
    for (size_t i = 0; i <= N; i++) {
        asks[i] = open_ask(pair.line, SL_ASK_REQUEST_MAX_BYTES, i, 1, 0, answers + i, 1, 60000);
    }
    assert_int_equal(wait_ask(asks[N], &bytes), SL_ERR_EXHAUSTED);
    hold_desk(&pair.desk, false);
    for (size_t i = 0; i < N; i++) {
        assert_int_equal(wait_ask(asks[i], &bytes), SL_OK);
    }
    for (size_t i = 0; i <= N; i++) {
        sl_ask_close(&asks[i]);
    }
    stop_pair(&pair);
}

static void test_faults_of_answers(void **state) {
    (void)state;
    struct pair pair;
    start_pair(&pair, 1, "drop_reply:2,slow_reply:120");
    uint8_t answer[64];
    size_t bytes = 0;
    int64_t start = sl_now_ns();
    struct sl_ask *ask = open_ask(pair.line, 64, 1, 64, 0, answer, 64, 5000);
    assert_int_equal(wait_ask(ask, &bytes), SL_OK);
    assert_in_range((sl_now_ns() - start) / SL_NS_PER_MS, 119, 1000);
    sl_ask_close(&ask);
    ask = open_ask(pair.line, 64, 2, 64, 0, answer, 64, 300);
    assert_int_equal(wait_ask(ask, &bytes), SL_ERR_DEADLINE); // dropped
    sl_ask_close(&ask);
    ask = open_ask(pair.line, 64, 3, 64, 0, answer, 64, 5000);
    assert_int_equal(wait_ask(ask, &bytes), SL_OK);
    sl_ask_close(&ask);
    stop_pair(&pair);
}

static void test_line_to_nobody(void **state) {
    (void)state;
    struct pair pair;
    start_pair(&pair, 1, NULL);
    uint8_t answer[64];
    size_t bytes = 0;
    struct sl_line *line = NULL;
    assert_int_equal(sl_line_open(pair.asker, "127.0.0.1", 1, &line, NULL), SL_ERR_INVALID);
    assert_int_equal(sl_line_open(pair.asker, sl_fabric_address(pair.answerer), 0, &line, NULL), SL_ERR_INVALID);
    // Another incarnation.
    line = open_line(pair.asker, sl_fabric_address(pair.answerer), sl_fabric_epoch(pair.answerer) + 2);
    struct sl_ask *ask = open_ask(line, 64, 1, 64, 0, answer, 64, 20000);
    assert_int_equal(wait_ask(ask, &bytes), SL_ERR_PEER_STALE);
    sl_ask_close(&ask);
    ask = open_ask(line, 64, 1, 64, 0, answer, 64, 20000); // it stays so
    assert_int_equal(wait_ask(ask, &bytes), SL_ERR_PEER_STALE);
    sl_ask_close(&ask);
    sl_line_close(&line);
    // A fabric that has gone.
    struct sl_fabric *gone = start_fabric(transport, "127.0.0.1:0", NULL, 500);
    char address[64];
    snprintf(address, sizeof address, "%s", sl_fabric_address(gone));
    uint64_t epoch = sl_fabric_epoch(gone);
    sl_fabric_destroy(&gone);
    line = open_line(pair.asker, address, epoch);
    assert_string_equal(sl_line_transport(line), "");
    ask = open_ask(line, 64, 1, 64, 0, answer, 64, 20000);
    assert_int_equal(wait_ask(ask, &bytes), SL_ERR_PEER_LOST);
    sl_ask_close(&ask);
    sl_line_close(&line);
    // One where nobody answers.
    struct sl_fabric *mute = start_fabric(transport, "127.0.0.1:0", NULL, 500);
    line = open_line(pair.asker, sl_fabric_address(mute), sl_fabric_epoch(mute));
    ask = open_ask(line, 64, 1, 64, 0, answer, 64, 20000);
    assert_int_equal(wait_ask(ask, &bytes), SL_ERR_UNSUPPORTED);
    sl_ask_close(&ask);
    sl_line_close(&line);
    sl_fabric_destroy(&mute);
    stop_pair(&pair);
}

static void test_closed_line_ends_its_asks(void **state) {
    (void)state;
    struct pair pair;
    start_pair(&pair, 1, NULL);
    hold_desk(&pair.desk, true);
    uint8_t answer[64];
    size_t bytes = 0;
    struct sl_line *other = open_line(pair.asker, sl_fabric_address(pair.answerer), sl_fabric_epoch(pair.answerer));
    struct sl_ask *ask = open_ask(pair.line, 64, 1, 64, 0, answer, 64, 20000);
    struct sl_ask *kept = open_ask(other, 64, 2, 64, 0, answer, 64, 20000);
    sl_line_close(&pair.line);
    assert_int_equal(wait_ask(ask, &bytes), SL_ERR_CANCELLED);
    sl_ask_close(&ask);
    hold_desk(&pair.desk, false);
    assert_int_equal(wait_ask(kept, &bytes), SL_OK); // the same connection
    sl_ask_close(&kept);
    sl_line_close(&other);
    struct sl_fabric_stats stats;
    sl_fabric_get_stats(pair.asker, &stats);
    assert_int_equal(stats.peers_connected, 1);
    stop_pair(&pair);
}

static void test_destroy_ends_everything(void **state) {
    (void)state;
    struct pair pair;
    start_pair(&pair, 1, NULL);
    hold_desk(&pair.desk, true);
    uint8_t answers[2][64];
    size_t bytes = 0;
    struct sl_ask *ask = open_ask(pair.line, 64, 1, 64, 0, answers[0], 64, 20000);
    struct sl_ask *other = open_ask(pair.line, 64, 2, 64, 0, answers[1], 64, 20000);
    while (desk_queued(&pair.desk) < 2) {
        sl_sleep_ms(1);
    }
    sl_fabric_destroy(&pair.asker); // lines and asks outlive it
    assert_int_equal(wait_ask(ask, &bytes), SL_ERR_CANCELLED);
    sl_ask_close(&ask);
    sl_ask_close(&other);
    ask = open_ask(pair.line, 64, 1, 64, 0, answers[0], 64, 20000);
    assert_int_equal(wait_ask(ask, &bytes), SL_ERR_CANCELLED);
    sl_ask_close(&ask);
    sl_line_close(&pair.line);
    sl_fabric_destroy(&pair.answerer); // and so do questions
    close_desk(&pair.desk);
    assert_int_equal(pair.desk.n_void, 2);
}

// ---- two processes -----------------------------------------------------------------------------------------------

struct place {
    char address[64];
    uint64_t epoch;
};

static void tell_place(const struct sl_fabric *fabric, int fd) {
    struct place place = {.epoch = sl_fabric_epoch(fabric)};
    snprintf(place.address, sizeof place.address, "%s", sl_fabric_address(fabric));
    write_all(fd, &place, sizeof place);
}

// Child: answer for ever.
static void answer_for_ever(void) {
    static struct desk desk;
    struct sl_fabric *fabric = start_fabric(transport, "127.0.0.1:0", NULL, QUICK_HEARTBEAT_MS);
    open_desk(&desk, fabric, 2);
    tell_place(fabric, 4);
    sl_sleep_ms(60000);
}

// Child: ask whoever is told to us, and wait.
static void ask_and_wait(void) {
    struct sl_fabric *fabric = start_fabric(transport, "127.0.0.1:0", NULL, QUICK_HEARTBEAT_MS);
    struct place place;
    read_all(3, &place, sizeof place);
    struct sl_line *line = open_line(fabric, place.address, place.epoch);
    uint8_t answers[3][64];
    for (size_t i = 0; i < 3; i++) {
        open_ask(line, 64, i, 64, 0, answers[i], 64, 60000);
    }
    sl_sleep_ms(60000);
}

static void lose_answerer(int signal_number, int64_t within_ms) {
    struct child child = start_child(transport, "answer");
    struct sl_fabric *fabric = start_fabric(transport, "127.0.0.1:0", NULL, QUICK_HEARTBEAT_MS);
    struct place place;
    read_all(child.from, &place, sizeof place);
    struct sl_line *line = open_line(fabric, place.address, place.epoch);
    uint8_t answer[64];
    size_t bytes = 0;
    struct sl_ask *ask = open_ask(line, 64, 1, 64, 0, answer, 64, 30000);
    assert_int_equal(wait_ask(ask, &bytes), SL_OK);
    sl_ask_close(&ask);
    ask = open_ask(line, 64, 1, 64, 30000, answer, 64, 30000);
    sl_sleep_ms(20);
    int64_t start = sl_now_ns();
    kill(child.pid, signal_number);
    assert_int_equal(wait_ask(ask, &bytes), SL_ERR_PEER_LOST);
    assert_in_range((sl_now_ns() - start) / SL_NS_PER_MS, 0, within_ms);
    sl_ask_close(&ask);
    ask = open_ask(line, 64, 1, 64, 0, answer, 64, 30000); // at once: the line is over
    start = sl_now_ns();
    assert_int_equal(wait_ask(ask, &bytes), SL_ERR_PEER_LOST);
    assert_in_range((sl_now_ns() - start) / SL_NS_PER_MS, 0, 1000);
    sl_ask_close(&ask);
    sl_line_close(&line);
    end_child(&child);
    stop_fabric(&fabric);
}

static void test_killed_answerer_is_noticed(void **state) {
    (void)state;
    lose_answerer(SIGKILL, 10 * QUICK_HEARTBEAT_MS);
}

static void test_stopped_answerer_is_noticed(void **state) {
    (void)state;
    lose_answerer(SIGSTOP, 15 * QUICK_HEARTBEAT_MS);
}

static void test_killed_asker_voids_its_questions(void **state) {
    (void)state;
    struct child child = start_child(transport, "ask");
    static struct desk desk;
    struct sl_fabric *fabric = start_fabric(transport, "127.0.0.1:0", NULL, QUICK_HEARTBEAT_MS);
    open_desk(&desk, fabric, 1);
    hold_desk(&desk, true);
    tell_place(fabric, child.to);
    int64_t deadline = sl_deadline_in_ms(20000);
    while (desk_queued(&desk) < 3 && sl_now_ns() < deadline) {
        sl_sleep_ms(1);
    }
    assert_int_equal(desk_queued(&desk), 3);
    struct sl_question *first = desk.queue[0];
    assert_false(sl_question_is_void(first));
    end_child(&child);
    deadline = sl_deadline_in_ms(10 * QUICK_HEARTBEAT_MS);
    while (!sl_question_is_void(first) && sl_now_ns() < deadline) {
        sl_sleep_ms(1);
    }
    assert_true(sl_question_is_void(first));
    close_desk(&desk); // answers them all the same
    assert_int_equal(desk.n_void, 3);
    stop_fabric(&fabric);
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ask_is_answered_at_every_size),
        cmocka_unit_test(test_asks_of_many_threads_do_not_mix),
        cmocka_unit_test(test_deadline_ends_an_ask),
        cmocka_unit_test(test_late_answers_are_not_written),
        cmocka_unit_test(test_answer_too_long_is_refused),
        cmocka_unit_test(test_flood_of_questions_is_refused),
        cmocka_unit_test(test_memory_of_questions_is_bounded),
        cmocka_unit_test(test_faults_of_answers),
        cmocka_unit_test(test_line_to_nobody),
        cmocka_unit_test(test_closed_line_ends_its_asks),
        cmocka_unit_test(test_destroy_ends_everything),
        cmocka_unit_test(test_killed_answerer_is_noticed),
        cmocka_unit_test(test_stopped_answerer_is_noticed),
        cmocka_unit_test(test_killed_asker_voids_its_questions),
    };
    transport = argc > 1 ? argv[1] : "tcp";
    signal(SIGPIPE, SIG_IGN);
    if (argc > 2 && strcmp(argv[2], "answer") == 0) {
        answer_for_ever();
    } else if (argc > 2 && strcmp(argv[2], "ask") == 0) {
        ask_and_wait();
    } else if (argc > 2) {
        cmocka_set_test_filter(argv[2]);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
