// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/kvstore/disk/folder_harness.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void make_folder(struct fixture *fixture) {
    struct sl_error err = {0};
    strcpy(fixture->path, "/tmp/sluice-disk-XXXXXX");
    assert_non_null(mkdtemp(fixture->path));
    if (sl_disk_folder_open(fixture->path, 0, MAX_BYTES, NULL, &fixture->folder, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
}

static int remove_one(const char *path, const struct stat *file, int type, struct FTW *walk) {
    (void)file, (void)type, (void)walk;
    return remove(path);
}

static void remove_folder(struct fixture *fixture) {
    sl_disk_folder_close(&fixture->folder);
    nftw(fixture->path, remove_one, 8, FTW_DEPTH | FTW_PHYS);
}

int setup(void **state) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    make_folder(fixture);
    *state = fixture;
    return 0;
}

int teardown(void **state) {
    remove_folder(*state);
    free(*state);
    return 0;
}

void begin_anew(struct fixture *fixture) {
    remove_folder(fixture);
    make_folder(fixture);
}

void reopen(struct fixture *fixture) {
    struct sl_error err = {0};
    sl_disk_folder_close(&fixture->folder);
    if (sl_disk_folder_open(fixture->path, 0, MAX_BYTES, NULL, &fixture->folder, &err) != SL_OK) {
        fail_msg("%s", err.text);
    }
}

struct sl_hash128 hash_of(int seed, size_t block) {
    uint64_t halves[2] = {(uint64_t)block, (uint64_t)seed + 1};
    struct sl_hash128 hash;
    memcpy(&hash, halves, sizeof hash);
    return hash;
}

struct sl_stored *make_stored(int seed, size_t n_hashes, size_t body_bytes) {
    struct sl_stored *stored = calloc(1, sizeof *stored);
    stored->n_tokens = (int64_t)n_hashes * STRIDE + 7;
    stored->keys.id = (struct sl_capsule_id){11, 22, hash_of(seed, WHOLE)};
    stored->keys.n_hashes = n_hashes;
    stored->keys.stride = STRIDE;
    stored->keys.hashes = calloc(n_hashes + 1, sizeof *stored->keys.hashes);
    for (size_t i = 0; i < n_hashes; i++) {
        stored->keys.hashes[i] = hash_of(seed, i);
    }
    stored->capsule = (struct sl_capsule_bytes){malloc(body_bytes), body_bytes, malloc(1000), 1000};
    memset(stored->capsule.header, seed + 1, stored->capsule.header_bytes);
    memset(stored->capsule.body, seed + 1, body_bytes);
    uint64_t x = (uint64_t)seed + 1;
    for (size_t i = 0; i < body_bytes / sizeof x; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        memcpy((uint8_t *)stored->capsule.body + i * sizeof x, &x, sizeof x);
    }
    return stored;
}

void free_stored(struct sl_stored *stored) {
    free(stored->keys.hashes);
    free(stored->capsule.header);
    free(stored->capsule.body);
    free(stored);
}

enum sl_status write_capsule(struct fixture *fixture, int seed, size_t n_hashes, size_t body_bytes) {
    struct sl_stored *stored = make_stored(seed, n_hashes, body_bytes);
    enum sl_status status = sl_disk_folder_write(fixture->folder, stored, NULL, NULL, NULL);
    free_stored(stored);
    return status;
}

bool finds(struct fixture *fixture, struct sl_hash128 hash, int64_t n_tokens, struct sl_disk_entry *found_out) {
    struct sl_prefix prefix = {{11, 22, hash}, n_tokens};
    size_t at;
    return sl_disk_index_find(sl_disk_folder_index(fixture->folder), &prefix, 1, &at, found_out);
}

bool finds_whole(struct fixture *fixture, int seed, size_t n_hashes) {
    struct sl_disk_entry found;
    return finds(fixture, hash_of(seed, WHOLE), (int64_t)n_hashes * STRIDE + 7, &found);
}

enum sl_status read_back(struct fixture *fixture, const struct sl_disk_entry *found, int seed) {
    const struct sl_disk_head *head = &found->head;
    void *body = malloc(head->body_bytes);
    struct sl_capsule_bytes capsule;
    struct sl_capsule_keys keys;
    enum sl_status status = sl_disk_folder_read(fixture->folder, found, &fixture->unread, body, &capsule, &keys, NULL);
    if (status == SL_OK) {
        struct sl_stored *expected = make_stored(seed, head->n_hashes, head->body_bytes);
        assert_ptr_equal(capsule.body, body);
        assert_int_equal(capsule.body_bytes, expected->capsule.body_bytes);
        assert_memory_equal(body, expected->capsule.body, expected->capsule.body_bytes);
        assert_int_equal(capsule.header_bytes, expected->capsule.header_bytes);
        assert_memory_equal(capsule.header, expected->capsule.header, expected->capsule.header_bytes);
        assert_memory_equal(&keys.id, &expected->keys.id, sizeof keys.id);
        assert_int_equal(keys.n_hashes, expected->keys.n_hashes);
        assert_memory_equal(keys.hashes, expected->keys.hashes, sizeof *keys.hashes * keys.n_hashes);
        free_stored(expected);
        free(capsule.header);
        free(keys.hashes);
    }
    free(body);
    return status;
}

int64_t count(struct fixture *fixture, int64_t *bytes_out) {
    int64_t n, bytes;
    sl_disk_folder_get_size(fixture->folder, &n, &bytes);
    if (bytes_out) {
        *bytes_out = bytes;
    }
    return n;
}

void path_of(const struct fixture *fixture, uint64_t id, char path_out[128]) {
    snprintf(path_out, 128, "%s/%s", fixture->path, sl_disk_file_name(id).text);
}
