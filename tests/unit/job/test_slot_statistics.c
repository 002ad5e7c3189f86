// SPDX-License-Identifier: Apache-2.0
// The slots of a session, written to a message, and messages that are invalid.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/job/slot_statistics.h"

#define ARENA_BYTES ((size_t)4 << 20)

// Two layers of two heads: 100 and 70 slots, the first page of head 0 quantized; then 5 slots each.
static struct sl_session *make_session(struct sl_arena *arena) {
    struct sl_page_layout work[2], packed[2];
    for (int l = 0; l < 2; l++) {
        assert_int_equal(sl_page_layout_init(&work[l], SL_KV_F16, 64, 0, true), SL_OK);
        assert_int_equal(sl_page_layout_init(&packed[l], SL_KV_INT4, 64, 0, true), SL_OK);
    }
    struct sl_session_config config = {{2, 2, 64}, SL_POSITION_ORIGINAL, 200, work, packed};
    struct sl_session *session;
    assert_int_equal(sl_session_create(&config, arena, &session, NULL), SL_OK);
    assert_int_equal(sl_session_reserve(session, 0, 100), SL_OK);
    assert_int_equal(sl_session_reserve(session, 1, 5), SL_OK);
    sl_session_set_slots(session, 0, 0, 100);
    sl_session_set_slots(session, 0, 1, 70);
    sl_session_set_slots(session, 1, 0, 5);
    sl_session_set_slots(session, 1, 1, 5);
    sl_session_pack_page(session, 0, 0, sl_arena_alloc(arena, packed[0].bytes));
    return session;
}

static void test_slot_statistics_tell_what_a_session_holds(void **state) {
    (void)state;
    void *memory = aligned_alloc(SL_ARENA_UNIT, ARENA_BYTES);
    struct sl_arena *arena;
    assert_int_equal(sl_arena_create(memory, ARENA_BYTES, &arena, NULL), SL_OK);
    struct sl_session *session = make_session(arena);
    struct sl_slot_statistics measured, carried;
    sl_slot_statistics_measure(session, &measured);
    Sluice__V1__Statistics message = SLUICE__V1__STATISTICS__INIT;
    sl_slot_statistics_attach(&measured, &message);

    size_t n = sluice__v1__statistics__get_packed_size(&message);
    uint8_t *bytes = malloc(n);
    sluice__v1__statistics__pack(&message, bytes);
    Sluice__V1__Statistics *seen = sluice__v1__statistics__unpack(NULL, n, bytes);
    sl_slot_statistics_copy(seen, &carried);
    sluice__v1__statistics__free_unpacked(seen, NULL);
    free(bytes);

    assert_int_equal(carried.n_layers, 2);
    assert_int_equal(carried.min[0], 70);
    assert_int_equal(carried.max[0], 100);
    assert_true(carried.mean[0] == 85);
    assert_int_equal(carried.min[1], 5);
    assert_int_equal(carried.max[1], 5);
    assert_true(carried.mean[1] == 5);
    assert_int_equal(carried.n_told, 4);
    assert_int_equal(carried.told[0], 100);
    assert_int_equal(carried.told[1], 70);
    assert_int_equal(carried.told[2], 5);
    assert_int_equal(carried.told[3], 5);
    assert_int_equal(carried.bytes.int4, session->layers[0].packed.bytes);
    assert_int_equal(carried.bytes.f16, 5 * session->layers[0].work.bytes);
    assert_int_equal(carried.bytes.f32 + carried.bytes.bf16 + carried.bytes.int8 + carried.bytes.int2, 0);
    sl_session_destroy(&session);
    sl_arena_destroy(&arena);
    free(memory);
}

static void test_slot_statistics_that_cannot_be_are_nothing_known(void **state) {
    (void)state;
    struct sl_slot_statistics made = {.n_layers = 2,
                                      .min = {1, 2},
                                      .max = {3, 4},
                                      .mean = {2, 3},
                                      .n_told = 4,
                                      .told = {1, 3, 2, 4}},
                              copied;
    sluice__v1__kv_bytes__init(&made.bytes);
    for (int i = 0; i <= 11; i++) {
        struct sl_slot_statistics lie = made;
        Sluice__V1__Statistics message = SLUICE__V1__STATISTICS__INIT;
        lie.min[1] = i == 1 ? -1 : lie.min[1];
        lie.max[1] = i == 2 ? 1 : lie.max[1];
        lie.mean[0] = i == 3 ? NAN : lie.mean[0];
        lie.told[1] = i == 8 ? 4 : lie.told[1]; // more than the layer's most
        lie.told[2] = i == 9 ? 1 : lie.told[2];
        sl_slot_statistics_attach(&lie, &message);
        message.n_slots_mean -= i == 4;
        message.n_slots_max -= i == 5;
        message.kv_bytes = i == 6 ? NULL : message.kv_bytes;
        if (i == 7) { // lengths that agree, beyond any model: nothing is read
            message.n_slots_min = message.n_slots_mean = message.n_slots_max = SL_MAX_LAYERS + 1;
        }
        message.n_slots -= i == 10; // not as many in every layer
        message.n_slots = i == 11 ? SL_MAX_TOLD_HEADS + 2 : message.n_slots;
        sl_slot_statistics_copy(&message, &copied);
        assert_int_equal(copied.n_layers, i == 0 ? 2 : 0);
    }
    Sluice__V1__Statistics nothing = SLUICE__V1__STATISTICS__INIT;
    sl_slot_statistics_copy(&nothing, &copied);
    sl_slot_statistics_attach(&copied, &nothing);
    assert_int_equal(nothing.n_slots_min, 0);
    assert_null(nothing.kv_bytes);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slot_statistics_tell_what_a_session_holds),
        cmocka_unit_test(test_slot_statistics_that_cannot_be_are_nothing_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
