// SPDX-License-Identifier: Apache-2.0
#include "base/child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

#define MAX_POLLED 256

bool sl_child_find(const char *program, char path[PATH_MAX]) {
    const char *folders = getenv("PATH");
    for (const char *at = folders ? folders : "/usr/bin"; *at;) {
        size_t n = strcspn(at, ":");
        if (snprintf(path, PATH_MAX, "%.*s/%s", (int)n, at, program) < PATH_MAX && access(path, X_OK) == 0) {
            return true;
        }
        at += n + (at[n] == ':');
    }
    return false;
}

bool sl_child_dies_with(pid_t parent) {
    // SIGKILL, because the parent has exited: no process could repeat a request for a graceful exit.
    return prctl(PR_SET_PDEATHSIG, SIGKILL) == 0 && getppid() == parent;
}

// Runs in the child. Uses only functions that are safe between fork and exec.
static void become(char *const argv[], int out_fd, int err_fd, int failure_fd, pid_t parent) {
    sigset_t none;
    sigemptyset(&none);
    signal(SIGPIPE, SIG_DFL);
    setpgid(0, 0);
    if (sl_child_dies_with(parent) && dup2(out_fd, STDOUT_FILENO) >= 0 && dup2(err_fd, STDERR_FILENO) >= 0 &&
        sigprocmask(SIG_SETMASK, &none, NULL) == 0) {
        int null = open("/dev/null", O_RDONLY);
        if (null >= 0 && dup2(null, STDIN_FILENO) >= 0) {
            execv(argv[0], argv);
        }
    }
    int reason = errno;
    ssize_t written = write(failure_fd, &reason, sizeof reason);
    (void)written; // if the parent has exited, no process can read this
    _exit(127);
}

static void close_fd(int *fd) {
    if (*fd >= 0) {
        close(*fd);
        *fd = -1;
    }
}

enum sl_status sl_child_start(struct sl_child *child, const char *name, char *const argv[], struct sl_error *err) {
    // Output, errors, and the errno of a failed exec; a successful exec closes the last.
    int fds[3][2] = {{-1, -1}, {-1, -1}, {-1, -1}};
    enum sl_status status = SL_OK;
    for (int i = 0; i < 3 && status == SL_OK; i++) {
        if (pipe2(fds[i], O_CLOEXEC) != 0) {
            status = sl_fail(err, SL_ERR_EXHAUSTED, "%s: pipe: %s", name, strerror(errno));
        }
    }
    pid_t parent = getpid();
    pid_t pid = status == SL_OK ? fork() : -1;
    if (pid == 0) {
        become(argv, fds[0][1], fds[1][1], fds[2][1], parent);
    }
    SL_THEN_FAIL_IF(status, pid < 0, err, SL_ERR_EXHAUSTED, "%s: fork: %s", name, strerror(errno));
    for (int i = 0; i < 3; i++) {
        close_fd(&fds[i][1]);
    }
    int reason;
    if (status == SL_OK && read(fds[2][0], &reason, sizeof reason) == (ssize_t)sizeof reason) {
        waitpid(pid, NULL, 0);
        status = sl_fail(err, SL_ERR_NOT_FOUND, "%s: cannot start %s: %s", name, argv[0], strerror(reason));
    }
    close_fd(&fds[2][0]);
    if (status != SL_OK) {
        close_fd(&fds[0][0]);
        close_fd(&fds[1][0]);
        return status;
    }
    *child = (struct sl_child){
        .pid = pid, .running = true, .out.fd = fds[0][0], .err.fd = fds[1][0], .moved_ns = sl_now_ns()};
    snprintf(child->name, sizeof child->name, "%s", name);
    fcntl(child->out.fd, F_SETFL, O_NONBLOCK);
    fcntl(child->err.fd, F_SETFL, O_NONBLOCK);
    return SL_OK;
}

static bool take_loading(struct sl_child *child, const char *line, size_t n) {
    char text[80];
    long long done, total;
    snprintf(text, sizeof text, "%.*s", (int)n, line);
    if (sscanf(text, "loading done=%lld total=%lld", &done, &total) != 2 || done < 0 || total <= 0) {
        return false;
    }
    child->done_bytes = done < total ? done : total;
    child->total_bytes = total;
    child->moved_ns = sl_now_ns();
    return true;
}

static void pass_line(struct sl_child *child, bool is_out, const char *line, size_t n, FILE *file) {
    if (is_out && n >= 6 && memcmp(line, "ready ", 6) == 0) {
        snprintf(child->ready, sizeof child->ready, "%.*s", (int)n, line);
        child->moved_ns = sl_now_ns();
    } else if (is_out && take_loading(child, line, n)) {
        return;
    } else if (!is_out && n > 0 && line[0] == '{') { // a JSON line, which names its process
        fprintf(file, "%.*s\n", (int)n, line);
    } else {
        fprintf(file, "%-13s| %.*s\n", child->name, (int)n, line);
    }
}

// Passes on complete lines. A line longer than the buffer is passed on in pieces. At the end also passes on an
// incomplete line.
static void pass_lines(struct sl_child *child, struct sl_child_output *output, bool at_end, FILE *file) {
    char *line = output->text, *end = output->text + output->n, *newline;
    while ((newline = memchr(line, '\n', (size_t)(end - line)))) {
        pass_line(child, output == &child->out, line, (size_t)(newline - line), file);
        line = newline + 1;
    }
    size_t left = (size_t)(end - line);
    if (left == sizeof output->text || (at_end && left > 0)) {
        pass_line(child, output == &child->out, line, left, file);
        left = 0;
    }
    memmove(output->text, line, left);
    output->n = left;
}

static void drain_output(struct sl_child *child, struct sl_child_output *output, FILE *file) {
    while (output->fd >= 0) {
        ssize_t n = read(output->fd, output->text + output->n, sizeof output->text - output->n);
        if (n > 0) {
            output->n += (size_t)n;
        } else if (n < 0 && (errno == EAGAIN || errno == EINTR)) {
            return;
        } else {
            close_fd(&output->fd);
        }
        pass_lines(child, output, output->fd < 0, file);
    }
}

bool sl_children_wait(const struct sl_child *children, size_t n, int timeout_ms) {
    struct pollfd polled[MAX_POLLED];
    nfds_t n_polled = 0;
    for (size_t i = 0; i < n && n_polled + 2 <= MAX_POLLED; i++) {
        // poll() ignores negative descriptors.
        polled[n_polled++] = (struct pollfd){.fd = children[i].out.fd, .events = POLLIN};
        polled[n_polled++] = (struct pollfd){.fd = children[i].err.fd, .events = POLLIN};
    }
    return poll(polled, n_polled, timeout_ms) > 0;
}

void sl_children_pump(struct sl_child *children, size_t n, int timeout_ms, FILE *file) {
    (void)sl_children_wait(children, n, timeout_ms); // the end of a child causes no output to wait for
    for (size_t i = 0; i < n; i++) {
        struct sl_child *child = &children[i];
        // Check for its end first, then read its output: that is then complete.
        if (child->running && waitpid(child->pid, &child->wait_status, WNOHANG) == child->pid) {
            child->running = false;
        }
        drain_output(child, &child->out, file);
        drain_output(child, &child->err, file);
    }
    fflush(file);
}

void sl_child_wait_end(struct sl_child *child, int timeout_ms, FILE *file) {
    int64_t deadline_ns = sl_deadline_in_ms(timeout_ms);
    while (child->running) {
        sl_children_pump(child, 1, 50, file);
        if (sl_now_ns() > deadline_ns) {
            sl_child_signal(child, SIGKILL);
        }
    }
    sl_child_cleanup(child);
}

bool sl_child_ready_value(const struct sl_child *child, const char *key, char *buf, size_t buf_bytes) {
    size_t key_bytes = strlen(key);
    for (const char *word = child->ready; *word;) {
        size_t n = strcspn(word, " ");
        if (n > key_bytes && word[key_bytes] == '=' && memcmp(word, key, key_bytes) == 0) {
            size_t value_bytes = n - key_bytes - 1;
            if (value_bytes >= buf_bytes) {
                return false;
            }
            memcpy(buf, word + key_bytes + 1, value_bytes);
            buf[value_bytes] = '\0';
            return true;
        }
        word += n + (word[n] == ' ');
    }
    return false;
}

char *sl_child_describe_end(const struct sl_child *child, char *buf, size_t buf_bytes) {
    if (child->running) {
        snprintf(buf, buf_bytes, "is running");
    } else if (WIFSIGNALED(child->wait_status)) {
        int number = WTERMSIG(child->wait_status);
        snprintf(buf, buf_bytes, "was killed by signal %d (%s)", number, sigdescr_np(number));
    } else {
        snprintf(buf, buf_bytes, "exited with code %d", WEXITSTATUS(child->wait_status));
    }
    return buf;
}

void sl_child_signal(const struct sl_child *child, int number) {
    if (child->running) {
        kill(child->pid, number);
    }
}

void sl_child_cleanup(struct sl_child *child) {
    close_fd(&child->out.fd);
    close_fd(&child->err.fd);
}
