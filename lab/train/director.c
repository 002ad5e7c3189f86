// SPDX-License-Identifier: Apache-2.0
#include "lab/train/director.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/close.h"
#include "lab/python.h"

#define SILENCE_S 600 // the longest prompts take seconds

enum sl_status sl_director_start(struct sl_director *director, const char *out, const char *checkpoint,
                                 struct sl_error *err) {
    int fds[2];
    SL_FAIL_IF(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0, err, SL_ERR_EXHAUSTED, "no socket: %m");
    enum sl_status status = sl_python_start((const char *const[3]){"sluice_eval.train_heads", out, checkpoint}, fds[1],
                                            -1, &director->pid, err);
    close(fds[1]);
    director->fd = fds[0];
    SL_TRY_OR(status, director->pid = 0);
    director->from = fdopen(director->fd, "r");
    return director->from ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
}

void sl_director_stop(struct sl_director *director) {
    if (director->pid > 0) {
        kill(director->pid, SIGKILL); // it has nothing to lose
        while (waitpid(director->pid, NULL, 0) < 0 && errno == EINTR) {
        }
    }
    director->from ? (void)fclose(director->from) : sl_close(director->fd); // the stream is only read
    free(director->line);
    *director = SL_DIRECTOR_NONE;
}

void sl_director_send(const struct sl_director *director, const json_t *message) {
    char *text = message ? json_dumps(message, JSON_COMPACT) : NULL, *at = text;
    size_t n = text ? strlen(text) : 0;
    if (text) {
        text[n++] = '\n'; // in place of the final zero
    }
    for (ssize_t sent; n > 0 && (sent = send(director->fd, at, n, MSG_NOSIGNAL)) > 0; n -= (size_t)sent) {
        at += sent;
    }
    free(text);
}

enum sl_status sl_director_receive(struct sl_director *director, json_t **message_out, struct sl_error *err) {
    struct pollfd news = {.fd = director->fd, .events = POLLIN};
    int n_news;
    do { // a timeout of the socket would end the read when this process is stopped and continued (Ctrl-Z, fg)
        n_news = poll(&news, 1, SILENCE_S * 1000);
    } while (n_news < 0 && errno == EINTR);
    ssize_t n = n_news > 0 ? getline(&director->line, &director->line_bytes, director->from) : -1;
    *message_out = n > 0 ? json_loadb(director->line, (size_t)n, JSON_ALLOW_NUL, NULL) : NULL;
    SL_FAIL_IF(*message_out == NULL, err, SL_ERR_UNSUPPORTED,
               n_news == 0 ? "the trainer (python3 -m sluice_eval.train_heads) has said nothing for %d s"
                           : "the trainer (python3 -m sluice_eval.train_heads) ended in less than %d s; what it "
                             "said is above. It needs NumPy (package python3-numpy)",
               SILENCE_S);
    return SL_OK;
}
