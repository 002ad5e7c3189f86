// SPDX-License-Identifier: Apache-2.0
#include "engine/model/gguf/mapped_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/hash.h"

static uint64_t identity_of(const struct stat *st) {
    const uint64_t words[] = {(uint64_t)st->st_dev,         (uint64_t)st->st_ino,          (uint64_t)st->st_size,
                              (uint64_t)st->st_mtim.tv_sec, (uint64_t)st->st_mtim.tv_nsec, (uint64_t)st->st_ctim.tv_sec,
                              (uint64_t)st->st_ctim.tv_nsec};
    return sl_hash(words, sizeof words, 0);
}

enum sl_status sl_mapped_file_open(const char *path, struct sl_mapped_file *file_out, struct sl_error *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); // O_NONBLOCK: opening a FIFO must not block
    SL_FAIL_IF(fd < 0, err, errno == ENOENT ? SL_ERR_NOT_FOUND : SL_ERR_IO, "%s: %s", path, strerror(errno));
    struct stat st;
    bool is_file = fstat(fd, &st) == 0 && S_ISREG(st.st_mode);
    bool is_empty = is_file && st.st_size == 0;
    void *base = is_file && !is_empty ? mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
    int cause = errno;
    close(fd);
    SL_FAIL_IF(!is_file, err, SL_ERR_IO, "%s: not a regular file", path);
    SL_FAIL_IF(is_empty, err, SL_ERR_INVALID, "%s: empty", path);
    SL_FAIL_IF(base == MAP_FAILED, err, SL_ERR_IO, "%s: mmap: %s", path, strerror(cause));
    *file_out = (struct sl_mapped_file){base, (size_t)st.st_size, identity_of(&st), st.st_blocks < st.st_size / 1024};
    return SL_OK;
}

void sl_mapped_file_close(struct sl_mapped_file *file) {
    if (file->base != NULL) {
        munmap(file->base, file->bytes);
        file->base = NULL;
    }
}
