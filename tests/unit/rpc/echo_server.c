// SPDX-License-Identifier: Apache-2.0
// Purpose: the test service as a process: prints its address and serves until standard input ends.
#include <unistd.h>

#include "tests/unit/rpc/echo_service.h"

int main(void) {
    struct echo echo;
    struct sl_rpc_server *server;
    struct sl_error err;
    sl_rpc_init();
    echo_init(&echo);
    if (echo_start(&echo, "127.0.0.1:0", 0, &server, &err) != SL_OK) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    printf("%s\n", sl_rpc_server_address(server));
    fflush(stdout);
    char byte;
    while (read(STDIN_FILENO, &byte, 1) > 0) { // 's': no longer serving
        sl_rpc_health_set(echo.standard.health, echo_service.name, byte != 's');
    }
    echo_stop(&echo, &server, 500);
    sl_rpc_shutdown();
    return 0;
}
