// SPDX-License-Identifier: Apache-2.0
// Offloaded layers of documents go to the disk, come back as they were, and go with their documents; what does not fit, or is
// damaged, is refused and leaves nothing.
#include "tests/unit/kvstore/remote_kv/layers_harness.h"

#include <dirent.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"

static struct sl_capsule_id first_read;     // since forget_reads()
static atomic_int n_reads, n_busy, slow_ms; // n_busy: reads while others read the disk; slow_ms: of each read
static struct fixture *_Atomic drops_all;   // after one read, the document that was read is dropped

enum sl_status __real_sl_disk_read(struct sl_disk *disk, const struct sl_capsule_id *key, int64_t deadline_ns,
                                   struct sl_capsule_bytes *capsule_out, struct sl_error *err);
enum sl_status __wrap_sl_disk_read(struct sl_disk *disk, const struct sl_capsule_id *key, int64_t deadline_ns,
                                   struct sl_capsule_bytes *capsule_out, struct sl_error *err);

enum sl_status __wrap_sl_disk_read(struct sl_disk *disk, const struct sl_capsule_id *key, int64_t deadline_ns,
                                   struct sl_capsule_bytes *capsule_out, struct sl_error *err) {
    uint32_t index;
    (void)sl_document_segments_of(key, &index);
    if (atomic_fetch_add(&n_reads, 1) == 0) {
        first_read = *key;
    }
    if (atomic_load(&n_busy) > 0 && atomic_fetch_sub(&n_busy, 1) > 0) {
        return sl_fail(err, SL_ERR_DEADLINE, "busy");
    }
    sl_sleep_ms(atomic_load(&slow_ms));
    enum sl_status status = __real_sl_disk_read(disk, key, deadline_ns, capsule_out, err);
    struct fixture *fixture = index > 0 ? atomic_exchange(&drops_all, NULL) : NULL;
    if (fixture) {
        const struct sl_document_remote_kv one = document(fixture, &a);
        sl_remote_kv_pins_drop(fixture->pins, &one);
    }
    return status;
}

static void forget_reads(int each_ms) {
    atomic_store(&n_reads, 0);
    atomic_store(&slow_ms, each_ms);
}

static void test_layers_come_back_as_they_were(void **state) {
    struct fixture *fixture = *state;
    name(fixture, &a);
    read_document(fixture, &a);
    struct sl_document_layers_copies before = look_until(fixture, &a, true, true);
    assert_int_equal(before.disk, SL_DISK_WRITTEN);
    assert_true(before.disk_bytes < before.memory_bytes); // without key indexes
    leave_on_disk(fixture);
    name(fixture, &a);
    struct sl_document_layers_copies after = look_until(fixture, &a, true, true);
    assert_int_equal(after.memory_bytes, before.memory_bytes);
    assert_int_equal(after.disk_bytes, before.disk_bytes);
    assert_is_found(fixture);
}

// A prompt that begins with the document waits for it; others do not.
static void test_layers_are_awaited_by_prompts_that_begin_with_them(void **state) {
    struct fixture *fixture = *state;
    struct prompt other;
    make_prompt(&other, 2, 0, N_ASKED);
    leave_on_disk(fixture);
    name(fixture, &a);
    sl_document_layers_await(fixture->layers, &fixture->family, &other.hashes, INT64_MAX);
    struct sl_kv_family signs = fixture->family;
    signs.scan = SL_KV_INT8;
    sl_document_layers_await(fixture->layers, &signs, &fixture->asked.hashes, INT64_MAX);
    sl_document_layers_await(fixture->layers, &fixture->family, &fixture->asked.hashes, INT64_MAX);
    const struct sl_document_remote_kv one = document(fixture, &a);
    assert_true(sl_remote_kv_pins_bytes(fixture->pins, &one) > 0); // it has them now
    assert_is_found(fixture);
}

// A document whose segments are dropped while it is restored begins again: its file is not damaged.
static void test_a_document_that_is_dropped_meanwhile_stays_on_disk(void **state) {
    struct fixture *fixture = *state;
    leave_on_disk(fixture);
    atomic_store(&drops_all, fixture);
    forget_reads(0);
    name(fixture, &a);
    look_until(fixture, &a, true, true);
    assert_null(atomic_load(&drops_all));
    assert_int_equal(atomic_load(&n_reads), 4); // 0, 1, which has lost 0 meanwhile, and both again
    assert_int_equal(n_files(fixture), 2);
    assert_is_found(fixture);
}

// The prompt's document comes before others, in which order the coordinator may name them.
static void test_the_awaited_document_comes_first(void **state) {
    struct fixture *fixture = *state;
    const struct sl_capsule_id last = {1, 2, {{5}}};
    const struct sl_document_remote_kv two[] = {document(fixture, &b), document(fixture, &last)};
    struct prompt other;
    make_prompt(&other, 2, 0, N_ASKED);
    assert_int_equal(sl_remote_kv_pins_set(fixture->pins, two, 2, 0, sl_now_ns(), NULL), SL_OK);
    read_document(fixture, &b);
    struct prompt mine = fixture->prompt;
    make_prompt(&fixture->prompt, 2, 0, N_TOKENS);
    read_document(fixture, &last);
    sl_protected_set(fixture->protected, NULL, 0);
    look_until(fixture, &b, true, true);
    look_until(fixture, &last, true, true);
    fixture->prompt = mine;
    assert_int_equal(sl_remote_kv_pins_set(fixture->pins, NULL, 0, 0, sl_now_ns(), NULL), SL_OK);
    assert_int_equal(n_segments(fixture), 0);
    forget_reads(0);
    assert_int_equal(sl_remote_kv_pins_set(fixture->pins, two, 2, 0, sl_now_ns(), NULL), SL_OK);
    assert_int_equal(sl_document_layers_await(fixture->layers, &fixture->family, &other.hashes, INT64_MAX), 0);
    const struct sl_capsule_id wanted = sl_document_segments_id(&last, two[1].n_offloaded_heads, two[1].scan);
    assert_memory_equal(&first_read, &wanted, sizeof wanted);
}

// While others read the disk, a document is not given up.
static void test_a_busy_disk_is_asked_again(void **state) {
    struct fixture *fixture = *state;
    leave_on_disk(fixture);
    atomic_store(&n_busy, 2);
    name(fixture, &a);
    assert_int_equal(sl_document_layers_await(fixture->layers, &fixture->family, &fixture->asked.hashes, INT64_MAX), 0);
    assert_int_equal(atomic_load(&n_busy), 0);
    assert_is_found(fixture);
}

// A prompt that cannot wait is told when its document is expected.
static void test_prompts_are_told_when_their_document_comes(void **state) {
    struct fixture *fixture = *state;
    leave_on_disk(fixture);
    name(fixture, &a);
    forget_reads(50);
    assert_int_equal(sl_document_layers_await(fixture->layers, &fixture->family, &fixture->asked.hashes, 0), 1);
    assert_int_equal(sl_document_layers_await(fixture->layers, &fixture->family, &fixture->asked.hashes, INT64_MAX), 0);
    const struct sl_document_remote_kv one = document(fixture, &a);
    sl_remote_kv_pins_drop(fixture->pins, &one); // both segments took 50 ms at least: together it is expected after 100
    forget_reads(0);
    assert_in_range(sl_document_layers_await(fixture->layers, &fixture->family, &fixture->asked.hashes, 0), 100,
                    WAIT_MS);
    assert_int_equal(sl_document_layers_await(fixture->layers, &fixture->family, &fixture->asked.hashes, INT64_MAX), 0);
    assert_is_found(fixture);
}

static void damage_one(struct fixture *fixture) {
    DIR *dir = opendir(fixture->folder.path);
    struct dirent *entry;
    char path[512];
    while ((entry = readdir(dir)) && strncmp(entry->d_name, "capsule-", 8) != 0) {
    }
    assert_non_null(entry);
    snprintf(path, sizeof path, "%s/%s", fixture->folder.path, entry->d_name);
    closedir(dir);
    int fd = open(path, O_RDWR);
    uint8_t byte;
    off_t at = 2000; // in the pages
    assert_int_equal(pread(fd, &byte, 1, at), 1);
    byte ^= 4;
    assert_int_equal(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

// The disk does not have all of a document with a damaged segment, so that its text is read again, and written anew.
static void test_damaged_layers_are_not_used(void **state) {
    struct fixture *fixture = *state;
    leave_on_disk(fixture);
    damage_one(fixture);
    name(fixture, &a);
    look_until(fixture, &a, false, false);
    sl_document_layers_await(fixture->layers, &fixture->family, &fixture->asked.hashes, INT64_MAX); // for nothing
    read_document(fixture, &a);
    look_until(fixture, &a, true, true);
    assert_is_found(fixture);
}

// Writes a whole capsule of these tokens under the key of the document's first segment, as a wrong peer may.
static void forge_first_segment(struct fixture *fixture, int64_t n_tokens) {
    const struct sl_document_remote_kv one = document(fixture, &a);
    const struct sl_capsule_id segments = sl_document_segments_id(&one.capsule, one.n_offloaded_heads, one.scan);
    uint8_t bytes[16] = {0};
    struct sl_stored stored = {.keys.id = sl_document_segment_id(&segments, 0),
                               .n_tokens = n_tokens,
                               .capsule = {.body = bytes, .body_bytes = 8, .header = bytes, .header_bytes = 8}};
    struct sl_disk_head head;
    char path[512];
    snprintf(path, sizeof path, "%s/%s", fixture->folder.path, sl_disk_file_name(99).text);
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0600);
    assert_true(fd >= 0);
    assert_int_equal(sl_disk_file_write(fd, &stored, NULL, NULL, &head, NULL), SL_OK);
    close(fd);
}

// A file under a segment's key may say more tokens than the document or the prompt has: the prompt waits for nothing.
static void test_a_forged_segment_is_not_awaited(void **state) {
    struct fixture *fixture = *state;
    close_disk(fixture);
    forge_first_segment(fixture, (int64_t)SL_PAGE_SLOTS << 40);
    open_disk(fixture);
    assert_int_equal(n_files(fixture), 1);
    name(fixture, &a);
    assert_int_equal(sl_document_layers_await(fixture->layers, &fixture->family, &fixture->asked.hashes, 0), 0);
}

static void test_layers_are_forgotten_with_their_document(void **state) {
    struct fixture *fixture = *state;
    const struct sl_document_remote_kv one = document(fixture, &a);
    name(fixture, &a);
    read_document(fixture, &a);
    look_until(fixture, &a, true, true);
    assert_true(sl_document_layers_forget(fixture->layers, &one));
    look_until(fixture, &a, false, false);
    assert_int_equal(n_segments(fixture), 0);
    assert_int_equal(n_files(fixture), 0);
    assert_false(sl_document_layers_forget(fixture->layers, &one));
    leave_on_disk(fixture);
    assert_true(sl_document_layers_forget(fixture->layers, &one));
    name(fixture, &a);
    look_until(fixture, &a, false, false);
}

static void test_layers_stay_on_disk_while_their_document_is_named(void **state) {
    struct fixture *fixture = *state;
    leave_on_disk(fixture);
    const struct sl_document_remote_kv one = document(fixture, &a);
    const struct sl_capsule_id segments = sl_document_segments_id(&one.capsule, one.n_offloaded_heads, one.scan);
    for (uint32_t i = 0; i < 2; i++) {
        const struct sl_capsule_id key = sl_document_segment_id(&segments, i);
        assert_false(sl_protected_has(fixture->protected, &key));
        name(fixture, &a);
        assert_true(sl_protected_has(fixture->protected, &key));
        name(fixture, NULL);
    }
}

// A damaged segment leaves the disk before its document; those after it go with the document.
static void test_segments_after_a_missing_one_are_forgotten(void **state) {
    struct fixture *fixture = *state;
    const struct sl_document_remote_kv one = document(fixture, &a);
    const struct sl_capsule_id segments = sl_document_segments_id(&one.capsule, one.n_offloaded_heads, one.scan),
                               first = sl_document_segment_id(&segments, 0);
    leave_on_disk(fixture);
    assert_true(sl_disk_forget(fixture->disk, &first));
    assert_true(sl_document_layers_forget(fixture->layers, &one));
    close_disk(fixture); // the disk's thread has done all of it
    open_disk(fixture);
    assert_int_equal(n_files(fixture), 0);
}

// A document is exported before its last segment is back: that segment's file is not a damaged capsule.
static void test_a_segment_on_disk_is_not_taken_for_a_capsule(void **state) {
    struct fixture *fixture = *state;
    const struct sl_document_remote_kv one = document(fixture, &a);
    const struct sl_capsule_id segments = sl_document_segments_id(&one.capsule, one.n_offloaded_heads, one.scan);
    const struct sl_prefix last = {sl_document_segment_id(&segments, 1), N_TOKENS};
    size_t at;
    leave_on_disk(fixture);
    assert_null(sl_disk_recall(fixture->disk, &last, 1, sl_deadline_in_ms(WAIT_MS), &at));
    assert_int_equal(n_files(fixture), 2);
    name(fixture, &a);
    look_until(fixture, &a, true, true);
}

static void *await_document(void *arg) {
    struct fixture *fixture = arg;
    sl_document_layers_await(fixture->layers, &fixture->family, &fixture->asked.hashes, sl_deadline_in_ms(200));
    return NULL;
}

// Prompts that wait at the same time do not wake each other without end.
static void test_prompts_that_wait_sleep(void **state) {
    struct fixture *fixture = *state;
    struct rusage before, after;
    pthread_t threads[2];
    close_disk(fixture);
    sl_protected_destroy(&fixture->protected);
    assert_int_equal(sl_protected_create(WAIT_MS, &fixture->protected, NULL), SL_OK); // nothing is named yet
    open_disk(fixture);
    getrusage(RUSAGE_SELF, &before);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, await_document, fixture), 0);
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(threads[i], NULL);
    }
    getrusage(RUSAGE_SELF, &after);
    assert_in_range(after.ru_nvcsw - before.ru_nvcsw, 0, 500); // each looks ten times, and wakes two others
}

#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_layers_come_back_as_they_were),
        TEST(test_layers_are_awaited_by_prompts_that_begin_with_them),
        TEST(test_a_document_that_is_dropped_meanwhile_stays_on_disk),
        TEST(test_the_awaited_document_comes_first),
        TEST(test_a_busy_disk_is_asked_again),
        TEST(test_prompts_are_told_when_their_document_comes),
        TEST(test_damaged_layers_are_not_used),
        TEST(test_a_forged_segment_is_not_awaited),
        TEST(test_layers_are_forgotten_with_their_document),
        TEST(test_layers_stay_on_disk_while_their_document_is_named),
        TEST(test_segments_after_a_missing_one_are_forgotten),
        TEST(test_a_segment_on_disk_is_not_taken_for_a_capsule),
        TEST(test_prompts_that_wait_sleep),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
