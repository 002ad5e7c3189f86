// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: every knob of every program is one row of a table: name, type, default, help, and where it is stored.
 *
 * Design: precedence is command line, then environment (SLUICE_<NAME>, dashes as underscores; base/options/environment.h says which), then the file of
 *         --config (base/options/config_file.h), then default.
 *         --help is printed from the table. Parsing is getopt_long's; numbers are checked to the last character;
 *         sizes take K, M, G and T (powers of 1024), durations take ms, s, m and h.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

enum sl_option_type {
    SL_OPTION_FLAG,     // bool
    SL_OPTION_STRING,   // const char *, owned by the table's parse (valid for the life of the process)
    SL_OPTION_INT,      // int64_t
    SL_OPTION_FLOAT,    // double
    SL_OPTION_SIZE,     // int64_t, bytes
    SL_OPTION_DURATION, // int64_t, milliseconds
    SL_OPTION_MODEL, // const char *, a path: of a name, that of the model (base/model_place.h). One in a table, valid until the next parse
    SL_OPTION_LIST, // struct sl_option_list: may be given several times; not read from the environment
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
    const char *default_value; // text, parsed like a given value; NULL leaves the field untouched
    const char *metavar;       // e.g. "DIR", shown in --help; NULL for flags
    const char *help;
    size_t offset;   // of the field in the config struct
    double min, max; // bounds for numbers, ignored when both are 0
    size_t given; // of a number: of a bool, not the config's first, that tells a value from the default; 0: nobody asks
};

// In a row: where the value goes, SL_FIELD(options, tier) for member `tier` of struct options. min and max may follow.
#define SL_FIELD(type, field) .offset = offsetof(struct type, field)
#define SL_GIVEN(type, field) .given = offsetof(struct type, field)

// A row in a macro, where the formatter would give every field of a braced list a line of its own.
#define SL_OPTION_ROW(...)                                                                                             \
    { __VA_ARGS__ }

struct sl_program {
    const char *name;    // "sluice-decode", "sluice run"
    const char *usage;   // what follows the name, e.g. "[options] JOB"
    const char *summary; // one or more lines
    const char *epilog;  // printed after the options; may be NULL
    const struct sl_option *options;
    size_t n_options;
};

// In a program: its table.
#define SL_OPTIONS(table) .options = (table), .n_options = sizeof(table) / sizeof *(table)

/*
 * Fill *config from defaults, environment and argv. Positional arguments are left in argv[*first_out ..].
 * SL_ERR_CANCELLED: --help or --version was given and has been printed on standard output; exit with 0.
 * SL_ERR_INVALID:   err names the option and the value; print it and exit with 2.
 */
enum sl_status sl_config_parse(const struct sl_program *program, int argc, char **argv, void *config, int *first_out,
                               struct sl_error *err);

// "64M" -> 67108864; "2s" -> 2000, and "2" is an error: a time has a unit, but 0. For values that arrive by other ways than the command line.
enum sl_status sl_parse_size(const char *text, int64_t *bytes_out);
enum sl_status sl_parse_duration(const char *text, int64_t *ms_out);

// 67108864 -> "64.0 MiB"; for tables and progress lines. Returns buf.
char *sl_format_bytes(double bytes, char *buf, size_t buf_bytes);
