// SPDX-License-Identifier: Apache-2.0
// Telling the stores: silent ones cost one deadline together. And the order of stores that documents rely on.
// clang-format off
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
// clang-format on

#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/version.h"
#include "coordinator/documents/keeper.h"
#include "coordinator/workers/stores.h"
#include "net/rpc/rpc.h"
#include "proto/methods.h"
#include "proto/sluice/v1/worker.pb-c.h"

#define N_STORES 6

struct fixture {
    int listener; // connections are made, and nothing answers
    struct sl_registry *registry;
    struct sl_documents *documents;
};

static int setup_silent(void **state, int n_silent) {
    struct fixture *fixture = calloc(1, sizeof *fixture);
    struct sockaddr_in where = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof where;
    fixture->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fixture->listener, (struct sockaddr *)&where, n), 0);
    assert_int_equal(listen(fixture->listener, 64), 0);
    assert_int_equal(getsockname(fixture->listener, (struct sockaddr *)&where, &n), 0);
    struct sl_registry_config config = {.heartbeat_ms = 60000, .stall_ms = 60000};
    assert_int_equal(sl_registry_create(&config, &fixture->registry, NULL), SL_OK);
    struct sl_error err = {0};
    for (int i = 0; i < n_silent; i++) {
        char name[16], address[32];
        Sluice__V1__WorkerInfo info = SLUICE__V1__WORKER_INFO__INIT;
        snprintf(name, sizeof name, "kvstore-%d", i);
        snprintf(address, sizeof address, "127.0.0.1:%d", ntohs(where.sin_port));
        info.name = name;
        info.role = SLUICE__V1__WORKER_ROLE__KVSTORE;
        info.rpc_address = address;
        info.version = SL_VERSION;
        info.arena_bytes = 1000 + i;
        info.max_jobs = 2;
        info.epoch = (uint64_t)i + 1;
        assert_int_equal(sl_registry_register(fixture->registry, &info, sl_now_ns(), &err), SL_OK);
    }
    const struct sl_salt_secret secret = {true, {7}};
    const struct sl_documents_config documents = {"", 10, 10000, &secret, NULL};
    assert_int_equal(sl_documents_create(&documents, &fixture->documents, NULL), SL_OK);
    *state = fixture;
    return 0;
}

static int setup(void **state) {
    return setup_silent(state, N_STORES);
}

// Without the stores that make each round take a second.
static int setup_without_stores(void **state) {
    return setup_silent(state, 0);
}

static int teardown(void **state) {
    struct fixture *fixture = *state;
    sl_documents_destroy(&fixture->documents);
    sl_registry_destroy(&fixture->registry);
    close(fixture->listener);
    free(fixture);
    return 0;
}

static void count(void *arg) {
    atomic_fetch_add((atomic_int *)arg, 1);
}

static bool lead(void *arg) {
    (void)arg;
    return true;
}

static void test_keeper_waits_once_for_all_silent_stores(void **state) {
    struct fixture *fixture = *state;
    struct sl_document_keeper *keeper = NULL;
    atomic_int n_rounds = 0;
    assert_int_equal(
        sl_document_keeper_start(fixture->documents, fixture->registry, lead, count, &n_rounds, &keeper, NULL), SL_OK);
    int64_t began_ns = sl_now_ns();
    sl_document_keeper_tell(keeper);
    int64_t took_ms = (sl_now_ns() - began_ns) / SL_NS_PER_MS;
    // The round under way at the call, and the one after it: a second each.
    assert_in_range(took_ms, 900, N_STORES * 1000 / 2 + 900);
    assert_in_range(atomic_load(&n_rounds), 1, 3);
    sl_document_keeper_stop(&keeper);
    assert_null(keeper);
    sl_document_keeper_stop(&keeper);
}

// ---- a store that fails -----------------------------------------------------------------------------------------------

static atomic_int n_protects, n_forgets, n_rounds;
static _Atomic int64_t protected_ns[2]; // when the first calls arrived
static atomic_bool protects;            // else it fails

static enum sl_status protect(void *context, struct sl_rpc_call *call, const ProtobufCMessage *request,
                              struct sl_error *err) {
    (void)context, (void)request;
    const Sluice__V1__ProtectReply reply = SLUICE__V1__PROTECT_REPLY__INIT;
    const int n = atomic_load(&n_protects); // calls come one after the other
    if (n < 2) {
        atomic_store(&protected_ns[n], sl_now_ns());
    }
    atomic_fetch_add(&n_protects, 1);
    return atomic_load(&protects) ? sl_rpc_call_send(call, &reply.base) : sl_fail(err, SL_ERR_INVALID, "no");
}

static enum sl_status forget(void *context, struct sl_rpc_call *call, const ProtobufCMessage *request,
                             struct sl_error *err) {
    (void)context, (void)request, (void)err;
    const Sluice__V1__ForgetReply reply = SLUICE__V1__FORGET_REPLY__INIT;
    atomic_fetch_add(&n_forgets, 1);
    return sl_rpc_call_send(call, &reply.base);
}

static struct sl_rpc_server *start_store(struct fixture *fixture) {
    static const struct sl_rpc_method *const methods[] = {&sl_method_store_protect, &sl_method_store_forget};
    static const struct sl_rpc_service service = {"sluice.v1.Store", methods, 2};
    static const struct sl_rpc_handler handlers[] = {{&sl_method_store_protect, protect, SL_ROLE_ANY},
                                                     {&sl_method_store_forget, forget, SL_ROLE_ANY}};
    static const struct sl_rpc_implementation implementation = {
        .service = &service, .handlers = handlers, .n_handlers = 2};
    const struct sl_rpc_server_config config = {.listen = "127.0.0.1:0", .services = &implementation, .n_services = 1};
    struct sl_rpc_server *server;
    struct sl_error err = {0};
    assert_int_equal(sl_rpc_server_start(&config, &server, &err), SL_OK);
    Sluice__V1__WorkerInfo info = SLUICE__V1__WORKER_INFO__INIT;
    info.name = "kvstore-failing";
    info.role = SLUICE__V1__WORKER_ROLE__KVSTORE;
    info.rpc_address = (char *)sl_rpc_server_address(server);
    info.version = SL_VERSION;
    info.arena_bytes = 2000;
    info.max_jobs = 2;
    info.epoch = 77;
    assert_int_equal(sl_registry_register(fixture->registry, &info, sl_now_ns(), &err), SL_OK);
    atomic_store(&n_protects, 0);
    atomic_store(&n_forgets, 0);
    atomic_store(&n_rounds, 0);
    return server;
}

static void await(const atomic_int *count, int n) {
    for (int i = 0; i < 30000 && atomic_load(count) < n; i++) {
        sl_sleep_ms(1);
    }
    assert_true(atomic_load(count) >= n);
}

static void await_rounds(int n) {
    await(&n_rounds, n);
}

static void test_a_store_that_fails_is_told_less_often(void **state) {
    struct fixture *fixture = *state;
    struct sl_document_keeper *keeper = NULL;
    struct sl_rpc_server *store = start_store(fixture);
    atomic_store(&protects, false);
    assert_int_equal(
        sl_document_keeper_start(fixture->documents, fixture->registry, lead, count, &n_rounds, &keeper, NULL), SL_OK);
    await(&n_protects, 2);
    assert_true(protected_ns[1] - protected_ns[0] >= 2 * SL_NS_PER_S); // rounds begin once a second
    atomic_store(&protects, true);
    const int n_before = atomic_load(&n_protects);
    sl_document_keeper_tell(keeper); // in any case
    assert_true(atomic_load(&n_protects) > n_before);
    const int n_then = atomic_load(&n_protects);
    await_rounds(atomic_load(&n_rounds) + 2);
    assert_true(atomic_load(&n_protects) > n_then); // it answers again
    sl_document_keeper_stop(&keeper);
    sl_rpc_server_stop(&store, 0);
}

static void suspect(struct fixture *fixture) {
    struct sl_worker_set *set = malloc(sizeof *set);
    sl_registry_snapshot(fixture->registry, SLUICE__V1__WORKER_ROLE__KVSTORE, set);
    assert_int_equal(set->n, 1);
    sl_worker_suspect(set->workers[0]);
    assert_true(sl_worker_is_suspect(set->workers[0]));
    sl_worker_set_release(set);
    free(set);
}

// Its own round asks every store, or the document would stay where one was suspected for a moment.
static void test_a_removed_document_is_forgotten_by_a_suspected_store(void **state) {
    struct fixture *fixture = *state;
    struct sl_document_keeper *keeper = NULL;
    struct sl_rpc_server *store = start_store(fixture);
    struct sl_document *document = NULL;
    struct sl_error err = {0};
    const struct sl_ranked_store at = {.name = "kvstore-failing", .arena_bytes = 2000};
    atomic_store(&protects, true);
    suspect(fixture);
    assert_int_equal(sl_document_create("acme", "gpl", "what is said", &document, &err), SL_OK);
    document->capsule_tokens = document->n_tokens = 99;
    document->capsule_bytes = 100;
    assert_int_equal(sl_documents_begin(fixture->documents, document, &at, &err), SL_OK);
    assert_int_equal(sl_documents_finish(fixture->documents, document, &err), SL_OK);
    assert_int_equal(
        sl_document_keeper_start(fixture->documents, fixture->registry, lead, count, &n_rounds, &keeper, NULL), SL_OK);
    await_rounds(1);
    assert_int_equal(sl_document_keeper_delete(keeper, document, &err), SL_OK);
    await_rounds(atomic_load(&n_rounds) + 2);
    assert_int_equal(atomic_load(&n_forgets), 1);
    sl_document_keeper_stop(&keeper);
    sl_document_unref(&document);
    sl_rpc_server_stop(&store, 0);
}

static void test_a_round_can_be_hurried(void **state) {
    struct fixture *fixture = *state;
    struct sl_document_keeper *keeper = NULL;
    struct sl_rpc_server *store = start_store(fixture);
    int64_t least_ns = INT64_MAX;
    atomic_store(&protects, true);
    assert_int_equal(
        sl_document_keeper_start(fixture->documents, fixture->registry, lead, count, &n_rounds, &keeper, NULL), SL_OK);
    for (int i = 0; i < 20 && least_ns > SL_NS_PER_S / 2; i++) { // without a hurry, each takes a second
        await_rounds(atomic_load(&n_rounds) + 1);
        const int64_t begin_ns = sl_now_ns();
        sl_document_keeper_hurry(keeper);
        await_rounds(atomic_load(&n_rounds) + 1);
        const int64_t took_ns = sl_now_ns() - begin_ns;
        least_ns = took_ns < least_ns ? took_ns : least_ns;
    }
    assert_in_range(least_ns, 0, SL_NS_PER_S / 2);
    sl_document_keeper_stop(&keeper);
    sl_rpc_server_stop(&store, 0);
}

static void test_a_suspected_store_is_not_told(void **state) {
    struct fixture *fixture = *state;
    struct sl_document_keeper *keeper = NULL;
    struct sl_rpc_server *store = start_store(fixture);
    atomic_store(&protects, true);
    suspect(fixture);
    assert_int_equal(
        sl_document_keeper_start(fixture->documents, fixture->registry, lead, count, &n_rounds, &keeper, NULL), SL_OK);
    await_rounds(1);
    assert_int_equal(atomic_load(&n_protects), 0);
    sl_document_keeper_tell(keeper);
    assert_true(atomic_load(&n_protects) > 0);
    sl_document_keeper_stop(&keeper);
    sl_rpc_server_stop(&store, 0);
}

static void test_stores_are_ranked_as_prompts_choose_them(void **state) {
    struct fixture *fixture = *state;
    struct sl_ranked_store *stores = malloc(SL_MAX_WORKERS * sizeof *stores);
    char address[SL_ADDRESS_BYTES], names[2][64];
    for (uint64_t key = 0; key < 20; key++) {
        assert_int_equal(sl_stores_rank(fixture->registry, key, stores), N_STORES);
        assert_int_equal(sl_registry_store_address(fixture->registry, key, address), stores[0].arena_bytes);
        bool seen[N_STORES] = {false};
        for (int i = 0; i < N_STORES; i++) {
            seen[stores[i].arena_bytes - 1000] = true;
        }
        for (int i = 0; i < N_STORES; i++) {
            assert_true(seen[i]); // each once
        }
        // The first store in the order that has the document is chosen; if none is ready, the store of any such prompt.
        strcpy(names[0], stores[4].name);
        strcpy(names[1], stores[2].name);
        assert_int_equal(sl_stores_choose(fixture->registry, key, (const char(*)[64])names, 2, address),
                         stores[2].arena_bytes);
        strcpy(names[0], "kvstore-x");
        assert_int_equal(sl_stores_choose(fixture->registry, key, (const char(*)[64])names, 1, address),
                         stores[0].arena_bytes);
        assert_int_equal(sl_stores_choose(fixture->registry, key, NULL, 0, address), stores[0].arena_bytes);
    }
    free(stores);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_keeper_waits_once_for_all_silent_stores, setup, teardown),
        cmocka_unit_test_setup_teardown(test_a_store_that_fails_is_told_less_often, setup_without_stores, teardown),
        cmocka_unit_test_setup_teardown(test_a_round_can_be_hurried, setup_without_stores, teardown),
        cmocka_unit_test_setup_teardown(test_a_suspected_store_is_not_told, setup_without_stores, teardown),
        cmocka_unit_test_setup_teardown(test_a_removed_document_is_forgotten_by_a_suspected_store, setup_without_stores,
                                        teardown),
        cmocka_unit_test_setup_teardown(test_stores_are_ranked_as_prompts_choose_them, setup, teardown),
    };
    sl_rpc_init();
    int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    sl_rpc_shutdown();
    return n_failed;
}
