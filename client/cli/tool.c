// SPDX-License-Identifier: Apache-2.0
#include "client/cli/tool.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "base/options/environment.h"
#include "net/rpc/rpc.h"

#define PROBE_MS 1000

int sl_tool_complain(const char *command, const struct sl_error *err) {
    fprintf(stderr, "sluice %s: %s\n", command, err->text);
    return sl_exit_of(err->status);
}

// Returns true if no connection can be made, or the server is not a coordinator: an HTTP server, or a gRPC server
// without the method.
static bool is_no_coordinator(const struct sl_error *err) {
    return err->reason == SL_REASON_UNCONNECTED || err->reason == SL_REASON_UNKNOWN_METHOD;
}

int sl_tool_complain_of(const char *coordinators, const char *command, const struct sl_error *err) {
    if (err->status == SL_ERR_PEER_LOST && !sl_tool_reachable(coordinators, PROBE_MS)) {
        fprintf(stderr,
                "sluice %s: no coordinator at %s: start a cluster with `sluice up --detach --model DIR`, or name "
                "another one's "
                "coordinator with --coordinator\n",
                command, coordinators);
        return SL_EXIT_UNAVAILABLE;
    }
    if (is_no_coordinator(err)) {
        fprintf(stderr,
                "sluice %s: no coordinator at %s, where something else listens, or one that wants certificates "
                "(--tls-ca)%s%s\n",
                command, coordinators, err->text[0] ? ": " : "", err->text);
        return SL_EXIT_UNAVAILABLE;
    }
    if (err->status == SL_ERR_DENIED) {
        fprintf(stderr,
                "sluice %s: %s; give another certificate by --tls-cert and --tls-key, such as an operator's "
                "(docs/SECURITY.md)\n",
                command, err->text);
        return sl_exit_of(err->status);
    }
    return sl_tool_complain(command, err);
}

static void warn(const char *program, const char *text) {
    fprintf(stderr, "%s: %s\n", program, text);
}

bool sl_tool_parse(const struct sl_program *program, int argc, char **argv, void *config, int *exit_out) {
    struct sl_error err = {0};
    int first = 0;
    struct sl_program whole = *program;
    whole.epilog = program->epilog ? program->epilog : SL_EXIT_CODES_HELP;
    enum sl_status status = sl_config_parse(&whole, argc, argv, config, &first, &err);
    if (status == SL_ERR_CANCELLED) {
        *exit_out = SL_EXIT_OK;
        return false;
    }
    int n = argc - first;
    if (status == SL_OK && (n < program->n_arguments_min || n > program->n_arguments_max)) {
        status =
            n < program->n_arguments_min
                ? sl_fail(&err, SL_ERR_INVALID, "an argument is missing: %s %s", program->name, program->usage)
                : sl_fail(&err, SL_ERR_INVALID, "unexpected argument '%s'", argv[first + program->n_arguments_max]);
    }
    struct sl_tool_config *tool = config;
    struct sl_rpc_addresses addresses;
    tool->arguments = argv + first;
    tool->n_arguments = n;
    SL_THEN(status, tool->coordinator ? sl_rpc_addresses_parse(tool->coordinator, &addresses, &err) : SL_OK);
    if (status == SL_OK) {
        status = sl_log_configure(tool->log, &err);
        sl_environment_check(warn, program->name);
    }
    if (status != SL_OK) {
        fprintf(stderr, "%s: %s\n", program->name, err.text);
        *exit_out = SL_EXIT_USAGE;
        return false;
    }
    return true;
}

bool sl_tool_connect(const char *command, const char *address, const struct sl_tls_files *tls,
                     struct sl_client **client_out, int *exit_out) {
    struct sl_error err;
    sl_rpc_init();
    if (sl_client_connect(address, tls, client_out, &err) != SL_OK) {
        sl_rpc_shutdown();
        *exit_out = sl_tool_complain(command, &err);
        return false;
    }
    return true;
}

void sl_tool_disconnect(struct sl_client **client) {
    sl_client_close(client);
    sl_rpc_shutdown();
}

static const char *command_of(const struct sl_program *program) {
    return program->name + strlen("sluice ");
}

static int end(const struct sl_program *program, const struct sl_tool_config *tool, enum sl_status status,
               const struct sl_error *err) {
    return status == SL_OK     ? tool->exit_code
           : tool->coordinator ? sl_tool_complain_of(tool->coordinator, command_of(program), err)
                               : sl_tool_complain(command_of(program), err);
}

int sl_tool_run(const struct sl_program *program, int argc, char **argv, void *config,
                enum sl_status (*run_fn)(void *config, struct sl_error *err)) {
    const struct sl_tool_config *tool = config;
    struct sl_error err = {0};
    int code;
    if (!sl_tool_parse(program, argc, argv, config, &code)) {
        return code;
    }
    return end(program, tool, run_fn(config, &err), &err);
}

int sl_tool_ask(const struct sl_program *program, int argc, char **argv, void *config,
                enum sl_status (*ask_fn)(struct sl_client *client, void *config, struct sl_error *err)) {
    struct sl_error err = {0};
    int code;
    if (!sl_tool_parse(program, argc, argv, config, &code)) {
        return code;
    }
    return end(program, config, sl_tool_call(config, ask_fn, &err), &err);
}

enum sl_status sl_tool_call(void *config,
                            enum sl_status (*ask_fn)(struct sl_client *client, void *config, struct sl_error *err),
                            struct sl_error *err) {
    const struct sl_tool_config *tool = config;
    struct sl_client *client = NULL;
    SL_TRY(tool->signals ? sl_signals_init(tool->signals, err) : SL_OK); // before threads start
    sl_rpc_init();
    enum sl_status status = sl_client_connect(tool->coordinator, &tool->tls, &client, err);
    SL_THEN(status, ask_fn(client, config, err));
    sl_tool_disconnect(&client);
    if (tool->signals) {
        sl_signals_cleanup(tool->signals);
    }
    return status;
}

static bool connects(const struct addrinfo *at, int timeout_ms) {
    int fd = socket(at->ai_family, at->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, at->ai_protocol);
    if (fd < 0) {
        return false;
    }
    bool ok = connect(fd, at->ai_addr, at->ai_addrlen) == 0;
    if (!ok && errno == EINPROGRESS) {
        struct pollfd polled = {.fd = fd, .events = POLLOUT};
        int error = ETIMEDOUT;
        socklen_t error_bytes = sizeof error;
        if (poll(&polled, 1, timeout_ms) == 1) {
            getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &error_bytes);
        }
        ok = error == 0;
    }
    close(fd);
    return ok;
}

static bool reachable(const char *address, int timeout_ms) {
    char host[256];
    const char *colon = strrchr(address, ':');
    if (!colon || (size_t)(colon - address) >= sizeof host) {
        return false;
    }
    bool bracketed = address[0] == '[' && colon > address + 1 && colon[-1] == ']'; // [::1]:7600
    snprintf(host, sizeof host, "%.*s", (int)(colon - address) - 2 * bracketed, address + bracketed);
    struct addrinfo *list;
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    if (getaddrinfo(host, colon + 1, &hints, &list) != 0) {
        return false;
    }
    bool ok = false;
    for (const struct addrinfo *at = list; at && !ok; at = at->ai_next) {
        ok = connects(at, timeout_ms);
    }
    freeaddrinfo(list);
    return ok;
}

bool sl_tool_reachable(const char *coordinators, int timeout_ms) {
    struct sl_rpc_addresses addresses;
    struct sl_error err;
    bool ok = false;
    if (sl_rpc_addresses_parse(coordinators, &addresses, &err) == SL_OK) {
        for (int i = 0; i < addresses.n && !ok; i++) {
            ok = reachable(addresses.text[i], timeout_ms);
        }
    }
    return ok;
}

// Opens a descriptor for signals. before: a descriptor to reuse, or -1.
static enum sl_status receive(int before, bool screen, int *fd_out, struct sl_error *err) {
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    if (screen) {
        sigaddset(&set, SIGWINCH);
        sigaddset(&set, SIGTSTP);
        sigaddset(&set, SIGCONT);
    }
    SL_FAIL_IF(sigprocmask(SIG_BLOCK, &set, NULL) != 0, err, SL_ERR_INTERNAL, "sigprocmask: %s", strerror(errno));
    int fd = signalfd(before, &set, SFD_NONBLOCK | SFD_CLOEXEC);
    SL_FAIL_IF(fd < 0, err, SL_ERR_EXHAUSTED, "signalfd: %s", strerror(errno));
    *fd_out = fd;
    return SL_OK;
}

enum sl_status sl_signals_init(struct sl_signals *signals, struct sl_error *err) {
    int fd;
    signal(SIGPIPE, SIG_IGN); // with a closed pipe, write() fails instead of a signal ending the process
    SL_TRY(receive(-1, false, &fd, err));
    *signals = (struct sl_signals){.fd = fd};
    return SL_OK;
}

enum sl_status sl_signals_add_screen(struct sl_signals *signals, struct sl_error *err) {
    return receive(signals->fd, true, &signals->fd, err);
}

// Stops this process like the unblocked signal would, by sending the signal itself: only the kernel knows whether a
// shell would continue us.
static void stop_here(struct sl_signals *signals) {
    sigset_t set, before;
    if (signals->leave_screen) {
        signals->leave_screen(signals->leave_arg);
    }
    sigemptyset(&set);
    sigaddset(&set, SIGTSTP);
    (void)kill(getpid(), SIGTSTP);
    (void)pthread_sigmask(SIG_UNBLOCK, &set, &before); // the process stops here
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    signals->screen_changed = true;
}

int sl_signals_received(struct sl_signals *signals) {
    struct signalfd_siginfo info;
    while (read(signals->fd, &info, sizeof info) == (ssize_t)sizeof info) {
        bool stop = info.ssi_signo == SIGTSTP, screen = stop || info.ssi_signo == SIGWINCH || info.ssi_signo == SIGCONT;
        if (stop) {
            stop_here(signals);
        }
        signals->screen_changed |= screen;
        signals->n_received += !screen;
        signals->terminated |= info.ssi_signo == SIGTERM;
    }
    return signals->n_received;
}

enum sl_status sl_signals_check(struct sl_signals *signals, struct sl_error *err) {
    bool stopped = signals && sl_signals_received(signals) > 0;
    return stopped ? sl_fail(err, SL_ERR_CANCELLED, "stopped by a signal") : SL_OK;
}

bool sl_signals_loading(void *arg, size_t done_bytes, size_t total_bytes) {
    (void)done_bytes, (void)total_bytes;
    return sl_signals_check(arg, NULL) == SL_OK;
}

void sl_signals_cleanup(struct sl_signals *signals) {
    close(signals->fd);
    signals->fd = -1;
}

bool sl_answer_print(const char *text, FILE *file) {
    const bool is_terminal = isatty(fileno(file));
    for (const char *at = text; *at; at++) {
        const unsigned char c = (unsigned char)*at, next = (unsigned char)at[1];
        const bool is_long = c == 0xc2 && next >= 0x80 && next < 0xa0; // the control characters above ASCII
        const bool commands = (c < ' ' && c != '\n' && c != '\t') || c == 0x7f || is_long;
        if (!is_terminal || !commands) {
            fputc(c, file);
        } else if (c != '\r') { // of a line that ends with \r\n, which needs no mark
            fputc('?', file);
        }
        at += is_terminal && is_long;
    }
    return fflush(file) == 0 && !ferror(file);
}

int sl_terminal_width(int fd) {
    if (!isatty(fd)) {
        return 0;
    }
    struct winsize size;
    return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col >= 20 ? size.ws_col : 80;
}
