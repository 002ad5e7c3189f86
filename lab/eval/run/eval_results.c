// SPDX-License-Identifier: Apache-2.0
// Purpose: answers on disk as JSON lines; see eval_results.h. In memory they are the same lines, keyed by question.
#include "lab/eval/run/eval_results.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "client/cli/message_json.h"

#define VERSION   1
#define KEY_BYTES 4096
#define PRECISION JSON_REAL_PRECISION(9)

struct sl_eval_results {
    char *path;      // NULL: in memory
    int fd;          // -1: in memory
    json_t *answers; // object: key -> line
};

// --- one answer -------------------------------------------------------------------------------------------------

// Writes the key of a question; returns false if it is longer than any valid question.
static bool name_key(const struct sl_eval_key *key, char *buf) {
    int n = snprintf(buf, KEY_BYTES, "%s\n%s\n%" PRId64 "\n%.6g\n%" PRId64, key->recipe, key->cell, key->n_tokens,
                     key->depth < 0 ? -1.0 : key->depth, key->index);
    return n > 0 && n < KEY_BYTES;
}

static json_t *hex(uint64_t value) {
    char text[24];
    snprintf(text, sizeof text, "%016" PRIx64, value);
    return json_string(text);
}

static json_t *line_of(const struct sl_eval_key *key, const struct sl_eval_answer *answer) {
    json_t *line =
        json_pack("{s:o, s:o, s:I, s:f, s:I, s:o, s:o, s:o, s:I, s:I}", "recipe", sl_text_json(key->recipe), "cell",
                  sl_text_json(key->cell), "tokens", (json_int_t)key->n_tokens, "depth",
                  key->depth < 0 ? -1.0 : key->depth, "index", (json_int_t)key->index, "name",
                  sl_text_json(answer->name), "budget", sl_text_json(answer->budget), "prompt", hex(answer->prompt),
                  "n_prompt", (json_int_t)answer->n_prompt, "n_reused", (json_int_t)answer->n_reused);
    json_t *rest = answer->refused
                       ? json_pack("{s:o}", "refused", sl_text_json(answer->refused))
                       : json_pack("{s:f, s:o, s:I, s:I, s:I, s:I, s:f, s:f, s:f}", "score", answer->score, "answer",
                                   sl_text_json(answer->text), "shipped_bytes", (json_int_t)answer->shipped_bytes,
                                   "offloaded_bytes", (json_int_t)answer->offloaded_bytes, "full_bytes",
                                   (json_int_t)answer->full_bytes, "resident_bytes", (json_int_t)answer->resident_bytes,
                                   "slots_per_head", answer->slots_per_head, "ttft_ms", answer->ttft_ms, "tpot_ms",
                                   answer->tpot_ms);
    if (!line || !rest || json_object_update(line, rest) != 0) {
        json_decref(line);
        line = NULL;
    }
    json_decref(rest);
    return line;
}

static bool read_line(json_t *line, struct sl_eval_key *key_out, struct sl_eval_answer *answer_out) {
    struct sl_eval_key key = {0};
    struct sl_eval_answer a = {0};
    const char *prompt;
    json_int_t tokens, index, n_prompt, n_reused, shipped = 0, offloaded = 0, full = 0, resident = 0;
    if (json_unpack(line, "{s:s, s:s, s:I, s:F, s:I, s:s, s:s, s:s, s:I, s:I}", "recipe", &key.recipe, "cell",
                    &key.cell, "tokens", &tokens, "depth", &key.depth, "index", &index, "name", &a.name, "budget",
                    &a.budget, "prompt", &prompt, "n_prompt", &n_prompt, "n_reused", &n_reused) != 0) {
        return false;
    }
    char *end;
    errno = 0;
    a.prompt = strtoull(prompt, &end, 16);
    if (errno != 0 || *end != '\0') {
        return false;
    }
    if (json_unpack(line, "{s:s}", "refused", &a.refused) != 0 &&
        json_unpack(line, "{s:F, s:s, s:I, s?I, s:I, s:I, s:F, s:F, s:F}", "score", &a.score, "answer", &a.text,
                    "shipped_bytes", &shipped, "offloaded_bytes", &offloaded, "full_bytes", &full, "resident_bytes",
                    &resident, "slots_per_head", &a.slots_per_head, "ttft_ms", &a.ttft_ms, "tpot_ms",
                    &a.tpot_ms) != 0) {
        return false;
    }
    key.n_tokens = tokens;
    key.index = index;
    a.n_prompt = n_prompt;
    a.n_reused = n_reused;
    a.shipped_bytes = shipped;
    a.offloaded_bytes = offloaded;
    a.full_bytes = full;
    a.resident_bytes = resident;
    *key_out = key;
    *answer_out = a;
    return true;
}

// Stores the line and takes ownership of it.
static enum sl_status remember(struct sl_eval_results *r, const struct sl_eval_key *key, json_t *line,
                               struct sl_error *err) {
    char name[KEY_BYTES];
    if (!name_key(key, name)) {
        json_decref(line);
        return sl_fail(err, SL_ERR_INVALID, "a recipe and a cell with names of more than %d bytes", KEY_BYTES);
    }
    return json_object_set_new(r->answers, name, line) == 0 ? SL_OK
                                                            : sl_fail(err, SL_ERR_EXHAUSTED, "no memory for answers");
}

bool sl_eval_results_find(const struct sl_eval_results *results, const struct sl_eval_key *key,
                          struct sl_eval_answer *answer_out) {
    char name[KEY_BYTES];
    struct sl_eval_key read;
    json_t *line = name_key(key, name) ? json_object_get(results->answers, name) : NULL;
    return line && read_line(line, &read, answer_out);
}

// --- the file ---------------------------------------------------------------------------------------------------

// Writes the whole line or nothing that counts: a line without its newline is dropped when the file is read again.
static enum sl_status write_line(const struct sl_eval_results *r, const json_t *line, struct sl_error *err) {
    char *text = json_dumps(line, JSON_COMPACT | PRECISION);
    char *whole = NULL;
    int n = text ? asprintf(&whole, "%s\n", text) : -1;
    free(text);
    if (n < 0) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for an answer");
    }
    enum sl_status status = SL_OK;
    for (size_t done = 0; status == SL_OK && done < (size_t)n;) {
        ssize_t written = write(r->fd, whole + done, (size_t)n - done);
        if (written < 0 && errno != EINTR) {
            status = sl_fail(err, SL_ERR_IO, "%s: cannot be written: %s", r->path, strerror(errno));
        }
        done += written > 0 ? (size_t)written : 0;
    }
    free(whole);
    return status;
}

enum sl_status sl_eval_results_add(struct sl_eval_results *r, const struct sl_eval_key *key,
                                   const struct sl_eval_answer *answer, struct sl_error *err) {
    json_t *line = line_of(key, answer);
    if (!line) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for an answer");
    }
    enum sl_status status = r->fd >= 0 ? write_line(r, line, err) : SL_OK;
    if (status != SL_OK) {
        json_decref(line);
        return status;
    }
    return remember(r, key, line, err);
}

static json_t *first_line(const struct sl_eval_run *run) {
    return json_pack("{s:i, s:o, s:s, s:o, s:I}", "sluice_eval", VERSION, "model", hex(run->model), "weights",
                     run->weights, "tokenizer", hex(run->tokenizer), "seed", (json_int_t)run->seed);
}

// Returns whether a line is a first line: files of the same run may have been concatenated, and each begins with one.
static bool is_first(const json_t *line) {
    return json_is_object(line) && json_object_get(line, "sluice_eval");
}

// Checks that the first line of the file equals the one that this run would write.
static enum sl_status check_first(const struct sl_eval_results *r, const json_t *line, const json_t *expected,
                                  struct sl_error *err) {
    if (!is_first(line)) {
        return sl_fail(err, SL_ERR_INVALID, "%s: not a file of results of `sluice eval`", r->path);
    }
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)expected, name, value) {
        const json_t *found = json_object_get(line, name);
        if (!json_equal(found, value)) {
            char *was = found ? json_dumps(found, JSON_ENCODE_ANY) : NULL, *is = json_dumps(value, JSON_ENCODE_ANY);
            sl_fail(err, SL_ERR_PRECONDITION,
                    "%s: its answers are of another run (\"%s\" is %.40s there and %.40s now); write to another file",
                    r->path, name, was ? was : "missing", is ? is : "another");
            free(was);
            free(is);
            return SL_ERR_PRECONDITION;
        }
    }
    return SL_OK;
}

// Reads lines. text: the n bytes of the file. *used_out: how many of them are whole lines.
static enum sl_status read_lines(struct sl_eval_results *r, const char *text, size_t n, const json_t *expected,
                                 size_t *used_out, struct sl_error *err) {
    size_t number = 0;
    for (size_t begin = 0; begin < n; number++) {
        const char *newline = memchr(text + begin, '\n', n - begin);
        if (!newline) {
            break; // truncated line
        }
        size_t end = (size_t)(newline - text);
        json_t *line = json_loadb(text + begin, end - begin, JSON_REJECT_DUPLICATES, NULL);
        struct sl_eval_key key;
        struct sl_eval_answer answer;
        enum sl_status status = SL_OK;
        if (number == 0 || is_first(line)) {
            status = check_first(r, line, expected, err);
            json_decref(line);
        } else if (line && read_line(line, &key, &answer)) {
            status = remember(r, &key, line, err);
        } else {
            json_decref(line);
            status = sl_fail(err, SL_ERR_INVALID, "%s: line %zu is no answer; remove it, or write to another file",
                             r->path, number + 1);
        }
        if (status != SL_OK) {
            return status;
        }
        begin = *used_out = end + 1;
    }
    static const char mark[] = "{\"sluice_eval\"";
    if (*used_out == 0 && n > 0 && strncmp(text, mark, n < sizeof mark - 1 ? n : sizeof mark - 1) != 0) {
        return sl_fail(err, SL_ERR_INVALID, "%s: not a file of results of `sluice eval`", r->path);
    }
    return SL_OK;
}

static enum sl_status read_file(const struct sl_eval_results *r, char **text_out, size_t *n_out, struct sl_error *err) {
    struct stat info;
    if (fstat(r->fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        return sl_fail(err, SL_ERR_INVALID, "%s: not a file", r->path);
    }
    size_t size = (size_t)info.st_size, n = 0;
    char *text = malloc(size + 1);
    if (!text) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "%s: no memory for its %zu bytes", r->path, size);
    }
    while (n < size) {
        ssize_t got = pread(r->fd, text + n, size - n, (off_t)n);
        if (got <= 0 && !(got < 0 && errno == EINTR)) {
            free(text);
            return sl_fail(err, SL_ERR_IO, "%s: cannot be read: %s", r->path, got < 0 ? strerror(errno) : "it shrinks");
        }
        n += got > 0 ? (size_t)got : 0;
    }
    *text_out = text;
    *n_out = n;
    return SL_OK;
}

// Reads the file's lines, or writes the first line of a new file.
static enum sl_status begin(struct sl_eval_results *r, const struct sl_eval_run *run, struct sl_error *err) {
    json_t *first = first_line(run);
    char *text = NULL;
    size_t n = 0, used = 0;
    enum sl_status status = first ? read_file(r, &text, &n, err) : sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
    if (status == SL_OK) {
        status = read_lines(r, text, n, first, &used, err);
    }
    if (status == SL_OK && used < n && ftruncate(r->fd, (off_t)used) != 0) {
        status = sl_fail(err, SL_ERR_IO, "%s: cannot be written: %s", r->path, strerror(errno));
    }
    if (status == SL_OK && used == 0) {
        status = write_line(r, first, err);
    }
    free(text);
    json_decref(first);
    return status;
}

static enum sl_status open_file(struct sl_eval_results *r, const char *path, struct sl_error *err) {
    r->path = strdup(path);
    r->fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (!r->path || r->fd < 0) {
        return sl_fail(err, SL_ERR_IO, "%s: cannot be written: %s", path, strerror(errno));
    }
    if (flock(r->fd, LOCK_EX | LOCK_NB) != 0) {
        return sl_fail(err, SL_ERR_EXISTS, "%s: another run is writing to it", path);
    }
    return SL_OK;
}

enum sl_status sl_eval_results_open(const char *path, const struct sl_eval_run *run,
                                    struct sl_eval_results **results_out, struct sl_error *err) {
    struct sl_eval_results *r = calloc(1, sizeof *r);
    if (!r) {
        return sl_fail(err, SL_ERR_EXHAUSTED, "no memory for answers");
    }
    r->fd = -1;
    r->answers = json_object();
    enum sl_status status = r->answers ? SL_OK : sl_fail(err, SL_ERR_EXHAUSTED, "no memory for answers");
    if (status == SL_OK && path) {
        status = open_file(r, path, err);
        status = status == SL_OK ? begin(r, run, err) : status;
    }
    if (status != SL_OK) {
        sl_eval_results_close(&r);
        return status;
    }
    *results_out = r;
    return SL_OK;
}

void sl_eval_results_close(struct sl_eval_results **results) {
    struct sl_eval_results *r = *results;
    if (!r) {
        return;
    }
    if (r->fd >= 0) {
        close(r->fd);
    }
    json_decref(r->answers);
    free(r->path);
    free(r);
    *results = NULL;
}
