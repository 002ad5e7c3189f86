// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: text files as one running text of sentences.
 *
 * Design: all files form one text in which every run of white space is one space; it begins with a space. A sentence
 *         ends with `.` before a space and begins with that space, so that adjacent sentences are one stretch of
 *         bytes. A sentence of more than SL_SENTENCE_MAX_BYTES is cut at a space, or at a character if it has no
 *         space: so facts can also be hidden in a text without full stops.
 */
#include "lab/tasks/haystack.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define LICENCES "/usr/share/common-licenses"

struct sl_haystack {
    char *text;
    size_t n_bytes;
    size_t *begins; // [n + 1] start of each sentence in the text; the last is n_bytes
    int64_t n;
};

static char noise_text[] = " The river runs on. The mill wheel turns. A cart goes by. The road is dry.";
static size_t noise_begins[] = {0, 19, 41, 57, sizeof noise_text - 1};
static const struct sl_haystack noise = {noise_text, sizeof noise_text - 1, noise_begins, 4};

const struct sl_haystack *sl_haystack_noise(void) {
    return &noise;
}

int64_t sl_haystack_n_sentences(const struct sl_haystack *haystack) {
    return haystack->n;
}

void sl_haystack_write(const struct sl_haystack *haystack, int64_t first, int64_t n, FILE *out) {
    while (n > 0) {
        first %= haystack->n;
        int64_t end = n < haystack->n - first ? first + n : haystack->n;
        fwrite(haystack->text + haystack->begins[first], 1, haystack->begins[end] - haystack->begins[first], out);
        n -= end - first;
        first = end;
    }
}

bool sl_haystack_contains(const struct sl_haystack *haystack, const char *text) {
    return memmem(haystack->text, haystack->n_bytes, text, strlen(text)) != NULL;
}

// --- reading ---------------------------------------------------------------------------------------------------------
static bool is_space(int c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

// Appends a file's text to `out`. Every run of white space, and the beginning, becomes one space before the next
// text.
static enum sl_status append_file(const char *path, FILE *out, struct sl_error *err) {
    FILE *file = fopen(path, "r");
    SL_FAIL_IF(!file, err, errno == ENOENT ? SL_ERR_NOT_FOUND : SL_ERR_IO, "%s: %s", path, strerror(errno));
    bool space = true;
    int c;
    while ((c = getc_unlocked(file)) != EOF && c != '\0') {
        if (!is_space(c)) {
            if (space) {
                putc_unlocked(' ', out);
            }
            putc_unlocked(c, out);
        }
        space = is_space(c);
    }
    bool failed = ferror(file);
    int cause = errno;
    fclose(file);
    SL_FAIL_IF(failed, err, SL_ERR_IO, "%s: %s", path, strerror(cause));
    return c == EOF ? SL_OK : sl_fail(err, SL_ERR_INVALID, "%s: not a text: it has a byte 0", path);
}

// Returns the end of the sentence that begins at `begin`: after its full stop, or where it gets too long.
static size_t sentence_end(const char *text, size_t n_bytes, size_t begin) {
    size_t limit = begin + SL_SENTENCE_MAX_BYTES < n_bytes ? begin + SL_SENTENCE_MAX_BYTES : n_bytes;
    for (size_t at = begin + 1; at < limit; at++) {
        if (text[at] == ' ' && text[at - 1] == '.') {
            return at;
        }
    }
    if (limit == n_bytes) {
        return n_bytes;
    }
    size_t at = limit;
    while (at > begin + 1 && text[at] != ' ') {
        at--;
    }
    if (at == begin + 1) { // a very long word; characters begin with a byte that is not 10xxxxxx
        for (at = limit; ((unsigned char)text[at] & 0xc0) == 0x80; at--) {
        }
    }
    return at;
}

static enum sl_status cut_sentences(struct sl_haystack *haystack, struct sl_error *err) {
    size_t capacity = 0, begin = 0;
    for (;;) {
        if ((size_t)haystack->n == capacity) {
            capacity = capacity ? 2 * capacity : 1024;
            size_t *more = realloc(haystack->begins, (capacity + 1) * sizeof *more);
            SL_FAIL_IF(!more, err, SL_ERR_EXHAUSTED, "no memory for the sentences of a text");
            haystack->begins = more;
        }
        haystack->begins[haystack->n] = begin;
        if (begin == haystack->n_bytes) {
            return SL_OK;
        }
        haystack->n++;
        begin = sentence_end(haystack->text, haystack->n_bytes, begin);
    }
}

static enum sl_status check_text(const char *path, const char *text, size_t n_bytes, struct sl_error *err) {
    size_t bad = 0;
    SL_FAIL_IF(n_bytes == 0, err, SL_ERR_INVALID, "%s: there is no text in it", path);
    SL_FAIL_IF(!sl_utf8_valid(text, n_bytes, &bad), err, SL_ERR_INVALID,
               "%s: not UTF-8: the byte 0x%02x behind \"%.*s\"; convert it with iconv", path, (unsigned char)text[bad],
               bad < 20 ? (int)bad : 20, text + (bad < 20 ? 0 : bad - 20));
    return SL_OK;
}

static enum sl_status read_files(const char *const *paths, size_t n_paths, struct sl_haystack *haystack,
                                 struct sl_error *err) {
    FILE *out = open_memstream(&haystack->text, &haystack->n_bytes);
    SL_FAIL_IF(!out, err, SL_ERR_EXHAUSTED, "no memory for a text");
    enum sl_status status = SL_OK;
    for (size_t i = 0; i < n_paths && status == SL_OK; i++) {
        fflush(out); // text and n_bytes are valid after a flush
        size_t before = haystack->n_bytes;
        status = append_file(paths[i], out, err);
        if (status == SL_OK && fflush(out) != 0) {
            status = sl_fail(err, SL_ERR_EXHAUSTED, "%s: no memory for the text", paths[i]);
        }
        if (status == SL_OK) {
            status = check_text(paths[i], haystack->text + before, haystack->n_bytes - before, err);
        }
    }
    if (fclose(out) != 0 && status == SL_OK) {
        status = sl_fail(err, SL_ERR_EXHAUSTED, "no memory for a text");
    }
    return status;
}

// --- the default -----------------------------------------------------------------------------------------------------
// Returns whether an entry is a license. GPL is a link to the newest version, so links would repeat a text.
static int is_licence(const struct dirent *entry) {
    char path[sizeof LICENCES + 1 + sizeof entry->d_name];
    struct stat info;
    snprintf(path, sizeof path, LICENCES "/%s", entry->d_name);
    return lstat(path, &info) == 0 && S_ISREG(info.st_mode);
}

static int by_bytes(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name); // alphasort() follows the locale
}

static enum sl_status read_licences(struct sl_haystack *haystack, struct sl_error *err) {
    struct dirent **entries = NULL;
    int n = scandir(LICENCES, &entries, is_licence, by_bytes);
    if (n <= 0) {
        free(entries);
        return sl_fail(err, SL_ERR_NOT_FOUND, "no texts in " LICENCES " to hide facts in; give a text file");
    }
    char **paths = calloc((size_t)n, sizeof *paths);
    bool complete = paths != NULL;
    for (int i = 0; i < n; i++) {
        if (complete && asprintf(&paths[i], LICENCES "/%s", entries[i]->d_name) < 0) {
            paths[i] = NULL; // asprintf() leaves it undefined
            complete = false;
        }
        free(entries[i]);
    }
    free(entries);
    enum sl_status status = complete ? read_files((const char *const *)paths, (size_t)n, haystack, err)
                                     : sl_fail(err, SL_ERR_EXHAUSTED, "no memory for the names of " LICENCES);
    for (int i = 0; paths && i < n; i++) {
        free(paths[i]);
    }
    free(paths);
    return status;
}

enum sl_status sl_haystack_open(const char *const *paths, size_t n_paths, struct sl_haystack **haystack_out,
                                struct sl_error *err) {
    struct sl_haystack *haystack = calloc(1, sizeof *haystack);
    SL_FAIL_IF(!haystack, err, SL_ERR_EXHAUSTED, "no memory for a text");
    enum sl_status status = n_paths > 0 ? read_files(paths, n_paths, haystack, err) : read_licences(haystack, err);
    if (status == SL_OK) {
        status = cut_sentences(haystack, err);
    }
    if (status != SL_OK) {
        sl_haystack_close(&haystack);
        return status;
    }
    *haystack_out = haystack;
    return SL_OK;
}

void sl_haystack_close(struct sl_haystack **haystack) {
    if (*haystack) {
        free((*haystack)->text);
        free((*haystack)->begins);
        free(*haystack);
        *haystack = NULL;
    }
}
