// SPDX-License-Identifier: Apache-2.0
// Which device a word opens, and what is said where there is none. The loader finds a plugin here that finds no driver.
#include "engine/runtime/device_choice.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "engine/runtime/runtime.h"

static void test_device_choice_knows_its_words(void **state) {
    static const struct {
        const char *word;
        struct sl_device_choice choice;
    } words[] = {
        {NULL, {SL_DEVICE_CPU, 0, 1}},          {"auto", {SL_DEVICE_AUTO, 0, 1}},
        {"cpu", {SL_DEVICE_CPU, 0, 1}},         {"cuda", {SL_DEVICE_CUDA, 0, 1}},
        {"cuda:0", {SL_DEVICE_CUDA, 0, 1}},     {"cuda:13", {SL_DEVICE_CUDA, 13, 1}},
        {"cuda:0-3", {SL_DEVICE_CUDA, 0, 4}},   {"cuda:2-2", {SL_DEVICE_CUDA, 2, 1}},
        {"cuda:8-23", {SL_DEVICE_CUDA, 8, 16}}, {"emulated", {SL_DEVICE_EMULATED, 0, 1}},
    };
    (void)state;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        struct sl_device_choice choice = {SL_DEVICE_AUTO, -1, -1};
        assert_int_equal(sl_device_choice_parse(words[i].word, &choice, NULL), SL_OK);
        assert_int_equal(choice.kind, words[i].choice.kind);
        assert_int_equal(choice.index, words[i].choice.index);
        assert_int_equal(choice.ranks, words[i].choice.ranks);
    }
}

static void test_device_choice_takes_ranks_beside_its_word(void **state) {
    static const struct {
        const char *word;
        int asked, ranks; // 0: refused
    } cases[] = {{"emulated", 0, 1}, {"emulated", 1, 1}, {"emulated", 2, 2}, {"cuda:1", 3, 3}, {"cuda:0-3", 1, 4},
                 {"cuda:0-3", 4, 4}, {"cuda:0-3", 2, 0}, {"cpu", 16, 16},    {"cpu", 17, 0},   {"cpu", -1, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct sl_device_choice choice;
        assert_int_equal(sl_device_choice_parse(cases[i].word, &choice, NULL), SL_OK);
        assert_int_equal(sl_device_choice_add_ranks(&choice, cases[i].asked, NULL),
                         cases[i].ranks > 0 ? SL_OK : SL_ERR_INVALID);
        assert_true(cases[i].ranks == 0 || choice.ranks == cases[i].ranks);
    }
}

static void test_device_choice_refuses_what_it_does_not_know(void **state) {
    static const char *const words[] = {"",           "gpu",     "CUDA",     "cuda:",    "cuda:x",  "cuda:-1",
                                        "cuda:1,",    "cpu:0",   "cuda:3-1", "cuda:0-",  "cuda:-3", "cuda:0-3,5",
                                        "cuda:00001", "cuda:0 ", "cuda:+1",  "cuda:0--1"};
    (void)state;
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        struct sl_device_choice choice;
        struct sl_error err = {0};
        assert_int_equal(sl_device_choice_parse(words[i], &choice, &err), SL_ERR_INVALID);
        assert_non_null(strstr(err.text, "expected auto, cpu, cuda, cuda:N, cuda:A-B or emulated"));
    }
    struct sl_device_choice many;
    struct sl_error err = {0};
    assert_int_equal(sl_device_choice_parse("cuda:0-16", &many, &err), SL_ERR_INVALID);
    assert_string_equal(err.text, "--device cuda:0-16: 17 devices, and a model has at most 16 ranks");
}

static enum sl_status open_as(const char *word, const char *host_reader, char *name_out, struct sl_error *err) {
    struct sl_runtime_config config = {.device = word, .host_reader = host_reader, .threads = 1};
    struct sl_runtime runtime;
    enum sl_status status = sl_runtime_open(&config, &runtime, err);
    if (status == SL_OK) {
        strcpy(name_out, runtime.device->ops->name);
        sl_runtime_close(&runtime);
    }
    return status;
}

static void test_runtime_takes_the_processors_where_there_is_no_gpu(void **state) {
    struct sl_error err = {0};
    char name[16];
    (void)state;
    assert_int_equal(open_as("auto", NULL, name, &err), SL_OK);
    assert_string_equal(name, "cpu");
    assert_int_equal(open_as(NULL, NULL, name, &err), SL_OK);
    assert_string_equal(name, "cpu");
}

static void test_runtime_says_why_there_is_no_gpu(void **state) {
    struct sl_error err = {0};
    char name[16];
    (void)state;
    assert_int_equal(open_as("cuda", NULL, name, &err), SL_ERR_UNSUPPORTED);
    assert_string_equal(err.text, "no NVIDIA driver (CUDA says 35); nvidia-smi must work");
}

static void test_runtime_refuses_memory_that_its_reader_cannot_reach(void **state) {
    struct sl_error err = {0};
    char name[16];
    (void)state;
    assert_int_equal(open_as("emulated", NULL, name, &err), SL_OK);
    assert_int_equal(open_as("emulated", "a worker", name, &err), SL_ERR_UNSUPPORTED);
    assert_string_equal(err.text, "--device emulated: a worker reads tensors as the host, and has to use --device cpu");
    assert_int_equal(open_as("auto", "a worker", name, &err), SL_OK);
    assert_string_equal(name, "cpu");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_device_choice_knows_its_words),
        cmocka_unit_test(test_device_choice_takes_ranks_beside_its_word),
        cmocka_unit_test(test_device_choice_refuses_what_it_does_not_know),
        cmocka_unit_test(test_runtime_takes_the_processors_where_there_is_no_gpu),
        cmocka_unit_test(test_runtime_says_why_there_is_no_gpu),
        cmocka_unit_test(test_runtime_refuses_memory_that_its_reader_cannot_reach),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
