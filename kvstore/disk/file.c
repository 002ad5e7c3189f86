// SPDX-License-Identifier: Apache-2.0
#include "kvstore/disk/file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"

#define MAGIC       "SLUICEKV"
#define PREFIX      "capsule-"
#define PIECE_BYTES ((size_t)1 << 20) // hashed while it is still in the CPU caches

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the head in a file is the head in memory of little endian");
static_assert(sizeof(struct sl_disk_head) == 128, "without padding");

struct sl_disk_name sl_disk_file_name(uint64_t id) {
    struct sl_disk_name name;
    snprintf(name.text, sizeof name.text, PREFIX "%016" PRIx64, id);
    return name;
}

bool sl_disk_file_is_named(const char *name, uint64_t *id_out) {
    uint64_t id;
    if (sscanf(name, PREFIX "%16" SCNx64, &id) != 1) {
        return false;
    }
    *id_out = id;
    return strcmp(name, sl_disk_file_name(id).text) == 0;
}

int sl_disk_file_open(int dir_fd, uint64_t id) {
    int fd = openat(dir_fd, sl_disk_file_name(id).text, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd >= 0) {
        posix_fadvise(fd, 0, 0,
                      POSIX_FADV_RANDOM); // no readahead: a head is one to three pages, its body megabytes
    }
    return fd;
}

static size_t content_at(const struct sl_disk_head *head) {
    return sizeof *head + sizeof(struct sl_hash128) * head->n_hashes;
}

int64_t sl_disk_head_file_bytes(const struct sl_disk_head *head) {
    return (int64_t)(content_at(head) + head->header_bytes + head->body_bytes);
}

// Makes the head, without its digests.
static struct sl_disk_head head_of(const struct sl_stored *stored) {
    struct sl_disk_head head = {.version = SL_DISK_FILE_VERSION,
                                .n_hashes = (uint32_t)stored->keys.n_hashes,
                                .key = stored->keys.id,
                                .n_tokens = stored->n_tokens,
                                .stride = stored->keys.stride,
                                .header_bytes = stored->capsule.header_bytes,
                                .body_bytes = stored->capsule.body_bytes,
                                .tenant = stored->keys.tenant,
                                .read_ms = stored->keys.read_ms,
                                .read_tokens = stored->keys.read_tokens,
                                .stored_ms = sl_wall_ms()};
    memcpy(head.magic, MAGIC, sizeof head.magic);
    return head;
}

int64_t sl_disk_stored_file_bytes(const struct sl_stored *stored) {
    struct sl_disk_head head = head_of(stored);
    return sl_disk_head_file_bytes(&head);
}

static uint64_t digest_of(const struct sl_disk_head *head, const struct sl_hash128 *hashes) {
    uint64_t of_head = sl_hash(head, offsetof(struct sl_disk_head, digest), 0);
    of_head = sl_hash(&head->tenant, sizeof *head - offsetof(struct sl_disk_head, tenant), of_head);
    return sl_hash(hashes, sizeof *hashes * head->n_hashes, of_head);
}

// ---- writing --------------------------------------------------------------------------------------------------------

static enum sl_status write_failed(struct sl_error *err) {
    bool is_full = errno == ENOSPC || errno == EDQUOT;
    return sl_fail(err, is_full ? SL_ERR_EXHAUSTED : SL_ERR_IO, "cannot be written: %s", strerror(errno));
}

static enum sl_status write_at(int fd, size_t at, const void *data, size_t bytes, struct sl_error *err) {
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pwrite(fd, (const uint8_t *)data + done, bytes - done, (off_t)(at + done));
        if (n < 0 && errno != EINTR) {
            return write_failed(err);
        }
        done += n > 0 ? (size_t)n : 0;
    }
    return SL_OK;
}

struct content {
    int fd;
    bool (*go_on)(void *arg);
    void *arg;
    size_t at; // offset in the file
    uint64_t digest;
};

static enum sl_status write_content(struct content *content, const uint8_t *data, size_t bytes, struct sl_error *err) {
    for (size_t done = 0; done < bytes;) {
        size_t piece = bytes - done < PIECE_BYTES ? bytes - done : PIECE_BYTES;
        SL_FAIL_IF(content->go_on && !content->go_on(content->arg), err, SL_ERR_CANCELLED,
                   "given up while it was written");
        content->digest = sl_hash(data + done, piece, content->digest);
        SL_TRY(write_at(content->fd, content->at, data + done, piece, err));
        done += piece;
        content->at += piece;
    }
    return SL_OK;
}

enum sl_status sl_disk_file_write(int fd, const struct sl_stored *stored, bool (*go_on)(void *arg), void *arg,
                                  struct sl_disk_head *head_out, struct sl_error *err) {
    const struct sl_capsule_bytes *capsule = &stored->capsule;
    struct sl_disk_head head = head_of(stored);
    // Allocates the whole file first, so that a full disk is known early. If the file system cannot do that, writing
    // reports it.
    if (fallocate(fd, 0, 0, sl_disk_head_file_bytes(&head)) != 0 && (errno == ENOSPC || errno == EDQUOT)) {
        return write_failed(err);
    }
    struct content content = {fd, go_on, arg, content_at(&head), 0};
    SL_TRY(write_content(&content, capsule->header, capsule->header_bytes, err));
    SL_TRY(write_content(&content, capsule->body, capsule->body_bytes, err));
    SL_TRY(write_at(fd, sizeof head, stored->keys.hashes, sizeof(struct sl_hash128) * head.n_hashes, err));
    head.content_digest = content.digest;
    head.digest = digest_of(&head, stored->keys.hashes);
    SL_TRY(write_at(fd, 0, &head, sizeof head, err));
    *head_out = head;
    return SL_OK;
}

// ---- reading --------------------------------------------------------------------------------------------------------

// Returns how many of these bytes were read; -1: they cannot be read.
static ssize_t read_at(int fd, size_t at, void *data, size_t bytes) {
    size_t done = 0;
    while (done < bytes) {
        ssize_t n = pread(fd, (uint8_t *)data + done, bytes - done, (off_t)(at + done));
        if (n < 0 && errno != EINTR) {
            return -1;
        }
        if (n == 0) {
            break;
        }
        done += n > 0 ? (size_t)n : 0;
    }
    return (ssize_t)done;
}

// Returns true if the head's numbers fit a file of that size.
static bool is_plausible(const struct sl_disk_head *head, uint64_t file_bytes) {
    uint64_t left = file_bytes - content_at(head); // the caller has read at least that much
    return head->n_tokens > 0 && head->read_ms >= 0 && head->read_tokens >= 0 && head->header_bytes > 0 &&
           head->header_bytes <= SL_CAPSULE_MAX_HEADER_BYTES && head->header_bytes < left &&
           head->body_bytes == left - head->header_bytes &&
           (head->n_hashes == 0 || (head->stride > 0 && head->stride <= (head->n_tokens - 1) / head->n_hashes));
}

enum sl_status sl_disk_file_read_head(int fd, struct sl_disk_head *head_out,
                                      struct sl_hash128 hashes_out[SL_CAPSULE_CACHE_MAX_PREFIXES - 1],
                                      struct sl_error *err) {
    const size_t hash_bytes = (SL_CAPSULE_CACHE_MAX_PREFIXES - 1) * sizeof *hashes_out;
    struct sl_disk_head head = {0};
    struct stat file;
    ssize_t n = read_at(fd, 0, &head, sizeof head);
    ssize_t n_hashes = n == (ssize_t)sizeof head ? read_at(fd, sizeof head, hashes_out, hash_bytes) : 0;
    SL_FAIL_IF(n < 0 || n_hashes < 0 || fstat(fd, &file) != 0, err, SL_ERR_IO, "it cannot be read: %s",
               strerror(errno));
    SL_FAIL_IF((size_t)n < sizeof head || memcmp(head.magic, MAGIC, sizeof head.magic) != 0, err, SL_ERR_INVALID,
               "it is not a capsule, or was never finished");
    SL_FAIL_IF(head.version != SL_DISK_FILE_VERSION, err, SL_ERR_INVALID, "it is of version %u, this reads %d",
               head.version, SL_DISK_FILE_VERSION);
    SL_FAIL_IF(head.n_hashes >= SL_CAPSULE_CACHE_MAX_PREFIXES || (size_t)(n + n_hashes) < content_at(&head) ||
                   digest_of(&head, hashes_out) != head.digest,
               err, SL_ERR_INVALID, "its head is damaged");
    SL_FAIL_IF(!is_plausible(&head, (uint64_t)file.st_size), err, SL_ERR_INVALID,
               "it is cut short, or its head is wrong");
    *head_out = head;
    return SL_OK;
}

static enum sl_status read_content(struct content *content, uint8_t *data, size_t bytes, struct sl_error *err) {
    for (size_t done = 0; done < bytes;) {
        size_t piece = bytes - done < PIECE_BYTES ? bytes - done : PIECE_BYTES;
        ssize_t n = read_at(content->fd, content->at, data + done, piece);
        SL_FAIL_IF(n < 0, err, SL_ERR_IO, "it cannot be read: %s", strerror(errno));
        SL_FAIL_IF(n != (ssize_t)piece, err, SL_ERR_INVALID, "it is cut short");
        content->digest = sl_hash(data + done, piece, content->digest);
        done += piece;
        content->at += piece;
    }
    return SL_OK;
}

enum sl_status sl_disk_file_read_content(int fd, const struct sl_disk_head *head, uint8_t *header_out, void *body_out,
                                         struct sl_error *err) {
    struct content content = {.fd = fd, .at = content_at(head)};
    posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
    SL_TRY(read_content(&content, header_out, head->header_bytes, err));
    SL_TRY(read_content(&content, body_out, head->body_bytes, err));
    return content.digest == head->content_digest ? SL_OK : sl_fail(err, SL_ERR_INVALID, "it fails its digest");
}
