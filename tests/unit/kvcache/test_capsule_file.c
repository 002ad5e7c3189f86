// SPDX-License-Identifier: Apache-2.0
// Purpose: engine/kvcache/capsule_file.h: what is written is what is read, and no damage goes unnoticed.
#include "fixture.h"

#include <unistd.h>

#include "engine/kvcache/capsule_file.h"
#include "tests/unit/capsule_body.h"

static char path[] = "/tmp/sluice-capsule-XXXXXX";

static const struct sl_capsule_id id = {0x1111, 0x2222, {{0x33, 0x44}}};

static int make_path(void **state) {
    (void)state;
    int fd = mkstemp(path);
    return fd < 0 || close(fd);
}

static int remove_path(void **state) {
    (void)state;
    return unlink(path);
}

static uint8_t *body_of(const struct sl_session *session, size_t *bytes_out) {
    *bytes_out = sl_capsule_body_bytes(session);
    uint8_t *body = malloc(*bytes_out + 1);
    copy_body(session, body);
    return body;
}

static void test_capsule_file_returns_what_was_written(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        uint64_t random = seed;
        struct fixture f = fixture_create(ARENA_BYTES);
        struct sl_session *session = random_session(&random, f.arena, seed % 2 == 0);
        struct sl_error err = {0};
        assert_int_equal(sl_capsule_file_write(path, session, &id, "h2o,budget=0.2", &err), SL_OK);
        struct sl_capsule_file file;
        if (sl_capsule_file_open(path, &file, &err) != SL_OK) {
            fail_msg("seed %d: %s", (int)seed, err.text);
        }
        assert_string_equal(file.label, "h2o,budget=0.2");
        assert_int_equal(file.info.id.model_fingerprint, id.model_fingerprint);
        assert_true(sl_hash128_equals(&file.info.id.prefix_hash, &id.prefix_hash));
        assert_int_equal(file.info.n_tokens, session->n_tokens);
        size_t bytes;
        uint8_t *expected = body_of(session, &bytes), *body = malloc(bytes + 1);
        assert_int_equal(file.body_bytes, bytes);
        assert_int_equal(sl_capsule_file_read_body(&file, body, &err), SL_OK);
        assert_memory_equal(body, expected, bytes);
        free(body);
        free(expected);
        sl_capsule_file_close(&file);
        sl_session_destroy(&session);
        fixture_destroy(&f);
    }
}

static uint8_t *read_file(size_t *bytes_out) {
    FILE *stream = fopen(path, "rb");
    assert_non_null(stream);
    uint8_t *bytes = malloc(ARENA_BYTES);
    *bytes_out = fread(bytes, 1, ARENA_BYTES, stream);
    fclose(stream);
    return bytes;
}

static void write_file(const uint8_t *bytes, size_t n) {
    FILE *stream = fopen(path, "wb");
    assert_non_null(stream);
    assert_int_equal(fwrite(bytes, 1, n, stream), n);
    fclose(stream);
}

// Opens and reads; SL_OK only when nothing was noticed.
static enum sl_status read_back(void) {
    struct sl_capsule_file file;
    struct sl_error err = {0};
    enum sl_status status = sl_capsule_file_open(path, &file, &err);
    if (status == SL_OK) {
        void *body = malloc(file.body_bytes + 1);
        status = sl_capsule_file_read_body(&file, body, &err);
        free(body);
        sl_capsule_file_close(&file);
    }
    assert_true(status == SL_OK || err.text[0] != '\0');
    return status;
}

static void test_capsule_file_notices_every_damage(void **state) {
    (void)state;
    uint64_t random = 6;
    struct fixture f = fixture_create(ARENA_BYTES);
    struct sl_session *session = random_session(&random, f.arena, true);
    assert_int_equal(sl_capsule_file_write(path, session, &id, "full", NULL), SL_OK);
    assert_int_equal(read_back(), SL_OK);
    size_t n;
    uint8_t *bytes = read_file(&n);
    assert_true(n > 1000);
    for (int i = 0; i < 400; i++) { // every byte of what is in front, and some of the body
        size_t at = i < 200 ? (size_t)i : (size_t)(next_random(&random) % n);
        uint8_t bit = (uint8_t)(1u << random_int(&random, 0, 7));
        bytes[at] ^= bit;
        write_file(bytes, n);
        if (read_back() == SL_OK) {
            fail_msg("bit %d of byte %zu was changed, and nobody saw it", bit, at);
        }
        bytes[at] ^= bit;
    }
    static const size_t lengths[] = {0, 7, 47, 48, 100};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        write_file(bytes, lengths[i]);
        assert_int_not_equal(read_back(), SL_OK);
    }
    write_file(bytes, n - 1);
    assert_int_not_equal(read_back(), SL_OK);
    bytes[n] = 0;
    write_file(bytes, n + 1);
    assert_int_not_equal(read_back(), SL_OK);
    free(bytes);
    sl_session_destroy(&session);
    fixture_destroy(&f);
}

static void test_capsule_file_names_the_path_that_it_cannot_write(void **state) {
    (void)state;
    uint64_t random = 3;
    struct fixture f = fixture_create(ARENA_BYTES);
    struct sl_session *session = random_session(&random, f.arena, true);
    struct sl_error err = {0};
    assert_int_equal(sl_capsule_file_write("/nonexistent/x", session, &id, "full", &err), SL_ERR_IO);
    assert_non_null(strstr(err.text, "/nonexistent/x"));
    struct sl_capsule_file file;
    assert_int_equal(sl_capsule_file_open("/nonexistent/x", &file, &err), SL_ERR_NOT_FOUND);
    assert_int_equal(sl_capsule_file_open("/tmp", &file, &err), SL_ERR_INVALID);
    sl_session_destroy(&session);
    fixture_destroy(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_capsule_file_returns_what_was_written),
        cmocka_unit_test(test_capsule_file_notices_every_damage),
        cmocka_unit_test(test_capsule_file_names_the_path_that_it_cannot_write),
    };
    return cmocka_run_group_tests(tests, make_path, remove_path);
}
