// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: what the commands of the `sluice` tool share: exit codes, common options, signals, the connection.
 *
 * To add a command: write `int sl_command_<name>(int argc, char **argv)` in a file of client/cli/commands/ and give it a row in
 * the table of client/sluice/main.c. argv[0] is the command's name. Return an exit code (base/options/exit.h).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "client/libsluice/sluice.h"
#include "base/options/config.h"
#include "base/options/exit.h"
#include "net/trust/tls_files.h"

// Beginning of every command's configuration.
struct sl_tool_config {
    const char *coordinator;
    const char *log;
    struct sl_tls_files tls;
    int64_t timeout_ms; // of one request to the coordinator
    bool json;
};

// Of commands that work in this process and ask no coordinator.
#define SL_LOCAL_TOOL_OPTIONS                                                                                          \
    SL_OPTION_ROW("json", 'j', SL_OPTION_FLAG, NULL, NULL, "one JSON object a line on standard output",                \
                  SL_FIELD(sl_tool_config, json)),                                                                     \
        SL_OPTION_ROW("log", 0, SL_OPTION_STRING, "warn", "FILTER", "e.g. info, or warn,client=debug,compress=debug",  \
                      SL_FIELD(sl_tool_config, log))

// Of all others.
#define SL_TOOL_OPTIONS                                                                                                \
    SL_OPTION_ROW("coordinator", 'c', SL_OPTION_STRING, "127.0.0.1:7600", "HOST:PORT,...",                             \
                  "where the cluster's coordinators listen", SL_FIELD(sl_tool_config, coordinator)),                   \
        SL_TLS_OPTIONS(sl_tool_config, tls, "client"),                                                                 \
        SL_OPTION_ROW("timeout", 0, SL_OPTION_DURATION, "10s", "TIME", "of one request to the coordinator",            \
                      SL_FIELD(sl_tool_config, timeout_ms), 1, 86400000),                                              \
        SL_LOCAL_TOOL_OPTIONS

/*
 * Parse a command line into *config, which begins with struct sl_tool_config, and set the log filter. False: the
 * command is over (help was printed, or the complaint), with the exit code in *exit_out. n_min and n_max bound the
 * number of positional arguments.
 */
bool sl_tool_parse(const struct sl_program *program, int argc, char **argv, void *config, int n_min, int n_max,
                   int *first_out, int *exit_out);

/*
 * A whole command that takes no positional arguments: parse its line, run it, complain if that fails. Returns the exit
 * code. Of a command that asks the cluster, which is connected to first, `arguments` are the positional ones, with NULL
 * behind the last.
 */
int sl_tool_run(const struct sl_program *program, int argc, char **argv, void *config,
                enum sl_status (*run_fn)(void *config, struct sl_error *err));
int sl_tool_ask(const struct sl_program *program, int argc, char **argv, void *config, int n_min, int n_max,
                enum sl_status (*ask_fn)(struct sl_client *client, void *config, char **arguments,
                                         struct sl_error *err));

// Complain on standard error and return the exit code that belongs to the error.
int sl_tool_complain(const char *command, const struct sl_error *err);
// Of what a coordinator was asked: where nobody listens, that is said instead, and what to do.
int sl_tool_complain_of(const char *coordinators, const char *command, const struct sl_error *err);

/*
 * Connect for a command that asks one thing: starts gRPC. Pair with sl_tool_disconnect(). False: complained, with the
 * exit code in *exit_out.
 */
bool sl_tool_connect(const char *command, const char *address, const struct sl_tls_files *tls,
                     struct sl_client **client_out, int *exit_out);
void sl_tool_disconnect(struct sl_client **client);

// Whether anybody listens at one of these: a plain connection attempt, for decisions that come before gRPC may start.
bool sl_tool_reachable(const char *coordinators, int timeout_ms);

/*
 * SIGINT and SIGTERM as something to ask about instead of handlers and globals. sl_signals_init() blocks them for this
 * thread and all that it starts: call it first thing.
 */
struct sl_signals {
    int fd;
    int n_received;
    bool terminated;     // one of them was SIGTERM
    bool screen_changed; // see sl_signals_add_screen(); whoever has followed it sets it back
    // Gives the terminal back as it was, before a stop (Ctrl-Z); NULL: it is as it was.
    void (*leave_screen)(void *arg);
    void *leave_arg;
};
enum sl_status sl_signals_init(struct sl_signals *signals, struct sl_error *err);
// Also notice that the terminal has another size, is wanted by a shell (the process stops, once it has left it), or is ours again after a stop:
// this ends nothing, and is not counted.
enum sl_status sl_signals_add_screen(struct sl_signals *signals, struct sl_error *err);
int sl_signals_received(struct sl_signals *signals);                               // so far
enum sl_status sl_signals_check(struct sl_signals *signals, struct sl_error *err); // SL_ERR_CANCELLED: one; may be NULL
void sl_signals_cleanup(struct sl_signals *signals);

// Columns of the terminal behind fd; 0 when it is not a terminal.
int sl_terminal_width(int fd);
