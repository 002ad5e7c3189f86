// SPDX-License-Identifier: Apache-2.0
// The disk below the capsule cache: what memory has evicted comes back, over restarts; a disk that fails is done
// without.
#include "tests/unit/kvstore/harness.h"

#include <errno.h>
#include <ftw.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/thread.h"
#include "kvstore/disk/disk.h"
#include "net/node/watch.h"
#include "tests/unit/kvstore/disk/faults.h"
#include "tests/unit/scarce.h"

#define ARENA_BYTES ((size_t)1 << 20)
#define N_TOKENS    256 // a capsule of 64 KiB
#define DEADLINE_MS 5000

struct fixture {
    char path[64];
    struct parts parts;
    struct sl_disk *disk;
    int shared; // tokens that all prompts begin with
    int64_t silent_ms, pause_ms, max_pause_ms;
    struct sl_progress_counter progress_counter;
};

static void open_disk(struct fixture *fixture, size_t max_offers) {
    struct sl_error err = {0};
    struct sl_disk_config config = {.folder = fixture->path,
                                    .bytes = 16 << 20,
                                    .max_offers = max_offers,
                                    .silent_ms = fixture->silent_ms,
                                    .pause_ms = fixture->pause_ms,
                                    .max_pause_ms = fixture->max_pause_ms,
                                    .progress_counter = &fixture->progress_counter,
                                    .capsule_cache = fixture->parts.capsule_cache,
                                    .room = &fixture->parts.room};
    if (sl_disk_open(&config, &fixture->disk, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
}

static int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    strcpy(fixture->path, "/tmp/sluice-disk-XXXXXX");
    assert_non_null(mkdtemp(fixture->path));
    open_parts(&fixture->parts, ARENA_BYTES, 60000, 0);
    fixture->silent_ms = fixture->pause_ms = fixture->max_pause_ms = 60000;
    open_disk(fixture, 64);
    *state = fixture;
    return 0;
}

static int remove_one(const char *path, const struct stat *file, int type, struct FTW *walk) {
    (void)file, (void)type, (void)walk;
    return remove(path);
}

static int teardown(void **state) {
    struct fixture *fixture = *state;
    sl_disk_close(&fixture->disk, 0);
    close_parts(&fixture->parts);
    nftw(fixture->path, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    free(fixture);
    return 0;
}

// Shelve a capsule of N_TOKENS tokens whose bytes depend on `seed`; offer it or not.
static void put(struct fixture *fixture, int seed, bool offer) {
    struct prompt prompt;
    struct sl_arena *arena = fixture->parts.arena;
    make_prompt(&prompt, seed, fixture->shared, N_TOKENS);
    struct sl_capsule_id id = {11, 22, prompt.hashes.whole};
    struct sl_capsule_bytes capsule = make_capsule(arena, &id, N_TOKENS, false);
    assert_int_equal(sl_room_take_block(&fixture->parts.room, "test", capsule.body_bytes, &capsule.body, NULL), SL_OK);
    memset(capsule.body, seed + 1, capsule.body_bytes);
    struct sl_capsule_keys keys = {
        .id = id, .hashes = prompt.prefixes, .n_hashes = N_TOKENS / SL_PREFIX_BLOCK, .stride = SL_PREFIX_BLOCK};
    enum sl_status status = sl_capsule_cache_put(fixture->parts.capsule_cache, &keys, &capsule, NULL);
    if (status == SL_ERR_EXISTS) {
        sl_capsule_bytes_free(&capsule, arena);
    } else {
        assert_int_equal(status, SL_OK);
    }
    if (offer) {
        sl_disk_offer(fixture->disk, &id);
    }
}

static struct sl_disk_stats stats_of(struct fixture *fixture) {
    struct sl_disk_stats stats;
    sl_disk_get_stats(fixture->disk, &stats);
    return stats;
}

static void wait_for_capsules(struct fixture *fixture, int64_t n) {
    int64_t deadline = sl_deadline_in_ms(DEADLINE_MS);
    while (stats_of(fixture).n_capsules < n && sl_now_ns() < deadline) {
        sl_sleep_ms(2);
    }
    assert_int_equal(stats_of(fixture).n_capsules, n);
}

static void evict_all(struct fixture *fixture) {
    int64_t deadline = sl_deadline_in_ms(DEADLINE_MS); // the writer may hold one
    struct sl_capsule_cache_stats stats;
    do {
        while (sl_capsule_cache_evict_one(fixture->parts.capsule_cache, INT64_MAX)) {
        }
        sl_capsule_cache_get_stats(fixture->parts.capsule_cache, &stats);
    } while (stats.n_capsules > 0 && sl_now_ns() < deadline);
    assert_int_equal(stats.n_capsules, 0);
}

static void evict_all_but_what_is_held(struct fixture *fixture) {
    while (sl_capsule_cache_evict_one(fixture->parts.capsule_cache, INT64_MAX)) {
    }
}

// All prefixes of a prompt, longest first; how many.
static size_t prefixes_of(int seed, int shared, int64_t n_tokens, struct sl_prefix *prefixes) {
    struct prompt prompt;
    size_t n = 0;
    make_prompt(&prompt, seed, shared, N_TOKENS);
    for (int64_t i = n_tokens / SL_PREFIX_BLOCK; i > 0; i--) {
        prefixes[n++] = (struct sl_prefix){{11, 22, prompt.prefixes[i - 1]}, i * SL_PREFIX_BLOCK};
    }
    return n;
}

// Ask for the first n_tokens of a prompt; what comes must be its capsule. False: nothing came.
static bool recalls(struct fixture *fixture, int seed, int64_t n_tokens) {
    struct sl_prefix prefixes[N_TOKENS / SL_PREFIX_BLOCK];
    size_t n = prefixes_of(seed, fixture->shared, n_tokens, prefixes), at = SIZE_MAX;
    struct sl_stored *stored = sl_disk_recall(fixture->disk, prefixes, n, sl_deadline_in_ms(DEADLINE_MS), &at);
    if (!stored) {
        return false;
    }
    assert_int_equal(at, 0);
    assert_int_equal(stored->n_tokens, N_TOKENS);
    for (size_t i = 0; i < stored->capsule.body_bytes; i++) {
        if (((uint8_t *)stored->capsule.body)[i] != seed + 1) {
            fail_msg("byte %zu of capsule %d is wrong", i, seed);
        }
    }
    sl_capsule_cache_unpin(fixture->parts.capsule_cache, stored);
    return true;
}

static void test_disk_what_was_evicted_comes_back(void **state) {
    struct fixture *fixture = *state;
    for (int i = 0; i < 30; i++) { // of which 16 have room
        put(fixture, i, true);
        wait_for_capsules(fixture, i + 1);
    }
    assert_true(stats_of(fixture).bytes >= 30 * 65536);
    struct sl_capsule_cache_stats capsule_cache;
    for (int i = 0; i < 30; i++) {
        assert_true(recalls(fixture, i, i % 2 ? N_TOKENS : 128));
        sl_capsule_cache_get_stats(fixture->parts.capsule_cache, &capsule_cache);
        assert_in_range(capsule_cache.n_capsules, 1, 16);
    }
    assert_false(recalls(fixture, 30, N_TOKENS));
    struct sl_disk_stats stats = stats_of(fixture);
    assert_in_range(stats.n_hits, 14, 30);
    assert_int_equal(stats.n_dropped, 0);
    assert_string_equal(stats.failure, "");
}

static void restart(struct fixture *fixture, int64_t deadline_ns) {
    sl_disk_close(&fixture->disk, deadline_ns);
    evict_all(fixture);
    open_disk(fixture, 64);
}

static void test_disk_outlives_its_process(void **state) {
    struct fixture *fixture = *state;
    put(fixture, 1, true);
    wait_for_capsules(fixture, 1);
    put(fixture, 2, false);
    restart(fixture, 0); // no time for anything
    assert_true(recalls(fixture, 1, N_TOKENS));
    assert_false(recalls(fixture, 2, N_TOKENS));
    put(fixture, 3, true); // asked for, written or not
    put(fixture, 2, false);
    restart(fixture, sl_deadline_in_ms(DEADLINE_MS));
    assert_int_equal(stats_of(fixture).n_capsules, 3);
    for (int i = 1; i <= 3; i++) {
        assert_true(recalls(fixture, i, N_TOKENS));
    }
    assert_int_equal(stats_of(fixture).n_hits, 3);
}

static void test_disk_does_not_disturb_what_is_in_use(void **state) {
    struct fixture *fixture = *state;
    struct sl_stored *pinned[16];
    int n = 0;
    put(fixture, 40, true);
    wait_for_capsules(fixture, 1);
    evict_all(fixture);
    while (n < 16) {
        struct sl_prefix prefixes[N_TOKENS / SL_PREFIX_BLOCK];
        size_t at;
        put(fixture, n, false);
        pinned[n] = sl_capsule_cache_pin_longest(fixture->parts.capsule_cache, prefixes,
                                                 prefixes_of(n, 0, N_TOKENS, prefixes), &at);
        assert_non_null(pinned[n++]);
    }
    assert_false(recalls(fixture, 40, N_TOKENS)); // there is no room
    sl_capsule_cache_unpin(fixture->parts.capsule_cache, pinned[--n]);
    assert_true(recalls(fixture, 40, N_TOKENS));
    while (n > 0) {
        sl_capsule_cache_unpin(fixture->parts.capsule_cache, pinned[--n]);
    }
}

static void test_disk_finds_what_the_capsule_cache_has_under_another_prefix(void **state) {
    struct fixture *fixture = *state;
    struct prompt prompt;
    fixture->shared = 128;
    put(fixture, 1, false);
    put(fixture, 2, true); // in the capsule cache it takes the common prefix over from 1,
    wait_for_capsules(fixture, 1);
    make_prompt(&prompt, 1, fixture->shared, N_TOKENS);
    struct sl_capsule_id key = {11, 22, prompt.hashes.whole};
    sl_disk_offer(fixture->disk, &key); // on the disk 1 from it;
    wait_for_capsules(fixture, 2);
    assert_true(recalls(fixture, 1, N_TOKENS));
    // 2 goes from the capsule cache, and the prefix with it
    assert_true(sl_capsule_cache_evict_one(fixture->parts.capsule_cache, INT64_MAX));
    assert_true(recalls(fixture, 1, 128));
    assert_int_equal(stats_of(fixture).n_hits, 0); // without reading what is in memory
}

static void test_disk_what_cannot_be_written_is_counted(void **state) {
    struct fixture *fixture = *state;
    sl_disk_close(&fixture->disk, 0);
    open_disk(fixture, 1);
    struct sl_capsule_id gone = {1, 2, {{3}}}; // evicted, or one too many in a queue of one
    for (int i = 0; i < 1000; i++) {
        sl_disk_offer(fixture->disk, &gone);
    }
    int64_t deadline = sl_deadline_in_ms(DEADLINE_MS);
    while (stats_of(fixture).n_dropped < 1000 && sl_now_ns() < deadline) {
        sl_sleep_ms(2);
    }
    assert_int_equal(stats_of(fixture).n_dropped, 1000);
    put(fixture, 1, true);
    wait_for_capsules(fixture, 1); // and it goes on
}

static void test_disk_that_fails_is_done_without(void **state) {
    struct fixture *fixture = *state;
    struct rlimit before, small;
    put(fixture, 1, true);
    wait_for_capsules(fixture, 1);
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before);
    small = (struct rlimit){20000, before.rlim_max};
    setrlimit(RLIMIT_FSIZE, &small); // full
    put(fixture, 2, true);
    int64_t deadline = sl_deadline_in_ms(DEADLINE_MS);
    while (!stats_of(fixture).failure[0] && sl_now_ns() < deadline) {
        sl_sleep_ms(2);
    }
    setrlimit(RLIMIT_FSIZE, &before);
    struct sl_disk_stats stats = stats_of(fixture);
    assert_non_null(strstr(stats.failure, fixture->path));
    put(fixture, 3, true); // memory works
    evict_all(fixture);
    assert_false(recalls(fixture, 1, N_TOKENS));
    restart(fixture, sl_deadline_in_ms(DEADLINE_MS));
    assert_string_equal(stats_of(fixture).failure, "");
    assert_true(recalls(fixture, 1, N_TOKENS));
}

static void wait_for_pause(struct fixture *fixture, int64_t at_least_ms) {
    int64_t deadline = sl_deadline_in_ms(DEADLINE_MS);
    while (stats_of(fixture).pause_ms < at_least_ms && sl_now_ns() < deadline) {
        sl_sleep_ms(2);
    }
    assert_int_equal(stats_of(fixture).pause_ms, at_least_ms);
    assert_string_not_equal(stats_of(fixture).failure, "");
}

static void wait_until_used(struct fixture *fixture) {
    int64_t deadline = sl_deadline_in_ms(DEADLINE_MS);
    while (stats_of(fixture).failure[0] && sl_now_ns() < deadline) {
        sl_sleep_ms(2);
    }
    assert_string_equal(stats_of(fixture).failure, "");
}

static void test_disk_that_failed_is_tried_again_after_longer_and_longer_pauses(void **state) {
    struct fixture *fixture = *state;
    sl_disk_close(&fixture->disk, 0);
    fixture->pause_ms = 10;
    fixture->max_pause_ms = 60;
    open_disk(fixture, 64);
    put(fixture, 1, true);
    wait_for_capsules(fixture, 1);
    fault_begin(&(struct fault){.kind = FAULT_ERROR, .error = EIO, .lasting = true});
    put(fixture, 2, true);
    wait_for_pause(fixture, 60); // 10, 20, 40, 60 ms
    assert_true(stats_of(fixture).n_failures >= 4);
    assert_int_equal(stats_of(fixture).n_capsules, 0);
    put(fixture, 3, true); // memory works
    evict_all(fixture);
    assert_false(recalls(fixture, 1, N_TOKENS));
    assert_non_null(fault_end());
    wait_until_used(fixture);
    int64_t n_failures = stats_of(fixture).n_failures;
    assert_true(recalls(fixture, 1, N_TOKENS));
    put(fixture, 4, true);
    wait_for_capsules(fixture, 2);
    assert_int_equal(stats_of(fixture).n_failures, n_failures);
    sl_sleep_ms(fixture->max_pause_ms + 1); // so long without a failure
    fault_begin(&(struct fault){.kind = FAULT_ERROR, .error = EIO, .scope = FAULT_CHANGING});
    put(fixture, 5, true);
    int64_t deadline = sl_deadline_in_ms(DEADLINE_MS);
    while (stats_of(fixture).n_failures == n_failures && sl_now_ns() < deadline) {
        sl_sleep_ms(1);
    }
    assert_non_null(fault_end());
    assert_int_equal(stats_of(fixture).n_failures, n_failures + 1);
    assert_int_equal(stats_of(fixture).pause_ms, 10);
    wait_until_used(fixture);
}

// A reader keeps its folder when the disk fails, until it has read.
static void test_disk_is_not_opened_anew_under_a_reader(void **state) {
    struct fixture *fixture = *state;
    sl_disk_close(&fixture->disk, 0);
    fixture->pause_ms = fixture->max_pause_ms = 1;
    open_disk(fixture, 64);
    for (int i = 0; i < 3; i++) {
        put(fixture, i, true);
        wait_for_capsules(fixture, i + 1);
    }
    evict_all(fixture);
    for (int at = 0; at < 40; at++) {
        fault_begin(&(struct fault){.kind = FAULT_ERROR, .error = EIO, .at = at, .scope = FAULT_CHANGING});
        for (int i = 0; i < 6; i++) {
            (void)recalls(fixture, i % 3, N_TOKENS);
            put(fixture, 10 + at % 7, true);
            (void)sl_capsule_cache_evict_one(fixture->parts.capsule_cache, INT64_MAX);
        }
        (void)fault_end();
    }
    wait_until_used(fixture);
}

// A disk on a network that hangs: the watcher of the progress counter notices it, and no thread uses the disk meanwhile.
static void test_disk_whose_thread_stands_still_is_done_without(void **state) {
    struct fixture *fixture = *state;
    put(fixture, 1, true);
    wait_for_capsules(fixture, 1);
    assert_int_equal(sl_progress_counter_poll(&fixture->progress_counter, 10, 10), SL_PROGRESS_AS_BEFORE);
    // it has no work
    assert_int_equal(sl_progress_counter_poll(&fixture->progress_counter, 10, 10), SL_PROGRESS_AS_BEFORE);
    fault_begin(&(struct fault){.kind = FAULT_SILENT, .lasting = true, .scope = FAULT_CHANGING});
    put(fixture, 2, true);
    int64_t deadline = sl_deadline_in_ms(DEADLINE_MS);
    while (fault_hits() == 0 && sl_now_ns() < deadline) {
        sl_sleep_ms(1);
    }
    assert_int_equal(sl_progress_counter_poll(&fixture->progress_counter, 0, 10), SL_PROGRESS_AS_BEFORE);
    assert_int_equal(sl_progress_counter_poll(&fixture->progress_counter, 10, 10), SL_PROGRESS_STILL);
    evict_all_but_what_is_held(fixture);
    assert_false(recalls(fixture, 1, N_TOKENS)); // the disk has it, and could read it
    assert_true(stats_of(fixture).is_silent);
    put(fixture, 3, true);
    assert_non_null(fault_end());
    wait_for_capsules(fixture, 3);
    assert_int_equal(sl_progress_counter_poll(&fixture->progress_counter, 10, 10), SL_PROGRESS_MOVING);
    assert_true(recalls(fixture, 1, N_TOKENS));
    assert_false(stats_of(fixture).is_silent);
}

// Without files' dates, the next start could not tell which capsule was used last.
static void test_disk_that_dates_nothing_is_done_without(void **state) {
    struct fixture *fixture = *state;
    put(fixture, 1, true);
    wait_for_capsules(fixture, 1);
    fault_begin(&(struct fault){.kind = FAULT_ERROR, .error = EIO, .scope = FAULT_CHANGING});
    put(fixture, 1, true); // offered again
    int64_t deadline = sl_deadline_in_ms(DEADLINE_MS);
    while (!stats_of(fixture).failure[0] && sl_now_ns() < deadline) {
        sl_sleep_ms(2);
    }
    assert_string_equal(fault_end(), "utimensat");
    assert_non_null(strstr(stats_of(fixture).failure, "cannot be dated"));
}

static void test_disk_that_is_full_goes_on(void **state) {
    struct fixture *fixture = *state;
    for (int i = 0; i < 3; i++) {
        put(fixture, i, true);
        wait_for_capsules(fixture, i + 1);
    }
    fault_begin(&(struct fault){.kind = FAULT_ERROR, .error = ENOSPC, .lasting = true, .scope = FAULT_GROWING});
    for (int i = 3; i < 9; i++) {
        put(fixture, i, true);
    }
    int64_t deadline = sl_deadline_in_ms(DEADLINE_MS);
    while (stats_of(fixture).n_dropped < 6 && sl_now_ns() < deadline) {
        sl_sleep_ms(2);
    }
    evict_all(fixture);
    assert_true(recalls(fixture, 1, N_TOKENS)); // one has gone to make room, in vain; the others serve
    assert_true(recalls(fixture, 2, N_TOKENS));
    assert_non_null(fault_end());
    struct sl_disk_stats stats = stats_of(fixture);
    assert_int_equal(stats.n_dropped, 6);
    assert_int_equal(stats.n_capsules, 2);
    assert_string_equal(stats.failure, "");
    put(fixture, 9, true); // and there is room again
    wait_for_capsules(fixture, 3);
}

// Every call fails: memory works, and the next start finds what there was.
static void test_disk_that_is_lost_is_done_without(void **state) {
    struct fixture *fixture = *state;
    for (int i = 0; i < 3; i++) {
        put(fixture, i, true);
        wait_for_capsules(fixture, i + 1);
    }
    fault_begin(&(struct fault){.kind = FAULT_ERROR, .error = EIO, .lasting = true});
    put(fixture, 3, true);
    int64_t deadline = sl_deadline_in_ms(DEADLINE_MS);
    while (!stats_of(fixture).failure[0] && sl_now_ns() < deadline) {
        sl_sleep_ms(2);
    }
    assert_non_null(strstr(stats_of(fixture).failure, fixture->path));
    put(fixture, 4, true); // memory works
    evict_all(fixture);
    assert_false(recalls(fixture, 1, N_TOKENS));
    assert_non_null(fault_end());
    restart(fixture, 0);
    for (int i = 0; i < 3; i++) {
        assert_true(recalls(fixture, i, N_TOKENS));
    }
}

struct silent {
    struct fixture *fixture;
    bool found;
    pthread_t thread;
};

static void *ask_once(void *arg) {
    struct silent *asker = arg;
    asker->found = recalls(asker->fixture, 1, N_TOKENS);
    return NULL;
}

// A disk that does not answer delays only its first caller; the others soon get "not found", and capsules in memory are served.
static void test_disk_that_is_silent_is_not_waited_for(void **state) {
    struct fixture *fixture = *state;
    struct silent first = {.fixture = fixture};
    fixture->silent_ms = 200;
    restart(fixture, 0);
    for (int i = 1; i <= 2; i++) {
        put(fixture, i, true);
        wait_for_capsules(fixture, i);
    }
    evict_all(fixture);
    fault_begin(&(struct fault){.kind = FAULT_SILENT, .lasting = true});
    int64_t begin_ns = sl_now_ns();
    assert_int_equal(sl_thread_start("asker", ask_once, &first, &first.thread, NULL), SL_OK);
    while (fault_hits() == 0 && sl_now_ns() < begin_ns + DEADLINE_MS * SL_NS_PER_MS) {
        sl_sleep_ms(1);
    }
    for (int i = 0; i < 20; i++) { // each may wait for seconds: together they wait for 200 ms
        assert_false(recalls(fixture, 2, N_TOKENS));
    }
    assert_in_range(sl_now_ns() - begin_ns, 150 * SL_NS_PER_MS, DEADLINE_MS * SL_NS_PER_MS);
    put(fixture, 3, true); // an offer does not wait either
    fault_end();
    pthread_join(first.thread, NULL);
    assert_true(first.found);
    assert_true(recalls(fixture, 2, N_TOKENS));
    wait_for_capsules(fixture, 3);
}

static void test_disk_none_is_fine(void **state) {
    (void)state;
    struct sl_disk *none = NULL;
    struct sl_capsule_id key = {1, 2, {{3}}};
    struct sl_prefix prefix = {key, 64};
    struct sl_disk_stats stats;
    size_t at;
    sl_disk_offer(none, &key);
    assert_null(sl_disk_recall(none, &prefix, 1, 0, &at));
    sl_disk_get_stats(none, &stats);
    assert_int_equal(stats.n_capsules, 0);
    sl_disk_close(&none, 0);
}

struct asker {
    struct fixture *fixture;
    int first, n_found;
    pthread_t thread;
};

static void *ask_many(void *arg) {
    struct asker *asker = arg;
    for (int i = 0; i < 200; i++) {
        asker->n_found += recalls(asker->fixture, (asker->first + i * 7) % 24, i % 3 ? N_TOKENS : 192);
    }
    return NULL;
}

static void test_disk_many_ask_at_once(void **state) {
    struct fixture *fixture = *state;
    struct asker askers[4];
    for (int i = 0; i < 24; i++) {
        put(fixture, i, true);
        wait_for_capsules(fixture, i + 1);
    }
    for (int i = 0; i < 4; i++) {
        askers[i] = (struct asker){.fixture = fixture, .first = i / 2}; // two and two ask for the same
        assert_int_equal(sl_thread_start("asker", ask_many, &askers[i], &askers[i].thread, NULL), SL_OK);
    }
    for (int i = 0; i < 200; i++) {
        sl_room_evict_one(&fixture->parts.room);
        sl_sleep_ms(1);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(askers[i].thread, NULL);
        assert_in_range(askers[i].n_found, 190, 200); // one may be evicted between two breaths
    }
    assert_int_equal(stats_of(fixture).n_capsules, 24);
}

static void test_disk_without_memory_is_not_opened(void **state) {
    struct fixture *fixture = *state;
    char path[96];
    snprintf(path, sizeof path, "%s/another", fixture->path);
    struct sl_disk_config config = {.folder = path,
                                    .bytes = 16 << 20,
                                    .max_offers = 4,
                                    .silent_ms = 60000,
                                    .capsule_cache = fixture->parts.capsule_cache,
                                    .room = &fixture->parts.room,
                                    .pause_ms = 60000,
                                    .max_pause_ms = 60000,
                                    .progress_counter = &fixture->progress_counter};
    int n_failed = 0;
    for (bool failed = true; failed; n_failed += failed) {
        struct sl_disk *disk = NULL;
        scarce_begin(n_failed);
        enum sl_status status = sl_disk_open(&config, &disk, NULL);
        failed = scarce_end();
        assert_int_equal(status, failed ? SL_ERR_EXHAUSTED : SL_OK);
        sl_disk_close(&disk, 0); // nothing was left locked, or the next try would fail
    }
    assert_true(n_failed >= 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_disk_what_was_evicted_comes_back, setup, teardown),
        cmocka_unit_test_setup_teardown(test_disk_outlives_its_process, setup, teardown),
        cmocka_unit_test_setup_teardown(test_disk_does_not_disturb_what_is_in_use, setup, teardown),
        cmocka_unit_test_setup_teardown(test_disk_finds_what_the_capsule_cache_has_under_another_prefix, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_disk_what_cannot_be_written_is_counted, setup, teardown),
        cmocka_unit_test_setup_teardown(test_disk_that_fails_is_done_without, setup, teardown),
        cmocka_unit_test_setup_teardown(test_disk_that_failed_is_tried_again_after_longer_and_longer_pauses, setup,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_disk_is_not_opened_anew_under_a_reader, setup, teardown),
        cmocka_unit_test_setup_teardown(test_disk_whose_thread_stands_still_is_done_without, setup, teardown),
        cmocka_unit_test_setup_teardown(test_disk_that_dates_nothing_is_done_without, setup, teardown),
        cmocka_unit_test_setup_teardown(test_disk_that_is_full_goes_on, setup, teardown),
        cmocka_unit_test_setup_teardown(test_disk_that_is_lost_is_done_without, setup, teardown),
        cmocka_unit_test_setup_teardown(test_disk_that_is_silent_is_not_waited_for, setup, teardown),
        cmocka_unit_test(test_disk_none_is_fine),
        cmocka_unit_test_setup_teardown(test_disk_many_ask_at_once, setup, teardown),
        cmocka_unit_test_setup_teardown(test_disk_without_memory_is_not_opened, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
