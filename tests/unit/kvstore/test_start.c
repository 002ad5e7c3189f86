// SPDX-License-Identifier: Apache-2.0
// A store without memory for some part while it starts: it reports that and exits, or runs without the part; it never starts halfway.
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/options/exit.h"
#include "tests/unit/slowness.h"
#include "tests/unit/temp_folder.h"

#define READY_MS (20000 * SLOWNESS)
#define STRIDE   (SLOWNESS > 1 ? 11 : 1) // where processes take long to start

// As tests/faults/wrap.c has it.
struct control {
    _Atomic long long left[2], calls[2], failed;
};

static char folder_path[64], control_path[128], log_path[128], disk_path[128];
static struct control *control;

static int setup(void **state) {
    struct temp_folder folder = temp_folder_create();
    strcpy(folder_path, folder.path);
    snprintf(control_path, sizeof control_path, "%s/control", folder_path);
    snprintf(log_path, sizeof log_path, "%s/log", folder_path);
    snprintf(disk_path, sizeof disk_path, "%s/disk", folder_path);
    struct control zeros = {0};
    temp_folder_write(&folder, "control", &zeros, sizeof zeros);
    int fd = open(control_path, O_RDWR | O_CLOEXEC);
    control = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    setenv("SLUICE_FAULTS", control_path, 1);
    *state = NULL;
    return control == MAP_FAILED;
}

static int teardown(void **state) {
    (void)state;
    char command[128];
    munmap(control, sizeof *control);
    snprintf(command, sizeof command, "rm -rf %s", folder_path);
    return system(command);
}

// Its standard output.
static int start(pid_t *pid_out) {
    const char *bin = getenv("SLUICE_BIN");
    char path[4096];
    int ends[2];
    snprintf(path, sizeof path, "%s/../tests/faulty/sluice-kvstore", bin ? bin : "build/bin");
    assert_int_equal(pipe(ends), 0);
    *pid_out = fork();
    if (*pid_out == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL); // a test that fails leaves none behind
        int log = open(log_path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
        dup2(ends[1], STDOUT_FILENO);
        dup2(log, STDERR_FILENO);
        close(ends[0]);
        execl(path, path, "--coordinator", "127.0.0.1:1", "--arena", "1M", "--scan-threads", "1", "--transport", "tcp",
              "--log", "error", "--disk", disk_path, "--disk-bytes", "16M", (char *)NULL);
        _exit(127);
    }
    close(ends[1]);
    return ends[0];
}

// Reads the line that the store prints when it is ready; false: it has exited.
static bool says_ready(int output, char line[512]) {
    struct pollfd polled = {.fd = output, .events = POLLIN};
    if (poll(&polled, 1, READY_MS) != 1) {
        fail_msg("the store neither started nor ended");
    }
    ssize_t n = read(output, line, 511);
    line[n > 0 ? n : 0] = '\0';
    return strncmp(line, "ready ", 6) == 0;
}

// Its figures are of all that it is made of.
static bool tells_figures(const char *line) {
    static const char request[] = "GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    const char *admin = strstr(line, "admin=127.0.0.1:");
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    char answer[16] = "";
    if (!admin) {
        return false;
    }
    address.sin_port = htons((uint16_t)atoi(strchr(admin, ':') + 1));
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct timeval limit = {.tv_sec = READY_MS / 1000};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    bool told = connect(fd, (struct sockaddr *)&address, sizeof address) == 0 &&
                write(fd, request, sizeof request - 1) == (ssize_t)sizeof request - 1 && read(fd, answer, 12) == 12 &&
                strcmp(answer, "HTTP/1.1 200") == 0;
    close(fd);
    return told;
}

static bool log_is_empty(void) {
    struct stat about;
    return stat(log_path, &about) != 0 || about.st_size == 0;
}

static void test_store_without_memory_while_it_starts_says_so(void **state) {
    (void)state;
#ifdef __SANITIZE_THREAD__
    skip(); // which has nothing to see in it
#endif
    bool came_to_it = true;
    int n_refused = 0;
    for (int n = 1; came_to_it; n += STRIDE) {
        pid_t pid;
        int status = 0;
        control->failed = 0;
        control->left[0] = n;
        int output = start(&pid);
        char line[512];
        bool ready = says_ready(output, line);
        came_to_it = control->failed > 0;
        if (ready && !tells_figures(line)) {
            fail_msg("allocation %d: it started, and does not tell its figures: %s", n, line);
        }
        if (ready) {
            kill(pid, SIGKILL); // how it ends in order is not asked here
        }
        assert_int_equal(waitpid(pid, &status, 0), pid);
        close(output);
        // Memory of any part may be missing. gRPC aborts the process by itself.
        int code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
        bool says_why = code == SL_EXIT_FAILED || code == SL_EXIT_USAGE || code == SL_EXIT_UNAVAILABLE;
        bool in_order = ready || says_why || (WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
        if (!in_order || (!ready && log_is_empty())) {
            fail_msg("allocation %d: %s, wait status %x", n, ready ? "ready" : "not ready", (unsigned)status);
        }
        n_refused += !ready;
    }
    assert_in_range(n_refused, 50 / STRIDE, 5000);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_store_without_memory_while_it_starts_says_so, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
