// SPDX-License-Identifier: Apache-2.0
// Offloaded layers of documents go to the disk, come back as they were, and go with their documents; what does not fit, or is
// damaged, is refused and leaves nothing.
#include "tests/unit/kvstore/harness.h"

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
#include "kvstore/remote_kv/document_layers.h"
#include "tests/unit/slowness.h"
#include "tests/unit/temp_folder.h"

#define ARENA_BYTES ((size_t)4 << 20)
#define N_TOKENS    300 // of the document: segments of 256 and 44
#define N_ASKED     400 // of a prompt that begins with it
#define WAIT_MS     (10000 * SLOWNESS)
#define SEED        7

static const int64_t cuts[] = {0, 256, N_TOKENS};
static const struct sl_capsule_id a = {1, 2, {{3}}}, b = {1, 2, {{4}}};

struct fixture {
    struct temp_folder folder;
    struct parts parts;
    struct sl_protected *protected;
    struct sl_remote_kv_pins *pins;
    struct sl_disk *disk;
    struct sl_progress_counter progress_counter;
    struct sl_document_layers *layers;
    struct sl_kv_family family;
    const struct sl_ops *ops;
    struct prompt prompt, asked; // of the document, and of a question on it
};

static struct sl_capsule_id first_read;     // since forget_reads()
static atomic_int n_reads, n_busy, slow_ms; // n_busy: reads while others read the disk; slow_ms: of each read
static struct fixture *_Atomic drops_all;   // after one read, the document that was read is dropped

enum sl_status __real_sl_disk_read(struct sl_disk *disk, const struct sl_capsule_id *key, int64_t deadline_ns,
                                   struct sl_capsule_bytes *capsule_out, struct sl_error *err);
enum sl_status __wrap_sl_disk_read(struct sl_disk *disk, const struct sl_capsule_id *key, int64_t deadline_ns,
                                   struct sl_capsule_bytes *capsule_out, struct sl_error *err);
static struct sl_document_remote_kv document(const struct fixture *fixture, const struct sl_capsule_id *capsule);

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

static struct sl_stored *hold(void *arg, const struct sl_capsule_id *key) {
    return sl_remote_kv_pins_hold(arg, key);
}

static void open_disk(struct fixture *fixture) {
    struct sl_error err = {0};
    struct sl_disk_config config = {.folder = fixture->folder.path,
                                    .bytes = 16 << 20,
                                    .max_offers = 64,
                                    .silent_ms = WAIT_MS,
                                    .pause_ms = WAIT_MS,
                                    .max_pause_ms = WAIT_MS,
                                    .progress_counter = &fixture->progress_counter,
                                    .capsule_cache = fixture->parts.capsule_cache,
                                    .room = &fixture->parts.room,
                                    .protected = fixture->protected,
                                    .hold_fn = hold,
                                    .arg = fixture->pins};
    if (sl_disk_open(&config, &fixture->disk, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
    struct sl_document_layers_config layers = {.pins = fixture->pins,
                                               .room = &fixture->parts.room,
                                               .ops = fixture->ops,
                                               .disk = fixture->disk,
                                               .protected = fixture->protected,
                                               .pause_ms = WAIT_MS};
    assert_int_equal(sl_document_layers_create(&layers, &fixture->layers, &err), SL_OK);
}

static void close_disk(struct fixture *fixture) {
    sl_document_layers_destroy(&fixture->layers);
    sl_disk_close(&fixture->disk, sl_deadline_in_ms(WAIT_MS));
}

static void open_pins(struct fixture *fixture, size_t max_bytes, int64_t partial_ms) {
    close_disk(fixture);
    sl_remote_kv_pins_destroy(&fixture->pins);
    assert_int_equal(sl_remote_kv_pins_create(fixture->parts.segments, max_bytes, partial_ms, &fixture->pins, NULL),
                     SL_OK);
    open_disk(fixture);
}

static int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    fixture->folder = temp_folder_create();
    open_parts(&fixture->parts, ARENA_BYTES, WAIT_MS, 0);
    assert_int_equal(sl_protected_create(0, &fixture->protected, NULL), SL_OK);
    assert_int_equal(sl_ops_select("auto", &fixture->ops, NULL), SL_OK);
    fixture->family = test_family;
    fixture->family.first_offloaded_head = 0; // all that a document has
    fixture->family.rows = SL_KV_INT8;
    fixture->family.scan = SL_KV_INT1;
    make_prompt(&fixture->prompt, 1, 0, N_TOKENS);
    make_prompt(&fixture->asked, 1, 0, N_ASKED);
    open_pins(fixture, ARENA_BYTES, WAIT_MS);
    *state = fixture;
    return 0;
}

static int teardown(void **state) {
    struct fixture *fixture = *state;
    close_disk(fixture);
    sl_remote_kv_pins_destroy(&fixture->pins);
    close_parts(&fixture->parts);
    sl_protected_destroy(&fixture->protected);
    temp_folder_destroy(&fixture->folder);
    free(fixture);
    return 0;
}

static struct sl_document_remote_kv document(const struct fixture *fixture, const struct sl_capsule_id *capsule) {
    return (struct sl_document_remote_kv){*capsule, N_TOKENS, fixture->family.n_offloaded_heads, fixture->family.scan};
}

// Names one document, or none.
static void name(struct fixture *fixture, const struct sl_capsule_id *capsule) {
    const struct sl_document_remote_kv one = capsule ? document(fixture, capsule) : (struct sl_document_remote_kv){0};
    assert_int_equal(sl_remote_kv_pins_set(fixture->pins, &one, capsule != NULL, 0, sl_now_ns(), NULL), SL_OK);
    struct sl_capsule_id *ids = malloc(sizeof *ids);
    if (capsule) {
        ids[0] = sl_document_segments_id(capsule, one.n_offloaded_heads, one.scan);
    }
    sl_protected_set(fixture->protected, ids, capsule != NULL);
}

// Reads the document, as a job does: its remote KV is offered to the pins.
static void read_document(struct fixture *fixture, const struct sl_capsule_id *capsule) {
    struct sl_remote_kv *remote_kv = NULL;
    assert_int_equal(sl_remote_kv_create(fixture->ops, 0, fixture->family.n_offloaded_heads, fixture->family.head_dim,
                                         N_TOKENS, &remote_kv, NULL),
                     SL_OK);
    for (int i = 0; i < 2; i++) {
        struct sl_kv_segment *segment =
            make_segment(fixture->parts.arena, &fixture->family, cuts[i], cuts[i + 1], SEED);
        struct sl_hash128 hash = sl_prompt_hash_at(&fixture->prompt.hashes, cuts[i + 1]);
        assert_int_equal(sl_kv_segments_put(fixture->parts.segments, &fixture->family, hash, &segment, NULL), SL_OK);
        assert_int_equal(sl_remote_kv_append(remote_kv, segment, NULL), SL_OK);
        sl_kv_segment_unref(&segment);
    }
    sl_remote_kv_pins_offer(fixture->pins, capsule, &fixture->family, &fixture->prompt.hashes, remote_kv);
    sl_remote_kv_destroy(&remote_kv);
}

static struct sl_document_layers_copies look(struct fixture *fixture, const struct sl_capsule_id *capsule) {
    const struct sl_document_remote_kv one = document(fixture, capsule);
    struct sl_document_layers_copies copies;
    sl_document_layers_look(fixture->layers, &one, &copies);
    return copies;
}

// Looks until the layers are in memory, or on disk, or in neither.
static struct sl_document_layers_copies look_until(struct fixture *fixture, const struct sl_capsule_id *capsule,
                                                   bool in_memory, bool on_disk) {
    struct sl_document_layers_copies copies;
    int64_t deadline = sl_deadline_in_ms(WAIT_MS);
    do {
        copies = look(fixture, capsule);
        sl_sleep_ms(1);
    } while (((copies.memory_bytes > 0) != in_memory || (copies.disk_bytes > 0) != on_disk) && sl_now_ns() < deadline);
    assert_int_equal(copies.memory_bytes > 0, in_memory);
    assert_int_equal(copies.disk_bytes > 0, on_disk);
    return copies;
}

static int64_t n_files(struct fixture *fixture) {
    struct sl_disk_stats stats;
    sl_disk_get_stats(fixture->disk, &stats);
    return stats.n_capsules;
}

static int64_t n_segments(struct fixture *fixture) {
    struct sl_kv_segments_stats stats;
    sl_kv_segments_get_stats(fixture->parts.segments, &stats);
    return stats.n_segments;
}

// Has the document on disk alone, as after a restart.
static void leave_on_disk(struct fixture *fixture) {
    name(fixture, &a);
    read_document(fixture, &a);
    look_until(fixture, &a, true, true);
    name(fixture, NULL);
    assert_int_equal(n_segments(fixture), 0);
    close_disk(fixture);
    open_disk(fixture);
    assert_int_equal(n_files(fixture), 2);
}

static void assert_same(const struct sl_kv_segment *segment, const struct sl_kv_segment *wanted) {
    size_t stride, other_stride;
    const struct sl_kv_segment_config *config = sl_kv_segment_get_config(wanted);
    const void *pages = sl_kv_segment_pages(segment, &stride), *others = sl_kv_segment_pages(wanted, &other_stride);
    assert_int_equal(stride, other_stride);
    assert_memory_equal(pages, others, sl_kv_segment_kept_bytes(config));
    pages = sl_kv_segment_key_indexes(segment, &stride);
    others = sl_kv_segment_key_indexes(wanted, &other_stride);
    assert_memory_equal(pages, others, (size_t)config->n_offloaded_heads * stride);
}

// Finds all of the document for a prompt that begins with it, with the bytes that it had when it was read.
static void assert_is_found(struct fixture *fixture) {
    struct sl_kv_segment **chain = NULL;
    size_t n_chain = 0;
    assert_int_equal(sl_kv_segments_chain(fixture->parts.segments, &fixture->family, &fixture->prompt.hashes, &chain,
                                          &n_chain, NULL),
                     SL_OK);
    assert_int_equal(n_chain, 2);
    for (int i = 0; i < 2; i++) {
        struct sl_kv_segment *wanted = make_segment(fixture->parts.arena, &fixture->family, cuts[i], cuts[i + 1], SEED);
        assert_same(chain[i], wanted);
        sl_kv_segment_unref(&wanted);
        sl_kv_segment_unref(&chain[i]);
    }
    free(chain);
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

// A document is exported before its last segment is back: that segment's file is no damaged capsule.
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

// Takes a segment as it arrives: its head, which the test changes, and its pages.
static struct sl_capsule_bytes arriving(struct fixture *fixture, int i, struct sl_kv_segment_head *head_out) {
    struct sl_kv_segment *segment = make_segment(fixture->parts.arena, &fixture->family, cuts[i], cuts[i + 1], SEED);
    *head_out = sl_kv_segment_head_make(segment, &fixture->family, (uint32_t)i,
                                        sl_prompt_hash_at(&fixture->prompt.hashes, cuts[i + 1]));
    struct sl_capsule_bytes bytes = {.body_bytes = head_out->body_bytes, .header_bytes = sizeof *head_out};
    bytes.body = sl_arena_alloc(fixture->parts.arena, bytes.body_bytes);
    assert_non_null(bytes.body);
    size_t stride;
    memcpy(bytes.body, sl_kv_segment_pages(segment, &stride), bytes.body_bytes);
    sl_kv_segment_unref(&segment);
    return bytes;
}

// Puts a segment of document a, with a head of which `change` bytes are other ones.
static enum sl_status put(struct fixture *fixture, int i, void (*change)(struct sl_kv_segment_head *head)) {
    struct sl_kv_segment_head head;
    struct sl_error err = {0};
    struct sl_capsule_bytes bytes = arriving(fixture, i, &head);
    const struct sl_document_remote_kv one = document(fixture, &a);
    const struct sl_capsule_id segments = sl_document_segments_id(&one.capsule, one.n_offloaded_heads, one.scan),
                               key = sl_document_segment_id(&segments, (uint32_t)i);
    if (change) {
        change(&head);
    }
    bytes.header = malloc(sizeof head);
    memcpy(bytes.header, &head, sizeof head);
    enum sl_status status = sl_document_layers_put(fixture->layers, &key, &bytes, &err);
    assert_int_equal(status == SL_OK, bytes.body == NULL);
    sl_capsule_bytes_free(&bytes, fixture->parts.arena);
    return status;
}

#define CHANGE(name, change)                                                                                           \
    static void name(struct sl_kv_segment_head *head) {                                                                \
        change;                                                                                                        \
    }
CHANGE(other_magic, head->magic[7] = 'X')
CHANGE(other_version, head->version++)
CHANGE(other_index, head->index++)
CHANGE(other_heads, head->family.n_offloaded_heads++)
CHANGE(other_scan, head->family.scan = SL_KV_INT8)
CHANGE(other_format, head->family.work = -1)
CHANGE(other_begin, head->begin += 64)
CHANGE(no_slots, head->n_slots = 0)
CHANGE(most_slots, head->n_slots = INT64_MAX)
CHANGE(other_bytes, head->body_bytes--)

// Segments that arrive one by one make a document, if they are whole, in order and of that document.
static void test_segments_that_arrive_are_checked(void **state) {
    struct fixture *fixture = *state;
    void (*changes[])(struct sl_kv_segment_head * head) = {other_magic, other_index,  other_heads,
                                                           other_scan,  other_format, other_begin,
                                                           no_slots,    most_slots,   other_bytes};
    assert_int_equal(put(fixture, 0, NULL), SL_ERR_NOT_FOUND); // no document is named
    name(fixture, &b);
    assert_int_equal(put(fixture, 0, NULL), SL_ERR_NOT_FOUND);
    name(fixture, &a);
    for (size_t i = 0; i < sizeof changes / sizeof *changes; i++) {
        assert_int_equal(put(fixture, 0, changes[i]), SL_ERR_INVALID);
    }
    assert_int_equal(put(fixture, 0, other_version), SL_ERR_UNSUPPORTED);
    assert_int_equal(put(fixture, 1, NULL), SL_ERR_PRECONDITION); // the first one is missing
    assert_int_equal(put(fixture, 0, NULL), SL_OK);
    assert_int_equal(put(fixture, 0, NULL), SL_ERR_EXISTS);
    assert_int_equal(look(fixture, &a).memory_bytes, 0); // not all of it
    assert_int_equal(put(fixture, 1, NULL), SL_OK);
    assert_int_equal(put(fixture, 1, NULL), SL_ERR_EXISTS);
    assert_is_found(fixture);
    look_until(fixture, &a, true, true);
}

static void test_segments_that_arrive_are_bounded(void **state) {
    struct fixture *fixture = *state;
    name(fixture, &a);
    assert_int_equal(put(fixture, 0, NULL), SL_OK);
    size_t first_bytes = (size_t)sl_remote_kv_pins_bytes(fixture->pins, NULL);
    assert_int_equal(put(fixture, 1, NULL), SL_OK);
    size_t bytes = (size_t)sl_remote_kv_pins_bytes(fixture->pins, NULL);
    open_pins(fixture, bytes - 1, 0); // partial documents are dropped at once
    name(fixture, &a);
    assert_int_equal(put(fixture, 0, NULL), SL_OK);
    assert_int_equal(put(fixture, 1, NULL), SL_ERR_EXHAUSTED);
    assert_int_equal(sl_remote_kv_pins_bytes(fixture->pins, NULL), first_bytes);
    sl_sleep_ms(2);
    name(fixture, &a);
    assert_int_equal(sl_remote_kv_pins_bytes(fixture->pins, NULL), 0);
    assert_int_equal(n_segments(fixture), 0);
}

// A segment that is held outlives its document, and no longer.
static void test_held_segments_end_with_their_last_use(void **state) {
    struct fixture *fixture = *state;
    const struct sl_document_remote_kv one = document(fixture, &a);
    const struct sl_capsule_id segments = sl_document_segments_id(&one.capsule, one.n_offloaded_heads, one.scan);
    const struct sl_capsule_id keys[] = {sl_document_segment_id(&segments, 0), sl_document_segment_id(&segments, 2)};
    name(fixture, &a);
    read_document(fixture, &a);
    assert_null(sl_remote_kv_pins_hold(fixture->pins, &keys[1]));
    assert_null(sl_remote_kv_pins_hold(fixture->pins, &a));
    struct sl_stored *stored = sl_remote_kv_pins_hold(fixture->pins, &keys[0]);
    assert_non_null(stored);
    assert_true(sl_kv_segment_head_is(stored->capsule.header, stored->capsule.header_bytes));
    name(fixture, NULL);
    assert_int_equal(n_segments(fixture), 1);
    sl_capsule_cache_release(fixture->parts.capsule_cache, stored);
    assert_int_equal(n_segments(fixture), 0);
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
        TEST(test_layers_are_forgotten_with_their_document),
        TEST(test_layers_stay_on_disk_while_their_document_is_named),
        TEST(test_segments_after_a_missing_one_are_forgotten),
        TEST(test_a_segment_on_disk_is_not_taken_for_a_capsule),
        TEST(test_prompts_that_wait_sleep),
        TEST(test_segments_that_arrive_are_checked),
        TEST(test_segments_that_arrive_are_bounded),
        TEST(test_held_segments_end_with_their_last_use),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
