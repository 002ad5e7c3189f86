// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: clients at the fabric's port that are not workers of the cluster: garbage, silence, too many connections, foreign certificates.
 *          None gets in, no process crashes, ships continue meanwhile, and nothing leaks.
 */
#include "harness.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/hash.h"
#include "net/fabric/core/wire.h"
#include "net/fabric/link/link.h"
#include "tests/certificates.h"

#define MIB    (1u << 20)
#define N_IDLE 600

static const char *transport;

struct pair {
    struct sl_fabric *from, *to;
    uint8_t *source, *target;
};

static void start_pair(struct pair *pair) {
    pair->to = start_fabric(transport, "127.0.0.1:0", NULL, CALM_HEARTBEAT_MS);
    pair->from = start_fabric(transport, "127.0.0.1:0", NULL, CALM_HEARTBEAT_MS);
    pair->target = make_region(pair->to, MIB);
    pair->source = make_region(pair->from, MIB);
    fill_pattern(pair->source, MIB, 5);
}

static void ship_well(struct pair *pair) {
    struct receive_buffer receive_buffer;
    struct sl_ship *ship = NULL;
    struct sl_error err = {0};
    memset(pair->target, 0, MIB);
    open_receive_buffer(&receive_buffer, pair->to, pair->target, MIB, 20000);
    if (sl_ship_open(pair->from, receive_buffer.ticket, receive_buffer.ticket_bytes, sl_deadline_in_ms(20000), &ship,
                     &err) != SL_OK ||
        sl_ship_piece(ship, 0, pair->source, MIB) != SL_OK || sl_ship_finish(ship, "h", 1, &err) != SL_OK) {
        fail_msg("no ship: %s", err.text);
    }
    sl_ship_close(&ship);
    assert_memory_equal(pair->target, pair->source, MIB);
    close_receive_buffer(&receive_buffer);
}

static void stop_pair(struct pair *pair) {
    ship_well(pair);
    stop_fabric(&pair->from);
    stop_fabric(&pair->to);
}

static int connect_to(const struct sl_fabric *fabric) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    address.sin_port = htons((uint16_t)atoi(strrchr(sl_fabric_address(fabric), ':') + 1));
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

// Returns whether the fabric closes this connection within ms; reads and drops what it sends before.
static bool is_closed_within(int fd, int64_t ms) {
    int64_t deadline = sl_deadline_in_ms(ms);
    char dropped[4096];
    for (int64_t now = sl_now_ns(); now < deadline; now = sl_now_ns()) {
        struct pollfd poll_fd = {fd, POLLIN, 0};
        if (poll(&poll_fd, 1, (int)((deadline - now) / SL_NS_PER_MS) + 1) > 0 &&
            read(fd, dropped, sizeof dropped) <= 0) {
            return true;
        }
    }
    return false;
}

static int n_descriptors(void) {
    DIR *dir = opendir("/proc/self/fd");
    assert_non_null(dir);
    int n = 0;
    while (readdir(dir)) {
        n++;
    }
    closedir(dir);
    return n;
}

// ---- bytes -----------------------------------------------------------------------------------------------------------

static void send_and_expect_the_end(const struct sl_fabric *fabric, const void *bytes, size_t n) {
    int fd = connect_to(fabric);
    (void)!send(fd, bytes, n, MSG_NOSIGNAL); // it may have been closed in the middle of it
    assert_true(
        is_closed_within(fd, 8000 * SLOWNESS)); // at once, but where it looks like the beginning of a TLS record
    close(fd);
}

static void test_garbage_ends_its_connection_alone(void **state) {
    (void)state;
    struct pair pair;
    start_pair(&pair);
    ship_well(&pair);
    uint8_t bytes[512];
    for (uint64_t seed = 1; seed <= 200; seed++) {
        fill_pattern(bytes, sizeof bytes, seed);
        send_and_expect_the_end(pair.to, bytes, sizeof bytes);
    }
    // UCX 1.13's TCP interface executed bytes that began so.
    static const char http[] = "GET / HTTP/1.1\r\nHost: somebody\r\n\r\n";
    send_and_expect_the_end(pair.to, http, sizeof http);
    struct sl_fabric_stats stats;
    sl_fabric_get_stats(pair.to, &stats);
    assert_int_equal(stats.peers_lost, 0);
    stop_pair(&pair);
}

struct frame {
    uint16_t magic, id;
    uint32_t header_bytes;
    uint64_t data_bytes;
    struct sl_wire_hello hello;
};

static struct frame hello_frame(void) {
    return (struct frame){.magic = 0x534c,
                          .id = SL_WIRE_HELLO,
                          .header_bytes = sizeof(struct sl_wire_hello),
                          .hello = {.magic = SL_WIRE_MAGIC,
                                    .version = SL_WIRE_VERSION,
                                    .epoch = 77,
                                    .wanted = 99,
                                    .heartbeat_ms = 1000,
                                    .number = 5}};
}

// In the clear only: with TLS these bytes do not come so far.
static void test_lying_frames_of_strangers_are_refused(void **state) {
    (void)state;
    if (strcmp(transport, "tls") == 0) {
        skip();
    }
    struct pair pair;
    start_pair(&pair);
    struct frame frame = hello_frame();
    frame.data_bytes = 1; // before it is met
    send_and_expect_the_end(pair.to, &frame, sizeof frame);
    frame = hello_frame();
    frame.header_bytes = SL_LINK_HEADER_MAX + 1;
    send_and_expect_the_end(pair.to, &frame, sizeof frame);
    frame = hello_frame();
    frame.data_bytes = UINT64_MAX;
    send_and_expect_the_end(pair.to, &frame, sizeof frame);
    // A peer that wants another epoch is not told ours.
    frame = hello_frame();
    int fd = connect_to(pair.to);
    assert_int_equal(send(fd, &frame, sizeof frame, MSG_NOSIGNAL), sizeof frame);
    struct frame answer;
    read_all(fd, &answer, sizeof answer);
    assert_int_equal(answer.id, SL_WIRE_HELLO);
    assert_true(answer.hello.epoch != sl_fabric_epoch(pair.to));
    assert_int_equal(answer.hello.number, 0);
    assert_int_equal(answer.hello.address_bytes, 0);
    // And messages of others than peers are dropped.
    frame.id = SL_WIRE_SEGMENT;
    assert_int_equal(send(fd, &frame, sizeof frame, MSG_NOSIGNAL), sizeof frame);
    close(fd);
    stop_pair(&pair);
}

// ---- silence ---------------------------------------------------------------------------------------------------------

static void test_silent_connections_are_few_and_short(void **state) {
    (void)state;
    static int fds[N_IDLE];
    struct pair pair;
    start_pair(&pair);
    ship_well(&pair);
    int before = n_descriptors();
    for (size_t i = 0; i < N_IDLE; i++) {
        fds[i] = connect_to(pair.to);
    }
    ship_well(&pair); // while they wait
    sl_sleep_ms(300);
    // This process is both ends: descriptors beyond the client sockets are the fabric's.
    assert_in_range(n_descriptors(), before + N_IDLE, before + N_IDLE + SL_LINKS_UNMET + 4);
    // A fabric that is new finds its way in all the same.
    struct pair other = pair;
    other.from = start_fabric(transport, "127.0.0.1:0", NULL, CALM_HEARTBEAT_MS);
    other.source = make_region(other.from, MIB);
    fill_pattern(other.source, MIB, 6);
    ship_well(&other);
    stop_fabric(&other.from);
    for (size_t i = 0; i < N_IDLE; i++) {
        assert_true(is_closed_within(fds[i], 8000 * SLOWNESS));
        close(fds[i]);
    }
    stop_pair(&pair);
}

// ---- what listens ----------------------------------------------------------------------------------------------------

// Returns how many of the machine's listening sockets belong to this process.
static int n_listeners(void) {
    int n = 0;
    FILE *file = fopen("/proc/net/tcp", "r");
    assert_non_null(file);
    char line[512];
    while (fgets(line, sizeof line, file)) {
        unsigned socket_state = 0;
        unsigned long inode = 0;
        if (sscanf(line, " %*d: %*s %*s %x %*s %*s %*s %*d %*d %lu", &socket_state, &inode) != 2 ||
            socket_state != 0x0a) {
            continue;
        }
        char wanted[64], link[64];
        snprintf(wanted, sizeof wanted, "socket:[%lu]", inode);
        for (int fd = 0; fd < 1024; fd++) {
            char path[64];
            snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
            ssize_t bytes = readlink(path, link, sizeof link - 1);
            if (bytes > 0 && (link[bytes] = '\0', strcmp(link, wanted) == 0)) {
                n++;
            }
        }
    }
    fclose(file);
    return n;
}

static void test_one_port_listens(void **state) {
    (void)state;
    struct pair pair;
    int before = n_listeners();
    start_pair(&pair);
    ship_well(&pair);
    assert_int_equal(n_listeners(), before + 2); // two fabrics
    stop_pair(&pair);
    assert_int_equal(n_listeners(), before);
}

static void test_other_hosts_are_not_let_in_by_accident(void **state) {
    (void)state;
    struct sl_fabric *fabric = NULL;
    struct sl_error err = {0};
    struct sl_fabric_config config = {.listen = "0.0.0.0:0", .transport = "tcp"};
    assert_int_equal(sl_fabric_create(&config, &fabric, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "--tls-cert"));
    config = (struct sl_fabric_config){.listen = "127.0.0.1:0", .transport = "ucx-tcp"};
    assert_int_equal(sl_fabric_create(&config, &fabric, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "--insecure"));
}

// ---- certificates ----------------------------------------------------------------------------------------------------

static struct sl_fabric *fabric_with(const char *dir, const char *who, const char *revoked) {
    struct test_files at;
    const struct sl_fabric_config config = {
        .listen = "127.0.0.1:0", .transport = "tcp", .heartbeat_ms = 500, .tls = test_files_of(dir, who, &at)};
    struct sl_fabric *fabric = NULL;
    struct sl_error err = {0};
    at.files.revoked = revoked;
    if (sl_fabric_create(&config, &fabric, &err) != SL_OK) {
        fail_msg("no fabric of %s: %s", who, err.text);
    }
    return fabric;
}

static struct sl_fabric *fabric_of(const char *dir, const char *who) {
    return fabric_with(dir, who, NULL);
}

static void run(const char *format, const char *dir) {
    char command[512];
    snprintf(command, sizeof command, format, dir);
    assert_int_equal(system(command), 0);
}

static void expect_no_ship(struct sl_fabric *from, struct sl_fabric *to, uint8_t *target) {
    struct receive_buffer receive_buffer;
    struct sl_ship *ship = NULL;
    struct sl_error err = {0};
    open_receive_buffer(&receive_buffer, to, target, 4096, 3000 * SLOWNESS);
    assert_int_equal(sl_ship_open(from, receive_buffer.ticket, receive_buffer.ticket_bytes,
                                  sl_deadline_in_ms(3000 * SLOWNESS), &ship, &err),
                     SL_OK);
    (void)sl_ship_piece(ship, 0, "secret", 7); // fails if the ship has failed already
    assert_true(sl_ship_finish(ship, NULL, 0, &err) < 0);
    assert_int_equal(receive_buffer.n_completed, 0);
    assert_int_equal(target[0], 0);
    sl_ship_close(&ship);
    sl_grant_close(&receive_buffer.grant);
    close_receive_buffer(&receive_buffer);
}

// Revoked certificates are refused by both sides, the one that connects and the one that accepts, and lose what they have open.
static void test_who_was_taken_back_gets_nowhere(void **state) {
    (void)state;
    if (strcmp(transport, "tls") != 0) {
        skip();
    }
    const char *dir = certificates();
    run("tools/test-ca.sh %s worker/kvstore/b worker/kvstore/r -", dir);
    char list[160];
    snprintf(list, sizeof list, "%s/revoked.pem", dir);
    struct sl_fabric *fabrics[3];
    static const char *const names[] = {"worker-kvstore-a", "worker-kvstore-b", "worker-kvstore-r"};
    for (int i = 0; i < 3; i++) {
        fabrics[i] = fabric_with(dir, names[i], i < 2 ? list : NULL); // the revoked side need not say so
    }
    uint8_t *target = make_region(fabrics[0], MIB);
    struct pair pair = {fabrics[1], fabrics[0], make_region(fabrics[1], MIB), target};
    fill_pattern(pair.source, MIB, 9);
    struct pair open = {fabrics[2], fabrics[0], make_region(fabrics[2], MIB), target};
    fill_pattern(open.source, MIB, 9);
    ship_well(&open);
    ship_well(&pair);
    memset(target, 0, MIB);
    struct sl_fabric_stats stats;
    sl_fabric_get_stats(fabrics[0], &stats);
    assert_int_equal(stats.peers_connected, 2);
    run("tools/test-ca.sh %s -worker/kvstore/r", dir);
    const int64_t end_ns = sl_deadline_in_ms(30000);
    do {
        sl_sleep_ms(10);
        sl_fabric_get_stats(fabrics[0], &stats);
    } while (stats.peers_connected > 1 && sl_now_ns() < end_ns);
    assert_int_equal(stats.peers_connected, 1);
    sl_sleep_ms(1100); // as often as the other one looks at the list
    expect_no_ship(fabrics[2], fabrics[0], target);
    expect_no_ship(fabrics[1], fabrics[2], make_region(fabrics[2], MIB));
    ship_well(&pair);
    for (int i = 0; i < 3; i++) {
        stop_fabric(&fabrics[i]);
    }
    struct test_files at;
    struct sl_fabric_config config = {
        .listen = "127.0.0.1:0", .transport = "tcp", .tls = test_files_of(dir, "worker-kvstore-a", &at)};
    struct sl_error err = {0};
    at.files.revoked = at.key;
    assert_int_equal(sl_fabric_create(&config, &fabrics[0], &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "not a file of CRLs"));
}

// Two prefills have nothing to send each other: each side refuses the other. Decodes may be workers of both roles.
static void test_roles_meet_that_have_data_for_each_other(void **state) {
    (void)state;
    if (strcmp(transport, "tls") != 0) {
        skip();
    }
    const char *dir = certificates();
    run("tools/test-ca.sh %s worker/prefill/p worker/prefill/q worker/decode/d worker/decode/e worker/kvstore/k "
        "worker/kvstore/l",
        dir);
    static const char *const names[] = {"worker-prefill-p", "worker-prefill-q", "worker-decode-d",
                                        "worker-decode-e",  "worker-kvstore-k", "worker-kvstore-l"};
    static const struct {
        int from, to;
        bool is_refused;
    } rows[] = {{0, 1, true}, {2, 3, false}, {0, 2, false}, {2, 0, false}, {0, 4, false}, {4, 2, false}, {4, 5, false}};
    struct sl_fabric *fabrics[6];
    uint8_t *regions[6];
    for (int i = 0; i < 6; i++) {
        fabrics[i] = fabric_of(dir, names[i]);
        regions[i] = make_region(fabrics[i], MIB);
    }
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct pair pair = {fabrics[rows[i].from], fabrics[rows[i].to], regions[rows[i].from], regions[rows[i].to]};
        memset(pair.target, 0, MIB);
        if (rows[i].is_refused) {
            expect_no_ship(pair.from, pair.to, pair.target);
        } else {
            fill_pattern(pair.source, MIB, (int)i);
            ship_well(&pair);
        }
    }
    for (int i = 0; i < 6; i++) {
        stop_fabric(&fabrics[i]);
    }
}

// A ticket names its owner. A worker of the cluster that answers at the owner's address, with the owner's epoch, but with
// its own certificate, gets nothing.
static void test_the_owner_of_a_ticket_answers(void **state) {
    (void)state;
    if (strcmp(transport, "tls") != 0) {
        skip();
    }
    const char *dir = certificates();
    run("tools/test-ca.sh %s worker/kvstore/b", dir);
    struct sl_fabric *to = fabric_of(dir, "worker-kvstore-a"), *from = fabric_of(dir, "worker-kvstore-b");
    uint8_t *target = make_region(to, MIB);
    assert_int_equal(strncmp(sl_fabric_address(to), "a@127.0.0.1:", 12), 0);
    struct receive_buffer receive_buffer;
    open_receive_buffer(&receive_buffer, to, target, 4096, 3000 * SLOWNESS);
    uint8_t *name = memmem(receive_buffer.ticket, receive_buffer.ticket_bytes, "a@127", 5);
    assert_non_null(name);
    *name = 'x';
    const uint64_t digest = sl_hash(receive_buffer.ticket + 8, receive_buffer.ticket_bytes - 8, 0); // it comes first
    memcpy(receive_buffer.ticket, &digest, sizeof digest);
    struct sl_ship *ship = NULL;
    struct sl_error err = {0};
    assert_int_equal(sl_ship_open(from, receive_buffer.ticket, receive_buffer.ticket_bytes,
                                  sl_deadline_in_ms(3000 * SLOWNESS), &ship, &err),
                     SL_OK);
    (void)sl_ship_piece(ship, 0, "secret", 7); // fails if the ship has failed already
    assert_true(sl_ship_finish(ship, NULL, 0, &err) < 0);
    assert_non_null(strstr(err.text, "is of \"a\", not of \"x\""));
    assert_int_equal(target[0], 0);
    sl_ship_close(&ship);
    sl_grant_close(&receive_buffer.grant);
    close_receive_buffer(&receive_buffer);
    stop_fabric(&from);
    stop_fabric(&to);
}

static void test_only_workers_of_the_cluster_get_in(void **state) {
    (void)state;
    if (strcmp(transport, "tls") != 0) {
        skip();
    }
    const char *dir = certificates();
    char others[128];
    snprintf(others, sizeof others, "%s/others", dir);
    run("tools/test-ca.sh %s worker/kvstore/b client/c", dir);
    run("CLUSTER=elsewhere tools/test-ca.sh %s worker/kvstore/d", dir); // the same authority, another cluster
    run("tools/test-ca.sh %s worker/kvstore/b", others);                // the same name, another authority

    struct sl_fabric *to = fabric_of(dir, "worker-kvstore-a"), *good = fabric_of(dir, "worker-kvstore-b");
    uint8_t *target = make_region(to, MIB);
    struct pair pair = {good, to, make_region(good, MIB), target};
    fill_pattern(pair.source, MIB, 9);
    ship_well(&pair);
    memset(target, 0, MIB);

    struct sl_fabric *bad = fabric_of(others, "worker-kvstore-b");
    expect_no_ship(bad, to, target); // each refuses the other
    stop_fabric(&bad);
    bad = fabric_of(dir, "worker-kvstore-d");
    expect_no_ship(bad, to, target);
    stop_fabric(&bad);
    // In the clear.
    bad = start_fabric("tcp", "127.0.0.1:0", NULL, CALM_HEARTBEAT_MS);
    expect_no_ship(bad, to, target);
    stop_fabric(&bad);
    ship_well(&pair);
    stop_fabric(&good);
    stop_fabric(&to);

    // A certificate that states no role, and one of another role is refused at the start already.
    struct test_files at;
    struct sl_fabric_config config = {
        .listen = "127.0.0.1:0", .transport = "tcp", .tls = test_files_of(dir, "client-c", &at)};
    struct sl_error err = {0};
    assert_int_equal(sl_fabric_create(&config, &bad, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "spiffe://sluice/client/c"));
    struct test_files old;
    run("tools/test-ca.sh %s worker/old", dir);
    config.tls = test_files_of(dir, "worker-old", &old);
    assert_int_equal(sl_fabric_create(&config, &bad, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "spiffe://sluice/worker/old: expected worker of"));
    old.files.accepts_unstated = true;
    assert_int_equal(sl_fabric_create(&config, &bad, &err), SL_OK);
    stop_fabric(&bad);
    config.tls = &at.files;
    at.files.key = at.ca;
    assert_int_equal(sl_fabric_create(&config, &bad, &err), SL_ERR_INVALID);
    at.files.ca = "/dev/null/ca.pem";
    assert_int_equal(sl_fabric_create(&config, &bad, &err), SL_ERR_INVALID);
    assert_non_null(strstr(err.text, "/dev/null/ca.pem"));
}

int main(int argc, char **argv) {
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_garbage_ends_its_connection_alone),
        cmocka_unit_test(test_lying_frames_of_strangers_are_refused),
        cmocka_unit_test(test_silent_connections_are_few_and_short),
        cmocka_unit_test(test_one_port_listens),
        cmocka_unit_test(test_other_hosts_are_not_let_in_by_accident),
        cmocka_unit_test(test_only_workers_of_the_cluster_get_in),
        cmocka_unit_test(test_roles_meet_that_have_data_for_each_other),
        cmocka_unit_test(test_the_owner_of_a_ticket_answers),
        cmocka_unit_test(test_who_was_taken_back_gets_nowhere),
    };
    transport = argc > 1 ? argv[1] : "tcp";
    signal(SIGPIPE, SIG_IGN);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
