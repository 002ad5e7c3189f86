// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: the common part of every server's main(): common options, the log, and the last error message.
 *
 *     if (!sl_program_begin(&program, argc, argv, &options, &options.common, &code)) { return code; }
 *     ...
 *     return sl_program_end(&program, status, &err);
 *
 * Design: exit codes are those of base/options/exit.h.
 */
#pragma once

#include <stdbool.h>

#include "base/log.h"
#include "base/status.h"
#include "base/options/config.h"
#include "base/options/exit.h"

struct sl_program_options {
    const char *log, *log_format;
    const char *admin_listen; // net/admin/admin.h
    const char *otlp;         // net/trace/otlp/otlp.h
    double otlp_share;
    bool check;
};

// Table rows for the member `common` of struct `type`.
#define SL_PROGRAM_OPTIONS(type, common)                                                                               \
    SL_OPTION_ROW("log", 0, SL_OPTION_STRING, "info", "FILTER", "level, or level,component=level,...",                 \
                  SL_FIELD(type, common.log)),                                                                         \
        SL_OPTION_ROW("log-format", 0, SL_OPTION_STRING, "text", "FORMAT",                                             \
                      "format of log lines: text, or json for one object a line", SL_FIELD(type, common.log_format)),  \
        SL_OPTION_ROW("admin-listen", 0, SL_OPTION_STRING, "127.0.0.1:0", "HOST:PORT",                                 \
                      "where /livez, /readyz, /startupz and /metrics are served, in plain HTTP; or none",              \
                      SL_FIELD(type, common.admin_listen)),                                                            \
        SL_OPTION_ROW("otlp", 0, SL_OPTION_STRING, "", "HOST:PORT",                                                    \
                      "OpenTelemetry collector that gets spans, by OTLP over unencrypted gRPC",                        \
                      SL_FIELD(type, common.otlp)),                                                                    \
        SL_OPTION_ROW("otlp-share", 0, SL_OPTION_FLOAT, "1", "SHARE",                                                  \
                      "share of the requests without a traceparent that are traced, 0 to 1",                           \
                      SL_FIELD(type, common.otlp_share), 0, 1),                                                        \
        SL_OPTION_ROW("check", 0, SL_OPTION_FLAG, NULL, NULL,                                                          \
                      "check these options and exit: code 0, or 2 with the reason", SL_FIELD(type, common.check))

// Parses the options, refuses positional arguments, and sets up the log. False: main() returns *code_out.
bool sl_program_begin(const struct sl_program *program, int argc, char **argv, void *config,
                      const struct sl_program_options *common, int *code_out);

// Returns the exit code of main() (base/options/exit.h), after it has reported the error.
int sl_program_end(const struct sl_program *program, enum sl_status status, const struct sl_error *err);
