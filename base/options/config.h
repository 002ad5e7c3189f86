// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: every knob of every program is one row of a table: name, type, default, help, and where it is stored.
 *
 * Design: precedence is command line, then environment (SLUICE_<NAME>, dashes as underscores;
 *         base/options/environment.h lists them), then the file of --config (base/options/config_file.h), then default.
 *         --help is printed from the table. getopt_long() parses the words; numbers are checked to the last character;
 *         sizes take K, M, G and T (powers of 1024), durations take ms, s, m and h.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum sl_option_type {
    SL_OPTION_FLAG,   // bool
    SL_OPTION_STRING, // const char *, points into argv, the environment or the file (valid for the life of the process)
    SL_OPTION_INT,    // int64_t
    SL_OPTION_FLOAT,  // double
    SL_OPTION_SIZE,   // int64_t, bytes
    SL_OPTION_DURATION, // int64_t, milliseconds
    // Const char *, a path: for a name, the path of that model (base/model_place.h). One per table, valid until the
    // next parse
    SL_OPTION_MODEL,
    SL_OPTION_LIST, // struct sl_option_list: may be given several times; never read from the environment
};

#define SL_MAX_OPTION_LIST 32
struct sl_option_list {
    const char *items[SL_MAX_OPTION_LIST];
    int n;
};

struct sl_option {
    const char *name; // long option without the dashes
    char letter;      // short option, or 0
    enum sl_option_type type;
    const char *default_value; // text, parsed like a given value; NULL leaves the field unchanged
    const char *metavar;       // e.g. "DIR", shown in --help; NULL for flags
    const char *help;
    size_t offset;   // offset of the field in the config struct
    double min, max; // bounds for numbers, ignored when both are 0
    // For numbers: offset of a bool that becomes true for a value other than the default's. It is not the config's
    // first field; 0: no such bool
    size_t given;
};

// Names the field for an option's value in a row: SL_FIELD(options, tier) is member `tier` of struct options. min and
// max may follow.
#define SL_FIELD(type, field) .offset = offsetof(struct type, field)
#define SL_GIVEN(type, field) .given = offsetof(struct type, field)

// Wraps a row in a macro, because the formatter would put every field of a braced list on a line of its own.
#define SL_OPTION_ROW(...)                                                                                             \
    { __VA_ARGS__ }

struct sl_program {
    const char *name;    // "sluice-decode", "sluice run"
    const char *usage;   // text after the name, e.g. "[options] JOB"
    const char *summary; // one or more lines
    const char *epilog;  // printed after the options; may be NULL
    const struct sl_option *options;
    size_t n_options;
    int n_arguments_min, n_arguments_max; // positional ones; the caller of sl_config_parse() counts them
};

// Sets a program's table of options.
#define SL_OPTIONS(table) .options = (table), .n_options = sizeof(table) / sizeof *(table)

/*
 * Fills *config from defaults, environment and argv. Positional arguments are left in argv[*first_out ..].
 * SL_ERR_CANCELLED: --help or --version was given and has been printed on standard output; exit with 0.
 * SL_ERR_INVALID:   err names the option and the value; print it and exit with 2.
 */
enum sl_status sl_config_parse(const struct sl_program *program, int argc, char **argv, void *config, int *first_out,
                               struct sl_error *err);

// Parses "64M" to 67108864 and "2s" to 2000; "2" is an error, because a time other than 0 needs a unit. For values that
// do not come from the command line.
enum sl_status sl_parse_size(const char *text, int64_t *bytes_out);
enum sl_status sl_parse_duration(const char *text, int64_t *ms_out);

// Formats 67108864 as "64.0 MiB", for tables and progress lines. Returns buf.
char *sl_format_bytes(double bytes, char *buf, size_t buf_bytes);
