// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: libFuzzer target for a store's folder of capsules as a start finds it. Whatever the files hold, the folder opens, it returns
 *          bytes of the very file that it names, it removes files that it does not know, and the next start finds the same.
 *
 * Input: files, one after the other: a byte that says what to correct in them, so that mutations get past digests and sizes; two bytes, how
 *        many follow; these. They were used in the order of the input.
 */
#include <stddef.h>

#include "base/hash.h"
#include "base/log.h"
#include "kvstore/disk/folder.h"
#include "tests/fuzz/fuzz_folder.h"

#define MAX_FILES 8

enum { RIGHT_MAGIC = 1, RIGHT_SIZES = 2, RIGHT_CONTENT = 4, RIGHT_DIGEST = 8 };

struct file {
    uint8_t bytes[1 << 16];
    size_t n;
};

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void mend(struct file *file, uint8_t what) {
    struct sl_disk_head head;
    if (file->n < sizeof head) {
        return;
    }
    memcpy(&head, file->bytes, sizeof head);
    if (what & RIGHT_MAGIC) {
        memcpy(head.magic, "SLUICEKV", sizeof head.magic);
        head.version = SL_DISK_FILE_VERSION;
        head.n_hashes %= SL_CAPSULE_CACHE_MAX_PREFIXES;
    }
    size_t content = sizeof head + sizeof(struct sl_hash128) * (size_t)head.n_hashes;
    if (head.n_hashes < SL_CAPSULE_CACHE_MAX_PREFIXES && content + 2 <= file->n) {
        size_t left = file->n - content;
        if (what & RIGHT_SIZES) {
            head.header_bytes = 1 + head.header_bytes % (left - 1);
            head.body_bytes = left - head.header_bytes;
        }
        if ((what & RIGHT_CONTENT) && head.header_bytes < left) {
            uint64_t of_header = sl_hash(file->bytes + content, head.header_bytes, 0);
            head.content_digest =
                sl_hash(file->bytes + content + head.header_bytes, left - head.header_bytes, of_header);
        }
        if (what & RIGHT_DIGEST) {
            uint64_t of_head = sl_hash(&head, offsetof(struct sl_disk_head, digest), 0);
            of_head = sl_hash(&head.tenant, sizeof head - offsetof(struct sl_disk_head, tenant), of_head);
            head.digest = sl_hash(file->bytes + sizeof head, content - sizeof head, of_head);
        }
    }
    memcpy(file->bytes, &head, sizeof head);
}

static struct sl_disk_folder *open_folder(void) {
    struct sl_disk_folder *folder;
    require(sl_disk_folder_open(fuzz_folder(), 0, SL_DISK_MIN_BYTES, NULL, &folder, NULL) == SL_OK);
    return folder;
}

static int64_t count(struct sl_disk_folder *folder) {
    int64_t n, bytes;
    sl_disk_folder_get_size(folder, &n, &bytes);
    require(n >= 0 && bytes >= n && bytes <= SL_DISK_MIN_BYTES);
    return n;
}

// Read what has been found: it is the end of a file that is there.
static void read_back(struct sl_disk_folder *folder, const struct sl_disk_entry *found, const struct file *files,
                      size_t n_files) {
    require(found->id < n_files);
    const struct file *file = &files[found->id];
    require(memcmp(&found->head, file->bytes, sizeof found->head) == 0);
    require(found->head.header_bytes + found->head.body_bytes < file->n);
    uint8_t *body = malloc(found->head.body_bytes);
    struct sl_capsule_bytes capsule;
    struct sl_capsule_keys keys;
    struct sl_disk_unread unread = {.n = 0};
    require(body != NULL);
    if (sl_disk_folder_read(folder, found, &unread, body, &capsule, &keys, NULL) == SL_OK) {
        size_t at = file->n - capsule.body_bytes;
        require(memcmp(capsule.body, file->bytes + at, capsule.body_bytes) == 0);
        require(memcmp(capsule.header, file->bytes + at - capsule.header_bytes, capsule.header_bytes) == 0);
        require(keys.n_hashes < SL_CAPSULE_CACHE_MAX_PREFIXES);
        free(capsule.header);
        free(keys.hashes);
    }
    free(body);
}

// Looks the capsule up by the prefixes that its file has.
static void ask(struct sl_disk_folder *folder, const struct file *files, size_t n_files, const struct file *file) {
    struct sl_disk_head head;
    if (file->n < sizeof head) {
        return;
    }
    memcpy(&head, file->bytes, sizeof head);
    for (uint64_t i = 0; i <= head.n_hashes && i < SL_CAPSULE_CACHE_MAX_PREFIXES; i++) {
        size_t at = sizeof head + sizeof(struct sl_hash128) * (size_t)i, which;
        struct sl_prefix prefix = {head.key, head.n_tokens};
        if (i < head.n_hashes && at + sizeof(struct sl_hash128) <= file->n) {
            memcpy(&prefix.id.prefix_hash, file->bytes + at, sizeof prefix.id.prefix_hash);
            prefix.n_tokens = (int64_t)((i + 1) * (uint64_t)head.stride);
        }
        struct sl_disk_entry found;
        if (sl_disk_index_find(sl_disk_folder_index(folder), &prefix, 1, &which, &found)) {
            read_back(folder, &found, files, n_files);
        }
    }
    sl_disk_folder_touch(folder, &head.key, NULL);
}

static void write_one(struct sl_disk_folder *folder) {
    struct sl_hash128 hashes[] = {{{5}}, {{6}}};
    uint8_t body[100] = {1}, header[10] = {2};
    struct sl_stored stored = {.keys = {.id = {1, 2, {{3}}}, .hashes = hashes, .n_hashes = 2, .stride = 64},
                               .n_tokens = 130,
                               .capsule = {body, sizeof body, header, sizeof header}};
    enum sl_status status = sl_disk_folder_write(folder, &stored, NULL, NULL, NULL);
    require(status == SL_OK || status == SL_ERR_EXISTS);
    struct sl_disk_entry entry;
    require(sl_disk_index_get(sl_disk_folder_index(folder), &stored.keys.id, &entry));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static struct file files[MAX_FILES];
    size_t n_files = 0;
    (void)sl_log_configure("error", NULL); // that a file was removed is no news here
    while (size > 3 && n_files < MAX_FILES) {
        struct file *file = &files[n_files];
        size_t n = data[1] | (size_t)data[2] << 8;
        file->n = n < size - 3 ? n : size - 3;
        memcpy(file->bytes, data + 3, file->n);
        mend(file, data[0]);
        data += 3 + file->n;
        size -= 3 + file->n;
        fuzz_folder_write(sl_disk_file_name(n_files++).text, file->bytes, file->n);
    }
    struct sl_disk_folder *folder = open_folder();
    require(count(folder) <= (int64_t)n_files);
    for (size_t i = 0; i < n_files; i++) {
        ask(folder, files, n_files, &files[i]);
    }
    write_one(folder);
    int64_t n = count(folder);
    sl_disk_folder_close(&folder);
    folder = open_folder();
    require(count(folder) == n);
    sl_disk_folder_close(&folder);
    for (size_t i = 0; i <= MAX_FILES; i++) {
        fuzz_folder_remove(sl_disk_file_name(i).text);
    }
    fuzz_folder_remove("owner");
    return 0;
}
