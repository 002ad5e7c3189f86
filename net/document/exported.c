// SPDX-License-Identifier: Apache-2.0
#include "net/document/exported.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/little_endian.h"

#define FIXED_BYTES      128 // of the head, before the recipe
#define LAYERS_BYTES     8   // between them, in version 2
#define CHAT             1u
#define HAS_TEXT         2u
#define MAX_HEADER_BYTES ((int64_t)4 << 20) // SL_CAPSULE_MAX_HEADER_BYTES
#define MAX_BODY_BYTES   ((int64_t)1 << 46)

static const char *const part_names[] = {"head",         "text",         "capsule header",
                                         "capsule body", "segment head", "segment pages"};

// Returns the bytes of a part before the segments, without its digest; -1: the file does not have it.
static int64_t part_bytes(const struct sl_exported_head *head, enum sl_exported_part part) {
    switch (part) {
    case SL_EXPORTED_HEAD:
        return FIXED_BYTES + (head->layers_bytes > 0 ? LAYERS_BYTES : 0) + (int64_t)strlen(head->recipe);
    case SL_EXPORTED_TEXT:
        return head->has_text ? head->text_bytes : -1;
    case SL_EXPORTED_HEADER:
        return head->header_bytes;
    case SL_EXPORTED_BODY:
        return head->body_bytes;
    default:
        return -1;
    }
}

int64_t sl_exported_segment_bytes(int64_t pages_bytes) {
    return SL_EXPORTED_SEGMENT_BYTES + SL_SHA256_BYTES + pages_bytes + SL_SHA256_BYTES;
}

int64_t sl_exported_file_bytes(const struct sl_exported_head *head) {
    int64_t bytes = head->layers_bytes;
    for (enum sl_exported_part part = SL_EXPORTED_HEAD; part <= SL_EXPORTED_BODY; part++) {
        int64_t n = part_bytes(head, part);
        bytes += n >= 0 ? n + SL_SHA256_BYTES : 0;
    }
    return bytes;
}

// ---- writing --------------------------------------------------------------------------------------------------------

enum sl_status sl_exported_writer_init(struct sl_exported_writer *writer,
                                       enum sl_status (*write_fn)(void *arg, const void *bytes, size_t n,
                                                                  struct sl_error *err),
                                       void *arg, struct sl_error *err) {
    *writer = (struct sl_exported_writer){.write_fn = write_fn, .arg = arg};
    return sl_sha256_create(&writer->sha, err);
}

void sl_exported_writer_cleanup(struct sl_exported_writer *writer) {
    sl_sha256_destroy(&writer->sha);
}

enum sl_status sl_exported_write(struct sl_exported_writer *writer, const void *bytes, size_t n, struct sl_error *err) {
    enum sl_status status = SL_OK;
    sl_sha256_add(writer->sha, bytes, n);
    for (size_t done = 0, now; done < n && status == SL_OK; done += now) {
        now = n - done < SL_EXPORTED_PIECE_BYTES ? n - done : SL_EXPORTED_PIECE_BYTES;
        status = writer->write_fn(writer->arg, (const char *)bytes + done, now, err);
    }
    return status;
}

enum sl_status sl_exported_end_part(struct sl_exported_writer *writer, struct sl_error *err) {
    uint8_t digest[SL_SHA256_BYTES];
    SL_TRY(sl_sha256_get(writer->sha, digest, err));
    return sl_exported_write(writer, digest, sizeof digest, err);
}

enum sl_status sl_exported_write_head(struct sl_exported_writer *writer, const struct sl_exported_head *head,
                                      struct sl_error *err) {
    uint8_t bytes[SL_EXPORTED_HEAD_BYTES] = SL_EXPORTED_MAGIC;
    size_t recipe_bytes = strlen(head->recipe), recipe_at = FIXED_BYTES;
    sl_put_bytes(bytes + 8, (uint64_t)sl_exported_version(head), 4);
    sl_put_bytes(bytes + 12, (head->chat ? CHAT : 0) | (head->has_text ? HAS_TEXT : 0), 4);
    sl_put_bytes(bytes + 16, head->model_fingerprint, 8);
    sl_put_bytes(bytes + 24, (uint64_t)head->n_tokens, 8);
    sl_put_bytes(bytes + 32, (uint64_t)head->text_bytes, 8);
    sl_put_bytes(bytes + 40, (uint64_t)head->header_bytes, 8);
    sl_put_bytes(bytes + 48, (uint64_t)head->body_bytes, 8);
    sl_put_bytes(bytes + 56, recipe_bytes, 4);
    memcpy(bytes + 64, head->text_sha256, SL_SHA256_BYTES);
    memcpy(bytes + 96, head->tokens_sha256, SL_SHA256_BYTES);
    if (head->layers_bytes > 0) {
        sl_put_bytes(bytes + recipe_at, (uint64_t)head->layers_bytes, LAYERS_BYTES);
        recipe_at += LAYERS_BYTES;
    }
    memcpy(bytes + recipe_at, head->recipe, recipe_bytes);
    SL_TRY(sl_exported_write(writer, bytes, recipe_at + recipe_bytes, err));
    return sl_exported_end_part(writer, err);
}

// ---- reading --------------------------------------------------------------------------------------------------------

struct sl_exported_reader {
    struct sl_sha256 *sha;
    struct sl_exported_head head;
    uint8_t bytes[SL_EXPORTED_HEAD_BYTES]; // the head, or a segment's, until it is read
    uint8_t digest[SL_SHA256_BYTES];
    enum sl_exported_part part;
    int64_t at;       // bytes of the part, and then of its digest, that were taken
    int64_t size;     // of the part; of the head first the fixed bytes
    int64_t layers;   // bytes of layers_bytes that belong to segments after the current one
    size_t recipe_at; // in the head; 0: the fixed bytes are not read yet
};

enum sl_status sl_exported_reader_create(struct sl_exported_reader **reader_out, struct sl_error *err) {
    SL_NEW_OR_FAIL(struct sl_exported_reader, reader, err, "no memory to read a document");
    SL_TRY_OR(sl_sha256_create(&reader->sha, err), free(reader));
    reader->size = FIXED_BYTES;
    *reader_out = reader;
    return SL_OK;
}

void sl_exported_reader_destroy(struct sl_exported_reader **reader_inout) {
    SL_TAKE_OR_RETURN(reader, reader_inout);
    sl_sha256_destroy(&reader->sha);
    free(reader);
}

const struct sl_exported_head *sl_exported_reader_head(const struct sl_exported_reader *reader) {
    return &reader->head;
}

// Reads the fixed bytes of the head, and checks every number.
static enum sl_status read_fixed(struct sl_exported_reader *reader, struct sl_error *err) {
    const uint8_t *bytes = reader->bytes;
    struct sl_exported_head *head = &reader->head;
    SL_FAIL_IF(memcmp(bytes, SL_EXPORTED_MAGIC, 8) != 0, err, SL_ERR_INVALID,
               "not a document; `sluice doc export` makes such files");
    uint64_t version = sl_get_bytes(bytes + 8, 4), flags = sl_get_bytes(bytes + 12, 4),
             recipe_bytes = sl_get_bytes(bytes + 56, 4);
    SL_FAIL_IF(version < 1 || version > SL_EXPORTED_VERSION, err, SL_ERR_UNSUPPORTED,
               "version %" PRIu64 " of document files; this program reads 1 to %d", version, SL_EXPORTED_VERSION);
    head->model_fingerprint = sl_get_bytes(bytes + 16, 8);
    uint64_t n_tokens = sl_get_bytes(bytes + 24, 8), text_bytes = sl_get_bytes(bytes + 32, 8),
             header_bytes = sl_get_bytes(bytes + 40, 8);
    uint64_t body_bytes = sl_get_bytes(bytes + 48, 8);
    if (flags > (CHAT | HAS_TEXT) || n_tokens < 1 || n_tokens > INT32_MAX || text_bytes < 1 ||
        text_bytes > SL_EXPORTED_MAX_TEXT_BYTES || header_bytes < 1 || header_bytes > MAX_HEADER_BYTES ||
        body_bytes < 1 || body_bytes > MAX_BODY_BYTES || recipe_bytes < 1 || recipe_bytes >= SL_EXPORTED_RECIPE_BYTES ||
        sl_get_bytes(bytes + 60, 4) != 0) {
        return sl_fail(err, SL_ERR_INVALID,
                       "damaged: flags %" PRIu64 ", %" PRIu64 " tokens, and parts of %" PRIu64 ", %" PRIu64 ", %" PRIu64
                       " and %" PRIu64 " bytes are out of bounds",
                       flags, n_tokens, recipe_bytes, text_bytes, header_bytes, body_bytes);
    }
    head->n_tokens = (int64_t)n_tokens;
    head->text_bytes = (int64_t)text_bytes;
    head->header_bytes = (int64_t)header_bytes;
    head->body_bytes = (int64_t)body_bytes;
    head->chat = (flags & CHAT) != 0;
    head->has_text = (flags & HAS_TEXT) != 0;
    memcpy(head->text_sha256, bytes + 64, SL_SHA256_BYTES);
    memcpy(head->tokens_sha256, bytes + 96, SL_SHA256_BYTES);
    reader->recipe_at = FIXED_BYTES + (version > 1 ? LAYERS_BYTES : 0);
    reader->size = (int64_t)(reader->recipe_at + recipe_bytes);
    return SL_OK;
}

// Reads what follows the fixed bytes of the head.
static enum sl_status read_rest(struct sl_exported_reader *reader, struct sl_error *err) {
    size_t n = (size_t)reader->size - reader->recipe_at;
    const uint8_t *recipe = reader->bytes + reader->recipe_at;
    if (reader->recipe_at > FIXED_BYTES) {
        uint64_t layers_bytes = sl_get_bytes(reader->bytes + FIXED_BYTES, LAYERS_BYTES);
        SL_FAIL_IF(layers_bytes < (uint64_t)sl_exported_segment_bytes(1) || layers_bytes > MAX_BODY_BYTES, err,
                   SL_ERR_INVALID, "damaged: layers of %" PRIu64 " bytes are out of bounds", layers_bytes);
        reader->head.layers_bytes = reader->layers = (int64_t)layers_bytes;
    }
    for (size_t i = 0; i < n; i++) {
        SL_FAIL_IF(recipe[i] < 0x20 || recipe[i] > 0x7e, err, SL_ERR_INVALID,
                   "damaged: its recipe is not printable text");
    }
    memcpy(reader->head.recipe, recipe, n);
    reader->head.recipe[n] = '\0';
    return SL_OK;
}

// Reads how many bytes of pages follow a segment's head, whose digest agrees.
static enum sl_status read_segment(struct sl_exported_reader *reader, struct sl_error *err) {
    const int64_t most = reader->layers - sl_exported_segment_bytes(0);
    uint64_t pages =
        sl_get_bytes(reader->bytes + SL_EXPORTED_SEGMENT_BYTES - SL_EXPORTED_SEGMENT_SIZE, SL_EXPORTED_SEGMENT_SIZE);
    int64_t left = most - (int64_t)(pages < (uint64_t)most ? pages : (uint64_t)most);
    SL_FAIL_IF(pages < 1 || pages > (uint64_t)most || (left > 0 && left < sl_exported_segment_bytes(1)), err,
               SL_ERR_INVALID,
               "damaged: a segment with %" PRIu64 " bytes of pages in the last %" PRId64 " bytes of offloaded layers",
               pages, reader->layers);
    reader->layers = left;
    reader->size = (int64_t)pages;
    return SL_OK;
}

// Goes on to the next part that the file has.
static void next_part(struct sl_exported_reader *reader) {
    reader->at = 0;
    do {
        reader->part++;
        reader->size = part_bytes(&reader->head, reader->part);
    } while (reader->size < 0 && reader->part < SL_EXPORTED_SEGMENT_HEAD);
    if (reader->part >= SL_EXPORTED_SEGMENT_HEAD) { // after the body, or a segment's pages
        reader->part = reader->layers > 0 ? SL_EXPORTED_SEGMENT_HEAD : SL_EXPORTED_END;
        reader->size = SL_EXPORTED_SEGMENT_BYTES;
    }
}

// Compares the digest of a part that is complete, and goes on to the next part that the file has.
static enum sl_status end_part(struct sl_exported_reader *reader, struct sl_exported_slice *slice,
                               struct sl_error *err) {
    uint8_t digest[SL_SHA256_BYTES];
    enum sl_status status = sl_sha256_get(reader->sha, digest, err);
    SL_THEN_FAIL_IF(status, memcmp(digest, reader->digest, sizeof digest) != 0, err, SL_ERR_INVALID,
                    "damaged or edited: its %s fails its digest", part_names[reader->part]);
    SL_THEN_IF(status, reader->part == SL_EXPORTED_HEAD, read_rest(reader, err));
    SL_THEN_IF(status, reader->part == SL_EXPORTED_SEGMENT_HEAD, read_segment(reader, err));
    SL_TRY(status);
    sl_sha256_add(reader->sha, reader->digest, sizeof reader->digest);
    slice->ends = true;
    if (reader->part == SL_EXPORTED_SEGMENT_HEAD) {
        reader->at = 0;
        reader->part = SL_EXPORTED_SEGMENT_PAGES;
    } else {
        next_part(reader);
    }
    return SL_OK;
}

enum sl_status sl_exported_reader_take(struct sl_exported_reader *reader, const uint8_t **bytes_inout, size_t *n_inout,
                                       struct sl_exported_slice *slice_out, struct sl_error *err) {
    *slice_out = (struct sl_exported_slice){.part = reader->part, .bytes = *bytes_inout};
    SL_FAIL_IF(reader->part == SL_EXPORTED_END, err, SL_ERR_INVALID, "damaged: bytes follow its end");
    bool in_digest = reader->at >= reader->size;
    int64_t left = (in_digest ? reader->size + SL_SHA256_BYTES : reader->size) - reader->at;
    size_t n = *n_inout < (uint64_t)left ? *n_inout : (size_t)left;
    if (in_digest) {
        memcpy(reader->digest + (reader->at - reader->size), *bytes_inout, n);
    } else {
        sl_sha256_add(reader->sha, *bytes_inout, n);
        if (reader->part == SL_EXPORTED_HEAD || reader->part == SL_EXPORTED_SEGMENT_HEAD) {
            memcpy(reader->bytes + reader->at, *bytes_inout, n);
        }
        slice_out->n = reader->part == SL_EXPORTED_HEAD ? 0 : n;
    }
    *bytes_inout += n;
    *n_inout -= n;
    reader->at += (int64_t)n;
    if (reader->recipe_at == 0 && reader->at == reader->size) {
        return read_fixed(reader, err);
    }
    return reader->at == reader->size + SL_SHA256_BYTES ? end_part(reader, slice_out, err) : SL_OK;
}

enum sl_status sl_exported_reader_finish(const struct sl_exported_reader *reader, struct sl_error *err) {
    return reader->part == SL_EXPORTED_END
               ? SL_OK
               : sl_fail(err, SL_ERR_INVALID, "cut short: it ends in its %s", part_names[reader->part]);
}
