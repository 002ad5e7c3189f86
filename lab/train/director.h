// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the Python process that directs a training run, and the socket to it. Messages are JSON objects, one a line:
 *          options go first, then requests come (cmd_train_heads.c lists them), and each is answered by an object.
 */
#pragma once

#include <jansson.h>
#include <stdio.h>
#include <sys/types.h>

#include "base/status.h"

struct sl_director {
    pid_t pid;  // 0: none
    int fd;     // of its standard input; -1: none
    FILE *from; // reads fd; NULL: none
    char *line; // the last one, [line_bytes]
    size_t line_bytes;
};
#define SL_DIRECTOR_NONE                                                                                               \
    (struct sl_director) {                                                                                             \
        .fd = -1                                                                                                       \
    }

// Starts the process, which writes these two files. SL_ERR_UNSUPPORTED: there is no Python. Stop it after failures, too.
enum sl_status sl_director_start(struct sl_director *director, const char *out, const char *checkpoint,
                                 struct sl_error *err);
void sl_director_stop(struct sl_director *director); // at once

// A failure to send is found by the next receive, which has the process's own words.
void sl_director_send(const struct sl_director *director, const json_t *message);
// Waits 10 minutes at most. The caller gives back the reference. SL_ERR_UNSUPPORTED: the process has ended, or is silent.
enum sl_status sl_director_receive(struct sl_director *director, json_t **message_out, struct sl_error *err);
