// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: fill a config struct from a table of options; see config.h.
 * Threads: sl_config_parse() belongs to main, before threads start: getopt_long keeps its state in globals.
 */
#include "base/options/config.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/model_place.h"
#include "base/similar.h"
#include "base/version.h"
#include "base/options/config_file.h"
#include "base/options/describe.h"
#include "base/options/environment.h"

#define MAX_OPTIONS     64
#define MAX_NAME_BYTES  64
#define MAX_PLACE_BYTES 300 // a file, a line and an option name
#define HELP_COLUMN     30
#define HELP_WIDTH      100 // upper limit; a narrower terminal has less
// On a narrower terminal, the help of an option is on lines of its own, from NARROW_COLUMN on
#define NARROW_WIDTH  72
#define NARROW_COLUMN 8
#define MIN_WIDTH     20

struct unit {
    const char *suffix;
    double factor;
};

static const struct unit size_units[] = {
    {"", 1}, {"K", 1024.0}, {"M", 1048576.0}, {"G", 1073741824.0}, {"T", 1099511627776.0}};
// A duration without a unit is refused: the user may have meant another unit than the one we would guess.
static const struct unit duration_units[] = {{"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}};

// Parses a decimal number and nothing else before *end_out: strtod() alone would also accept hexadecimal, "inf" and
// "nan".
static enum sl_status parse_decimal(const char *text, double *value_out, const char **end_out) {
    size_t n = strspn(text, "+-0123456789.");
    if (n == 0 || text[n] == 'x' || text[n] == 'X') {
        return SL_ERR_INVALID;
    }
    char *end;
    errno = 0;
    double value = strtod(text, &end);
    if (end == text || errno == ERANGE || !isfinite(value)) {
        return SL_ERR_INVALID;
    }
    *value_out = value;
    *end_out = end;
    return SL_OK;
}

// Parses a number that is not negative and has one of the units; rounds it to a whole number.
static enum sl_status parse_scaled(const char *text, const struct unit *units, size_t n_units, int64_t *value_out) {
    double value;
    const char *end;
    if (!isdigit((unsigned char)text[0]) || parse_decimal(text, &value, &end) != SL_OK) {
        return SL_ERR_INVALID;
    }
    for (size_t i = 0; i < n_units; i++) {
        if (strcasecmp(end, units[i].suffix) == 0) {
            value = value * units[i].factor;
            // To many options 0 means "none" or "without end", so a positive value never becomes 0.
            if (value >= 0x1p63 || (value > 0 && llround(value) == 0)) {
                return SL_ERR_RANGE;
            }
            *value_out = (int64_t)llround(value);
            return SL_OK;
        }
    }
    return SL_ERR_INVALID;
}

enum sl_status sl_parse_size(const char *text, int64_t *bytes_out) {
    return parse_scaled(text, size_units, sizeof size_units / sizeof size_units[0], bytes_out);
}

enum sl_status sl_parse_duration(const char *text, int64_t *ms_out) {
    if (strcmp(text, "0") == 0) {
        *ms_out = 0;
        return SL_OK;
    }
    return parse_scaled(text, duration_units, sizeof duration_units / sizeof duration_units[0], ms_out);
}

char *sl_format_bytes(double bytes, char *buf, size_t buf_bytes) {
    static const char *const names[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
    size_t i = 0;
    while (fabs(bytes) >= 1024 && i + 1 < sizeof names / sizeof names[0]) {
        bytes /= 1024;
        i++;
    }
    snprintf(buf, buf_bytes, i == 0 ? "%.0f %s" : "%.1f %s", bytes, names[i]);
    return buf;
}

static enum sl_status parse_flag(const char *text, bool *value_out) {
    static const char *const words[2][4] = {{"0", "no", "false", "off"}, {"1", "yes", "true", "on"}};
    for (int value = 0; value < 2; value++) {
        for (int i = 0; i < 4; i++) {
            if (strcasecmp(text, words[value][i]) == 0) {
                *value_out = value;
                return SL_OK;
            }
        }
    }
    return SL_ERR_INVALID;
}

static enum sl_status parse_int(const char *text, int64_t *value_out) {
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (isspace((unsigned char)text[0]) || end == text || *end != '\0' || errno == ERANGE) {
        return SL_ERR_INVALID;
    }
    *value_out = value;
    return SL_OK;
}

static enum sl_status parse_float(const char *text, bool percent, double *value_out) {
    const char *end;
    double value;
    if (parse_decimal(text, &value, &end) != SL_OK || (*end != '\0' && !(percent && strcmp(end, "%") == 0))) {
        return SL_ERR_INVALID;
    }
    *value_out = value;
    return SL_OK;
}

static const char *expected(enum sl_option_type type) {
    switch (type) {
    case SL_OPTION_FLAG:
        return "yes or no";
    case SL_OPTION_INT:
        return "a whole number";
    case SL_OPTION_FLOAT:
        return "a number";
    case SL_OPTION_SIZE:
        return "a size such as 4096, 64M or 2G";
    case SL_OPTION_DURATION:
        return "a time with its unit, such as 500ms, 2s or 5m";
    case SL_OPTION_STRING:
    case SL_OPTION_MODEL:
    case SL_OPTION_LIST:
        break;
    }
    return "text";
}

static enum sl_status add_item(struct sl_option_list *list, const char *source, const char *text,
                               struct sl_error *err) {
    SL_FAIL_IF(list->n == SL_MAX_OPTION_LIST, err, SL_ERR_INVALID, "%s: given more than %d times", source,
               SL_MAX_OPTION_LIST);
    list->items[list->n++] = text;
    return SL_OK;
}

// Refuses a model name that the user gave and that does not exist. A default may name a model that is not installed.
static enum sl_status set_model(const char *source, const char *text, bool is_default, const char **field,
                                struct sl_error *err) {
    static char found[PATH_MAX]; // valid as long as the process, like the strings of getopt_long()
    char path[PATH_MAX];
    if (!sl_model_find(text, path)) {
        SL_FAIL_IF(!is_default && text[0], err, SL_ERR_INVALID,
                   "%s: there is no model '%s': no such folder or file; `sluice models` lists what is here, and "
                   "what `sluice pull` could get",
                   source, text);
    } else if (strcmp(path, text) != 0) {
        text = strcpy(found, path);
    }
    *field = text;
    return SL_OK;
}

static enum sl_status out_of_bounds(const struct sl_option *option, const char *source, const char *text,
                                    struct sl_error *err) {
    const char *unit = option->type == SL_OPTION_DURATION ? "ms" : "";
    return sl_fail(err, SL_ERR_INVALID, "%s: '%s' is not between %.15g%s and %.15g%s", source, text, option->min, unit,
                   option->max, unit);
}

// Parses `text` into the option's field. `source` is the name that the user wrote or exported: "--port", "SLUICE_PORT".
static enum sl_status set_option(const struct sl_option *option, const char *source, const char *text, void *config,
                                 struct sl_error *err) {
    void *field = (char *)config + option->offset;
    enum sl_status status = SL_OK;
    bool flag = false;
    double real = 0;
    int64_t whole = 0;
    switch (option->type) {
    case SL_OPTION_STRING:
        *(const char **)field = text;
        return SL_OK;
    case SL_OPTION_MODEL:
        return set_model(source, text, source == option->name, field, err);
    case SL_OPTION_LIST:
        return add_item(field, source, text, err);
    case SL_OPTION_FLAG:
        status = parse_flag(text, &flag);
        break;
    case SL_OPTION_INT:
        status = parse_int(text, &whole);
        break;
    case SL_OPTION_FLOAT:
        status = parse_float(text, option->metavar && strcmp(option->metavar, "PERCENT") == 0, &real);
        break;
    case SL_OPTION_SIZE:
        status = sl_parse_size(text, &whole);
        break;
    case SL_OPTION_DURATION:
        status = sl_parse_duration(text, &whole);
        break;
    }
    SL_FAIL_IF(status == SL_ERR_RANGE, err, SL_ERR_INVALID, "%s: '%s' is too large, or too small to be more than 0",
               source, text);
    SL_FAIL_IF(status != SL_OK, err, SL_ERR_INVALID, "%s: '%s' is not %s", source, text, expected(option->type));
    if (option->type == SL_OPTION_FLAG) {
        *(bool *)field = flag;
        return SL_OK;
    }
    double value = option->type == SL_OPTION_FLOAT ? real : (double)whole;
    if ((option->min != 0 || option->max != 0) && (value < option->min || value > option->max)) {
        return out_of_bounds(option, source, text, err);
    }
    if (option->type == SL_OPTION_FLOAT) {
        *(double *)field = real;
    } else {
        *(int64_t *)field = whole;
    }
    if (option->given != 0) {
        // For a default value, source is option->name
        *(bool *)((char *)config + option->given) = source != option->name;
    }
    return SL_OK;
}

// --- the file ----------------------------------------------------------------------------------------------------------

static const struct sl_option *find_option(const struct sl_program *program, const char *name) {
    for (size_t i = 0; i < program->n_options; i++) {
        if (strcmp(program->options[i].name, name) == 0) {
            return &program->options[i];
        }
    }
    return NULL;
}

// Returns the file's path: from --config, which getopt_long() would reach too late, or from the environment. NULL:
// none.
static const char *file_path(int argc, char **argv) {
    const char *path = getenv("SLUICE_CONFIG");
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strncmp(argv[i], "--config=", 9) == 0) {
            path = argv[i] + 9;
        } else if (strcmp(argv[i], "--config") == 0 && i + 1 < argc) {
            path = argv[i + 1];
        }
    }
    return path && path[0] ? path : NULL;
}

static enum sl_status check_line(const struct sl_program *program, const char *path, const struct sl_config_line *line,
                                 struct sl_error *err) {
    if (find_option(program, line->name) || (!line->own && sl_known_option(line->name))) {
        return SL_OK;
    }
    struct sl_similar similar = {.word = line->name};
    for (size_t i = 0; i < program->n_options; i++) {
        sl_similar_offer(&similar, program->options[i].name);
    }
    return sl_fail(err, SL_ERR_INVALID, "%s:%d: %s has no option %s%s%s", path, line->line, program->name, line->name,
                   similar.name ? ": did you mean " : "", similar.name ? similar.name : "");
}

// Returns the file's line for an option, or NULL. A line under the program's own name comes before the common lines.
static const struct sl_config_line *file_line(const struct sl_config_file *file, const char *name) {
    const struct sl_config_line *found = NULL;
    for (size_t i = 0; i < file->n; i++) {
        if (strcmp(file->lines[i].name, name) == 0 && (!found || (file->lines[i].own && !found->own))) {
            found = &file->lines[i];
        }
    }
    return found;
}

// Returns the file, which lives as long as the process because options point into it.
static struct sl_config_file *kept_file(void) {
    static struct sl_config_file file;
    return &file;
}

static enum sl_status read_file(const struct sl_program *program, const char *path, struct sl_error *err) {
    struct sl_config_file *file = kept_file();
    sl_config_file_cleanup(file);
    SL_TRY(path ? sl_config_file_read(path, program->name, file, err) : SL_OK);
    for (size_t i = 0; path && i < file->n; i++) {
        SL_TRY(check_line(program, path, &file->lines[i], err));
    }
    return SL_OK;
}

static enum sl_status set_default(const struct sl_program *program, const struct sl_option *option, const char *path,
                                  void *config, struct sl_error *err) {
    char variable[MAX_NAME_BYTES], place[MAX_PLACE_BYTES];
    sl_environment_name(option->name, variable, sizeof variable);
    const char *text = sl_environment_takes(program->name, option->name) ? getenv(variable) : NULL;
    if (text && text[0]) { // in a shell, an empty variable unsets one for a single command
        return set_option(option, variable, text, config, err);
    }
    const struct sl_config_line *line = file_line(kept_file(), option->name);
    if (line) {
        snprintf(place, sizeof place, "%s:%d: %s", path, line->line, option->name);
        return set_option(option, place, line->value, config, err);
    }
    return option->default_value ? set_option(option, option->name, option->default_value, config, err) : SL_OK;
}

// Sets defaults from the environment and the file. wrong[i]: the value there for option i is invalid. This matters only
// if the command line does not set option i.
static enum sl_status set_defaults(const struct sl_program *program, const char *path, void *config, bool *wrong,
                                   struct sl_error *err) {
    SL_TRY(read_file(program, path, err));
    for (size_t i = 0; i < program->n_options; i++) {
        const struct sl_option *option = &program->options[i];
        if (option->type == SL_OPTION_LIST) { // an item that is set here could not be removed later
            *(struct sl_option_list *)((char *)config + option->offset) = (struct sl_option_list){0};
        } else {
            wrong[i] = set_default(program, option, path, config, NULL) != SL_OK;
        }
    }
    return SL_OK;
}

// Reports a wrong default that the command line did not replace: parses it again to get the error text.
static enum sl_status check_defaults(const struct sl_program *program, const char *path, void *config,
                                     const bool *wrong, struct sl_error *err) {
    for (size_t i = 0; i < program->n_options; i++) {
        if (wrong[i]) {
            return set_default(program, &program->options[i], path, config, err);
        }
    }
    return SL_OK;
}

// Sets lists that the command line did not set.
static enum sl_status set_lists(const struct sl_program *program, void *config, struct sl_error *err) {
    const struct sl_config_file *file = kept_file();
    enum sl_status status = SL_OK;
    for (size_t i = 0; i < program->n_options; i++) {
        const struct sl_option *option = &program->options[i];
        struct sl_option_list *list = (struct sl_option_list *)((char *)config + option->offset);
        const struct sl_config_line *first = option->type == SL_OPTION_LIST ? file_line(file, option->name) : NULL;
        if (!first || list->n > 0) {
            continue;
        }
        for (size_t l = 0; l < file->n && status == SL_OK; l++) {
            const struct sl_config_line *line = &file->lines[l];
            if (line->own == first->own && strcmp(line->name, option->name) == 0) {
                status = add_item(list, option->name, line->value, err);
            }
        }
    }
    return status;
}

// Returns the number of columns of the terminal, or `most` if that is smaller or there is no terminal.
static int width_within(int most) {
    struct winsize size;
    bool known = isatty(STDOUT_FILENO) && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col >= MIN_WIDTH;
    return known && size.ws_col < most ? size.ws_col : most;
}

// Prints n bytes of text from a column on, broken at spaces; further lines begin at column `from`.
static void print_wrapped(const char *text, size_t n, int column, int from, int width) {
    int spaces = 0; // before the next word, unless it begins a line
    for (const char *end = text + n; text < end; text += text < end) {
        int word = (int)strcspn(text, " \n");
        if (column > from && column + spaces + word + 1 > width) {
            printf("\n%*s", from, "");
            column = from;
            spaces = 0;
        }
        printf("%*s%.*s", spaces, "", word, text);
        column += spaces + word;
        text += word;
        spaces = text < end && *text == ' ';
    }
}

// Prints lines unchanged, except those that are too long for the terminal. Those continue on the next line, aligned
// with the text after the line's first gap.
static void print_lines(const char *text) {
    int width = width_within(INT_MAX);
    while (*text) {
        size_t n = strcspn(text, "\n"), indent = strspn(text, " ");
        const char *gap = strstr(text + indent, "  ");
        int behind = gap && gap < text + n ? (int)(gap - text) + (int)strspn(gap, " ") : width;
        print_wrapped(text, n, 0, behind <= width / 2 ? behind : (int)indent + 2, width);
        putchar('\n');
        text += n + (text[n] == '\n');
    }
}

static void print_option(char letter, const char *name, const char *metavar, const char *help, const char *value) {
    int width = width_within(HELP_WIDTH), from = width < NARROW_WIDTH ? NARROW_COLUMN : HELP_COLUMN;
    int column = letter ? printf("  -%c, --%s", letter, name) : printf("      --%s", name);
    column += metavar ? printf(" %s", metavar) : 0;
    if (column >= from) {
        putchar('\n');
        column = 0;
    }
    printf("%*s", from - column, "");
    char text[1024];
    snprintf(text, sizeof text, value && value[0] ? "%s [%s]" : "%s", help, value);
    print_wrapped(text, strlen(text), from, from, width);
    putchar('\n');
}

static void print_environment(const struct sl_program *program, bool has_lists) {
    char name[MAX_NAME_BYTES];
    size_t n = 0, n_taken = 0;
    for (size_t i = 0; i < program->n_options; i++) {
        n_taken += sl_environment_takes(program->name, program->options[i].name);
    }
    if (n_taken == program->n_options) {
        printf("\nEvery option%s can be given in the environment too: --some-name as SLUICE_SOME_NAME.\n",
               has_lists ? " but those that may be given several times" : "");
        return;
    }
    int column = printf("\nIn the environment:") - 1;
    for (size_t i = 0; i < program->n_options; i++) {
        if (sl_environment_takes(program->name, program->options[i].name)) {
            sl_environment_name(program->options[i].name, name, sizeof name);
            bool full = column + (int)strlen(name) + 2 > width_within(HELP_WIDTH);
            column = full ? 0 : column;
            column += printf("%s%s%s", full ? "\n" : " ", name, ++n < n_taken ? "," : "");
        }
    }
    puts(n_taken > 0 ? "." : " SLUICE_CONFIG.");
}

static void print_help(const struct sl_program *program) {
    printf("Usage: %s %s\n", program->name, program->usage);
    print_lines(program->summary);
    puts("\nOptions:");
    bool h_is_free = true, has_lists = false;
    for (size_t i = 0; i < program->n_options; i++) {
        const struct sl_option *option = &program->options[i];
        h_is_free = h_is_free && option->letter != 'h';
        has_lists = has_lists || option->type == SL_OPTION_LIST;
        print_option(option->letter, option->name, option->metavar, option->help,
                     option->type == SL_OPTION_FLAG ? NULL : option->default_value);
    }
    print_option(h_is_free ? 'h' : 0, "help", NULL, "print this and exit", NULL);
    print_option(0, "version", NULL, "print the version and exit", NULL);
    print_option(0, "config", "FILE", "options from a file: lines of `name: value` (docs/OPERATIONS.md)", NULL);
    print_environment(program, has_lists);
    if (program->epilog) {
        putchar('\n');
        print_lines(program->epilog);
    }
}

// Values that getopt_long() returns for long options; larger than every character.
enum { FIRST_LONG = 256, LONG_HELP = FIRST_LONG + MAX_OPTIONS, LONG_VERSION, LONG_CONFIG };

// Describes the option that getopt_long() refused.
static enum sl_status bad_option(const struct sl_program *program, int code, char **argv, struct sl_error *err) {
    const char *word = argv[optind - 1];
    char letter[3] = {'-', (char)optopt, '\0'};
    // A long option is the word before optind; a letter may be anywhere in its word.
    const char *name = optopt > 0 && optopt < FIRST_LONG ? letter : word;
    SL_FAIL_IF(code == ':', err, SL_ERR_INVALID, "%s needs a value; see %s --help", name, program->name);
    SL_FAIL_IF(optopt >= FIRST_LONG, err, SL_ERR_INVALID, "%s does not take a value; see %s --help", name,
               program->name);
    char typed[32] = ""; // without the dashes and the value; a word longer than every option is similar to none
    size_t length = strncmp(name, "--", 2) == 0 ? strcspn(name + 2, "=") : 0;
    if (length < sizeof typed) {
        memcpy(typed, name + 2, length);
    }
    struct sl_similar meant = {.word = typed};
    const char *begun[2] = {NULL, NULL}; // options that begin with the word
    for (size_t i = 0; i < program->n_options; i++) {
        const char *option = program->options[i].name;
        sl_similar_offer(&meant, option);
        if (typed[0] && !begun[1] && strncmp(option, typed, strlen(typed)) == 0) {
            begun[begun[0] != NULL] = option;
        }
    }
    SL_FAIL_IF(begun[1], err, SL_ERR_INVALID, "%s may be --%s or --%s; see %s --help", name, begun[0], begun[1],
               program->name);
    return sl_fail(err, SL_ERR_INVALID, "unknown option %s%s%s; see %s --help", name,
                   meant.name ? ": did you mean --" : "", meant.name ? meant.name : "", program->name);
}

enum sl_status sl_config_parse(const struct sl_program *program, int argc, char **argv, void *config, int *first_out,
                               struct sl_error *err) {
    SL_FAIL_IF(program->n_options > MAX_OPTIONS, err, SL_ERR_INTERNAL, "%s: more than %d options", program->name,
               MAX_OPTIONS);
    if (sl_describe_asked(argc, argv)) {
        sl_describe_program(program);
        return SL_ERR_CANCELLED;
    }
    struct option longs[MAX_OPTIONS + 4];
    char shorts[2 * MAX_OPTIONS + 4] = ":"; // getopt_long() returns ':' for a missing value, '?' for an unknown option
    int by_letter[256];
    memset(by_letter, -1, sizeof by_letter);
    size_t used = 1;
    for (size_t i = 0; i < program->n_options; i++) {
        const struct sl_option *option = &program->options[i];
        int argument = option->type == SL_OPTION_FLAG ? no_argument : required_argument;
        longs[i] = (struct option){option->name, argument, NULL, FIRST_LONG + (int)i};
        if (option->letter) {
            by_letter[(unsigned char)option->letter] = (int)i;
            shorts[used++] = option->letter;
            if (argument == required_argument) {
                shorts[used++] = ':';
            }
        }
    }
    if (by_letter['h'] < 0) {
        shorts[used++] = 'h';
    }
    shorts[used] = '\0';
    longs[program->n_options] = (struct option){"help", no_argument, NULL, LONG_HELP};
    longs[program->n_options + 1] = (struct option){"version", no_argument, NULL, LONG_VERSION};
    longs[program->n_options + 2] = (struct option){"config", required_argument, NULL, LONG_CONFIG};
    longs[program->n_options + 3] = (struct option){0};

    // --help must work even if the file is invalid: errors of the file are reported after those of the command line.
    struct sl_error file_err;
    bool wrong[MAX_OPTIONS] = {false};
    const char *path = file_path(argc, argv);
    enum sl_status file_status = set_defaults(program, path, config, wrong, &file_err);

    optind = 0; // GNU: restart from the first word
    opterr = 0;
    for (int code; (code = getopt_long(argc, argv, shorts, longs, NULL)) != -1;) {
        if (code == ':' || code == '?') {
            return bad_option(program, code, argv, err);
        }
        int i = code >= FIRST_LONG ? code - FIRST_LONG : by_letter[code];
        if (code == LONG_HELP || (code == 'h' && i < 0)) {
            print_help(program);
            return SL_ERR_CANCELLED;
        }
        if (code == LONG_VERSION) {
            printf("%s %s\n", program->name, SL_VERSION);
            return SL_ERR_CANCELLED;
        }
        if (code == LONG_CONFIG) { // the file was read already, unless --config was abbreviated
            SL_FAIL_IF(!path || strcmp(path, optarg) != 0, err, SL_ERR_INVALID, "--config: write it in full, and once");
            continue;
        }
        const struct sl_option *option = &program->options[i];
        char source[MAX_NAME_BYTES];
        snprintf(source, sizeof source, "--%s", option->name);
        const char *text = option->type == SL_OPTION_FLAG ? "yes" : optarg;
        SL_TRY(set_option(option, source, text, config, err));
        wrong[i] = false;
    }
    SL_FAIL_IF(file_status != SL_OK, err, file_status, "%s", file_err.text);
    *first_out = optind;
    SL_TRY(check_defaults(program, path, config, wrong, err));
    return set_lists(program, config, err);
}
