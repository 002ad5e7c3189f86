// SPDX-License-Identifier: Apache-2.0
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/similar.h"

static const char *meant_by(const char *word) {
    static const char *const names[] = {"run", "up", "recipes", "streamingllm", "h2o", "d2o"};
    struct sl_similar best = {.word = word};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        sl_similar_offer(&best, names[i]);
    }
    return best.name ? best.name : "";
}

static void test_similar_finds_what_was_meant(void **state) {
    (void)state;
    static const char *const rows[][2] = {{"rnu", "run"},
                                          {"runn", "run"},
                                          {"h20", "h2o"},
                                          {"H2O", "h2o"},
                                          {"d20", "d2o"},
                                          {"recipe", "recipes"},
                                          {"streamngllm", "streamingllm"},
                                          {"streaminglmm", "streamingllm"},
                                          {"rceipse", "recipes"},
                                          {"raus", ""},
                                          {"pu", ""},
                                          {"", ""},
                                          {"h", ""},
                                          {"quite another", ""},
                                          {"recipes and words of more than 31 bytes", ""}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        assert_string_equal(meant_by(rows[i][0]), rows[i][1]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_similar_finds_what_was_meant),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
