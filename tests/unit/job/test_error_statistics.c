// SPDX-License-Identifier: Apache-2.0
// Error estimates, written to a message, added up over both worker calls of a job, and messages that are invalid.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>

#include "engine/job/error_statistics.h"

static const struct sl_error_statistics made = {.n_layers = 2,
                                                .evicted_attention = {0.25f, 0},
                                                .evicting_rows = {300, 0},
                                                .key_error = {0.5f, 0.125f},
                                                .value_error = {2, 0}};

static void test_error_statistics_arrive_as_they_were_told(void **state) {
    (void)state;
    struct sl_error_statistics told = made, carried;
    Sluice__V1__Statistics message = SLUICE__V1__STATISTICS__INIT;
    sl_error_statistics_attach(&told, &message);
    size_t n = sluice__v1__statistics__get_packed_size(&message);
    uint8_t *bytes = malloc(n);
    sluice__v1__statistics__pack(&message, bytes);
    Sluice__V1__Statistics *seen = sluice__v1__statistics__unpack(NULL, n, bytes);
    sl_error_statistics_copy(seen, &carried);
    sluice__v1__statistics__free_unpacked(seen, NULL);
    free(bytes);
    assert_int_equal(carried.n_layers, 2);
    for (int l = 0; l < 2; l++) {
        assert_true(carried.evicted_attention[l] == made.evicted_attention[l]);
        assert_int_equal(carried.evicting_rows[l], made.evicting_rows[l]);
        assert_true(carried.key_error[l] == made.key_error[l] && carried.value_error[l] == made.value_error[l]);
    }
}

static void test_error_statistics_that_cannot_be_are_nothing_known(void **state) {
    (void)state;
    for (int i = 0; i <= 11; i++) {
        struct sl_error_statistics lie = made, copied;
        Sluice__V1__Statistics message = SLUICE__V1__STATISTICS__INIT;
        lie.evicted_attention[1] = i == 1 ? 1.5f : i == 2 ? -0.5f : i == 3 ? NAN : 0;
        lie.evicting_rows[1] = i == 4 ? -1 : i == 5 ? INT64_MAX : 0;
        lie.key_error[0] = i == 6 ? INFINITY : 0;
        lie.value_error[0] = i == 7 ? -1 : 0;
        sl_error_statistics_attach(&lie, &message);
        lie.message.n_evicting_rows -= i == 8;
        lie.message.n_key_error -= i == 9;
        lie.message.n_value_error -= i == 10;
        if (i == 11) { // lengths that agree, beyond any model: nothing is read
            lie.message.n_evicted_attention = lie.message.n_evicting_rows = lie.message.n_key_error =
                lie.message.n_value_error = SL_MAX_LAYERS + 1;
        }
        sl_error_statistics_copy(&message, &copied);
        assert_int_equal(copied.n_layers, i == 0 ? 2 : 0);
    }
    struct sl_error_statistics copied;
    Sluice__V1__Statistics nothing = SLUICE__V1__STATISTICS__INIT;
    sl_error_statistics_copy(&nothing, &copied);
    sl_error_statistics_attach(&copied, &nothing);
    assert_null(nothing.errors);
}

static void test_error_statistics_of_steps_count_by_their_rows(void **state) {
    (void)state;
    struct sl_error_statistics sum = made,
                               steps = {.n_layers = 2, .evicted_attention = {0.75f, 0.5f}, .evicting_rows = {100, 7}};
    sl_error_statistics_add_steps(&sum, &steps);
    assert_true(fabsf(sum.evicted_attention[0] - 0.375f) < 1e-6f); // (300 * 0.25 + 100 * 0.75) / 400
    assert_int_equal(sum.evicting_rows[0], 400);
    assert_true(sum.evicted_attention[1] == 0.5f);
    assert_int_equal(sum.evicting_rows[1], 7);
    assert_true(sum.key_error[0] == made.key_error[0] && sum.value_error[0] == made.value_error[0]);

    struct sl_error_statistics nothing = {0}, zero = {.n_layers = 2};
    sl_error_statistics_add_steps(&nothing, &steps); // prefill did not tell: half of a job is none
    assert_int_equal(nothing.n_layers, 0);
    sl_error_statistics_add_steps(&zero, &(struct sl_error_statistics){.n_layers = 2});
    assert_true(zero.evicted_attention[0] == 0 && zero.evicting_rows[0] == 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_error_statistics_arrive_as_they_were_told),
        cmocka_unit_test(test_error_statistics_that_cannot_be_are_nothing_known),
        cmocka_unit_test(test_error_statistics_of_steps_count_by_their_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
