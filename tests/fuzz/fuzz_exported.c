// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: libFuzzer target for documents in files: whatever the bytes are, in whatever pieces they come, reading them gives
 *          an error with a text, or the parts that the head announces, all of them; and the same for other pieces. The heads
 *          of segments are read and checked as an import does (coordinator/documents_import.c): those that it accepts have
 *          the pages that they announce, and cover tokens without a gap.
 *
 * Design: the first byte is the size of the pieces, the second says what digests are:
 *      r   SHA-256: a file that is read is written again, and has the same bytes
 *      z   zeros, so that the fuzzer gets beyond the head
 */
#include <stdlib.h>
#include <string.h>

#include "base/little_endian.h"
#include "engine/offload/remote_kv/segment_head.h"
#include "net/document/exported.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
enum sl_status fuzz_sha256_get(struct sl_sha256 *sha, uint8_t hash_out[SL_SHA256_BYTES], struct sl_error *err);

static void require(bool holds) {
    if (!holds) {
        abort();
    }
}

static bool are_zeros; // the digests

enum sl_status fuzz_sha256_get(struct sl_sha256 *sha, uint8_t hash_out[SL_SHA256_BYTES], struct sl_error *err) {
    memset(hash_out, 0, SL_SHA256_BYTES);
    return are_zeros ? SL_OK : sl_sha256_get(sha, hash_out, err);
}

struct result {
    enum sl_status status;
    struct sl_exported_head head;
    int64_t bytes[SL_EXPORTED_END]; // that were given out, of each part, and of all segments together
    bool ended[SL_EXPORTED_END];
    int64_t segment_bytes; // of the current segment's part
    uint8_t segment[SL_EXPORTED_SEGMENT_BYTES];
    uint32_t n_segments;  // whose heads were accepted
    uint64_t pages_bytes; // of the last of them
    int64_t end;          // of their tokens
    bool is_refused;      // one was not
};

// Reads and checks the head of the next segment, which may not be believed in anything.
static void take_segment(struct result *result) {
    struct sl_kv_segment_head head;
    struct sl_kv_segment_config config;
    struct sl_error err = {0};
    enum sl_status status = sl_kv_segment_head_read(result->segment, sizeof result->segment, &head, &config, &err);
    require(status == SL_OK || err.text[0] != '\0');
    if (status == SL_OK) {
        const struct sl_kv_family family = head.family;
        status =
            sl_kv_segment_head_follows(&head, &family, result->n_segments, result->end, result->head.n_tokens, &err);
        require(status == SL_OK || status == SL_ERR_PRECONDITION);
    }
    if (status == SL_OK) {
        require(head.begin == result->end && head.begin + head.n_slots <= result->head.n_tokens &&
                sl_kv_segment_bytes(&config) > 0);
        result->end = head.begin + head.n_slots;
        result->pages_bytes = head.body_bytes;
        result->n_segments++;
    }
    result->is_refused = result->is_refused || status != SL_OK;
}

// Follows a slice of a segment's head or pages.
static void take_segment_slice(struct result *result, const struct sl_exported_slice *slice) {
    bool is_head = slice->part == SL_EXPORTED_SEGMENT_HEAD;
    if (is_head && slice->n > 0) {
        require(slice->n <= sizeof result->segment - (size_t)result->segment_bytes);
        memcpy(result->segment + result->segment_bytes, slice->bytes, slice->n);
    }
    result->segment_bytes += (int64_t)slice->n;
    if (slice->ends) {
        require(is_head ? result->segment_bytes == SL_EXPORTED_SEGMENT_BYTES
                        : result->is_refused || (uint64_t)result->segment_bytes == result->pages_bytes);
        result->segment_bytes = 0;
    }
    if (slice->ends && is_head && !result->is_refused) {
        take_segment(result);
    }
}

static enum sl_status take_piece(struct sl_exported_reader *reader, const uint8_t *bytes, size_t n,
                                 struct result *result, struct sl_error *err) {
    enum sl_status status = SL_OK;
    while (n > 0 && status == SL_OK) {
        const uint8_t *begin = bytes;
        size_t before = n;
        struct sl_exported_slice slice;
        status = sl_exported_reader_take(reader, &bytes, &n, &slice, err);
        if (status == SL_OK) {
            require(n < before && bytes == begin + (before - n) && slice.part < SL_EXPORTED_END);
            require(slice.n == 0 || (slice.bytes == begin && slice.n == before - n));
            require(slice.part == SL_EXPORTED_HEAD || result->ended[SL_EXPORTED_HEAD]);
            result->head = *sl_exported_reader_head(reader);
            result->bytes[slice.part] += (int64_t)slice.n;
            if (slice.part >= SL_EXPORTED_SEGMENT_HEAD) {
                require(result->ended[SL_EXPORTED_BODY]);
                take_segment_slice(result, &slice);
            } else {
                require(!result->ended[slice.part]);
            }
            result->ended[slice.part] = slice.ends;
        }
    }
    return status;
}

static struct result read_in(const uint8_t *data, size_t size, size_t piece) {
    struct result result = {0};
    struct sl_exported_reader *reader;
    struct sl_error err = {0};
    require(sl_exported_reader_create(&reader, &err) == SL_OK);
    for (size_t at = 0; at < size && result.status == SL_OK; at += piece) {
        result.status = take_piece(reader, data + at, size - at < piece ? size - at : piece, &result, &err);
    }
    if (result.status == SL_OK) {
        result.status = sl_exported_reader_finish(reader, &err);
    }
    require(result.status == SL_OK || err.text[0] != '\0');
    sl_exported_reader_destroy(&reader);
    return result;
}

struct compared {
    const uint8_t *bytes;
    size_t at, n;
};

static enum sl_status compare(void *arg, const void *bytes, size_t n, struct sl_error *err) {
    struct compared *file = arg;
    (void)err;
    require(n <= file->n - file->at && memcmp(file->bytes + file->at, bytes, n) == 0);
    file->at += n;
    return SL_OK;
}

// Writes one part; n_bytes -1: the file does not have it.
static void write_part(struct sl_exported_writer *writer, const uint8_t *bytes, int64_t n_bytes) {
    if (n_bytes >= 0) {
        require(sl_exported_write(writer, bytes, (size_t)n_bytes, NULL) == SL_OK);
        require(sl_exported_end_part(writer, NULL) == SL_OK);
    }
}

// Writes the file from its head and its own parts.
static void write_again(const uint8_t *data, size_t size, const struct sl_exported_head *head) {
    struct compared file = {data, 0, size};
    struct sl_exported_writer writer;
    const int64_t parts[] = {head->has_text ? head->text_bytes : -1, head->header_bytes, head->body_bytes};
    require(sl_exported_writer_init(&writer, compare, &file, NULL) == SL_OK);
    require(sl_exported_write_head(&writer, head, NULL) == SL_OK);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        write_part(&writer, data + file.at, parts[i]);
    }
    while (file.at < size) {
        const uint8_t *segment = data + file.at;
        write_part(&writer, segment, SL_EXPORTED_SEGMENT_BYTES);
        uint64_t pages =
            sl_get_bytes(segment + SL_EXPORTED_SEGMENT_BYTES - SL_EXPORTED_SEGMENT_SIZE, SL_EXPORTED_SEGMENT_SIZE);
        write_part(&writer, data + file.at, (int64_t)pages);
    }
    require(file.at == size);
    sl_exported_writer_cleanup(&writer);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 2 || (data[1] != 'r' && data[1] != 'z')) {
        return 0;
    }
    size_t piece = (size_t)data[0] + 1;
    are_zeros = data[1] == 'z';
    data += 2;
    size -= 2;
    struct result whole = read_in(data, size, size + 1), cut = read_in(data, size, piece);
    require(whole.status == cut.status && memcmp(whole.bytes, cut.bytes, sizeof whole.bytes) == 0 &&
            memcmp(whole.ended, cut.ended, sizeof whole.ended) == 0 && whole.n_segments == cut.n_segments &&
            whole.end == cut.end && whole.is_refused == cut.is_refused);
    if (whole.status == SL_OK) {
        const struct sl_exported_head *head = &whole.head;
        require((uint64_t)sl_exported_file_bytes(head) == size);
        require(whole.bytes[SL_EXPORTED_TEXT] == (head->has_text ? head->text_bytes : 0) &&
                whole.bytes[SL_EXPORTED_HEADER] == head->header_bytes &&
                whole.bytes[SL_EXPORTED_BODY] == head->body_bytes && strlen(head->recipe) < sizeof head->recipe);
        write_again(data, size, head);
    }
    return 0;
}
