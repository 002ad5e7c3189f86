// SPDX-License-Identifier: Apache-2.0
#include "client/cli/commands/doc_text.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/close.h"
#include "client/cli/request.h"

#define MAX_STREAM_BYTES ((size_t)256 << 20) // of a source that is not a file; it is copied to memory

static enum sl_status copy_stream(int from, const char *name, int *fd_out, struct sl_error *err) {
    char buffer[8192];
    int fd = memfd_create("document", MFD_CLOEXEC);
    size_t total = 0;
    ssize_t n = -1, written = 0;
    while (fd >= 0 && total <= MAX_STREAM_BYTES && written >= 0 && (n = read(from, buffer, sizeof buffer)) != 0) {
        for (ssize_t done = 0; done < n && written >= 0; done += written) {
            written = write(fd, buffer + done, (size_t)(n - done));
        }
        if (n < 0 && errno != EINTR) {
            break;
        }
        total += n > 0 ? (size_t)n : 0;
    }
    if (fd >= 0 && n == 0 && written >= 0) {
        *fd_out = fd;
        return SL_OK;
    }
    int why = errno;
    sl_close(fd);
    return total > MAX_STREAM_BYTES
               ? sl_fail(err, SL_ERR_INVALID, "%s has more than %zu MiB", name, MAX_STREAM_BYTES >> 20)
               : sl_fail(err, SL_ERR_INVALID, "%s: %s", name, strerror(why));
}

static enum sl_status open_source(const char *path, const char *name, int *fd_out, struct sl_error *err) {
    int fd = strcmp(path, "-") == 0 ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 0) : open(path, O_RDONLY | O_CLOEXEC);
    struct stat found;
    if (fd < 0 || fstat(fd, &found) != 0) {
        int why = errno;
        sl_close(fd);
        return sl_fail(err, SL_ERR_INVALID, "%s: %s", name, strerror(why));
    }
    if (S_ISREG(found.st_mode) && strcmp(path, "-") != 0) {
        *fd_out = fd;
        return SL_OK;
    }
    enum sl_status status = copy_stream(fd, name, fd_out, err); // standard input may be a file from its middle on
    close(fd);
    return status;
}

static enum sl_status take_text(FILE *file, const char *name, char **text_out, struct sl_error *err) {
    char *text = NULL;
    rewind(file);
    enum sl_status status = sl_request_read_stream(file, name, &text, err);
    size_t n = text ? strlen(text) : 0;
    if (status == SL_OK && n > SL_DOC_TEXT_BYTES) {
        status = sl_fail(err, SL_ERR_INVALID, "%s has a text of more than %zu bytes, the most of a document: split it",
                         name, SL_DOC_TEXT_BYTES);
        free(text);
    }
    if (status == SL_OK) {
        *text_out = text;
    }
    return status;
}

static enum sl_status read_plain(int fd, const char *name, char **text_out, struct sl_error *err) {
    int copy = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    FILE *file = copy >= 0 ? fdopen(copy, "rb") : NULL;
    if (!file) {
        int why = errno;
        sl_close(copy);
        return sl_fail(err, SL_ERR_EXHAUSTED, "%s: %s", name, strerror(why));
    }
    enum sl_status status = take_text(file, name, text_out, err);
    fclose(file);
    return status;
}

static enum sl_status read_converted(const struct sl_doc_source *source, int fd, enum sl_doc_format format,
                                     const char *name, char **text_out, struct sl_error *err) {
    FILE *file = NULL;
    enum sl_status status = sl_doc_convert(source, fd, format, name, &file, err);
    if (status == SL_OK) {
        status = take_text(file, name, text_out, err);
        fclose(file);
    }
    if (status == SL_OK && (*text_out)[strspn(*text_out, " \t\r\n\f")] == '\0') {
        free(*text_out);
        *text_out = NULL;
        status = sl_fail(err, SL_ERR_INVALID, "%s has no text%s", name,
                         format == SL_DOC_PDF ? ", as scanned pages: recognize their text first (OCR)" : "");
    }
    return status;
}

enum sl_status sl_doc_text_read(const struct sl_doc_source *source, char **text_out, struct sl_error *err) {
    const char *name = strcmp(source->path, "-") == 0 ? "standard input" : source->path;
    struct stat found;
    if (name == source->path && stat(name, &found) == 0 && S_ISDIR(found.st_mode)) {
        return sl_doc_folder_read(source, text_out, err);
    }
    int fd = -1;
    SL_TRY(open_source(source->path, name, &fd, err));
    enum sl_doc_format format = source->as_is ? SL_DOC_PLAIN : sl_doc_format_of(fd);
    enum sl_status status = format == SL_DOC_PLAIN ? read_plain(fd, name, text_out, err)
                                                   : read_converted(source, fd, format, name, text_out, err);
    close(fd);
    return status;
}
