// SPDX-License-Identifier: Apache-2.0
// Purpose: a held port is the server's that was told it, and no other socket's, until the server listens.
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/held_port.h"

#define PORT_RANGE 51 // IP_LOCAL_PORT_RANGE, which Linux 6.3 has and older headers have not

static struct sockaddr_in loopback(int port) {
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons((uint16_t)port)};
}

static int new_socket(int reuses) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &reuses, sizeof reuses), 0);
    return fd;
}

// Binds a socket for which the kernel has no other port to choose. False: this kernel cannot limit its choice.
static bool binds_any(int port, int *error_out) {
    const uint32_t range = (uint32_t)port << 16 | (uint32_t)port;
    const struct sockaddr_in any = loopback(0);
    int fd = new_socket(1);
    bool is_limited = setsockopt(fd, IPPROTO_IP, PORT_RANGE, &range, sizeof range) == 0;
    *error_out = is_limited && bind(fd, (const struct sockaddr *)&any, sizeof any) != 0 ? errno : 0;
    close(fd);
    return is_limited;
}

static void test_a_held_port_is_its_servers_alone(void **state) {
    (void)state;
    int port = 0, other_port = 0, error = 0;
    int held = sl_hold_port(&port), other = sl_hold_port(&other_port);
    assert_true(held >= 0 && other >= 0 && port > 0 && other_port > 0 && port != other_port);
    if (binds_any(port, &error)) {
        assert_int_equal(error, EADDRINUSE);
    }
    const struct sockaddr_in address = loopback(port);
    int stranger = new_socket(0);
    assert_int_equal(bind(stranger, (const struct sockaddr *)&address, sizeof address), -1);
    assert_int_equal(errno, EADDRINUSE);
    close(stranger);

    int server = new_socket(1);
    assert_int_equal(bind(server, (const struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(server, 1), 0);
    int client = new_socket(0);
    assert_int_equal(connect(client, (const struct sockaddr *)&address, sizeof address), 0);
    close(client);
    close(server);
    close(held);
    close(other);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_a_held_port_is_its_servers_alone)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
