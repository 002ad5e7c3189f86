// SPDX-License-Identifier: Apache-2.0
#include "client/cli/commands/doc_office.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zip.h>

#include "base/close.h"
#include "client/cli/commands/doc_xml.h"

#define PART_BYTES ((zip_uint64_t)256 << 20) // the most of a file in the archive, unpacked
#define PATH_BYTES 256
#define MAX_BLANKS 100 // that one tag stands for

// ---- the text of one XML file ---------------------------------------------------------------------------------------

// Names of tags, each list ending with NULL. What else may be in a file has no text.
#define MOST 4
struct rules {
    const char *texts[MOST];  // with text
    const char *blocks[MOST]; // lines
    const char *skipped[MOST];
};
static const struct rules ooxml = {{"t"}, {"p"}, {NULL}};
static const struct rules open_document = {{"p", "h"}, {"p", "h"}, {"tracked-changes", "annotation", "notes"}};

struct reading {
    const struct rules *rules;
    FILE *out;
    int in_text, in_cell, skipping; // depths
    int n_tabs;                     // cells that have ended, before the next text of their row
    bool row_has_text;
    const char *pending; // before the next text: "", a space, or the ends of lines
};

static bool is_one(const struct sl_xml_token *token, const char *const names[MOST]) {
    bool found = false;
    for (int i = 0; i < MOST && names[i] && !found; i++) {
        found = sl_xml_is(token, names[i]);
    }
    return found;
}

static void write_text(struct reading *reading, const struct sl_xml_token *text) {
    if (text->n_name == 0) {
        return;
    }
    fputs(reading->pending, reading->out);
    for (; reading->n_tabs > 0; reading->n_tabs--) {
        fputc('\t', reading->out);
    }
    reading->pending = "";
    reading->row_has_text = true;
    sl_xml_write(text, reading->out);
}

static int count_of(const struct sl_xml_token *token, const char *attribute) {
    char value[16];
    long n = sl_xml_attribute(token, attribute, value, sizeof value) ? strtol(value, NULL, 10) : 1;
    return n < 1 ? 1 : n > MAX_BLANKS ? MAX_BLANKS : (int)n;
}

static void write_blanks(struct reading *reading, const struct sl_xml_token *tag) {
    const struct sl_xml_token blank = {.kind = SL_XML_TEXT, .name = sl_xml_is(tag, "tab") ? "\t" : " ", .n_name = 1};
    for (int i = sl_xml_is(tag, "s") ? count_of(tag, "text:c") : 1; i > 0; i--) {
        write_text(reading, &blank);
    }
}

// Handles the end of a cell, a row or a table.
static void end_part_of_table(struct reading *reading, const struct sl_xml_token *tag) {
    if (sl_xml_is(tag, "tc") || sl_xml_is(tag, "table-cell") || sl_xml_is(tag, "covered-table-cell")) {
        reading->n_tabs += tag->kind == SL_XML_EMPTY ? count_of(tag, "table:number-columns-repeated") : 1;
        reading->in_cell -= tag->kind == SL_XML_CLOSE && reading->in_cell > 0;
        reading->pending = reading->pending[0] == ' ' ? "" : reading->pending; // of the cell's lines
    } else if (sl_xml_is(tag, "tr") || sl_xml_is(tag, "table-row")) {
        reading->pending = reading->row_has_text ? "\n" : reading->pending;
        reading->n_tabs = 0;
    } else if (sl_xml_is(tag, "table") || sl_xml_is(tag, "tbl")) {
        reading->pending = reading->pending[0] == '\n' ? "\n\n" : reading->pending;
    }
}

static void take_tag(struct reading *reading, const struct sl_xml_token *tag) {
    bool opens = tag->kind == SL_XML_OPEN, closes = tag->kind == SL_XML_CLOSE;
    if (reading->skipping > 0 || (opens && is_one(tag, reading->rules->skipped))) {
        reading->skipping += opens - closes;
        return;
    }
    if (is_one(tag, reading->rules->texts)) {
        reading->in_text += opens - (closes && reading->in_text > 0);
    }
    if (!closes && (sl_xml_is(tag, "tab") || (sl_xml_is(tag, "s") && reading->in_text > 0))) {
        write_blanks(reading, tag);
    } else if (!closes && (sl_xml_is(tag, "br") || sl_xml_is(tag, "line-break"))) {
        reading->pending = reading->in_cell > 0 ? " " : "\n";
    } else if (opens && (sl_xml_is(tag, "tc") || sl_xml_is(tag, "table-cell"))) {
        reading->in_cell++;
    } else if (opens && (sl_xml_is(tag, "tr") || sl_xml_is(tag, "table-row"))) {
        reading->row_has_text = false;
    } else if (!opens && is_one(tag, reading->rules->blocks)) {
        reading->pending = reading->in_cell > 0 ? " " : "\n";
    } else if (!opens) {
        end_part_of_table(reading, tag);
    }
}

static void write_part(const struct rules *rules, const char *bytes, size_t n, FILE *out) {
    struct reading reading = {.rules = rules, .out = out, .pending = ""};
    struct sl_xml xml = {bytes, bytes + n};
    struct sl_xml_token token;
    while (sl_xml_next(&xml, &token)) {
        if (token.kind != SL_XML_TEXT) {
            take_tag(&reading, &token);
        } else if (reading.in_text > 0 && reading.skipping == 0) {
            write_text(&reading, &token);
        }
    }
    fputc('\n', out);
}

// ---- the archive ----------------------------------------------------------------------------------------------------

struct archive {
    zip_t *zip;
    const char *name; // of the office file
};

// Unpacks a file of the archive: malloc'd, with a terminating zero.
static enum sl_status unpack(const struct archive *archive, const char *path, char **bytes_out, size_t *n_out,
                             struct sl_error *err) {
    zip_stat_t entry;
    SL_FAIL_IF(zip_stat(archive->zip, path, 0, &entry) != 0 || !(entry.valid & ZIP_STAT_SIZE), err, SL_ERR_INVALID,
               "%s is damaged: it has no %s", archive->name, path);
    SL_FAIL_IF(entry.size > PART_BYTES, err, SL_ERR_INVALID, "%s: %s has more than %d MiB", archive->name, path,
               (int)(PART_BYTES >> 20));
    char *bytes = malloc((size_t)entry.size + 1);
    zip_file_t *file = bytes ? zip_fopen(archive->zip, path, 0) : NULL;
    zip_int64_t n = file ? zip_fread(file, bytes, entry.size) : -1;
    char more;
    bool is_whole = file && n == (zip_int64_t)entry.size && zip_fread(file, &more, 1) == 0; // where it is checked
    if (file) {
        zip_fclose(file);
    }
    if (!is_whole) {
        enum sl_status status =
            bytes ? sl_fail(err, SL_ERR_INVALID, "%s is damaged, or has a password: %s cannot be read", archive->name,
                            path)
                  : sl_fail(err, SL_ERR_EXHAUSTED, "%s: no memory for its text", archive->name);
        free(bytes);
        return status;
    }
    bytes[n] = '\0';
    *bytes_out = bytes;
    *n_out = (size_t)n;
    return SL_OK;
}

static enum sl_status read_part(const struct archive *archive, const struct rules *rules, const char *path, FILE *out,
                                struct sl_error *err) {
    char *bytes = NULL;
    size_t n = 0;
    enum sl_status status = unpack(archive, path, &bytes, &n, err);
    if (status == SL_OK) {
        write_part(rules, bytes, n, out);
    }
    free(bytes);
    SL_THEN_FAIL_IF(status, ftell(out) > (long)SL_DOC_TEXT_BYTES, err, SL_ERR_INVALID,
                    "%s has a text of more than %zu bytes, the most of a document: split it", archive->name,
                    SL_DOC_TEXT_BYTES);
    return status;
}

// Finds the path of a part of the presentation; "": it has none.
static void find_slide(const char *relations, size_t n, const char *id, char path_out[PATH_BYTES + 4]) {
    struct sl_xml xml = {relations, relations + n};
    struct sl_xml_token token;
    char own[PATH_BYTES] = "", target[PATH_BYTES] = "";
    path_out[0] = '\0';
    while (path_out[0] == '\0' && sl_xml_next(&xml, &token)) {
        if (token.kind != SL_XML_TEXT && sl_xml_is(&token, "Relationship") &&
            sl_xml_attribute(&token, "Id", own, sizeof own) && strcmp(own, id) == 0 &&
            sl_xml_attribute(&token, "Target", target, sizeof target)) {
            snprintf(path_out, PATH_BYTES + 4, "%s%s", target[0] == '/' ? "" : "ppt/", target + (target[0] == '/'));
        }
    }
}

// Reads the slides in the order in which they are shown.
static enum sl_status read_slides(const struct archive *archive, FILE *out, struct sl_error *err) {
    char *presentation = NULL, *relations = NULL, id[PATH_BYTES], path[PATH_BYTES + 4];
    size_t n = 0, n_relations = 0;
    enum sl_status status = unpack(archive, "ppt/presentation.xml", &presentation, &n, err);
    SL_THEN(status, unpack(archive, "ppt/_rels/presentation.xml.rels", &relations, &n_relations, err));
    struct sl_xml xml = {presentation, presentation ? presentation + n : NULL};
    struct sl_xml_token token;
    bool is_first = true;
    while (status == SL_OK && sl_xml_next(&xml, &token)) {
        if (token.kind == SL_XML_TEXT || token.kind == SL_XML_CLOSE || !sl_xml_is(&token, "sldId") ||
            !sl_xml_attribute(&token, "r:id", id, sizeof id)) {
            continue;
        }
        find_slide(relations, n_relations, id, path);
        fputs(is_first ? "" : "\n", out);
        is_first = false;
        status = read_part(archive, &ooxml, path, out, err);
    }
    free(presentation);
    free(relations);
    return status;
}

bool sl_doc_office_reads(enum sl_doc_format format) {
    return format == SL_DOC_PPTX || format == SL_DOC_OPEN_DOCUMENT || format == SL_DOC_DOCX || format == SL_DOC_ODT;
}

enum sl_status sl_doc_office_read(int fd, enum sl_doc_format format, const char *name, FILE *out,
                                  struct sl_error *err) {
    int code = 0, own = fcntl(fd, F_DUPFD_CLOEXEC, 0); // the archive closes this duplicate
    struct archive archive = {.name = name};
    if (own < 0 || lseek(own, 0, SEEK_SET) != 0 || !(archive.zip = zip_fdopen(own, 0, &code))) {
        sl_close(own);
        return sl_fail(err, SL_ERR_INVALID, "%s is damaged: it cannot be read as an archive", name);
    }
    enum sl_status status = format == SL_DOC_PPTX   ? read_slides(&archive, out, err)
                            : format == SL_DOC_DOCX ? read_part(&archive, &ooxml, "word/document.xml", out, err)
                                                    : read_part(&archive, &open_document, "content.xml", out, err);
    zip_discard(archive.zip);
    SL_THEN_FAIL_IF(status, fflush(out) != 0, err, SL_ERR_EXHAUSTED, "%s: no memory for its text: %s", name,
                    strerror(errno));
    return status;
}
