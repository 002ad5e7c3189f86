// SPDX-License-Identifier: Apache-2.0
#include "base/options/config_file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <yaml.h>

#include "base/options/environment.h"

#define MAX_LINES 1000

struct reader {
    const char *path, *program;
    yaml_parser_t parser;
    yaml_event_t event; // the current event
    bool has_event;
    struct sl_config_file file;
    struct sl_error *err;
};

static int line_of(const struct reader *r) {
    return (int)r->event.start_mark.line + 1;
}

static enum sl_status next(struct reader *r) {
    if (r->has_event) {
        yaml_event_delete(&r->event);
        r->has_event = false;
    }
    if (!yaml_parser_parse(&r->parser, &r->event)) {
        const char *problem = r->parser.problem ? r->parser.problem : "cannot be read";
        return sl_fail(r->err, SL_ERR_INVALID, "%s:%d: %s", r->path, (int)r->parser.problem_mark.line + 1, problem);
    }
    r->has_event = true;
    return SL_OK;
}

static enum sl_status unexpected(struct reader *r, const char *expected) {
    return sl_fail(r->err, SL_ERR_INVALID, "%s:%d: expected %s", r->path, line_of(r), expected);
}

static const char *scalar(const struct reader *r) {
    return (const char *)r->event.data.scalar.value;
}

static enum sl_status keep(struct reader *r, const char *name, bool own) {
    if (r->event.type != YAML_SCALAR_EVENT) {
        return unexpected(r, "a value");
    }
    if (strlen(scalar(r)) != r->event.data.scalar.length) {
        return unexpected(r, "a value without zero bytes");
    }
    SL_FAIL_IF(r->file.n == MAX_LINES, r->err, SL_ERR_INVALID, "%s: more than %d values", r->path, MAX_LINES);
    struct sl_config_line *lines = realloc(r->file.lines, (r->file.n + 1) * sizeof *lines);
    SL_FAIL_IF(!lines, r->err, SL_ERR_EXHAUSTED, "out of memory");
    r->file.lines = lines;
    lines[r->file.n] = (struct sl_config_line){strdup(name), strdup(scalar(r)), line_of(r), own};
    r->file.n++;
    return lines[r->file.n - 1].name && lines[r->file.n - 1].value ? SL_OK
                                                                   : sl_fail(r->err, SL_ERR_EXHAUSTED, "out of memory");
}

static enum sl_status keep_items(struct reader *r, const char *name, bool own) {
    enum sl_status status = next(r);
    while (status == SL_OK && r->event.type != YAML_SEQUENCE_END_EVENT) {
        status = keep(r, name, own);
        SL_THEN(status, next(r));
    }
    return status;
}

// Skips the section of another program, which may hold any names as long as they have values.
static enum sl_status skip_section(struct reader *r) {
    int depth = 1;
    enum sl_status status = SL_OK;
    while (status == SL_OK && depth > 0) {
        status = next(r);
        depth += status == SL_OK &&
                 (r->event.type == YAML_MAPPING_START_EVENT || r->event.type == YAML_SEQUENCE_START_EVENT);
        depth -=
            status == SL_OK && (r->event.type == YAML_MAPPING_END_EVENT || r->event.type == YAML_SEQUENCE_END_EVENT);
    }
    return status;
}

static enum sl_status check_twice(struct reader *r, const char *name, bool own) {
    for (size_t i = 0; i < r->file.n; i++) {
        SL_FAIL_IF(r->file.lines[i].own == own && strcmp(r->file.lines[i].name, name) == 0, r->err, SL_ERR_INVALID,
                   "%s:%d: %s is already set in line %d", r->path, line_of(r), name, r->file.lines[i].line);
    }
    return SL_OK;
}

// Refuses a section that names no program: it would otherwise be ignored silently.
static enum sl_status check_section(struct reader *r, const char *name) {
    struct sl_similar similar = {.word = name};
    if (strcmp(name, r->program) == 0 || sl_known_program(name, &similar)) {
        return SL_OK;
    }
    return sl_fail(r->err, SL_ERR_INVALID, "%s:%d: there is no program or command %s%s%s", r->path, line_of(r), name,
                   similar.name ? ": did you mean " : "", similar.name ? similar.name : "");
}

static enum sl_status read_mapping(struct reader *r, bool own);

static enum sl_status read_value(struct reader *r, const char *name, bool own) {
    bool is_program = strncmp(name, "sluice", 6) == 0 && (name[6] == '-' || name[6] == ' ');
    SL_TRY(is_program && !own ? check_section(r, name) : SL_OK);
    SL_TRY(next(r));
    if (is_program && !own) {
        if (r->event.type != YAML_MAPPING_START_EVENT) {
            return unexpected(r, "the options of a program, each on a line of its own");
        }
        return strcmp(name, r->program) == 0 ? read_mapping(r, true) : skip_section(r);
    }
    return r->event.type == YAML_SEQUENCE_START_EVENT ? keep_items(r, name, own) : keep(r, name, own);
}

static enum sl_status read_mapping(struct reader *r, bool own) {
    enum sl_status status = next(r);
    while (status == SL_OK && r->event.type != YAML_MAPPING_END_EVENT) {
        char name[64];
        size_t n = r->event.type == YAML_SCALAR_EVENT ? r->event.data.scalar.length : 0;
        if (n == 0 || n >= sizeof name || strlen(scalar(r)) != n) { // a NUL inside: "log\0" is not "log"
            return unexpected(r, "the name of an option");
        }
        snprintf(name, sizeof name, "%s", scalar(r));
        status = check_twice(r, name, own);
        SL_THEN(status, read_value(r, name, own));
        SL_THEN(status, next(r));
    }
    return status;
}

// Refuses a second document, which would otherwise be ignored silently.
static enum sl_status read_end(struct reader *r) {
    enum sl_status status = next(r); // end of the document
    SL_THEN(status, next(r));
    return status != SL_OK || r->event.type == YAML_STREAM_END_EVENT ? status
                                                                     : unexpected(r, "one document, and no more");
}

static enum sl_status read_document(struct reader *r) {
    enum sl_status status = next(r); // start of the stream
    SL_THEN(status, next(r));
    if (status != SL_OK || r->event.type == YAML_STREAM_END_EVENT) { // an empty file
        return status;
    }
    SL_TRY(next(r));
    if (r->event.type == YAML_SCALAR_EVENT && r->event.data.scalar.length == 0) { // the file has only comments
        return read_end(r);
    }
    status = r->event.type == YAML_MAPPING_START_EVENT ? read_mapping(r, false) : unexpected(r, "`option: value`");
    return status == SL_OK ? read_end(r) : status;
}

enum sl_status sl_config_file_read(const char *path, const char *program, struct sl_config_file *file_out,
                                   struct sl_error *err) {
    FILE *file = fopen(path, "re");
    SL_FAIL_IF(!file, err, SL_ERR_INVALID, "--config %s: %s", path, strerror(errno));
    struct stat about;
    SL_FAIL_OR(fstat(fileno(file), &about) != 0 || S_ISDIR(about.st_mode), fclose(file), err, SL_ERR_INVALID,
               "--config %s: is a folder; name a file", path);
    struct reader r = {.path = path, .program = program, .err = err};
    SL_FAIL_OR(!yaml_parser_initialize(&r.parser), fclose(file), err, SL_ERR_EXHAUSTED, "out of memory");
    yaml_parser_set_input_file(&r.parser, file);
    enum sl_status status = read_document(&r);
    if (r.has_event) {
        yaml_event_delete(&r.event);
    }
    yaml_parser_delete(&r.parser);
    fclose(file);
    SL_TRY_OR(status, sl_config_file_cleanup(&r.file));
    *file_out = r.file;
    return SL_OK;
}

void sl_config_file_cleanup(struct sl_config_file *file) {
    for (size_t i = 0; i < file->n; i++) {
        free(file->lines[i].name);
        free(file->lines[i].value);
    }
    free(file->lines);
    *file = (struct sl_config_file){0};
}
