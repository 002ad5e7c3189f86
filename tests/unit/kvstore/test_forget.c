// SPDX-License-Identifier: Apache-2.0
// A real sluice-kvstore with a disk is told to forget a capsule: on its way, stored, while it is fetched, and over a restart. It
// takes segments of documents in their order, and tells prompts that their documents are coming.
#include "annex_request.h"
#include "harness.h"

#include <signal.h>
#include <stdio.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "proto/methods.h"
#include "proto/sluice/v1/worker.pb-c.h"
#include "net/rpc/rpc.h"
#include "tests/unit/slowness.h"
#include "tests/unit/temp_folder.h"

#define ARENA_BYTES ((size_t)1 << 20)
#define N_TOKENS    256
#define WAIT_MS     (20000 * SLOWNESS)

static struct temp_folder folder;
static struct parts parts; // of this process: it ships, and is fetched for
static pid_t pid;
static FILE *output;
static struct sl_rpc_channel *channel;

static void start_store(void) {
    const char *bin = getenv("SLUICE_BIN");
    char path[4096], line[512] = "", rpc[128];
    int ends[2];
    snprintf(path, sizeof path, "%s/sluice-kvstore", bin ? bin : "build/bin");
    assert_int_equal(pipe(ends), 0);
    pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); // a test that fails leaves none behind
        dup2(ends[1], STDOUT_FILENO);
        close(ends[0]);
        execl(path, path, "--name", "kvstore-0", "--coordinator", "127.0.0.1:1", "--arena", "16M", "--lease", "60s",
              "--disk", folder.path, "--disk-bytes", "16M", "--transport", "tcp", "--log", "error", (char *)NULL);
        _exit(127);
    }
    assert_true(pid > 0);
    close(ends[1]);
    output = fdopen(ends[0], "r");
    if (!fgets(line, sizeof line, output) || sscanf(line, "ready rpc=%127s", rpc) != 1) {
        fail_msg("%s did not start: %s", path, line);
    }
    assert_int_equal(sl_rpc_channel_create(rpc, NULL, SL_ROLE_ANY, &channel, NULL), SL_OK);
}

static void end_store(void) {
    int status;
    kill(pid, SIGTERM);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    fclose(output);
    sl_rpc_channel_destroy(&channel);
}

static enum sl_status call(const struct sl_rpc_method *method, const ProtobufCMessage *request, void *reply_out) {
    struct sl_error err = {0};
    return sl_rpc_unary(channel, method, request, sl_deadline_in_ms(WAIT_MS), NULL, reply_out, &err);
}

static struct sl_capsule_id id_of(int seed) {
    return (struct sl_capsule_id){11, 22, {{(uint8_t)seed, 5}}};
}

static Sluice__V1__StoreKey key_of(struct sl_capsule_id *id) {
    Sluice__V1__StoreKey key = SLUICE__V1__STORE_KEY__INIT;
    key.model_fingerprint = id->model_fingerprint;
    key.recipe_fingerprint = id->recipe_fingerprint;
    key.n_tokens = N_TOKENS;
    key.prefix_hash = (ProtobufCBinaryData){sizeof id->prefix_hash, id->prefix_hash.bytes};
    return key;
}

static Sluice__V1__Grant *announce(struct sl_capsule_id *id, size_t bytes) {
    Sluice__V1__StoreKey key = key_of(id);
    Sluice__V1__StoreReserveRequest request = SLUICE__V1__STORE_RESERVE_REQUEST__INIT;
    Sluice__V1__Grant *grant;
    request.key = &key;
    request.capsule_bytes = (int64_t)bytes;
    request.tenant = 7;
    request.read_ms = 2.5;
    request.read_tokens = 3;
    assert_int_equal(call(&sl_method_store_reserve, &request.base, &grant), SL_OK);
    return grant;
}

static void store(struct sl_capsule_id *id) {
    struct sl_capsule_bytes capsule = make_capsule(parts.arena, id, N_TOKENS, true);
    capsule.body = calloc(1, capsule.body_bytes);
    Sluice__V1__Grant *grant = announce(id, capsule.body_bytes);
    struct sl_inbound_ticket ticket = {.ticket = grant->ticket.data, .ticket_bytes = grant->ticket.len};
    ship_capsule(&parts, &ticket, &capsule);
    sluice__v1__grant__free_unpacked(grant, NULL);
    free(capsule.header);
    free(capsule.body);
}

static bool forget(struct sl_capsule_id *id) {
    Sluice__V1__StoreKey key = key_of(id);
    Sluice__V1__ForgetRequest request = SLUICE__V1__FORGET_REQUEST__INIT;
    Sluice__V1__ForgetReply *reply;
    request.key = &key;
    assert_int_equal(call(&sl_method_store_forget, &request.base, &reply), SL_OK);
    bool was_there = reply->was_there;
    sluice__v1__forget_reply__free_unpacked(reply, NULL);
    return was_there;
}

static enum sl_status look_up(struct sl_capsule_id *id, Sluice__V1__LookupReply **reply_out) {
    Sluice__V1__PrefixKey key = SLUICE__V1__PREFIX_KEY__INIT, *keys[1] = {&key};
    Sluice__V1__LookupRequest request = SLUICE__V1__LOOKUP_REQUEST__INIT;
    request.model_fingerprint = id->model_fingerprint;
    request.recipe_fingerprint = id->recipe_fingerprint;
    request.prefixes = keys;
    request.n_prefixes = 1;
    request.want_prefixes = true;
    key.n_tokens = N_TOKENS;
    key.hash = (ProtobufCBinaryData){sizeof id->prefix_hash, id->prefix_hash.bytes};
    return call(&sl_method_store_lookup, &request.base, reply_out);
}

static Sluice__V1__LookupReply *find(struct sl_capsule_id *id) {
    int64_t deadline = sl_deadline_in_ms(WAIT_MS); // the store keeps what has arrived a moment later
    Sluice__V1__LookupReply *reply;
    enum sl_status status;
    while ((status = look_up(id, &reply)) == SL_ERR_NOT_FOUND && sl_now_ns() < deadline) {
        sl_sleep_ms(5);
    }
    assert_int_equal(status, SL_OK);
    return reply;
}

static void release(const char *lease_id) {
    Sluice__V1__ReleaseRequest request = SLUICE__V1__RELEASE_REQUEST__INIT;
    request.lease_id = (char *)lease_id;
    assert_int_equal(call(&sl_method_store_release, &request.base, NULL), SL_OK);
}

static void let_be(struct sl_capsule_id *id) {
    Sluice__V1__LookupReply *reply = find(id);
    release(reply->lease_id);
    sluice__v1__lookup_reply__free_unpacked(reply, NULL);
}

static Sluice__V1__StoreStatsReply stats(void) {
    Sluice__V1__StoreStatsRequest request = SLUICE__V1__STORE_STATS_REQUEST__INIT;
    Sluice__V1__StoreStatsReply *reply;
    assert_int_equal(call(&sl_method_store_stats, &request.base, &reply), SL_OK);
    Sluice__V1__StoreStatsReply numbers = *reply;
    assert_string_equal(reply->disk_failure, "");
    sluice__v1__store_stats_reply__free_unpacked(reply, NULL);
    return numbers;
}

static void wait_for(int64_t n_capsules, int64_t n_on_disk) {
    int64_t deadline = sl_deadline_in_ms(WAIT_MS);
    while ((stats().capsules != n_capsules || stats().disk_capsules != n_on_disk || stats().leases > 0) &&
           sl_now_ns() < deadline) {
        sl_sleep_ms(5);
    }
    assert_int_equal(stats().capsules, n_capsules);
    assert_int_equal(stats().disk_capsules, n_on_disk);
    assert_int_equal(stats().leases, 0);
}

static void test_store_refuses_times_that_cannot_be(void **state) {
    (void)state;
    struct sl_capsule_id id = id_of(9);
    Sluice__V1__StoreKey key = key_of(&id);
    Sluice__V1__StoreReserveRequest request = SLUICE__V1__STORE_RESERVE_REQUEST__INIT;
    request.key = &key;
    request.capsule_bytes = 4096;
    const double times[] = {-1, NAN, INFINITY, 0};
    for (int i = 0; i < 4; i++) {
        request.read_ms = times[i];
        request.read_tokens = i < 3 ? 5 : -5;
        assert_int_equal(call(&sl_method_store_reserve, &request.base, NULL), SL_ERR_INVALID);
    }
}

static int open_all(void **state) {
    (void)state;
    folder = temp_folder_create();
    sl_rpc_init();
    start_store();
    open_parts(&parts, ARENA_BYTES, WAIT_MS, 0);
    return 0;
}

static int close_all(void **state) {
    (void)state;
    end_store();
    close_parts(&parts);
    sl_rpc_shutdown();
    temp_folder_destroy(&folder);
    return 0;
}

static void test_store_forgets_what_is_on_its_way(void **state) {
    (void)state;
    struct sl_capsule_id id = id_of(1);
    for (int i = 0; i < 2; i++) { // it may be announced anew
        Sluice__V1__Grant *grant = announce(&id, 4096);
        assert_true(forget(&id));
        Sluice__V1__RenewRequest renew = SLUICE__V1__RENEW_REQUEST__INIT;
        renew.lease_id = grant->lease_id;
        assert_int_equal(call(&sl_method_store_renew, &renew.base, NULL), SL_ERR_NOT_FOUND);
        sluice__v1__grant__free_unpacked(grant, NULL);
        assert_false(forget(&id));
    }
    wait_for(0, 0);
    assert_int_equal(stats().forgotten, 2);
    Sluice__V1__ForgetRequest request = SLUICE__V1__FORGET_REQUEST__INIT;
    assert_int_equal(call(&sl_method_store_forget, &request.base, NULL), SL_ERR_INVALID);
    Sluice__V1__StoreKey key = key_of(&id);
    key.prefix_hash.len = 8;
    request.key = &key;
    assert_int_equal(call(&sl_method_store_forget, &request.base, NULL), SL_ERR_INVALID);
}

// A fetch that is under way gets all of the capsule. No lookup finds it from then on, also not after a restart; another capsule is found
// then.
static void test_store_forgets_what_is_being_fetched_and_on_disk(void **state) {
    (void)state;
    struct sl_capsule_id id = id_of(2), other = id_of(3);
    Sluice__V1__LookupReply *again;
    store(&id);
    store(&other);
    let_be(&other);
    Sluice__V1__LookupReply *found = find(&id);
    assert_int_equal(found->tenant, 7); // for a copy to another store
    assert_true(found->read_ms == 2.5);
    assert_int_equal(found->read_tokens, 3);
    assert_true(forget(&id));
    assert_int_equal(look_up(&id, &again), SL_ERR_NOT_FOUND);
    assert_int_equal(stats().capsules, 2);

    struct sl_inbound_ticket ticket;
    assert_int_equal(sl_inbound_open(parts.inbound, "test", (size_t)found->capsule_bytes, 0, &ticket, NULL), SL_OK);
    Sluice__V1__Grant grant = SLUICE__V1__GRANT__INIT;
    Sluice__V1__FetchRequest fetch = SLUICE__V1__FETCH_REQUEST__INIT;
    grant.ticket = (ProtobufCBinaryData){ticket.ticket_bytes, ticket.ticket};
    grant.capacity_bytes = found->capsule_bytes;
    grant.lease_id = ticket.id;
    fetch.lease_id = found->lease_id;
    fetch.destination = &grant;
    fetch.release = true; // nothing else ends the lease
    assert_int_equal(call(&sl_method_store_fetch, &fetch.base, NULL), SL_OK);
    sl_inbound_release(parts.inbound, ticket.id);
    free(ticket.ticket);
    sluice__v1__lookup_reply__free_unpacked(found, NULL);

    wait_for(1, 1);
    end_store();
    start_store();
    wait_for(0, 1);
    assert_int_equal(look_up(&id, &again), SL_ERR_NOT_FOUND);
    let_be(&other); // from disk
    assert_true(forget(&other));
    wait_for(0, 0);
    assert_int_equal(stats().forgotten, 1);
}

// A copy of a document ends with the first segment that was refused: the store takes none after it.
static void test_store_takes_segments_one_after_another(void **state) {
    (void)state;
    const struct sl_capsule_id capsule = id_of(4), segments = sl_document_segments_id(&capsule, 1, SL_KV_INT8);
    struct sl_capsule_id first = sl_document_segment_id(&segments, 0), second = sl_document_segment_id(&segments, 1);
    Sluice__V1__StoreKey key = key_of(&first);
    Sluice__V1__StoreReserveRequest request = SLUICE__V1__STORE_RESERVE_REQUEST__INIT;
    Sluice__V1__Grant *grant;
    request.key = &key;
    request.capsule_bytes = 4096;
    request.segment = true;
    for (int i = 0; i < 2; i++) {
        key = key_of(&first);
        assert_int_equal(call(&sl_method_store_reserve, &request.base, &grant), SL_OK);
        release(grant->lease_id); // it does not come; the next call finds that out
        sluice__v1__grant__free_unpacked(grant, NULL);
        key = key_of(&second);
        assert_int_equal(call(&sl_method_store_reserve, &request.base, NULL), SL_ERR_PRECONDITION);
    }
    key = key_of(&first);
    Sluice__V1__Grant *granted;
    assert_int_equal(call(&sl_method_store_reserve, &request.base, &granted), SL_OK);
    key = key_of(&second); // the one before it is on its way
    assert_int_equal(call(&sl_method_store_reserve, &request.base, &grant), SL_OK);
    release(grant->lease_id);
    release(granted->lease_id);
    sluice__v1__grant__free_unpacked(grant, NULL);
    sluice__v1__grant__free_unpacked(granted, NULL);
}

static Sluice__V1__Annex *open_remote_kv(int64_t wait_ms) {
    struct prompt prompt;
    make_prompt(&prompt, 1, 0, N_TOKENS);
    struct annex_request request;
    make_annex_request(&request, &prompt, N_TOKENS);
    request.message.wait_ms = wait_ms;
    Sluice__V1__Annex *remote_kv;
    struct sl_error err = {0};
    assert_int_equal(sl_rpc_unary(channel, &sl_method_store_open_annex, &request.message.base, sl_deadline_in_ms(1000),
                                  NULL, (ProtobufCMessage **)&remote_kv, &err),
                     SL_OK);
    return remote_kv;
}

// After a start no document is named yet. A prompt that may wait longer than one call calls again; another one gets what is there.
static void test_store_says_that_documents_are_coming(void **state) {
    (void)state;
    const int64_t waits[] = {3600000, 0, -1, 1};
    end_store();
    start_store();
    for (size_t i = 0; i < sizeof waits / sizeof *waits; i++) {
        Sluice__V1__Annex *remote_kv = open_remote_kv(waits[i]);
        assert_int_equal(remote_kv->restore_ms, i == 0 ? 1 : 0);
        assert_int_equal(remote_kv->lease_id[0] == '\0', i == 0);
        assert_true(i > 0 || remote_kv->waited_ms >= 50); // of the 100 in which it looks
        if (i > 0) {
            release(remote_kv->lease_id);
        }
        sluice__v1__annex__free_unpacked(remote_kv, NULL);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_store_refuses_times_that_cannot_be),
        cmocka_unit_test(test_store_forgets_what_is_on_its_way),
        cmocka_unit_test(test_store_forgets_what_is_being_fetched_and_on_disk),
        cmocka_unit_test(test_store_takes_segments_one_after_another),
        cmocka_unit_test(test_store_says_that_documents_are_coming),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
