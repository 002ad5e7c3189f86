// SPDX-License-Identifier: Apache-2.0
// Purpose: which stores a job's offloaded layers go to.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "tests/unit/coordinator/workers/admit_fixture.h"

// A prompt that is shorter than a block of a prefix has no keys.
static void test_admission_finds_stores_without_a_key(void **state) {
    (void)state;
    struct fixture f = make(4, 4);
    struct sl_error err;
    struct sl_queue_place place = {0};
    struct sl_claim taken;
    struct sl_demand demand = {.n_prefill_tokens = 10, .capsule_bytes = 10, .decode_bytes = 10, .prefill_bytes = 10};
    demand.offloaded = (struct sl_route_offloaded_heads){.n = 2, .replicas = 1, .bytes = 100};
    join(&f, "decode-0", DECODE, 1000, 4);
    join(&f, "prefill-0", PREFILL, 1000, 4);
    join(&f, "kvstore-0", SLUICE__V1__WORKER_ROLE__KVSTORE, 1000, 4);
    assert_int_equal(sl_admission_enter(f.admission, &demand, &place, &err), SL_OK);
    assert_int_equal(claim(&f, &place, &demand, &taken, &err), SL_OK);
    assert_int_equal(taken.n_shares, 1);
    sl_admission_release(f.admission, &taken);
    sl_admission_leave(f.admission, &place);
    cleanup(&f);
}

// The offloaded layers of a question are where its document's are, if that store has room and has not failed the job.
static void test_admission_offloads_to_the_store_of_the_document(void **state) {
    (void)state;
    struct fixture f = make(4, 4);
    struct sl_error err;
    struct sl_queue_place place = {0};
    struct sl_claim taken;
    struct sl_demand demand = {.n_prefill_tokens = 10, .capsule_bytes = 10, .decode_bytes = 10, .prefill_bytes = 10};
    demand.offloaded = (struct sl_route_offloaded_heads){.n = 2, .replicas = 1, .bytes = 100};
    join(&f, "decode-0", DECODE, 1000, 4);
    join(&f, "prefill-0", PREFILL, 1000, 4);
    static char stores[3][64] = {"kvstore-0", "kvstore-1", "kvstore-2"};
    for (int i = 0; i < 3; i++) {
        join(&f, stores[i], SLUICE__V1__WORKER_ROLE__KVSTORE, i < 2 ? 1000 : 150, 4); // the last one is too small
    }
    assert_int_equal(sl_admission_enter(f.admission, &demand, &place, &err), SL_OK);
    for (uint64_t key = 0; key < 16; key++) {
        for (int i = 0; i < 3; i++) {
            struct sl_avoid avoid = {.n = 0};
            struct sl_claim_spec spec = {
                .demand = &demand, .keys = &key, .n_keys = 1, .stores = &stores[i], .n_stores = 1, .avoid = &avoid};
            assert_int_equal(sl_admission_claim(f.admission, &place, &spec, 20, &taken, &err), SL_OK);
            assert_int_equal(i < 2,
                             taken.n_shares == 1 && strcmp(sl_worker_name(taken.shares[0].store), stores[i]) == 0);
            sl_avoid_add(&avoid, taken.shares[0].store);
            sl_admission_release(f.admission, &taken);
            assert_int_equal(sl_admission_claim(f.admission, &place, &spec, 20, &taken, &err), SL_OK);
            if (i < 2) {
                assert_string_not_equal(sl_worker_name(taken.shares[0].store), stores[i]);
            }
            sl_admission_release(f.admission, &taken);
        }
    }
    struct sl_claim_spec spec = {.demand = &demand, .stores = stores, .n_stores = 1, .avoid = &none};
    demand.offloaded.bytes = 460; // two are too large for a store, unless it has this already:
    demand.stored_bytes = 450;
    assert_int_equal(sl_admission_claim(f.admission, &place, &spec, 20, &taken, &err), SL_OK);
    assert_true(taken.n_shares == 1 && strcmp(sl_worker_name(taken.shares[0].store), stores[0]) == 0);
    sl_admission_release(f.admission, &taken);
    sl_admission_leave(f.admission, &place);
    cleanup(&f);
}

// All layers of a document go to the store that gets its capsule. While other jobs use that one's memory, the job fails at
// once, before anything is read, and though other stores have room.
static void test_admission_keeps_a_document_in_one_store(void **state) {
    (void)state;
    struct fixture f = make(4, 4);
    struct sl_error err;
    struct sl_queue_place other = {0}, reading = {0};
    struct sl_claim taken, claimed;
    struct sl_demand demand = {.n_prefill_tokens = 10, .capsule_bytes = 10, .decode_bytes = 10, .prefill_bytes = 10};
    demand.offloaded = (struct sl_route_offloaded_heads){.n = 2, .replicas = 1, .bytes = 300};
    join(&f, "decode-0", DECODE, 1000, 4);
    join(&f, "prefill-0", PREFILL, 1000, 4);
    join(&f, "kvstore-0", SLUICE__V1__WORKER_ROLE__KVSTORE, 1000, 4);
    join(&f, "kvstore-1", SLUICE__V1__WORKER_ROLE__KVSTORE, 1000, 4);
    for (uint64_t key = 0; key < 8; key++) {
        struct sl_claim_spec spec = {.demand = &demand, .keys = &key, .n_keys = 1, .avoid = &none};
        char first[SL_ADDRESS_BYTES], named[96];
        assert_true(sl_registry_store_address(f.registry, key, first) > 0); // of the capsule
        assert_int_equal(sl_admission_enter(f.admission, &demand, &other, &err), SL_OK);
        assert_int_equal(sl_admission_claim(f.admission, &other, &spec, 20, &taken, &err), SL_OK);
        assert_int_equal(taken.n_shares, 1);
        const char *store = sl_worker_name(taken.shares[0].store);
        demand.in_one_store = true;
        assert_int_equal(sl_admission_enter(f.admission, &demand, &reading, &err), SL_OK);
        assert_int_equal(sl_admission_claim(f.admission, &reading, &spec, 20, &claimed, &err), SL_ERR_EXHAUSTED);
        snprintf(named, sizeof named, "other jobs use %s's memory: it has no room now for the 600 bytes", store);
        assert_non_null(strstr(err.text, named));
        sl_admission_release(f.admission, &taken);
        assert_int_equal(sl_admission_claim(f.admission, &reading, &spec, 20, &claimed, &err), SL_OK);
        assert_int_equal(claimed.n_shares, 1);
        assert_string_equal(sl_worker_name(claimed.shares[0].store), store);
        sl_admission_release(f.admission, &claimed);
        demand.offloaded.bytes = 500; // the stores together have that much room, one never
        assert_int_equal(sl_admission_claim(f.admission, &reading, &spec, 20, &claimed, &err), SL_ERR_PRECONDITION);
        sl_admission_leave(f.admission, &reading);
        sl_admission_leave(f.admission, &other);
        demand.offloaded.bytes = 300;
        demand.in_one_store = false;
    }
    cleanup(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_admission_finds_stores_without_a_key),
        cmocka_unit_test(test_admission_offloads_to_the_store_of_the_document),
        cmocka_unit_test(test_admission_keeps_a_document_in_one_store),
    };
    return cmocka_run_group_tests(tests, start_rpc, stop_rpc);
}
