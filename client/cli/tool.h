// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: code that the commands of the `sluice` tool share: exit codes, common options, signals, the connection.
 *
 * To add a command: write `int sl_command_<name>(int argc, char **argv)` in a file of client/cli/commands/ and give it
 * a row in the table of client/sluice/main.c. argv[0] is the command's name. Return an exit code (base/options/exit.h).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "base/status.h"
#include "client/libsluice/sluice.h"
#include "base/options/config.h"
#include "base/options/exit.h"
#include "net/trust/tls_files.h"

// First member of every command's configuration.
struct sl_tool_config {
    const char *coordinator;
    const char *log;
    struct sl_tls_files tls;
    int64_t timeout_ms; // for one request to the coordinator
    bool json;
    char **arguments; // positional ones, with NULL after the last one
    int n_arguments;
    int exit_code;              // of a command that succeeded; 0: SL_EXIT_OK
    struct sl_signals *signals; // polled while sl_tool_call() runs; NULL: a signal ends the process
};

// Table rows for commands that work in this process and use no coordinator.
#define SL_LOCAL_TOOL_OPTIONS                                                                                          \
    SL_OPTION_ROW("json", 'j', SL_OPTION_FLAG, NULL, NULL, "one JSON object a line on standard output",                \
                  SL_FIELD(sl_tool_config, json)),                                                                     \
        SL_OPTION_ROW("log", 0, SL_OPTION_STRING, "warn", "FILTER", "e.g. info, or warn,client=debug,compress=debug",  \
                      SL_FIELD(sl_tool_config, log))

// Table rows for all other commands.
#define SL_TOOL_OPTIONS                                                                                                \
    SL_OPTION_ROW("coordinator", 'c', SL_OPTION_STRING, "127.0.0.1:7600", "HOST:PORT,...",                             \
                  "where the cluster's coordinators listen", SL_FIELD(sl_tool_config, coordinator)),                   \
        SL_TLS_OPTIONS(sl_tool_config, tls, "client"),                                                                 \
        SL_OPTION_ROW("timeout", 0, SL_OPTION_DURATION, "10s", "TIME", "deadline of one request to the coordinator",   \
                      SL_FIELD(sl_tool_config, timeout_ms), 1, 86400000),                                              \
        SL_LOCAL_TOOL_OPTIONS

// A member of a command's struct sl_program: it takes n arguments. Without an epilog, its help ends with the exit
// codes.
#define SL_ARGUMENTS(n) .n_arguments_min = (n), .n_arguments_max = (n)

/*
 * Parses a command line into *config, which begins with struct sl_tool_config, and sets the log filter. False: the
 * command is over (help or an error was printed), with the exit code in *exit_out.
 */
bool sl_tool_parse(const struct sl_program *program, int argc, char **argv, void *config, int *exit_out);

/*
 * Runs a whole command: parses its line, runs it, and reports its error. Returns the exit code. sl_tool_ask() is for a
 * command that is one sl_tool_call().
 */
int sl_tool_run(const struct sl_program *program, int argc, char **argv, void *config,
                enum sl_status (*run_fn)(void *config, struct sl_error *err));
int sl_tool_ask(const struct sl_program *program, int argc, char **argv, void *config,
                enum sl_status (*ask_fn)(struct sl_client *client, void *config, struct sl_error *err));

// Define the function of a command that is one sl_tool_run() or sl_tool_ask(). type: the struct of its configuration.
// Members that differ from 0 may follow; SL_WITH_SIGNALS: a signal stops it, instead of ending the process.
#define SL_COMMAND_RUN(name, type, program, run_fn, ...)                                                               \
    int name(int argc, char **argv) {                                                                                  \
        struct type config = {__VA_ARGS__};                                                                            \
        return sl_tool_run(&(program), argc, argv, &config, run_fn);                                                   \
    }
#define SL_COMMAND_ASK(name, type, program, ask_fn, ...)                                                               \
    int name(int argc, char **argv) {                                                                                  \
        struct type config = {__VA_ARGS__};                                                                            \
        return sl_tool_ask(&(program), argc, argv, &config, ask_fn);                                                   \
    }
#define SL_WITH_SIGNALS                                                                                                \
    .tool.signals = &(struct sl_signals) {                                                                             \
        0                                                                                                              \
    }

// Connects to the coordinators of *config, which begins with struct sl_tool_config, and runs ask_fn.
enum sl_status sl_tool_call(void *config,
                            enum sl_status (*ask_fn)(struct sl_client *client, void *config, struct sl_error *err),
                            struct sl_error *err);

// Prints an error on standard error and returns the exit code that belongs to it.
int sl_tool_complain(const char *command, const struct sl_error *err);
// Prints the error of a call to a coordinator. If no coordinator listens at the address, says so and gives the remedy.
int sl_tool_complain_of(const char *coordinators, const char *command, const struct sl_error *err);

/*
 * Connects, for a command with one request: starts gRPC. Pair with sl_tool_disconnect(). False: the error was printed,
 * and the exit code is in *exit_out.
 */
bool sl_tool_connect(const char *command, const char *address, const struct sl_tls_files *tls,
                     struct sl_client **client_out, int *exit_out);
void sl_tool_disconnect(struct sl_client **client);

// Returns true if a server listens at one of these addresses: a plain connection attempt, for decisions before gRPC may
// start.
bool sl_tool_reachable(const char *coordinators, int timeout_ms);

/*
 * SIGINT and SIGTERM, which the program polls instead of using handlers and globals. sl_signals_init() blocks them for
 * this thread and all threads that it starts: call it first.
 */
struct sl_signals {
    int fd;
    int n_received;
    bool terminated;     // one of them was SIGTERM
    bool screen_changed; // see sl_signals_add_screen(); the code that handles the change resets it
    // Restores the terminal before a stop (Ctrl-Z); NULL: its modes are unchanged.
    void (*leave_screen)(void *arg);
    void *leave_arg;
};
enum sl_status sl_signals_init(struct sl_signals *signals, struct sl_error *err);
// Watches the terminal as well: its size has changed, a shell wants it (this process restores it and stops), or this
// process continues after a stop. Such signals end nothing, and are not counted.
enum sl_status sl_signals_add_screen(struct sl_signals *signals, struct sl_error *err);
int sl_signals_received(struct sl_signals *signals); // number so far
// Returns SL_ERR_CANCELLED after a signal; err may be NULL
enum sl_status sl_signals_check(struct sl_signals *signals, struct sl_error *err);
// Lets a model be loaded until a signal has come: a sl_loading_fn (engine/runtime/loading.h), whose arg is the signals
// or NULL.
bool sl_signals_loading(void *arg, size_t done_bytes, size_t total_bytes);
void sl_signals_cleanup(struct sl_signals *signals);

// Prints text that a model wrote, at once; to a terminal without control characters: a document could make the model
// write some that command the terminal. False: it cannot be written.
bool sl_answer_print(const char *text, FILE *file);

// Returns the columns of fd's terminal; 0 when it is not a terminal.
int sl_terminal_width(int fd);
