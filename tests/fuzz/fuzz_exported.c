// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: libFuzzer target for documents in files: whatever the bytes are, in whatever pieces they come, reading them gives
 *          an error with a text, or the parts that the head announces, all of them; and the same for other pieces. The heads
 *          of segments go to the code that an import uses (coordinator/documents/imported_layers.h): those that it accepts have
 *          the pages that they announce, cover tokens without a gap, and take no more than they may.
 *
 * Design: the first byte is the size of the pieces, and says whether offloaded layers may take half of what they have, or
 *         more than all; the second says what digests are:
 *      r   SHA-256: a file that is read is written again, and has the same bytes
 *      z   zeros, so that the fuzzer gets beyond the head
 */
#include <stdlib.h>
#include <string.h>

#include "base/little_endian.h"
#include "coordinator/documents/imported_layers.h"
#include "net/document/exported.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
enum sl_status fuzz_sha256_get(struct sl_sha256 *sha, uint8_t hash_out[SL_SHA256_BYTES], struct sl_error *err);

static void require(bool holds) {
    if (!holds) {
        abort();
    }
}

static bool are_zeros; // the digests
static bool are_few;   // the bytes that offloaded layers may take

enum sl_status fuzz_sha256_get(struct sl_sha256 *sha, uint8_t hash_out[SL_SHA256_BYTES], struct sl_error *err) {
    memset(hash_out, 0, SL_SHA256_BYTES);
    return are_zeros ? SL_OK : sl_sha256_get(sha, hash_out, err);
}

struct result {
    enum sl_status status;
    struct sl_exported_head head;
    int64_t bytes[SL_EXPORTED_END]; // that were given out, of each part, and of all segments together
    bool ended[SL_EXPORTED_END];
    int64_t segment_bytes;            // of the current segment's part
    struct sl_imported_layers layers; // whose heads were accepted
    bool is_refused;                  // one was not
};

// Takes a slice of a segment's head as an import does. The first head says of what family the layers are.
static void take_head(struct result *result, const struct sl_exported_slice *slice) {
    struct sl_imported_layers *layers = &result->layers;
    struct sl_error err = {0};
    require(slice->n <= sizeof layers->head - layers->n_head);
    if (slice->ends && layers->n_segments == 0) {
        uint8_t bytes[sizeof layers->head];
        struct sl_kv_segment_head head;
        struct sl_kv_segment_config config;
        memcpy(bytes, layers->head, layers->n_head);
        memcpy(bytes + layers->n_head, slice->bytes, slice->n);
        if (sl_kv_segment_head_read(bytes, sizeof bytes, &head, &config, NULL) == SL_OK) {
            layers->family = head.family;
        }
        layers->n_tokens = result->head.n_tokens;
        layers->max_bytes = result->head.layers_bytes * (are_few ? 1 : 4) / 2; // indexes of keys come to the pages
    }
    const uint32_t n_before = layers->n_segments;
    const int64_t end = layers->segment.begin + layers->segment.n_slots, bytes = layers->bytes;
    enum sl_status status = sl_imported_layers_take(layers, slice->bytes, slice->n, slice->ends, &err);
    require(status == SL_OK || err.text[0] != '\0');
    require(layers->n_segments == n_before + (status == SL_OK && slice->ends) && layers->bytes <= layers->max_bytes);
    if (layers->n_segments > n_before) {
        const struct sl_kv_segment_head *head = &layers->segment;
        require(head->index == n_before && head->begin == end && head->n_slots > 0 &&
                head->begin + head->n_slots <= layers->n_tokens && layers->bytes > bytes &&
                memcmp(&head->family, &layers->family, sizeof head->family) == 0);
    }
    result->is_refused = status != SL_OK;
}

// Follows a slice of a segment's head or pages.
static void take_segment_slice(struct result *result, const struct sl_exported_slice *slice) {
    bool is_head = slice->part == SL_EXPORTED_SEGMENT_HEAD;
    result->segment_bytes += (int64_t)slice->n;
    if (is_head && !result->is_refused) {
        take_head(result, slice);
    }
    if (slice->ends) {
        require(is_head ? result->segment_bytes == SL_EXPORTED_SEGMENT_BYTES
                        : result->is_refused || (uint64_t)result->segment_bytes == result->layers.segment.body_bytes);
        result->segment_bytes = 0;
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
    are_few = data[0] % 2 == 0;
    data += 2;
    size -= 2;
    struct result whole = read_in(data, size, size + 1), cut = read_in(data, size, piece);
    require(whole.status == cut.status && memcmp(whole.bytes, cut.bytes, sizeof whole.bytes) == 0 &&
            memcmp(whole.ended, cut.ended, sizeof whole.ended) == 0 &&
            whole.layers.n_segments == cut.layers.n_segments && whole.layers.bytes == cut.layers.bytes &&
            whole.is_refused == cut.is_refused);
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
