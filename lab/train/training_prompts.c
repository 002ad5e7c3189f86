// SPDX-License-Identifier: Apache-2.0
#include "lab/train/training_prompts.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/close.h"
#include "client/cli/message_json.h"
#include "lab/python.h"

#define SILENCE_S 600 // the longest prompts take seconds

struct sl_training_prompts {
    struct sl_training_prompts_config config;
    pid_t pid;  // of the writer; 0: none
    int fd;     // of its standard input and output; -1: none
    FILE *from; // reads fd; NULL: none
    char *line; // the last one, [line_bytes]
    size_t line_bytes;
};

// --- the writer's process --------------------------------------------------------------------------------------------

static enum sl_status start(struct sl_training_prompts *p, struct sl_error *err) {
    const struct timeval silence = {.tv_sec = SILENCE_S};
    int fds[2];
    SL_FAIL_IF(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0, err, SL_ERR_EXHAUSTED, "no socket: %m");
    enum sl_status status =
        sl_python_start((const char *const[3]){"sluice_eval.training"}, fds[1], fds[1], &p->pid, err);
    close(fds[1]);
    p->fd = fds[0];
    SL_TRY_OR(status, p->pid = 0);
    p->from = setsockopt(p->fd, SOL_SOCKET, SO_RCVTIMEO, &silence, sizeof silence) == 0 ? fdopen(p->fd, "r") : NULL;
    SL_FAIL_IF(p->from == NULL, err, SL_ERR_EXHAUSTED, "out of memory");
    return SL_OK;
}

// A failure to send is found by the next receive(), which has the writer's own words.
static void send_text(const struct sl_training_prompts *p, const char *text) {
    size_t n = strlen(text);
    for (ssize_t sent; n > 0 && (sent = send(p->fd, text, n, MSG_NOSIGNAL)) > 0; n -= (size_t)sent) {
        text += sent;
    }
}

static void send_number(const struct sl_training_prompts *p, uint64_t number) {
    char text[24];
    snprintf(text, sizeof text, "%" PRIu64 "\n", number);
    send_text(p, text);
}

static enum sl_status answer_count(const struct sl_training_prompts *p, const char *text, struct sl_error *err) {
    int32_t *ids = NULL;
    size_t n = 0;
    SL_TRY(sl_tokenizer_encode(p->config.tokenizer, text, strlen(text), true, &ids, &n, err));
    free(ids);
    send_number(p, n);
    return SL_OK;
}

// Answers the writer's questions, and returns its first other message. The caller gives back its reference.
static enum sl_status receive(struct sl_training_prompts *p, json_t **message_out, struct sl_error *err) {
    for (;;) {
        errno = 0;
        ssize_t n = getline(&p->line, &p->line_bytes, p->from);
        json_t *message = n > 0 ? json_loadb(p->line, (size_t)n, JSON_ALLOW_NUL, NULL) : NULL;
        const char *text = NULL, *failure = NULL;
        int code = 1;
        SL_FAIL_IF(message == NULL, err, SL_ERR_UNSUPPORTED,
                   errno == EAGAIN ? "the writer of prompts (python3 -m sluice_eval.training) has said nothing for %d s"
                                   : "the writer of prompts (python3 -m sluice_eval.training) ended in less than %d s; "
                                     "what it said is above. It needs NumPy (package python3-numpy)",
                   SILENCE_S);
        enum sl_status status = SL_OK;
        if (json_unpack(message, "{s:s}", "count", &text) == 0) {
            status = answer_count(p, text, err);
        } else if (json_unpack(message, "{s:s, s:i}", "error", &failure, "code", &code) == 0) {
            status = sl_fail(err, code == 2 ? SL_ERR_INVALID : SL_ERR_NOT_FOUND, "%s", failure);
        } else {
            *message_out = message;
            return SL_OK;
        }
        json_decref(message);
        SL_TRY(status);
    }
}

// --- opening ---------------------------------------------------------------------------------------------------------

static json_t *list_json(const struct sl_option_list *list) {
    json_t *items = json_array();
    for (int i = 0; i < list->n; i++) {
        json_array_append_new(items, sl_text_json(list->items[i]));
    }
    return items;
}

static enum sl_status send_options(struct sl_training_prompts *p, struct sl_error *err) {
    const struct sl_training_prompts_config *c = &p->config;
    json_t *options = json_pack("{s:o, s:o, s:o, s:I}", "data", c->data ? sl_text_json(c->data) : json_null(), "tasks",
                                list_json(&c->tasks), "texts", list_json(&c->texts), "seed", (json_int_t)c->seed);
    char *text = options ? json_dumps(options, JSON_COMPACT) : NULL;
    json_decref(options);
    SL_FAIL_IF(text == NULL, err, SL_ERR_EXHAUSTED, "out of memory");
    send_text(p, text);
    send_text(p, "\n");
    free(text);
    json_t *ready = NULL;
    enum sl_status status = receive(p, &ready, err);
    json_decref(ready);
    return status;
}

enum sl_status sl_training_prompts_open(const struct sl_training_prompts_config *config,
                                        struct sl_training_prompts **prompts_out, struct sl_error *err) {
    SL_FAIL_IF(!config->data && config->tasks.n == 0, err, SL_ERR_INVALID,
               "--data FILE or --task NAME is needed: prompts whose answers are known");
    struct sl_training_prompts *p = calloc(1, sizeof *p);
    SL_FAIL_IF(!p, err, SL_ERR_EXHAUSTED, "out of memory");
    p->config = *config;
    p->fd = -1;
    enum sl_status status = start(p, err);
    SL_THEN(status, send_options(p, err));
    SL_TRY_OR(status, sl_training_prompts_close(&p));
    *prompts_out = p;
    return SL_OK;
}

void sl_training_prompts_close(struct sl_training_prompts **prompts) {
    struct sl_training_prompts *p = *prompts;
    if (!p) {
        return;
    }
    if (p->pid > 0) {
        kill(p->pid, SIGKILL); // it has nothing to lose
        while (waitpid(p->pid, NULL, 0) < 0 && errno == EINTR) {
        }
    }
    p->from ? (void)fclose(p->from) : sl_close(p->fd);
    free(p->line);
    free(p);
    *prompts = NULL;
}

// --- one prompt ------------------------------------------------------------------------------------------------------

static enum sl_status join(const struct sl_training_prompts *p, const char *prompt, const char *answer,
                           struct sl_training_prompt *prompt_out, struct sl_error *err) {
    int32_t *before = NULL, *after = NULL;
    size_t n_before = 0, n_after = 0;
    const struct sl_tokenizer *tokenizer = p->config.tokenizer;
    enum sl_status status = sl_tokenizer_encode(tokenizer, prompt, strlen(prompt), true, &before, &n_before, err);
    SL_THEN(status, sl_tokenizer_encode(tokenizer, answer, strlen(answer), false, &after, &n_after, err));
    SL_THEN_FAIL_IF(status, n_before < 2, err, SL_ERR_INVALID,
                    "a prompt of %zu tokens: there is nothing to learn from it", n_before);
    int32_t *all = status == SL_OK ? realloc(before, (n_before + n_after) * sizeof *all) : NULL;
    SL_THEN_FAIL_IF(status, !all, err, SL_ERR_EXHAUSTED, "out of memory for a prompt of %zu tokens", n_before);
    if (status == SL_OK) {
        before = NULL;
        memcpy(all + n_before, after, n_after * sizeof *all);
        size_t n = n_before + n_after, most = (size_t)p->config.max_tokens, cut = n > most ? n - most : 0;
        cut = cut + 2 > n_before ? n_before - 2 : cut; // an answer that is too long loses its end
        memmove(all, all + cut, (n - cut) * sizeof *all);
        n = n - cut < most ? n - cut : most;
        *prompt_out = (struct sl_training_prompt){all, (int64_t)n, (int64_t)(n_before - cut)};
    }
    free(before);
    free(after);
    return status;
}

enum sl_status sl_training_prompts_get(struct sl_training_prompts *prompts, uint64_t index,
                                       struct sl_training_prompt *prompt_out, struct sl_error *err) {
    json_t *message;
    const char *prompt, *completion, *where;
    send_number(prompts, index);
    SL_TRY(receive(prompts, &message, err));
    enum sl_status status =
        json_unpack(message, "{s:s, s:s, s:s}", "prompt", &prompt, "completion", &completion, "where", &where) == 0
            ? join(prompts, prompt, completion, prompt_out, err)
            : sl_fail(err, SL_ERR_INTERNAL, "the writer of prompts sent no prompt: %.100s", prompts->line);
    if (status == SL_ERR_INVALID) {
        sl_error_prefix(err, where);
    }
    json_decref(message);
    return status;
}
