// SPDX-License-Identifier: Apache-2.0
// Purpose: `sluice doc export` and `sluice doc import`: documents that travel as files (docs/CAPSULE.md).
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/close.h"
#include "base/whole_file.h"
#include "client/cli/commands/commands.h"
#include "client/cli/commands/doc_show.h"
#include "client/cli/message_json.h"
#include "client/cli/progress.h"
#include "client/cli/request.h"
#include "client/cli/tool.h"
#include "net/document/exported.h"

#define REDRAW_MS 100

struct transfer {
    struct sl_signals *signals;
    struct sl_progress line;
    int width;            // of standard error; 0: no progress is drawn
    int64_t redraw_at_ns; // the next time that the progress is drawn
    FILE *file;
    const char *path;
    struct sl_exported_reader *reader; // of an export: checks what arrives
};

static bool stopped(void *arg) {
    return sl_signals_received(((struct transfer *)arg)->signals) > 0;
}

static void advance(struct transfer *transfer, size_t n) {
    transfer->line.done += (int64_t)n;
    if (transfer->width > 0 && transfer->line.total > 0 && sl_now_ns() >= transfer->redraw_at_ns) {
        sl_progress_draw(&transfer->line, transfer->width, stderr);
        transfer->redraw_at_ns = sl_deadline_in_ms(REDRAW_MS);
    }
}

static void end_progress(struct transfer *transfer) {
    if (transfer->width > 0) {
        sl_progress_clear(stderr);
    }
}

static struct transfer transfer_of(const struct sl_tool_config *tool, const char *phase) {
    return (struct transfer){.signals = tool->signals,
                             .line = {.phase = phase, .bytes = true},
                             .width = tool->json ? 0 : sl_terminal_width(STDERR_FILENO),
                             .path = tool->arguments[1]};
}

// ---- export ---------------------------------------------------------------------------------------------------------

struct export_config {
    struct sl_tool_config tool;
    int64_t deadline_ms;
    bool no_text;
    struct transfer transfer;
};

static const struct sl_option export_options[] = {
    {"no-text", 0, SL_OPTION_FLAG, NULL, NULL, "leave the text out; `doc import --text` then needs it",
     SL_FIELD(export_config, no_text)},
    {"deadline", 0, SL_OPTION_DURATION, "10m", "TIME", "deadline of the whole call",
     SL_FIELD(export_config, deadline_ms), 1, 3600000},
    SL_TOOL_OPTIONS,
};

static const struct sl_program export_program = {
    .name = "sluice doc export",
    .usage = "[options] NAME FILE",
    .summary = "Write a document to a file: its text, and its compressed KV cache.\n"
               "The file can be imported wherever the same model is served.",
    .epilog = "FILE appears whole or not at all.\n" SL_EXIT_CODES_HELP,
    SL_ARGUMENTS(2),
    SL_OPTIONS(export_options),
};

// Checks a piece of the file as an import would, and writes it.
static enum sl_status write_piece(void *arg, const void *bytes, size_t n, struct sl_error *err) {
    struct transfer *transfer = arg;
    const uint8_t *at = bytes;
    enum sl_status status = SL_OK;
    for (size_t left = n; left > 0 && status == SL_OK;) {
        struct sl_exported_slice slice;
        status = sl_exported_reader_take(transfer->reader, &at, &left, &slice, err);
        if (status == SL_OK && slice.part == SL_EXPORTED_HEAD && slice.ends) {
            transfer->line.total = sl_exported_file_bytes(sl_exported_reader_head(transfer->reader));
        }
    }
    SL_FAIL_IF(status != SL_OK, err, SL_ERR_PEER_CORRUPT, "what arrived is %s", err->text);
    SL_FAIL_IF(fwrite(bytes, 1, n, transfer->file) != n, err, SL_ERR_IO, "%s: cannot be written: %s", transfer->path,
               strerror(errno));
    advance(transfer, n);
    return SL_OK;
}

static void print_exported(const struct export_config *config) {
    const struct transfer *transfer = &config->transfer;
    const char *name = config->tool.arguments[0];
    const struct sl_exported_head *head = sl_exported_reader_head(transfer->reader);
    char bytes[32];
    if (!config->tool.json) {
        printf("exported %s to %s: %" PRId64 " tokens, %s%s\n", name, transfer->path, head->n_tokens,
               sl_format_bytes((double)transfer->line.done, bytes, sizeof bytes),
               head->has_text ? "" : ", without the text");
        return;
    }
    char sha256[SL_SHA256_HEX_BYTES];
    sl_sha256_write_hex(head->text_sha256, sha256);
    json_t *object =
        json_pack("{s:s, s:o, s:I, s:I, s:s, s:o, s:b, s:b, s:s}", "name", name, "file", sl_text_json(transfer->path),
                  "bytes", (json_int_t)transfer->line.done, "n_tokens", (json_int_t)head->n_tokens, "recipe",
                  head->recipe, "model_fingerprint", json_sprintf("%016" PRIx64, head->model_fingerprint), "chat",
                  head->chat, "has_text", head->has_text, "sha256", sha256);
    sl_json_print(object, JSON_COMPACT, stdout);
}

static enum sl_status receive_file(struct sl_client *client, void *arg, struct sl_error *err) {
    struct export_config *config = arg;
    struct transfer *transfer = &config->transfer;
    struct sl_document_pieces pieces = {.deadline_ns = sl_deadline_in_ms(config->deadline_ms),
                                        .write_fn = write_piece,
                                        .stopped = stopped,
                                        .arg = transfer};
    enum sl_status status = sl_client_export_document(client, config->tool.arguments[0], config->no_text, &pieces, err);
    end_progress(transfer);
    return status == SL_OK ? sl_exported_reader_finish(transfer->reader, err) : status;
}

static enum sl_status export_to(struct export_config *config, struct sl_whole_file *whole, struct sl_error *err) {
    SL_TRY(sl_whole_file_open(whole, config->transfer.path, err));
    config->transfer.file = whole->file;
    whole->mode = 0600; // it has the text, or its KV
    SL_TRY_OR(sl_tool_call(config, receive_file, err), sl_whole_file_abandon(whole));
    SL_TRY(sl_whole_file_finish(whole, err));
    print_exported(config);
    return SL_OK;
}

static enum sl_status export_document(void *arg, struct sl_error *err) {
    struct export_config *config = arg;
    struct sl_whole_file *whole = malloc(sizeof *whole); // larger than a stack frame should be
    config->transfer = transfer_of(&config->tool, "export");
    enum sl_status status = whole != NULL ? sl_exported_reader_create(&config->transfer.reader, err)
                                          : sl_fail(err, SL_ERR_EXHAUSTED, "no memory to write a file");
    SL_THEN(status, export_to(config, whole, err));
    free(whole);
    sl_exported_reader_destroy(&config->transfer.reader);
    return status;
}

SL_COMMAND_RUN(sl_command_doc_export, export_config, export_program, export_document, SL_WITH_SIGNALS)

// ---- import ---------------------------------------------------------------------------------------------------------

struct import_config {
    struct sl_tool_config tool;
    const char *text_file;
    int64_t keep_ms, deadline_ms;
    struct transfer transfer;
    char *text; // of that file; NULL: none is given
};

static const struct sl_option import_options[] = {
    {"text", 0, SL_OPTION_STRING, NULL, "FILE", "the text, for a document that was exported with --no-text",
     SL_FIELD(import_config, text_file)},
    {"keep", 0, SL_OPTION_DURATION, "0", "TIME", "remove the document after this time; 0: keep it until it is removed",
     SL_FIELD(import_config, keep_ms), 0, 3.1536e11},
    {"deadline", 0, SL_OPTION_DURATION, "10m", "TIME", "deadline of the whole call",
     SL_FIELD(import_config, deadline_ms), 1, 3600000},
    SL_TOOL_OPTIONS,
};

static const struct sl_program import_program = {
    .name = "sluice doc import",
    .usage = "[options] NAME FILE",
    .summary = "Add a document from a file that `sluice doc export` wrote. Its text is not read again.",
    .epilog =
        "The cluster must serve the same model. Answers are worth what the file is worth: import only files that\n"
        "you trust.\n" SL_EXIT_CODES_HELP,
    SL_ARGUMENTS(2),
    SL_OPTIONS(import_options),
};

static enum sl_status read_piece(void *arg, void *bytes_out, size_t size, size_t *n_out, struct sl_error *err) {
    struct transfer *transfer = arg;
    *n_out = fread(bytes_out, 1, size, transfer->file);
    SL_FAIL_IF(*n_out < size && ferror(transfer->file), err, SL_ERR_IO, "%s: cannot be read: %s", transfer->path,
               strerror(errno));
    advance(transfer, *n_out);
    return SL_OK;
}

static enum sl_status send_file(struct sl_client *client, void *arg, struct sl_error *err) {
    struct import_config *config = arg;
    struct sl_document_pieces pieces = {.deadline_ns = sl_deadline_in_ms(config->deadline_ms),
                                        .read_fn = read_piece,
                                        .stopped = stopped,
                                        .arg = &config->transfer};
    Sluice__V1__Document *document;
    enum sl_status status =
        sl_client_import_document(client, config->tool.arguments[0], config->text != NULL ? config->text : "",
                                  config->keep_ms, &pieces, &document, err);
    end_progress(&config->transfer);
    return status == SL_OK ? sl_doc_done(document, "imported", config->tool.json, false) : status;
}

static enum sl_status open_file(struct transfer *transfer, struct sl_error *err) {
    struct stat found;
    transfer->file = fopen(transfer->path, "rbe");
    SL_FAIL_IF(transfer->file == NULL || fstat(fileno(transfer->file), &found) != 0 || S_ISDIR(found.st_mode), err,
               SL_ERR_INVALID, "%s: cannot be read: %s", transfer->path,
               transfer->file == NULL ? strerror(errno) : "it is a folder");
    transfer->line.total = (int64_t)found.st_size;
    return SL_OK;
}

static enum sl_status import_document(void *arg, struct sl_error *err) {
    struct import_config *config = arg;
    config->transfer = transfer_of(&config->tool, "import");
    enum sl_status status = open_file(&config->transfer, err);
    SL_THEN(status, config->text_file ? sl_request_read_text(config->text_file, &config->text, err) : SL_OK);
    SL_THEN(status, sl_tool_call(config, send_file, err));
    free(config->text);
    sl_close_file(config->transfer.file);
    return status;
}

SL_COMMAND_RUN(sl_command_doc_import, import_config, import_program, import_document, SL_WITH_SIGNALS)
