// SPDX-License-Identifier: Apache-2.0
// Purpose: a prompt that a worker has read before is read again only where no store keeps it.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/version.h"
#include "coordinator/workers/admit.h"

static void join(struct sl_registry *registry, const char *name, Sluice__V1__WorkerRole role) {
    Sluice__V1__WorkerInfo info = SLUICE__V1__WORKER_INFO__INIT;
    info.name = (char *)name;
    info.role = role;
    info.rpc_address = (char *)"127.0.0.1:1";
    info.version = (char *)SL_VERSION;
    info.model_fingerprint = info.epoch = 1;
    info.arena_bytes = 1000;
    info.max_jobs = 4;
    assert_int_equal(sl_registry_register(registry, &info, 0, NULL), SL_OK);
}

// Returns the tokens that a claim adds to its reader's line.
static int64_t tokens_in_line(bool has_store, bool reads_all) {
    const struct sl_registry_config config = {.model_fingerprint = 1, .heartbeat_ms = 1000, .is_simulated = true};
    const struct sl_demand demand = {
        .n_prefill_tokens = 100, .capsule_bytes = 10, .decode_bytes = 10, .prefill_bytes = 10};
    static const struct sl_avoid none;
    const uint64_t key = 7; // of the first 64 tokens
    const struct sl_claim_spec spec = {
        .demand = &demand, .avoid = &none, .keys = &key, .n_keys = 1, .reads_all = reads_all};
    struct sl_registry *registry;
    struct sl_affinity *affinity;
    struct sl_admission *admission;
    struct sl_queue_place place = {0};
    struct sl_claim claim;
    struct sl_error err;
    assert_int_equal(sl_registry_create(&config, &registry, &err), SL_OK);
    assert_int_equal(sl_affinity_create(100, &affinity, &err), SL_OK);
    assert_int_equal(sl_admission_create(registry, affinity, 4, 4, &admission, &err), SL_OK);
    join(registry, "decode-0", SLUICE__V1__WORKER_ROLE__DECODE);
    join(registry, "prefill-0", SLUICE__V1__WORKER_ROLE__PREFILL);
    if (has_store) {
        join(registry, "kvstore-0", SLUICE__V1__WORKER_ROLE__KVSTORE);
    }
    sl_affinity_put(affinity, &key, 1, sl_worker_name_hash("prefill-1")); // whatever has become of that
    assert_int_equal(sl_admission_enter(admission, &demand, &place, &err), SL_OK);
    assert_int_equal(sl_admission_claim(admission, &place, &spec, 0, &claim, &err), SL_OK);
    int64_t tokens = claim.line_tokens;
    sl_admission_release_prefill(admission, &claim); // asserts that no more goes out of the line than came in
    sl_admission_release(admission, &claim);
    sl_admission_leave(admission, &place);
    sl_admission_destroy(&admission);
    sl_affinity_destroy(&affinity);
    sl_registry_destroy(&registry);
    return tokens;
}

static void test_stored_tokens_are_in_no_line(void **state) {
    (void)state;
    assert_int_equal(tokens_in_line(true, false), 100 - 64);
    assert_int_equal(tokens_in_line(false, false), 100);
    assert_int_equal(tokens_in_line(true, true), 100);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_stored_tokens_are_in_no_line)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
