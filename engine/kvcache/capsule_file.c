// SPDX-License-Identifier: Apache-2.0
#include "engine/kvcache/capsule_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/close.h"
#include "base/hash.h"
#include "base/little_endian.h"
#include "base/whole_file.h"

#define MAGIC        "SLUICECP"
#define PREFIX_BYTES 48
#define BLOCK_BYTES  ((size_t)1 << 20)

// --- bytes -----------------------------------------------------------------------------------------------------------

static enum sl_status write_at(int fd, const void *data, size_t bytes, off_t offset, struct sl_error *err) {
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pwrite(fd, (const char *)data + done, bytes - done, offset + (off_t)done);
        SL_FAIL_IF(n < 0 && errno != EINTR, err, SL_ERR_IO, "writing failed: %s", strerror(errno));
        done += n > 0 ? (size_t)n : 0;
    }
    return SL_OK;
}

static enum sl_status read_at(int fd, void *data, size_t bytes, off_t offset, struct sl_error *err) {
    for (size_t done = 0; done < bytes;) {
        ssize_t n = pread(fd, (char *)data + done, bytes - done, offset + (off_t)done);
        SL_FAIL_IF(n == 0, err, SL_ERR_INVALID, "the file ends early");
        SL_FAIL_IF(n < 0 && errno != EINTR, err, SL_ERR_IO, "reading failed: %s", strerror(errno));
        done += n > 0 ? (size_t)n : 0;
    }
    return SL_OK;
}

static uint64_t digest_of(const void *body, size_t bytes) {
    uint64_t digest = 0;
    for (size_t at = 0; at < bytes; at += BLOCK_BYTES) {
        digest = sl_hash((const char *)body + at, bytes - at < BLOCK_BYTES ? bytes - at : BLOCK_BYTES, digest);
    }
    return digest;
}

static uint64_t digest_of_head(const char *label, size_t label_bytes, const uint8_t *header, size_t header_bytes) {
    return sl_hash(header, header_bytes, sl_hash(label, label_bytes, 0));
}

// --- writing ---------------------------------------------------------------------------------------------------------

struct output {
    int fd;
    off_t offset;
    uint8_t *block; // [BLOCK_BYTES], the first n_block bytes are not written to the file yet
    size_t n_block;
    uint64_t digest;
    struct sl_error *err;
};

static enum sl_status flush_block(struct output *out) {
    if (out->n_block == 0) {
        return SL_OK;
    }
    enum sl_status status = write_at(out->fd, out->block, out->n_block, out->offset, out->err);
    out->digest = sl_hash(out->block, out->n_block, out->digest);
    out->offset += (off_t)out->n_block;
    out->n_block = 0;
    return status;
}

static enum sl_status add_piece(void *arg, const struct sl_capsule_piece *piece) {
    struct output *out = arg;
    for (size_t done = 0; done < piece->bytes;) {
        size_t room = BLOCK_BYTES - out->n_block, left = piece->bytes - done;
        size_t n = left < room ? left : room;
        memcpy(out->block + out->n_block, (const char *)piece->data + done, n);
        out->n_block += n;
        done += n;
        SL_TRY(out->n_block == BLOCK_BYTES ? flush_block(out) : SL_OK);
    }
    return SL_OK;
}

static enum sl_status write_body(struct output *out, const struct sl_session *session) {
    size_t offset = 0;
    enum sl_status status = SL_OK;
    for (int l = 0; l < session->geometry.n_layers && status == SL_OK; l++) {
        status = sl_capsule_layer_pieces(session, l, offset, BLOCK_BYTES, add_piece, out);
        offset += sl_capsule_layer_bytes(session, l);
    }
    return status == SL_OK ? flush_block(out) : status;
}

static enum sl_status write_all(int fd, const struct sl_session *session, const struct sl_capsule_id *id,
                                const char *label, struct sl_error *err) {
    uint8_t *header = NULL;
    size_t header_bytes = 0, label_bytes = strlen(label);
    SL_TRY(sl_capsule_write_header(session, id, &header, &header_bytes, err));
    struct output out = {.fd = fd, .offset = (off_t)(PREFIX_BYTES + label_bytes + header_bytes), .err = err};
    out.block = malloc(BLOCK_BYTES);
    if (out.block == NULL) {
        free(header);
        return sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
    }
    enum sl_status status = write_body(&out, session);
    if (status == SL_OK) {
        uint8_t prefix[PREFIX_BYTES];
        memcpy(prefix, MAGIC, 8);
        sl_put_bytes(prefix + 8, SL_CAPSULE_FILE_VERSION, 4);
        sl_put_bytes(prefix + 12, label_bytes, 4);
        sl_put_bytes(prefix + 16, header_bytes, 8);
        sl_put_bytes(prefix + 24, sl_capsule_body_bytes(session), 8);
        sl_put_bytes(prefix + 32, digest_of_head(label, label_bytes, header, header_bytes), 8);
        sl_put_bytes(prefix + 40, out.digest, 8);
        status = write_at(fd, prefix, sizeof prefix, 0, err);
    }
    SL_THEN(status, write_at(fd, label, label_bytes, PREFIX_BYTES, err));
    SL_THEN(status, write_at(fd, header, header_bytes, (off_t)(PREFIX_BYTES + label_bytes), err));
    free(out.block);
    free(header);
    return status;
}

enum sl_status sl_capsule_file_write(const char *path, const struct sl_session *session, const struct sl_capsule_id *id,
                                     const char *label, struct sl_error *err) {
    struct sl_whole_file whole;
    SL_FAIL_IF(strlen(label) >= SL_CAPSULE_LABEL_BYTES, err, SL_ERR_INVALID,
               "a capsule's label of %zu bytes; at most %d are possible", strlen(label), SL_CAPSULE_LABEL_BYTES - 1);
    SL_TRY(sl_whole_file_open(&whole, path, err));
    enum sl_status status = write_all(fileno(whole.file), session, id, label, err);
    if (status != SL_OK) {
        sl_error_prefix(err, path);
        sl_whole_file_abandon(&whole);
        return status;
    }
    return sl_whole_file_finish(&whole, err);
}

// --- reading ---------------------------------------------------------------------------------------------------------

static enum sl_status read_label(struct sl_capsule_file *file, size_t label_bytes, struct sl_error *err) {
    enum sl_status status = read_at(file->fd, file->label, label_bytes, PREFIX_BYTES, err);
    file->label[label_bytes] = '\0';
    for (size_t i = 0; i < label_bytes && status == SL_OK; i++) {
        if (file->label[i] < 0x20 || file->label[i] > 0x7e) {
            status = sl_fail(err, SL_ERR_INVALID, "its label is not printable text");
        }
    }
    return status;
}

// Reads everything except the body, and checks each number before it is used.
static enum sl_status read_head(struct sl_capsule_file *file, struct sl_error *err) {
    uint8_t prefix[PREFIX_BYTES];
    struct stat stat;
    SL_FAIL_IF(fstat(file->fd, &stat) != 0 || !S_ISREG(stat.st_mode), err, SL_ERR_INVALID, "not a file");
    SL_FAIL_IF(stat.st_size < PREFIX_BYTES || read_at(file->fd, prefix, sizeof prefix, 0, err) != SL_OK ||
                   memcmp(prefix, MAGIC, 8) != 0,
               err, SL_ERR_INVALID, "not a capsule; `sluice run --local --save-capsule FILE` makes one");
    uint64_t version = sl_get_bytes(prefix + 8, 4), label_bytes = sl_get_bytes(prefix + 12, 4),
             header_bytes = sl_get_bytes(prefix + 16, 8);
    uint64_t body_bytes = sl_get_bytes(prefix + 24, 8);
    SL_FAIL_IF(version != SL_CAPSULE_FILE_VERSION, err, SL_ERR_UNSUPPORTED,
               "version %llu of capsule files; this program reads version %d", (unsigned long long)version,
               SL_CAPSULE_FILE_VERSION);
    SL_FAIL_IF(label_bytes >= SL_CAPSULE_LABEL_BYTES || header_bytes < 1 ||
                   header_bytes > SL_CAPSULE_MAX_HEADER_BYTES || body_bytes > INT64_MAX / 2 ||
                   PREFIX_BYTES + label_bytes + header_bytes + body_bytes != (uint64_t)stat.st_size,
               err, SL_ERR_INVALID,
               "cut off or damaged: %lld bytes, but its parts are of %d, %llu, %llu and %llu bytes",
               (long long)stat.st_size, PREFIX_BYTES, (unsigned long long)label_bytes, (unsigned long long)header_bytes,
               (unsigned long long)body_bytes);
    file->body_digest = sl_get_bytes(prefix + 40, 8);
    file->header_bytes = (size_t)header_bytes;
    file->header = malloc(file->header_bytes);
    SL_FAIL_IF(file->header == NULL, err, SL_ERR_EXHAUSTED, "out of memory");
    enum sl_status status = read_label(file, (size_t)label_bytes, err);
    SL_THEN(status, read_at(file->fd, file->header, file->header_bytes, (off_t)(PREFIX_BYTES + label_bytes), err));
    if (status == SL_OK && digest_of_head(file->label, (size_t)label_bytes, file->header, file->header_bytes) !=
                               sl_get_bytes(prefix + 32, 8)) {
        status = sl_fail(err, SL_ERR_PEER_CORRUPT, "damaged: the digest of its header does not agree");
    }
    SL_THEN(status, sl_capsule_read_header(file->header, file->header_bytes, &file->info, err));
    if (status == SL_OK && file->info.body_bytes != body_bytes) {
        status = sl_fail(err, SL_ERR_INVALID, "damaged: a body of %llu bytes, its header says %zu",
                         (unsigned long long)body_bytes, file->info.body_bytes);
    }
    file->body_bytes = (size_t)body_bytes;
    return status;
}

enum sl_status sl_capsule_file_open(const char *path, struct sl_capsule_file *file, struct sl_error *err) {
    // Opens without blocking: a pipe without a writer is rejected below instead of waited for.
    *file = (struct sl_capsule_file){.fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
    SL_FAIL_IF(file->fd < 0, err, errno == ENOENT ? SL_ERR_NOT_FOUND : SL_ERR_IO, "%s: %s", path, strerror(errno));
    struct sl_error why = {0};
    enum sl_status status = read_head(file, &why);
    if (status != SL_OK) {
        sl_capsule_file_close(file);
        return sl_fail(err, status, "%s: %s", path, why.text);
    }
    return SL_OK;
}

enum sl_status sl_capsule_file_read_body(struct sl_capsule_file *file, void *body_out, struct sl_error *err) {
    off_t offset = (off_t)(PREFIX_BYTES + strlen(file->label) + file->header_bytes);
    SL_TRY(read_at(file->fd, body_out, file->body_bytes, offset, err));
    SL_FAIL_IF(digest_of(body_out, file->body_bytes) != file->body_digest, err, SL_ERR_PEER_CORRUPT,
               "damaged: the digest of the body does not agree");
    return SL_OK;
}

void sl_capsule_file_close(struct sl_capsule_file *file) {
    sl_close(file->fd);
    free(file->header);
    *file = (struct sl_capsule_file){.fd = -1};
}
