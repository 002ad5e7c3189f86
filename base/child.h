// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: one child process: its name, its output line by line, its end.
 * Design: a child is in a process group of its own, so that Ctrl-C reaches only the parent, which then stops its
 *         children in order; and the kernel kills it when the parent exits for any reason.
 * Threads: one thread at a time uses a child. Only a single-threaded process, before sl_rpc_init(), may start one.
 */
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

#include "base/status.h"

// Output of a child that we have not passed on yet: less than a line.
struct sl_child_output {
    int fd; // -1: closed
    size_t n;
    char text[4096];
};

struct sl_child {
    char name[32];
    pid_t pid;
    struct sl_child_output out, err;
    char ready[256];                 // its line "ready rpc=HOST:PORT ...", "" before it came
    int64_t done_bytes, total_bytes; // from its last line "loading done=BYTES total=BYTES"; total 0: none came
    int64_t
        // The later of its start and its last line of these two kinds; a child writes them when it makes progress
        moved_ns;
    bool running;
    int wait_status; // valid when it no longer runs
};

// Finds a program in the folders of PATH. False: none has it.
bool sl_child_find(const char *program, char path_out[PATH_MAX]);

// Has the kernel kill this process, a child after fork(), when its parent exits for any reason. False: the parent has
// exited already.
bool sl_child_dies_with(pid_t parent);

// Starts argv[0], a path. The caller cleans up with sl_child_cleanup() after the child has ended.
enum sl_status sl_child_start(struct sl_child *child, const char *name, char *const argv[], struct sl_error *err);

/*
 * Waits up to timeout_ms for output of any of n children and passes it on to `file`, each line with the child's name in
 * front. Lines about loading and about being ready are stored instead. Then checks which children have ended.
 */
void sl_children_pump(struct sl_child *children, size_t n, int timeout_ms, FILE *file);

// Waits up to timeout_ms for output of any of n children. False: there is none.
bool sl_children_wait(const struct sl_child *children, size_t n, int timeout_ms);

// Passes on the output until the child has ended, which SIGKILL sees to after timeout_ms. Cleans up.
void sl_child_wait_end(struct sl_child *child, int timeout_ms, FILE *file);

// Writes the value of a word of the ready line: "rpc" -> "127.0.0.1:7600". False: not there, or too long.
bool sl_child_ready_value(const struct sl_child *child, const char *key, char *buf, size_t buf_bytes);

// Writes "exited with code 3" or "was killed by signal 9 (Killed)". Returns buf.
char *sl_child_describe_end(const struct sl_child *child, char *buf, size_t buf_bytes);

void sl_child_signal(const struct sl_child *child, int number); // does nothing if it has ended
void sl_child_cleanup(struct sl_child *child);
