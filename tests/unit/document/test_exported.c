// SPDX-License-Identifier: Apache-2.0
// Purpose: a document's file is read as it was written, in any pieces; whatever is changed in it is refused, with its part.
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <stdlib.h>
#include <string.h>

#include "net/document/exported.h"
#include "tests/unit/scarce.h"

#define TEXT   "Once upon a time."
#define HEADER "header of a capsule"
#define BODY   "the body of the capsule, page after page"

#define N_SEGMENTS 2
static const char *const pages[N_SEGMENTS] = {"pages of the first segment", "and of the last"};

struct file {
    uint8_t bytes[4096];
    size_t n;
};

static enum sl_status append(void *arg, const void *bytes, size_t n, struct sl_error *err) {
    struct file *file = arg;
    (void)err;
    assert_true(file->n + n <= sizeof file->bytes);
    memcpy(file->bytes + file->n, bytes, n);
    file->n += n;
    return SL_OK;
}

static struct sl_exported_head make_head(bool has_text) {
    struct sl_exported_head head = {.model_fingerprint = 0x0123456789abcdef,
                                    .n_tokens = 7,
                                    .text_bytes = sizeof TEXT - 1,
                                    .header_bytes = sizeof HEADER - 1,
                                    .body_bytes = sizeof BODY - 1,
                                    .chat = true,
                                    .has_text = has_text,
                                    .recipe = "full,format=int4"};
    assert_int_equal(sl_sha256(TEXT, sizeof TEXT - 1, head.text_sha256, NULL), SL_OK);
    memset(head.tokens_sha256, 9, sizeof head.tokens_sha256);
    return head;
}

static int64_t layers_bytes(void) {
    return sl_exported_segment_bytes((int64_t)strlen(pages[0])) + sl_exported_segment_bytes((int64_t)strlen(pages[1]));
}

static void write_bytes(struct sl_exported_writer *writer, const char *bytes, size_t n) {
    assert_int_equal(sl_exported_write(writer, bytes, n, NULL), SL_OK);
    assert_int_equal(sl_exported_end_part(writer, NULL), SL_OK);
}

static void write_part(struct sl_exported_writer *writer, const char *text) {
    write_bytes(writer, text, strlen(text));
}

static void make_segment_head(int i, char head_out[SL_EXPORTED_SEGMENT_BYTES + 1]) {
    memset(head_out, 'a' + i, SL_EXPORTED_SEGMENT_BYTES);
    head_out[SL_EXPORTED_SEGMENT_BYTES] = '\0';
    memset(head_out + SL_EXPORTED_SEGMENT_BYTES - SL_EXPORTED_SEGMENT_SIZE, 0, SL_EXPORTED_SEGMENT_SIZE);
    head_out[SL_EXPORTED_SEGMENT_BYTES - SL_EXPORTED_SEGMENT_SIZE] = (char)strlen(pages[i]);
}

static void write_file(struct file *file, const struct sl_exported_head *head) {
    struct sl_exported_writer writer;
    file->n = 0;
    assert_int_equal(sl_exported_writer_init(&writer, append, file, NULL), SL_OK);
    assert_int_equal(sl_exported_write_head(&writer, head, NULL), SL_OK);
    if (head->has_text) {
        write_part(&writer, TEXT);
    }
    write_part(&writer, HEADER);
    write_part(&writer, BODY);
    for (int i = 0; i < N_SEGMENTS && head->layers_bytes > 0; i++) {
        char segment[SL_EXPORTED_SEGMENT_BYTES + 1];
        make_segment_head(i, segment);
        write_bytes(&writer, segment, SL_EXPORTED_SEGMENT_BYTES);
        write_part(&writer, pages[i]);
    }
    sl_exported_writer_cleanup(&writer);
    assert_int_equal(file->n, sl_exported_file_bytes(head));
}

// Reads a file in pieces of piece_bytes. parts_out: what each part's slices had, with a zero at the end; of segments' heads
// without their zeros.
#define PART_BYTES (2 * SL_EXPORTED_SEGMENT_BYTES + 1)
static enum sl_status read_file(const uint8_t *bytes, size_t n, size_t piece_bytes,
                                char parts_out[SL_EXPORTED_END][PART_BYTES], struct sl_exported_head *head_out,
                                struct sl_error *err) {
    struct sl_exported_reader *reader;
    enum sl_status status = sl_exported_reader_create(&reader, err);
    assert_int_equal(status, SL_OK);
    memset(parts_out, 0, SL_EXPORTED_END * sizeof parts_out[0]);
    for (size_t at = 0; at < n && status == SL_OK;) {
        size_t piece = n - at < piece_bytes ? n - at : piece_bytes;
        const uint8_t *next = bytes + at;
        at += piece;
        while (piece > 0 && status == SL_OK) {
            struct sl_exported_slice slice;
            status = sl_exported_reader_take(reader, &next, &piece, &slice, err);
            for (size_t i = 0; status == SL_OK && i < slice.n; i++) {
                strncat(parts_out[slice.part], (const char *)slice.bytes + i, 1);
            }
        }
    }
    status = status == SL_OK ? sl_exported_reader_finish(reader, err) : status;
    *head_out = *sl_exported_reader_head(reader);
    sl_exported_reader_destroy(&reader);
    return status;
}

static void test_exported_reader_reads_what_was_written(void **state) {
    (void)state;
    static const size_t pieces[] = {1, 7, 64, 100000};
    for (int round = 0; round < 4; round++) {
        bool has_text = round % 2, has_layers = round / 2;
        struct sl_exported_head head = make_head(has_text), got;
        struct file file;
        head.layers_bytes = has_layers ? layers_bytes() : 0;
        write_file(&file, &head);
        for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
            char parts[SL_EXPORTED_END][PART_BYTES];
            struct sl_error err = {0};
            assert_int_equal(read_file(file.bytes, file.n, pieces[i], parts, &got, &err), SL_OK);
            assert_string_equal(parts[SL_EXPORTED_HEAD], "");
            assert_string_equal(parts[SL_EXPORTED_TEXT], has_text ? TEXT : "");
            assert_string_equal(parts[SL_EXPORTED_HEADER], HEADER);
            assert_string_equal(parts[SL_EXPORTED_BODY], BODY);
            assert_string_equal(parts[SL_EXPORTED_SEGMENT_PAGES],
                                has_layers ? "pages of the first segmentand of the last" : "");
            assert_int_equal(strlen(parts[SL_EXPORTED_SEGMENT_HEAD]),
                             has_layers ? N_SEGMENTS * (SL_EXPORTED_SEGMENT_BYTES - SL_EXPORTED_SEGMENT_SIZE + 1) : 0);
            assert_int_equal(got.layers_bytes, head.layers_bytes);
            assert_int_equal(file.bytes[8], has_layers ? 2 : 1); // the version
            assert_string_equal(got.recipe, head.recipe);
            assert_memory_equal(got.text_sha256, head.text_sha256, sizeof head.text_sha256);
            assert_memory_equal(got.tokens_sha256, head.tokens_sha256, sizeof head.tokens_sha256);
            assert_true(got.model_fingerprint == head.model_fingerprint && got.n_tokens == head.n_tokens && got.chat &&
                        got.has_text == has_text && got.text_bytes == head.text_bytes);
        }
    }
}

// Returns where a segment begins in a file with text and layers.
static size_t segment_at(const struct sl_exported_head *head, int i) {
    size_t at = (size_t)(sl_exported_file_bytes(head) - head->layers_bytes);
    return i == 0 ? at : at + (size_t)sl_exported_segment_bytes((int64_t)strlen(pages[0]));
}

// Every byte counts: one that is changed, every length that is shorter, and one byte more.
static void test_exported_reader_names_the_damaged_part(void **state) {
    (void)state;
    struct sl_exported_head head = make_head(true), got;
    struct file file;
    char parts[SL_EXPORTED_END][PART_BYTES];
    head.layers_bytes = layers_bytes();
    write_file(&file, &head);
    const size_t text_at = 136 + strlen(head.recipe) + 32, header_at = text_at + sizeof TEXT - 1 + 32;
    const size_t body_at = header_at + sizeof HEADER - 1 + 32, layers_at = body_at + sizeof BODY - 1 + 32;
    assert_int_equal(layers_at, segment_at(&head, 0));
    for (size_t i = 0; i < file.n; i++) {
        struct sl_error err = {0};
        size_t in_segment = i - segment_at(&head, i >= segment_at(&head, 1));
        const char *part = i >= layers_at
                               ? in_segment < SL_EXPORTED_SEGMENT_BYTES + 32 ? "segment head" : "segment pages"
                           : i >= body_at   ? "capsule body"
                           : i >= header_at ? "capsule header"
                           : i >= text_at   ? "text"
                                            : "head";
        file.bytes[i] ^= 1;
        enum sl_status status = read_file(file.bytes, file.n, 64, parts, &got, &err);
        file.bytes[i] ^= 1;
        assert_true(status == SL_ERR_INVALID || (status == SL_ERR_UNSUPPORTED && i >= 8 && i < 12));
        if (i >= 136) { // the numbers before may be out of bounds, too
            assert_non_null(strstr(err.text, part));
            assert_non_null(strstr(err.text, "edited"));
        }
        status = read_file(file.bytes, i, 64, parts, &got, &err);
        assert_int_equal(status, SL_ERR_INVALID);
        assert_non_null(strstr(err.text, "cut short"));
        assert_non_null(strstr(err.text, part));
    }
    struct sl_error err = {0};
    assert_int_equal(read_file(file.bytes, file.n + 1, 64, parts, &got, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "follow its end"));
}

// A segment is used as soon as it is complete: its damage is found before anything of the next one is read.
static void test_exported_segment_is_checked_at_its_end(void **state) {
    (void)state;
    struct sl_exported_head head = make_head(true), got;
    struct file file;
    struct sl_error err = {0};
    char parts[SL_EXPORTED_END][PART_BYTES];
    head.layers_bytes = layers_bytes();
    write_file(&file, &head);
    file.bytes[segment_at(&head, 0) + SL_EXPORTED_SEGMENT_BYTES + 32] ^= 1;
    assert_int_equal(read_file(file.bytes, segment_at(&head, 1), 64, parts, &got, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "edited: its segment pages"));
}

static void test_exported_segment_out_of_bounds_is_refused(void **state) {
    (void)state;
    const int64_t most = layers_bytes() - sl_exported_segment_bytes(0);
    const uint64_t sizes[] = {
        0,         (uint64_t)most + 1, (uint64_t)(most - sl_exported_segment_bytes(1)) + 1, (uint64_t)most - 1,
        INT64_MAX, UINT64_MAX};
    struct sl_exported_head head = make_head(true), got;
    char parts[SL_EXPORTED_END][PART_BYTES];
    head.layers_bytes = layers_bytes();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct file file;
        struct sl_error err = {0};
        write_file(&file, &head);
        size_t end = segment_at(&head, 0) + SL_EXPORTED_SEGMENT_BYTES;
        for (int byte = 0; byte < SL_EXPORTED_SEGMENT_SIZE; byte++) {
            file.bytes[end - SL_EXPORTED_SEGMENT_SIZE + (size_t)byte] = (uint8_t)(sizes[i] >> (8 * byte));
        }
        assert_int_equal(sl_sha256(file.bytes, end, file.bytes + end, NULL), SL_OK);
        assert_int_equal(read_file(file.bytes, file.n, 64, parts, &got, &err), SL_ERR_INVALID);
        assert_non_null(strstr(err.text, "damaged: a segment with"));
    }
}

// Writes a number into the head, and signs the head again.
static void set(struct file *file, const struct sl_exported_head *head, size_t at, uint64_t value, int n_bytes) {
    size_t head_bytes = (head->layers_bytes > 0 ? 136 : 128) + strlen(head->recipe);
    for (int i = 0; i < n_bytes; i++) {
        file->bytes[at + (size_t)i] = (uint8_t)(value >> (8 * i));
    }
    assert_int_equal(sl_sha256(file->bytes, head_bytes, file->bytes + head_bytes, NULL), SL_OK);
}

static void test_exported_head_out_of_bounds_is_refused(void **state) {
    (void)state;
    static const struct {
        size_t at;
        uint64_t value;
        int n_bytes;
        enum sl_status status;
        const char *text;
    } cases[] = {
        {0, 'x', 1, SL_ERR_INVALID, "not a document"},
        {8, 3, 4, SL_ERR_UNSUPPORTED, "version 3 of document files; this program reads 1 to 2"},
        {8, 0, 4, SL_ERR_UNSUPPORTED, "version 0 of document files; this program reads 1 to 2"},
        {12, 4, 4, SL_ERR_INVALID, "out of bounds"}, // an unknown flag
        {24, 0, 8, SL_ERR_INVALID, "out of bounds"},
        {24, (uint64_t)INT32_MAX + 1, 8, SL_ERR_INVALID, "out of bounds"},
        {32, 0, 8, SL_ERR_INVALID, "out of bounds"},
        {32, SL_EXPORTED_MAX_TEXT_BYTES + 1, 8, SL_ERR_INVALID, "out of bounds"},
        {40, 0, 8, SL_ERR_INVALID, "out of bounds"},
        {40, (4 << 20) + 1, 8, SL_ERR_INVALID, "out of bounds"},
        {48, 0, 8, SL_ERR_INVALID, "out of bounds"},
        {48, UINT64_MAX, 8, SL_ERR_INVALID, "out of bounds"},
        {56, 0, 4, SL_ERR_INVALID, "out of bounds"},
        {56, SL_EXPORTED_RECIPE_BYTES, 4, SL_ERR_INVALID, "out of bounds"},
        {60, 1, 4, SL_ERR_INVALID, "out of bounds"},
        {130, '\n', 1, SL_ERR_INVALID, "not printable"},
        {130, 0x7f, 1, SL_ERR_INVALID, "not printable"},
    };
    struct sl_exported_head head = make_head(true), got;
    char parts[SL_EXPORTED_END][PART_BYTES];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct file file;
        struct sl_error err = {0};
        write_file(&file, &head);
        set(&file, &head, cases[i].at, cases[i].value, cases[i].n_bytes);
        assert_int_equal(read_file(file.bytes, file.n, 64, parts, &got, &err), cases[i].status);
        assert_non_null(strstr(err.text, cases[i].text));
    }
    const uint64_t sizes[] = {0, (uint64_t)sl_exported_segment_bytes(1) - 1, (UINT64_C(1) << 46) + 1, UINT64_MAX};
    head.layers_bytes = layers_bytes();
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct file file;
        struct sl_error err = {0};
        write_file(&file, &head);
        set(&file, &head, 128, sizes[i], 8);
        assert_int_equal(read_file(file.bytes, file.n, 64, parts, &got, &err), SL_ERR_INVALID);
        assert_non_null(strstr(err.text, "layers of"));
    }
}

struct pieces {
    size_t n, bytes, fails_at;
};

static enum sl_status count_piece(void *arg, const void *bytes, size_t n, struct sl_error *err) {
    struct pieces *pieces = arg;
    assert_true(n > 0 && n <= SL_EXPORTED_PIECE_BYTES);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(((const uint8_t *)bytes)[i], (pieces->bytes + i) % 251);
    }
    pieces->bytes += n;
    return ++pieces->n == pieces->fails_at ? sl_fail(err, SL_ERR_CANCELLED, "gone") : SL_OK;
}

static void test_exported_writer_sends_bounded_pieces(void **state) {
    (void)state;
    size_t n = 2 * SL_EXPORTED_PIECE_BYTES + 5;
    uint8_t *bytes = malloc(n);
    for (size_t i = 0; i < n; i++) {
        bytes[i] = (uint8_t)(i % 251);
    }
    for (size_t fails_at = 0; fails_at < 3; fails_at++) {
        struct pieces pieces = {.fails_at = fails_at};
        struct sl_exported_writer writer;
        assert_int_equal(sl_exported_writer_init(&writer, count_piece, &pieces, NULL), SL_OK);
        assert_int_equal(sl_exported_write(&writer, bytes, n, NULL), fails_at > 0 ? SL_ERR_CANCELLED : SL_OK);
        assert_int_equal(pieces.n, fails_at > 0 ? fails_at : 3);
        assert_true(fails_at > 0 || pieces.bytes == n);
        sl_exported_writer_cleanup(&writer);
    }
    free(bytes);
}

static enum sl_status make_reader(void *arg, struct sl_error *err) {
    return sl_exported_reader_create(arg, err);
}

static void test_exported_reader_without_memory(void **state) {
    (void)state;
    struct sl_exported_reader *reader = NULL;
    assert_int_equal(assert_refused_without_memory(make_reader, &reader), 2); // it, and its hash
    sl_exported_reader_destroy(&reader);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exported_reader_without_memory),
        cmocka_unit_test(test_exported_head_out_of_bounds_is_refused),
        cmocka_unit_test(test_exported_writer_sends_bounded_pieces),
        cmocka_unit_test(test_exported_reader_reads_what_was_written),
        cmocka_unit_test(test_exported_reader_names_the_damaged_part),
        cmocka_unit_test(test_exported_segment_is_checked_at_its_end),
        cmocka_unit_test(test_exported_segment_out_of_bounds_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
