// SPDX-License-Identifier: Apache-2.0
// Purpose: gRPC with certificates: which identity may call which method, and which servers a client accepts.
// clang-format off
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <cmocka.h>
// clang-format on

#include <stdlib.h>
#include <sys/resource.h>

#include "net/rpc/rpc_internal.h"
#include "tests/certificates.h"
#include "tests/unit/rpc/echo_service.h"

#define NAMES "coordinator/c coordinator/d worker/decode/w client/acme/alice client/eve operator/o -"

static char folder[128], elsewhere[160], others[160]; // ours; the same authority, another cluster; another authority
static struct sl_rpc_credentials *ours;
static struct sl_rpc_server *server;

// ---- a service that reports its caller ------------------------------------------------------------------------------

static atomic_int n_waiting;

static enum sl_status say_caller(void *context, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                 struct sl_error *err) {
    (void)context, (void)err;
    const bool waits = strcmp(((const Sluice__V1__JobRequest *)request)->job_id, "wait") == 0;
    atomic_fetch_add(&n_waiting, waits);
    while (waits && !sl_rpc_call_cancelled(call)) {
        sl_sleep_ms(1);
    }
    const struct sl_identity *caller = sl_rpc_call_identity(call);
    Sluice__V1__Job reply = SLUICE__V1__JOB__INIT;
    reply.job_id = (char *)caller->name;
    reply.tenant = (char *)caller->tenant;
    return sl_rpc_call_send(call, &reply.base);
}

// Sends no event, one, or events until the call ends.
static enum sl_status send_events(void *context, struct sl_rpc_call *call, const ProtobufCMessage *request,
                                  struct sl_error *err) {
    (void)context, (void)err;
    const char *how = ((const Sluice__V1__WatchRequest *)request)->job_id;
    const Sluice__V1__Event event = SLUICE__V1__EVENT__INIT;
    enum sl_status status = strcmp(how, "none") == 0 ? SL_OK : sl_rpc_call_send(call, &event.base);
    while (status == SL_OK && !sl_rpc_call_cancelled(call)) {
        sl_sleep_ms(10);
        status = strcmp(how, "many") == 0 ? sl_rpc_call_send(call, &event.base) : SL_OK;
    }
    return status;
}

static enum sl_status take_all(void *context, struct sl_rpc_call *call, const ProtobufCMessage *none,
                               struct sl_error *err) {
    (void)context, (void)none;
    ProtobufCMessage *message;
    enum sl_status status;
    while ((status = sl_rpc_call_receive(call, echo_chat.request, &message, err)) == SL_OK) {
        protobuf_c_message_free_unpacked(message, NULL);
    }
    const Sluice__V1__Event event = SLUICE__V1__EVENT__INIT;
    return status == SL_ERR_NOT_FOUND ? sl_rpc_call_send(call, &event.base) : status;
}

static const struct sl_rpc_handler handlers[] = {{&echo_get, say_caller, SL_ROLE_CLIENT | SL_ROLE_OPERATOR},
                                                 {&echo_relay, say_caller, SL_ROLE_WORKER},
                                                 {&echo_watch, send_events, SL_ROLE_CLIENT},
                                                 {&echo_chat, take_all, SL_ROLE_CLIENT}};
static const struct sl_rpc_method *const methods[] = {&echo_get, &echo_relay, &echo_watch, &echo_chat};
static const struct sl_rpc_service service = {"test.Echo", methods, 4};
static const struct sl_rpc_implementation implementation = {.service = &service, .handlers = handlers, .n_handlers = 4};

static struct sl_rpc_credentials *credentials_of(const char *dir, const char *who) {
    struct test_files at;
    struct sl_rpc_credentials *credentials = NULL;
    struct sl_error err = {0};
    if (sl_rpc_credentials_create(test_files_of(dir, who, &at), &credentials, &err) != SL_OK) {
        fail_msg("%s: %s", who, err.text);
    }
    return credentials;
}

static int set_up(void **state) {
    (void)state;
    const char *dir = test_certificates(NAMES);
    if (!dir) {
        return -1;
    }
    char command[600];
    snprintf(folder, sizeof folder, "%s", dir);
    snprintf(elsewhere, sizeof elsewhere, "%s/elsewhere", dir);
    snprintf(others, sizeof others, "%s/others", dir);
    snprintf(command, sizeof command,
             "mkdir %s && cp %s/ca.* %s && CLUSTER=elsewhere tools/test-ca.sh %s client/acme && tools/test-ca.sh %s "
             "client/acme",
             elsewhere, dir, elsewhere, elsewhere, others);
    if (system(command) != 0) {
        return -1;
    }
    sl_rpc_init();
    ours = credentials_of(folder, "coordinator-c");
    const struct sl_rpc_server_config config = {.listen = "127.0.0.1:0",
                                                .services = &implementation,
                                                .n_services = 1,
                                                .max_message_bytes = 1 << 20,
                                                .request_bytes = 8 << 20,
                                                .credentials = ours};
    return sl_rpc_server_start(&config, &server, NULL) == SL_OK ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    sl_rpc_server_stop(&server, 0);
    sl_rpc_credentials_destroy(&ours);
    sl_rpc_shutdown();
    return 0;
}

// One call by `who` of a folder (NULL: in the clear) to a server that it takes for one of `roles`. The reply, or NULL.
static Sluice__V1__Job *call(const char *dir, const char *who, unsigned roles, const struct sl_rpc_method *method,
                             enum sl_status *status_out, struct sl_error *err) {
    struct sl_rpc_credentials *credentials = dir ? credentials_of(dir, who) : NULL;
    struct sl_rpc_channel *channel;
    assert_int_equal(sl_rpc_channel_create(sl_rpc_server_address(server), credentials, roles, &channel, err), SL_OK);
    Sluice__V1__JobRequest request = SLUICE__V1__JOB_REQUEST__INIT;
    ProtobufCMessage *reply = NULL;
    *status_out = sl_rpc_unary(channel, method, &request.base, sl_deadline_in_ms(10000), NULL, &reply, err);
    sl_rpc_channel_destroy(&channel);
    sl_rpc_credentials_destroy(&credentials);
    return (Sluice__V1__Job *)reply;
}

static void expect_refusal(const char *dir, const char *who, unsigned roles, enum sl_status wanted, const char *words) {
    struct sl_error err = {0};
    enum sl_status status;
    assert_null(call(dir, who, roles, &echo_get, &status, &err));
    assert_int_equal(status, wanted);
    if (!strstr(err.text, words)) {
        fail_msg("\"%s\" does not say \"%s\"", err.text, words);
    }
}

// ---- tests ----------------------------------------------------------------------------------------------------------

static void test_callers_are_known(void **state) {
    (void)state;
    const struct {
        const char *who;
        const struct sl_rpc_method *method;
        const char *name, *tenant;
    } rows[] = {{"client-acme-alice", &echo_get, "acme/alice", "acme"},
                {"operator-o", &echo_get, "o", ""},
                {"worker-decode-w", &echo_relay, "w", ""}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        enum sl_status status;
        struct sl_error err = {0};
        Sluice__V1__Job *job = call(folder, rows[i].who, SL_ROLE_COORDINATOR, rows[i].method, &status, &err);
        if (status != SL_OK) {
            fail_msg("%s: %s", rows[i].who, err.text);
        }
        assert_string_equal(job->job_id, rows[i].name);
        assert_string_equal(job->tenant, rows[i].tenant);
        sluice__v1__job__free_unpacked(job, NULL);
    }
}

static void test_roles_bound_what_may_be_called(void **state) {
    (void)state;
    expect_refusal(folder, "worker-decode-w", SL_ROLE_ANY, SL_ERR_DENIED,
                   "spiffe://sluice/worker/decode/w: expected client or operator of sluice");
    expect_refusal(folder, "coordinator-c", SL_ROLE_ANY, SL_ERR_DENIED, "coordinator/c: expected client");
}

static void test_strangers_stay_outside(void **state) {
    (void)state;
    expect_refusal(elsewhere, "client-acme", SL_ROLE_ANY, SL_ERR_PEER_LOST, "expected");
    expect_refusal(others, "client-acme", SL_ROLE_ANY, SL_ERR_PEER_LOST, "");
    expect_refusal(NULL, NULL, SL_ROLE_ANY, SL_ERR_PEER_LOST, "");
    // A foreign client that believes every server: the same authority lets it in, its cluster does not.
    const char *dir = folder;
    char command[400];
    snprintf(
        command, sizeof command,
        "CLUSTER=elsewhere tools/test-ca.sh %s client/mallory && /usr/bin/python3 tests/unit/rpc/foreign_client.py %s "
        "%s client-mallory",
        dir, sl_rpc_server_address(server), dir);
    assert_int_equal(system(command), 0);
}

static void test_a_server_must_be_who_it_should_be(void **state) {
    (void)state;
    struct sl_error err = {0};
    char address[300];
    const struct {
        const char *name;
        bool is_refused;
    } rows[] = {{"c", false}, {"d", true}, {"c", false}}; // connections are not shared by channels of two names
    struct sl_rpc_credentials *credentials = credentials_of(folder, "client-acme-alice");
    struct sl_rpc_channel *channels[3];
    for (int i = 0; i < 3; i++) {
        snprintf(address, sizeof address, "%s@%s", rows[i].name, sl_rpc_server_address(server));
        assert_int_equal(sl_rpc_channel_create(address, credentials, SL_ROLE_COORDINATOR, &channels[i], &err), SL_OK);
        const Sluice__V1__JobRequest request = SLUICE__V1__JOB_REQUEST__INIT;
        const enum sl_status status =
            sl_rpc_unary(channels[i], &echo_get, &request.base, sl_deadline_in_ms(10000), NULL, NULL, &err);
        assert_int_equal(status, rows[i].is_refused ? SL_ERR_PEER_LOST : SL_OK);
        assert_true(!rows[i].is_refused || strstr(err.text, "is of \"c\", not of \"d\""));
    }
    for (int i = 0; i < 3; i++) {
        sl_rpc_channel_destroy(&channels[i]);
    }
    sl_rpc_credentials_destroy(&credentials);
    expect_refusal(folder, "operator-o", SL_ROLE_WORKER, SL_ERR_PEER_LOST,
                   "spiffe://sluice/coordinator/c: expected worker of sluice");
}

static void test_endless_headers_over_tls(void **state) {
    (void)state;
    char command[400];
    snprintf(command, sizeof command, "/usr/bin/python3 tests/unit/rpc/endless_headers.py %s %s client-acme-alice",
             sl_rpc_server_address(server), folder);
    assert_int_equal(system(command), 0);
}

static void test_requests_in_part_over_tls(void **state) {
    (void)state;
    char command[400];
    snprintf(command, sizeof command,
             "/usr/bin/python3 tests/unit/rpc/partial_requests.py %s %s client-acme-alice operator-o",
             sl_rpc_server_address(server), folder);
    assert_int_equal(system(command), 0);
}

// The credentials of one that reads the folder's revocation list.
static struct sl_rpc_credentials *strict_credentials(const char *who) {
    struct test_files at;
    struct sl_rpc_credentials *credentials = NULL;
    char list[160];
    snprintf(list, sizeof list, "%s/revoked.pem", folder);
    test_files_of(folder, who, &at);
    at.files.revoked = list;
    assert_int_equal(sl_rpc_credentials_create(&at.files, &credentials, NULL), SL_OK);
    return credentials;
}

enum { N_OPEN = 3 }; // streams to a server: one has many events, one a single one, one none

// Opens streams. Those that have events have had one.
static void open_streams(struct sl_rpc_channel *channel, struct sl_rpc_stream *streams_out[N_OPEN]) {
    static const char *const how[N_OPEN] = {"many", "one", "none"};
    for (int i = 0; i < N_OPEN; i++) {
        ProtobufCMessage *event = NULL;
        assert_int_equal(echo_open(channel, &echo_watch, how[i], 0, 60000, &streams_out[i], NULL), SL_OK);
        assert_true(i == 2 || sl_rpc_stream_next(streams_out[i], 10000, &event, NULL) == SL_OK);
        protobuf_c_message_free_unpacked(event, NULL);
    }
}

// Reads the stream to its end, or for wait_ms.
static enum sl_status read_stream(struct sl_rpc_stream *stream, int64_t wait_ms, struct sl_error *err) {
    const int64_t end_ns = sl_deadline_in_ms(wait_ms);
    enum sl_status status = SL_OK;
    while ((status == SL_OK || status == SL_AGAIN) && sl_now_ns() < end_ns) {
        ProtobufCMessage *event;
        status = sl_rpc_stream_next(stream, (end_ns - sl_now_ns()) / SL_NS_PER_MS, &event, err);
        if (status == SL_OK) {
            protobuf_c_message_free_unpacked(event, NULL);
        }
    }
    return status;
}

// Revokes the server after the first message of an upload to it, and goes on for ten seconds.
static const ProtobufCMessage *next_message(void *arg) {
    static const Sluice__V1__JobRequest message = SLUICE__V1__JOB_REQUEST__INIT;
    int *n_sent = arg;
    if (*n_sent == 1) {
        char command[300];
        snprintf(command, sizeof command, "tools/test-ca.sh %s -coordinator/d", folder);
        assert_int_equal(system(command), 0);
    }
    sl_sleep_ms(20);
    return ++*n_sent < 500 ? &message.base : NULL;
}

grpc_channel *__real_grpc_channel_create(const char *to, grpc_channel_credentials *own, const grpc_channel_args *args);
grpc_channel *__wrap_grpc_channel_create(const char *to, grpc_channel_credentials *own, const grpc_channel_args *args);

static atomic_bool has_no_memory; // for channels

grpc_channel *__wrap_grpc_channel_create(const char *to, grpc_channel_credentials *own, const grpc_channel_args *args) {
    return atomic_load(&has_no_memory) ? NULL : __real_grpc_channel_create(to, own, args);
}

struct silent_call {
    struct sl_rpc_channel *channel;
    int64_t ms;
    pthread_t thread;
    enum sl_status status;
    struct sl_error err;
};

static void *await_reply(void *arg) {
    struct silent_call *call = arg;
    Sluice__V1__JobRequest request = SLUICE__V1__JOB_REQUEST__INIT;
    request.job_id = (char *)"wait";
    call->status =
        sl_rpc_unary(call->channel, &echo_get, &request.base, sl_deadline_in_ms(call->ms), NULL, NULL, &call->err);
    return NULL;
}

// A revoked server is called no more, also over a connection that is open, and its streams and calls end; others are.
static void test_a_revoked_server_is_not_called_again(void **state) {
    (void)state;
    struct sl_rpc_stream *streams[3][N_OPEN];
    struct sl_rpc_credentials *client = strict_credentials("client-acme-alice"),
                              *theirs = credentials_of(folder, "coordinator-d");
    const struct sl_rpc_server_config config = {
        .listen = "127.0.0.1:0", .services = &implementation, .n_services = 1, .credentials = theirs};
    struct sl_rpc_server *revoked = NULL;
    struct sl_rpc_channel *channels[2];
    struct sl_error err = {0};
    const Sluice__V1__JobRequest request = SLUICE__V1__JOB_REQUEST__INIT;
    assert_int_equal(sl_rpc_server_start(&config, &revoked, &err), SL_OK);
    for (int i = 0; i < 2; i++) {
        const char *address = sl_rpc_server_address(i == 0 ? revoked : server);
        assert_int_equal(sl_rpc_channel_create(address, client, SL_ROLE_COORDINATOR, &channels[i], &err), SL_OK);
        assert_int_equal(
            sl_rpc_unary(channels[i], &echo_get, &request.base, sl_deadline_in_ms(10000), NULL, NULL, &err), SL_OK);
        open_streams(channels[i], streams[i]);
    }
    struct silent_call silent[2] = {{.channel = channels[0], .ms = 60000}, {.channel = channels[1], .ms = 4000}};
    const int n_before = atomic_load(&n_waiting);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_create(&silent[i].thread, NULL, await_reply, &silent[i]), 0);
    }
    assert_true(echo_reaches(&n_waiting, n_before + 2, 10000));
    int n_sent = 0;
    assert_int_equal(
        sl_rpc_upload(channels[0], &echo_chat, next_message, &n_sent, sl_deadline_in_ms(30000), NULL, &err),
        SL_ERR_PEER_LOST);
    assert_non_null(strstr(err.text, "was revoked"));
    atomic_store(&has_no_memory, true); // the channel keeps a connection to a server that the lists of before allowed
    open_streams(channels[0], streams[2]);
    atomic_store(&has_no_memory, false);
    const int64_t end_ns = sl_deadline_in_ms(30000);
    while (sl_rpc_unary(channels[0], &echo_get, &request.base, sl_deadline_in_ms(10000), NULL, NULL, &err) == SL_OK &&
           sl_now_ns() < end_ns) {
        sl_sleep_ms(20);
    }
    assert_int_equal(err.status, SL_ERR_PEER_LOST);
    assert_non_null(strstr(err.text, "was revoked"));
    assert_int_equal(sl_rpc_unary(channels[1], &echo_get, &request.base, sl_deadline_in_ms(10000), NULL, NULL, &err),
                     SL_OK);
    for (int i = 0; i < N_OPEN; i++) {
        for (int k = 0; k < 3; k++) {
            const enum sl_status status = read_stream(streams[k][i], k == 1 ? 50 : 10000, &err);
            assert_true(k == 1 ? status == SL_OK || status == SL_AGAIN : status == SL_ERR_PEER_LOST);
            assert_true(k == 1 || strstr(err.text, "was revoked"));
            sl_rpc_stream_close(&streams[k][i]);
        }
    }
    for (int i = 0; i < 2; i++) {
        pthread_join(silent[i].thread, NULL);
        assert_int_equal(silent[i].status, i == 0 ? SL_ERR_PEER_LOST : SL_ERR_DEADLINE);
        assert_true(i == 1 || strstr(silent[i].err.text, "was revoked"));
        sl_rpc_channel_destroy(&channels[i]);
    }
    sl_rpc_server_stop(&revoked, 0);
    sl_rpc_credentials_destroy(&theirs);
    sl_rpc_credentials_destroy(&client);
}

// A certificate that is revoked loses what it has open, too.
static void test_open_calls_of_the_revoked_end(void **state) {
    (void)state;
    char command[400];
    struct sl_rpc_credentials *own = strict_credentials("coordinator-c");
    struct sl_rpc_server *strict = NULL;
    struct sl_error err = {0};
    const struct sl_rpc_server_config config = {
        .listen = "127.0.0.1:0", .services = &implementation, .n_services = 1, .credentials = own};
    assert_int_equal(sl_rpc_server_start(&config, &strict, &err), SL_OK);
    snprintf(command, sizeof command,
             "/usr/bin/python3 tests/unit/rpc/revoked_calls.py %s %s client-eve client/eve operator-o",
             sl_rpc_server_address(strict), folder);
    assert_int_equal(system(command), 0);
    sl_rpc_server_stop(&strict, 0);
    sl_rpc_credentials_destroy(&own);
}

static struct sl_rpc_channel *channel_of(struct sl_rpc_server *to, const char *who,
                                         struct sl_rpc_credentials **credentials_out) {
    struct sl_rpc_channel *channel;
    *credentials_out = credentials_of(folder, who);
    assert_int_equal(
        sl_rpc_channel_create_alone(sl_rpc_server_address(to), *credentials_out, SL_ROLE_ANY, &channel, NULL), SL_OK);
    return channel;
}

// A caller has two of four places for handlers: a tenant over all its connections, without certificates a connection.
static void check_shares(const struct sl_rpc_credentials *own, const char *name) {
    enum { CALLERS = 3, SHARE = 2, WAIT_MS = 20000 };
    struct sl_rpc_usage usage = {0};
    const struct sl_rpc_server_config config = {.listen = "127.0.0.1:0",
                                                .services = &implementation,
                                                .n_services = 1,
                                                .max_calls = 2 * SHARE,
                                                .caller_percent = 50,
                                                .usage = &usage,
                                                .credentials = own};
    struct sl_rpc_server *shared = NULL;
    struct sl_error err = {0};
    struct sl_rpc_credentials *credentials[CALLERS] = {NULL};
    struct sl_rpc_channel *channels[CALLERS];
    struct sl_rpc_stream *waiting[SHARE];
    char wanted[100];
    snprintf(wanted, sizeof wanted, "handles 2 calls of %s already, its share; retry in 1000 ms", name);
    static const char *const who[CALLERS] = {"client-acme-alice", "client-acme-alice", "operator-o"};
    assert_int_equal(sl_rpc_server_start(&config, &shared, &err), SL_OK);
    for (int i = 0; i < CALLERS; i++) {
        if (own) {
            channels[i] = channel_of(shared, who[i], &credentials[i]);
        } else {
            assert_int_equal((i < 2 ? sl_rpc_channel_create : sl_rpc_channel_create_alone)(
                                 sl_rpc_server_address(shared), NULL, SL_ROLE_ANY, &channels[i], &err),
                             SL_OK);
        }
    }
    Sluice__V1__JobRequest request = SLUICE__V1__JOB_REQUEST__INIT;
    request.job_id = "wait";
    atomic_store(&n_waiting, 0);
    for (int i = 0; i < SHARE; i++) {
        assert_int_equal(sl_rpc_stream_open(channels[0], &echo_get, &request.base, sl_deadline_in_ms(WAIT_MS), NULL,
                                            &waiting[i], &err),
                         SL_OK);
    }
    assert_true(echo_reaches(&n_waiting, SHARE, WAIT_MS));
    request.job_id = "x";
    for (int i = 0; i < CALLERS; i++) {
        const enum sl_status status =
            sl_rpc_unary(channels[i], &echo_get, &request.base, sl_deadline_in_ms(WAIT_MS), NULL, NULL, &err);
        assert_int_equal(status, i < 2 ? SL_ERR_EXHAUSTED : SL_OK);
        assert_true(i == 2 || strstr(err.text, wanted));
    }
    assert_int_equal(atomic_load(&usage.n_running), SHARE);
    assert_int_equal(atomic_load(&usage.n_over_share), 2);
    assert_int_equal(atomic_load(&usage.n_over_limit), 0);
    for (int i = 0; i < SHARE; i++) {
        sl_rpc_stream_close(&waiting[i]);
    }
    assert_true(echo_reaches(&usage.n_running, 0, WAIT_MS));
    assert_int_equal(sl_rpc_unary(channels[1], &echo_get, &request.base, sl_deadline_in_ms(WAIT_MS), NULL, NULL, &err),
                     SL_OK);
    for (int i = 0; i < CALLERS; i++) {
        sl_rpc_channel_destroy(&channels[i]);
        sl_rpc_credentials_destroy(&credentials[i]);
    }
    sl_rpc_server_stop(&shared, 0);
}

static void test_a_caller_has_its_share_of_the_places(void **state) {
    (void)state;
    check_shares(ours, "acme");
}

static void test_a_connection_without_a_certificate_has_its_share(void **state) {
    (void)state;
    check_shares(NULL, "this client");
}

// Without certificates a host is one caller; processes of this machine are told apart by their connections.
static void test_callers_without_certificates(void **state) {
    (void)state;
    const uint64_t caller = sl_rpc_caller_of_peer("ipv4:10.1.2.3:1000");
    assert_int_equal(sl_rpc_caller_of_peer("ipv4:10.1.2.3:2000"), caller);
    assert_int_not_equal(sl_rpc_caller_of_peer("ipv4:10.1.2.4:1000"), caller);
    assert_int_equal(sl_rpc_caller_of_peer("ipv6:%5B2001:db8::1%5D:1"),
                     sl_rpc_caller_of_peer("ipv6:%5B2001:db8::1%5D:2"));
    assert_int_not_equal(sl_rpc_caller_of_peer("ipv4:127.0.0.1:1"), sl_rpc_caller_of_peer("ipv4:127.0.0.1:2"));
    assert_int_not_equal(sl_rpc_caller_of_peer("ipv6:%5B::1%5D:1"), sl_rpc_caller_of_peer("ipv6:%5B::1%5D:2"));
    assert_int_not_equal(sl_rpc_caller_of_peer("unix:socket"), 0);
    assert_int_not_equal(sl_rpc_caller_of_socket(-1), 0);
}

// Starts a server whose replies to "long" are too long. pclose() ends it.
static FILE *start_long_replies(const char *who, char address_out[64]) {
    char command[400], path[200];
    snprintf(path, sizeof path, "%s/address", folder);
    snprintf(command, sizeof command, "exec /usr/bin/python3 tests/unit/rpc/long_replies.py %s %s %s", path,
             who ? folder : "", who ? who : "");
    FILE *server_input = popen(command, "w");
    assert_non_null(server_input);
    FILE *file = NULL;
    for (int i = 0; i < 30000 && !(file = fopen(path, "r")); i++) {
        sl_sleep_ms(1);
    }
    assert_non_null(file);
    assert_non_null(fgets(address_out, 64, file));
    address_out[strcspn(address_out, "\n")] = '\0';
    fclose(file);
    assert_int_equal(remove(path), 0);
    return server_input;
}

static int64_t peak_bytes(void) {
    struct rusage usage;
    assert_int_equal(getrusage(RUSAGE_SELF, &usage), 0);
    return usage.ru_maxrss * INT64_C(1024);
}

// gRPC would keep as much of a reply as the server announces, and then refuse it.
static void test_what_a_server_announces_is_bounded(void **state) {
    (void)state;
    static const char *const who[] = {NULL, "worker-decode-w"};
    for (int i = 0; i < 2; i++) {
        char address[64];
        FILE *server_input = start_long_replies(who[i], address);
        struct sl_rpc_credentials *credentials = i > 0 ? credentials_of(folder, "client-acme-alice") : NULL;
        struct sl_rpc_channel *channel;
        struct sl_error err = {0};
        assert_int_equal(sl_rpc_channel_create(address, credentials, SL_ROLE_ANY, &channel, &err), SL_OK);
        Sluice__V1__JobRequest request = SLUICE__V1__JOB_REQUEST__INIT;
        const int64_t before = peak_bytes();
        request.job_id = "long";
        assert_int_equal(sl_rpc_unary(channel, &echo_get, &request.base, sl_deadline_in_ms(30000), NULL, NULL, &err),
                         SL_ERR_EXHAUSTED); // not lost: the server may be asked less often
        assert_non_null(strstr(err.text, "more than 64 MiB"));
        assert_in_range(peak_bytes() - before, 0, 32 << 20);
        request.job_id = "short"; // over another connection
        enum sl_status status = SL_ERR_PEER_LOST;
        for (int k = 0; k < 100 && status != SL_OK; k++) {
            status = sl_rpc_unary(channel, &echo_get, &request.base, sl_deadline_in_ms(30000), NULL, NULL, &err);
            sl_sleep_ms(status == SL_OK ? 0 : 50);
        }
        assert_int_equal(status, SL_OK);
        sl_rpc_channel_destroy(&channel);
        sl_rpc_credentials_destroy(&credentials);
        assert_int_equal(pclose(server_input), 0);
    }
}

static void test_no_credentials_no_other_hosts(void **state) {
    (void)state;
    struct sl_rpc_server *second = NULL;
    struct sl_error err = {0};
    struct sl_rpc_server_config config = {.listen = "0.0.0.0:0", .services = &implementation, .n_services = 1};
    assert_int_equal(sl_rpc_server_start(&config, &second, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "--insecure"));
    config.insecure = true;
    assert_int_equal(sl_rpc_server_start(&config, &second, &err), SL_OK);
    sl_rpc_server_stop(&second, 0);
    config = (struct sl_rpc_server_config){
        .listen = "0.0.0.0:0", .services = &implementation, .n_services = 1, .credentials = ours};
    assert_int_equal(sl_rpc_server_start(&config, &second, &err), SL_OK);
    sl_rpc_server_stop(&second, 0);
}

static void test_files_that_are_not_what_they_should_be(void **state) {
    (void)state;
    struct test_files at;
    struct sl_rpc_credentials *credentials = NULL;
    struct sl_error err = {0};
    test_files_of(folder, "worker-decode-w", &at);
    at.files.key = at.ca;
    assert_int_equal(sl_rpc_credentials_create(&at.files, &credentials, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "ca.pem: no private key"));
    at.files.certificate = "/dev/null/w.pem";
    assert_int_equal(sl_rpc_credentials_create(&at.files, &credentials, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "/dev/null/w.pem"));
    at.files.key = "";
    assert_int_equal(sl_rpc_credentials_create(&at.files, &credentials, &err), SL_ERR_INVALID);
    at.files = (struct sl_tls_files){"", "", "", .revoked = NULL};
    assert_int_equal(sl_rpc_credentials_create(&at.files, &credentials, &err), SL_OK);
    assert_null(credentials);
    assert_int_equal(sl_rpc_credentials_self(credentials)->role, SL_ROLE_ANY);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_callers_are_known),
        cmocka_unit_test(test_roles_bound_what_may_be_called),
        cmocka_unit_test(test_strangers_stay_outside),
        cmocka_unit_test(test_a_server_must_be_who_it_should_be),
        cmocka_unit_test(test_endless_headers_over_tls),
        cmocka_unit_test(test_requests_in_part_over_tls),
        cmocka_unit_test(test_a_revoked_server_is_not_called_again),
        cmocka_unit_test(test_open_calls_of_the_revoked_end),
        cmocka_unit_test(test_a_caller_has_its_share_of_the_places),
        cmocka_unit_test(test_a_connection_without_a_certificate_has_its_share),
        cmocka_unit_test(test_callers_without_certificates),
        cmocka_unit_test(test_what_a_server_announces_is_bounded),
        cmocka_unit_test(test_no_credentials_no_other_hosts),
        cmocka_unit_test(test_files_that_are_not_what_they_should_be),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
