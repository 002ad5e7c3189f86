// SPDX-License-Identifier: Apache-2.0
// Purpose: a folder of code as one text. See doc_text.h.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/close.h"
#include "client/cli/commands/doc_text.h"
#include "engine/text/tokenizer/tokenizer.h"

#define MAX_ENTRIES 100000
#define MAX_DEPTH   64

struct folder {
    const char *root;
    char path[PATH_MAX]; // of the entry, from the root on
    char *buffer;        // [SL_DOC_TEXT_BYTES + 1], for one file
    FILE *text;
    size_t n_entries, n_files, n_binary, n_other; // n_other: links, devices, and what cannot be read
};

static bool is_version_control(const char *name) {
    return strcmp(name, ".git") == 0 || strcmp(name, ".hg") == 0 || strcmp(name, ".svn") == 0;
}

// Orders names by their bytes, so that the order depends on no locale.
static int by_bytes(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

static int is_wanted(const struct dirent *entry) {
    return strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
}

static bool is_text(const char *bytes, size_t n) {
    return !memchr(bytes, '\0', n) && sl_utf8_valid(bytes, n, NULL);
}

// Reads up to a byte more than a document may have. False: it cannot be read.
static bool read_all(int fd, char *buffer, size_t *n_out) {
    size_t n = 0;
    ssize_t got = 1;
    while (n <= SL_DOC_TEXT_BYTES && (got = read(fd, buffer + n, SL_DOC_TEXT_BYTES + 1 - n)) != 0) {
        if (got < 0 && errno != EINTR) {
            return false;
        }
        n += got > 0 ? (size_t)got : 0;
    }
    *n_out = n;
    return true;
}

static enum sl_status add_file(struct folder *folder, int fd, struct sl_error *err) {
    size_t n = 0;
    if (!read_all(fd, folder->buffer, &n)) {
        folder->n_other++;
        return SL_OK;
    }
    // The check may cut a character of a file that is too large; such a file ends the reading if it is a text.
    size_t checked = n > SL_DOC_TEXT_BYTES ? SL_DOC_TEXT_BYTES / 2 : n;
    while (checked < n && ((unsigned char)folder->buffer[checked] & 0xc0) == 0x80) {
        checked--;
    }
    if (!is_text(folder->path, strlen(folder->path)) || !is_text(folder->buffer, checked)) {
        folder->n_binary++;
        return SL_OK;
    }
    SL_FAIL_IF(n > SL_DOC_TEXT_BYTES || (size_t)ftell(folder->text) + n + strlen(folder->path) + 16 > SL_DOC_TEXT_BYTES,
               err, SL_ERR_INVALID,
               "the texts of %s have more than %zu bytes, the most of a document, at %s: name a smaller folder",
               folder->root, SL_DOC_TEXT_BYTES, folder->path);
    fprintf(folder->text, "%s==== %s ====\n", folder->n_files > 0 ? "\n" : "", folder->path);
    fwrite(folder->buffer, 1, n, folder->text);
    if (n > 0 && folder->buffer[n - 1] != '\n') {
        fputc('\n', folder->text);
    }
    folder->n_files++;
    return SL_OK;
}

static enum sl_status walk(struct folder *folder, int fd, size_t n_path, int depth, struct sl_error *err);

// Adds one entry of the open folder `at`; its path is complete. O_NOFOLLOW: a link could lead out of the folder, or
// around in it.
static enum sl_status add_entry(struct folder *folder, int at, const char *name, int depth, struct sl_error *err) {
    struct stat found;
    int fd = openat(at, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &found) != 0 || (!S_ISREG(found.st_mode) && !S_ISDIR(found.st_mode))) {
        folder->n_other++;
        sl_close(fd);
        return SL_OK;
    }
    enum sl_status status =
        S_ISDIR(found.st_mode) ? walk(folder, fd, strlen(folder->path), depth + 1, err) : add_file(folder, fd, err);
    close(fd);
    return status;
}

static enum sl_status walk(struct folder *folder, int fd, size_t n_path, int depth, struct sl_error *err) {
    struct dirent **entries;
    int n = depth <= MAX_DEPTH ? scandirat(fd, ".", &entries, is_wanted, by_bytes) : -1;
    if (n < 0) {
        folder->n_other++;
        return depth > 0 ? SL_OK : sl_fail(err, SL_ERR_INVALID, "%s: %s", folder->root, strerror(errno));
    }
    enum sl_status status = SL_OK;
    for (int i = 0; i < n; i++) {
        const char *name = entries[i]->d_name;
        SL_THEN_FAIL_IF(status, ++folder->n_entries > MAX_ENTRIES, err, SL_ERR_INVALID,
                        "%s has more than %d entries: name a smaller folder", folder->root, MAX_ENTRIES);
        if (status == SL_OK && is_version_control(name)) {
            folder->n_other++;
        } else if (status == SL_OK && n_path + 1 + strlen(name) >= sizeof folder->path) {
            folder->n_other++;
        } else if (status == SL_OK) {
            sprintf(folder->path + n_path, "%s%s", n_path > 0 ? "/" : "", name);
            status = add_entry(folder, fd, name, depth, err);
            folder->path[n_path] = '\0';
        }
        free(entries[i]);
    }
    free(entries);
    return status;
}

static void tell(const struct folder *folder, FILE *notes) {
    fprintf(notes,
            "%s: %zu text files; skipped: %zu that are not text, %zu others (version control, links, unreadable)\n",
            folder->root, folder->n_files, folder->n_binary, folder->n_other);
}

enum sl_status sl_doc_folder_read(const struct sl_doc_source *source, char **text_out, struct sl_error *err) {
    char *text = NULL;
    size_t n = 0;
    struct folder *folder = calloc(1, sizeof *folder);
    char *buffer = malloc(SL_DOC_TEXT_BYTES + 1);
    FILE *stream = open_memstream(&text, &n);
    int fd = open(source->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    enum sl_status status = SL_OK;
    if (!folder || !buffer || !stream) {
        status = sl_fail(err, SL_ERR_EXHAUSTED, "%s: no memory for its texts", source->path);
    } else if (fd < 0) {
        status = sl_fail(err, SL_ERR_INVALID, "%s: %s", source->path, strerror(errno));
    } else {
        *folder = (struct folder){.root = source->path, .buffer = buffer, .text = stream};
        status = walk(folder, fd, 0, 0, err);
    }
    if (stream && fclose(stream) != 0 && status == SL_OK) {
        status = sl_fail(err, SL_ERR_EXHAUSTED, "%s: no memory for its texts", source->path);
    }
    SL_THEN_FAIL_IF(status, folder->n_files == 0, err, SL_ERR_INVALID, "%s has no text file", source->path);
    if (status == SL_OK && source->notes) {
        tell(folder, source->notes);
    }
    if (status == SL_OK) {
        *text_out = text;
    } else {
        free(text);
    }
    sl_close(fd);
    free(buffer);
    free(folder);
    return status;
}
