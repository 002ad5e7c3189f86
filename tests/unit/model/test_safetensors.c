// SPDX-License-Identifier: Apache-2.0
// Purpose: safetensors files: what is read, and that no malformed, truncated or malicious file is believed.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include <sys/stat.h>

#include "engine/model/safetensors.h"
#include "tests/unit/temp_folder.h"

#define FILE_NAME "model.safetensors"
#define A         "\"a\": {\"dtype\": \"F32\", \"shape\": [2, 3], \"data_offsets\": [0, 24]}"
#define B         "\"b\": {\"dtype\": \"BF16\", \"shape\": [5], \"data_offsets\": [24, 34]}"

static enum sl_status open_one(const char *header, size_t data_bytes, struct sl_safetensors **tensors_out,
                               struct sl_error *err) {
    struct temp_folder folder = temp_folder_create();
    temp_folder_write_tensors(&folder, FILE_NAME, header, data_bytes);
    enum sl_status status = sl_safetensors_open(folder.path, tensors_out, err);
    temp_folder_destroy(&folder); // the mapping stays
    return status;
}

static void assert_refused(const char *header, size_t data_bytes, enum sl_status expected, const char *word) {
    struct sl_safetensors *tensors = NULL;
    struct sl_error err = {0};
    enum sl_status status = open_one(header, data_bytes, &tensors, &err);
    if (status != expected || strstr(err.text, word) == NULL) {
        fail_msg("%s: status %d (%s), expected %d saying %s", header, status, err.text, expected, word);
    }
    assert_null(tensors);
}

static void test_safetensors_reads_a_file(void **state) {
    struct sl_safetensors *tensors = NULL;
    struct sl_error err = {0};
    const struct sl_tensor *tensor;
    size_t n;
    (void)state;
    assert_int_equal(open_one("{\"__metadata__\": {\"format\": \"pt\"}, " B ", " A "}  ", 34, &tensors, &err), SL_OK);
    const struct sl_tensor *list = sl_safetensors_list(tensors, &n);
    assert_int_equal(n, 2);
    assert_string_equal(list[0].name, "a");
    assert_string_equal(list[1].name, "b");
    assert_int_equal(sl_safetensors_find(tensors, "a", 2, 2, 3, &tensor, &err), SL_OK);
    assert_int_equal(tensor->dtype, SL_F32);
    assert_int_equal(tensor->bytes, 24);
    assert_int_equal(tensor->data[23], 23);
    assert_int_equal(sl_safetensors_find(tensors, "b", 1, 5, 0, &tensor, &err), SL_OK);
    assert_int_equal(tensor->dtype, SL_BF16);
    assert_int_equal(tensor->data[0], 24);
    sl_safetensors_will_read(tensors);
    sl_tensor_drop_pages(tensor);
    assert_int_equal(tensor->data[0], 24);

    assert_int_equal(sl_safetensors_find(tensors, "c", 1, 5, 0, &tensor, &err), SL_ERR_NOT_FOUND);
    assert_string_equal(err.text, "tensor c is missing");
    assert_int_equal(sl_safetensors_find(tensors, "a", 2, 3, 2, &tensor, &err), SL_ERR_INVALID);
    assert_string_equal(err.text, "tensor a has shape [2, 3], expected [3, 2]");
    assert_int_equal(sl_safetensors_find(tensors, "b", 2, 5, 1, &tensor, &err), SL_ERR_INVALID);
    sl_safetensors_close(&tensors);
    assert_null(tensors);
    sl_safetensors_close(&tensors);
}

static void test_safetensors_finds_only_types_that_we_compute_with(void **state) {
    struct sl_safetensors *tensors = NULL;
    struct sl_error err = {0};
    const struct sl_tensor *tensor;
    (void)state;
    assert_int_equal(
        open_one("{\"n\": {\"dtype\": \"I64\", \"shape\": [1], \"data_offsets\": [0, 8]}}", 8, &tensors, &err), SL_OK);
    assert_int_equal(sl_safetensors_find(tensors, "n", 1, 1, 0, &tensor, &err), SL_ERR_UNSUPPORTED);
    assert_string_equal(err.text, "tensor n has dtype I64, expected F32, F16 or BF16");
    sl_safetensors_close(&tensors);
}

static void test_safetensors_refuses_malformed_headers(void **state) {
#define TENSOR(dtype, shape, offsets)                                                                                  \
    "{\"t\": {\"dtype\": \"" dtype "\", \"shape\": " shape ", \"data_offsets\": " offsets "}}"
    (void)state;
    assert_refused("{", 0, SL_ERR_INVALID, "header");
    assert_refused("[]", 0, SL_ERR_INVALID, "not a JSON object");
    assert_refused("{\"t\": 1}", 0, SL_ERR_INVALID, "tensor t");
    assert_refused("{" A ", " A "}", 24, SL_ERR_INVALID, "header"); // the same name twice
    assert_refused(TENSOR("F12", "[1]", "[0, 4]"), 4, SL_ERR_UNSUPPORTED, "F12");
    assert_refused(TENSOR("F32", "[1]", "[0, 4, 8]"), 8, SL_ERR_INVALID, "data_offsets");
    assert_refused(TENSOR("F32", "[1]", "[\"0\", 4]"), 4, SL_ERR_INVALID, "data_offsets");
    assert_refused(TENSOR("F32", "[-1]", "[0, 4]"), 4, SL_ERR_INVALID, "shape");
    assert_refused(TENSOR("F32", "[1.0]", "[0, 4]"), 4, SL_ERR_INVALID, "shape");
    assert_refused(TENSOR("F32", "[1,1,1,1,1,1,1,1,1]", "[0, 4]"), 4, SL_ERR_INVALID, "shape");
    assert_refused(TENSOR("F32", "[4611686018427387904, 4]", "[0, 0]"), 0, SL_ERR_INVALID, "shape"); // 2^64 bytes
    assert_refused(TENSOR("F32", "[1]", "[0, 5]"), 5, SL_ERR_INVALID, "5 bytes");
    assert_refused(TENSOR("F32", "[1]", "[4, 0]"), 4, SL_ERR_INVALID, "backwards");
    assert_refused(TENSOR("F32", "[1]", "[-4, 0]"), 4, SL_ERR_INVALID, "backwards");
    assert_refused(TENSOR("F32", "[1]", "[0, 4]"), 3, SL_ERR_INVALID, "truncated");
    assert_refused(TENSOR("F32", "[1]", "[0, 4]"), 5, SL_ERR_INVALID, "after the last");
    assert_refused(TENSOR("F32", "[1]", "[4, 8]"), 8, SL_ERR_INVALID, "gap");
    assert_refused("{" A ", \"b\": {\"dtype\": \"F32\", \"shape\": [2], \"data_offsets\": [20, 28]}}", 28,
                   SL_ERR_INVALID, "overlaps");
}

static void test_safetensors_refuses_impossible_header_lengths(void **state) {
    const uint64_t lengths[] = {1, 9, 1u << 30, UINT64_MAX, UINT64_MAX - 7};
    (void)state;
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        struct temp_folder folder = temp_folder_create();
        struct sl_safetensors *tensors = NULL;
        struct sl_error err = {0};
        uint64_t length = htole64(lengths[i]);
        char file[16] = "........{}      ";
        memcpy(file, &length, 8);
        temp_folder_write(&folder, FILE_NAME, file, sizeof file);
        assert_int_equal(sl_safetensors_open(folder.path, &tensors, &err), SL_ERR_INVALID);
        temp_folder_write(&folder, FILE_NAME, file, 7);
        assert_int_equal(sl_safetensors_open(folder.path, &tensors, &err), SL_ERR_INVALID);
        temp_folder_destroy(&folder);
    }
}

static void test_safetensors_names_a_git_lfs_pointer(void **state) {
    (void)state;
    struct temp_folder folder = temp_folder_create();
    struct sl_safetensors *tensors = NULL;
    struct sl_error err = {0};
    temp_folder_write_text(&folder, FILE_NAME,
                           "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 269060552\n");
    assert_int_equal(sl_safetensors_open(folder.path, &tensors, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "Git LFS pointer"));
    temp_folder_destroy(&folder);
}

static void test_safetensors_survives_every_truncation(void **state) {
    const char *header = "{" A ", " B "}";
    struct temp_folder folder = temp_folder_create();
    (void)state;
    temp_folder_write_tensors(&folder, FILE_NAME, header, 34);
    char path[128];
    snprintf(path, sizeof path, "%s/" FILE_NAME, folder.path);
    for (long bytes = (long)(8 + strlen(header) + 33); bytes >= 0; bytes--) {
        struct sl_safetensors *tensors = NULL;
        struct sl_error err = {0};
        assert_int_equal(truncate(path, bytes), 0);
        assert_int_equal(sl_safetensors_open(folder.path, &tensors, &err), SL_ERR_INVALID);
        assert_null(tensors);
    }
    temp_folder_destroy(&folder);
}

static enum sl_status open_sharded(const char *index, struct sl_error *err) {
    struct temp_folder folder = temp_folder_create();
    struct sl_safetensors *tensors = NULL;
    temp_folder_write_text(&folder, "model.safetensors.index.json", index);
    temp_folder_write_tensors(&folder, "one.safetensors", "{" A "}", 24);
    temp_folder_write_tensors(&folder, "two.safetensors",
                              "{\"b\": {\"dtype\": \"F16\", \"shape\": [5], \"data_offsets\": [0, 10]}}", 10);
    temp_folder_write_tensors(&folder, "again.safetensors", "{" A "}", 24);
    enum sl_status status = sl_safetensors_open(folder.path, &tensors, err);
    if (status == SL_OK) {
        size_t n;
        sl_safetensors_list(tensors, &n);
        assert_int_equal(n, 2);
    }
    sl_safetensors_close(&tensors);
    temp_folder_destroy(&folder);
    return status;
}

static void test_safetensors_shards(void **state) {
    struct sl_error err = {0};
    (void)state;
    assert_int_equal(open_sharded("{\"weight_map\": {\"a\": \"one.safetensors\", \"b\": \"two.safetensors\"}}", &err),
                     SL_OK);
    assert_int_equal(open_sharded("{\"weight_map\": {\"b\": \"one.safetensors\", \"a\": \"two.safetensors\"}}", &err),
                     SL_ERR_NOT_FOUND);
    assert_int_equal(open_sharded("{\"weight_map\": {\"c\": \"one.safetensors\"}}", &err), SL_ERR_NOT_FOUND);
    assert_non_null(strstr(err.text, "tensor c"));
    assert_int_equal(open_sharded("{\"weight_map\": {\"a\": \"three.safetensors\"}}", &err), SL_ERR_NOT_FOUND);
    assert_non_null(strstr(err.text, "three.safetensors"));
    assert_int_equal(open_sharded("{\"weight_map\": {\"a\": \"one.safetensors\", \"b\": \"again.safetensors\"}}", &err),
                     SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "more than one shard"));
    assert_int_equal(open_sharded("{}", &err), SL_ERR_INVALID);
    const char *paths[] = {"../one.safetensors", "/etc/passwd", "..", "", "x/one.safetensors", ".hidden"};
    for (size_t i = 0; i < sizeof paths / sizeof paths[0]; i++) {
        char index[128];
        snprintf(index, sizeof index, "{\"weight_map\": {\"a\": \"%s\"}}", paths[i]);
        assert_int_equal(open_sharded(index, &err), SL_ERR_INVALID);
        assert_non_null(strstr(err.text, "same folder"));
    }
    assert_int_equal(open_sharded("{\"weight_map\": {\"a\": 3}}", &err), SL_ERR_INVALID);
}

// No tensors at all: nothing to sort or to search, in one file and through an index.
static void test_safetensors_without_tensors(void **state) {
    struct sl_safetensors *tensors = NULL;
    struct sl_error err = {0};
    const struct sl_tensor *tensor;
    size_t n;
    (void)state;
    assert_int_equal(open_one("{}", 0, &tensors, &err), SL_OK);
    assert_non_null(sl_safetensors_list(tensors, &n));
    assert_int_equal(n, 0);
    assert_int_equal(sl_safetensors_find(tensors, "a", 1, 1, 0, &tensor, &err), SL_ERR_NOT_FOUND);
    sl_safetensors_close(&tensors);
    assert_refused("{}", 3, SL_ERR_INVALID, "3 bytes after the last tensor");

    struct temp_folder folder = temp_folder_create();
    temp_folder_write_tensors(&folder, "s1.safetensors", "{}", 0);
    temp_folder_write_text(&folder, "model.safetensors.index.json", "{\"weight_map\": {\"a\": \"s1.safetensors\"}}");
    assert_int_equal(sl_safetensors_open(folder.path, &tensors, &err), SL_ERR_NOT_FOUND);
    temp_folder_destroy(&folder);
}

// Without a writer, opening it must not wait.
static void test_safetensors_refuses_what_is_no_file(void **state) {
    (void)state;
    char path[384];
    struct sl_error err;
    struct sl_safetensors *tensors = NULL;
    struct temp_folder folder = temp_folder_create();
    snprintf(path, sizeof path, "%s/" FILE_NAME, folder.path);
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(sl_safetensors_open_file(folder.path, FILE_NAME, &tensors, &err), SL_ERR_IO);
    assert_non_null(strstr(err.text, "not a regular file"));
    temp_folder_destroy(&folder);
}

static void test_safetensors_missing_folder(void **state) {
    struct sl_safetensors *tensors = NULL;
    struct sl_error err = {0};
    (void)state;
    assert_int_equal(sl_safetensors_open("tests/no-such-folder", &tensors, &err), SL_ERR_NOT_FOUND);
    assert_non_null(strstr(err.text, "model.safetensors"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_safetensors_reads_a_file),
        cmocka_unit_test(test_safetensors_finds_only_types_that_we_compute_with),
        cmocka_unit_test(test_safetensors_refuses_malformed_headers),
        cmocka_unit_test(test_safetensors_refuses_impossible_header_lengths),
        cmocka_unit_test(test_safetensors_names_a_git_lfs_pointer),
        cmocka_unit_test(test_safetensors_survives_every_truncation),
        cmocka_unit_test(test_safetensors_shards),
        cmocka_unit_test(test_safetensors_without_tensors),
        cmocka_unit_test(test_safetensors_refuses_what_is_no_file),
        cmocka_unit_test(test_safetensors_missing_folder),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
