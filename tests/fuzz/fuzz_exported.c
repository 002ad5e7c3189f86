// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: libFuzzer target for documents in files: whatever the bytes are, in whatever pieces they come, reading them gives
 *          an error with a text, or the parts that the head announces, all of them; and the same for other pieces.
 *
 * Design: the first byte is the size of the pieces, the second says what digests are:
 *      r   SHA-256: a file that is read is written again, and has the same bytes
 *      z   zeros, so that the fuzzer gets beyond the head
 */
#include <stdlib.h>
#include <string.h>

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
    int64_t bytes[SL_EXPORTED_END]; // that were given out, of each part
    bool ended[SL_EXPORTED_END];
};

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
            require(!result->ended[slice.part]);
            result->bytes[slice.part] += (int64_t)slice.n;
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
    result.head = *sl_exported_reader_head(reader);
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

// Writes the file from its head and its own parts.
static void write_again(const uint8_t *data, size_t size, const struct sl_exported_head *head) {
    struct compared file = {data, 0, size};
    struct sl_exported_writer writer;
    const int64_t parts[] = {head->has_text ? head->text_bytes : -1, head->header_bytes, head->body_bytes,
                             head->layers_bytes > 0 ? head->layers_bytes : -1};
    require(sl_exported_writer_init(&writer, compare, &file, NULL) == SL_OK);
    require(sl_exported_write_head(&writer, head, NULL) == SL_OK);
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (parts[i] >= 0) {
            require(sl_exported_write(&writer, data + file.at, (size_t)parts[i], NULL) == SL_OK);
            require(sl_exported_end_part(&writer, NULL) == SL_OK);
        }
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
            memcmp(whole.ended, cut.ended, sizeof whole.ended) == 0);
    if (whole.status == SL_OK) {
        const struct sl_exported_head *head = &whole.head;
        require((uint64_t)sl_exported_file_bytes(head) == size);
        require(whole.bytes[SL_EXPORTED_TEXT] == (head->has_text ? head->text_bytes : 0) &&
                whole.bytes[SL_EXPORTED_HEADER] == head->header_bytes &&
                whole.bytes[SL_EXPORTED_BODY] == head->body_bytes &&
                whole.bytes[SL_EXPORTED_LAYERS] == head->layers_bytes && strlen(head->recipe) < sizeof head->recipe);
        write_again(data, size, head);
    }
    return 0;
}
