// SPDX-License-Identifier: Apache-2.0
#include "net/trust/changing_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"

enum { LOOK_AGAIN_MS = 1000 };

static bool is_same(const struct stat *a, const struct stat *b) {
    return a->st_ino == b->st_ino && a->st_size == b->st_size && a->st_mtim.tv_sec == b->st_mtim.tv_sec &&
           a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

bool sl_changing_file_is_due(struct sl_changing_file *file) {
    int64_t now_ns = sl_now_ns();
    struct stat about;
    if (now_ns - file->looked_ns < LOOK_AGAIN_MS * SL_NS_PER_MS) {
        return false;
    }
    file->looked_ns = now_ns;
    return stat(file->path, &about) != 0 || !is_same(&about, &file->seen);
}

static enum sl_status read_open(const struct sl_changing_file *file, int fd, char **text_out, struct stat *about,
                                struct sl_error *err) {
    SL_FAIL_IF(fstat(fd, about) != 0, err, SL_ERR_IO, "%s", strerror(errno));
    SL_FAIL_IF(!S_ISREG(about->st_mode) || (size_t)about->st_size > file->max_bytes, err, SL_ERR_INVALID,
               "is not a file of at most %zu bytes", file->max_bytes);
    SL_FAIL_IF(file->is_ours_alone && (about->st_mode & 022) != 0, err, SL_ERR_PRECONDITION,
               "others may write it: chmod go-w");
    char *text = malloc((size_t)about->st_size + 1);
    SL_FAIL_IF(!text, err, SL_ERR_EXHAUSTED, "no memory for %zu bytes", (size_t)about->st_size);
    SL_FAIL_OR(read(fd, text, (size_t)about->st_size) != about->st_size, free(text), err, SL_ERR_IO,
               "cannot be read whole");
    text[about->st_size] = '\0';
    *text_out = text;
    return SL_OK;
}

enum sl_status sl_changing_file_read(struct sl_changing_file *file, char **text_out, size_t *n_out,
                                     struct stat *about_out, struct sl_error *err) {
    file->looked_ns = sl_now_ns();
    int fd = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    SL_FAIL_IF(fd < 0, err, SL_ERR_IO, "%s", strerror(errno));
    struct stat about;
    char *text = NULL;
    enum sl_status status = read_open(file, fd, &text, &about, err);
    close(fd);
    if (status == SL_OK) {
        *text_out = text;
        *n_out = (size_t)about.st_size;
        *about_out = about;
    }
    return status;
}

bool sl_changing_file_fail(struct sl_changing_file *file) {
    struct stat about = {0};
    (void)stat(file->path, &about); // zeros: it is missing
    const bool is_news = !file->has_failed || !is_same(&about, &file->failed);
    file->has_failed = true;
    file->failed = about;
    return is_news;
}

void sl_changing_file_accept(struct sl_changing_file *file, const struct stat *about) {
    file->seen = *about;
    file->has_failed = false;
}
