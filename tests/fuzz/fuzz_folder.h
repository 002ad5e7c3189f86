// SPDX-License-Identifier: Apache-2.0
/*
 * Purpose: shared by fuzzers of model folders: a folder whose files are parts of the input, read by the entry that reads real ones.
 *
 * Design: it lies in memory (TMPDIR, else /dev/shm), where a file costs some microseconds. The script that starts a fuzzer may set TMPDIR
 *         and remove what a crash leaves there (tests/fuzz/run.sh does).
 */
#pragma once

#include <endian.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define FUZZ_PATH_BYTES     256
#define FUZZ_MAX_DATA_BYTES (1u << 13)

static inline void require(bool holds) {
    if (!holds) {
        abort();
    }
}

static inline char *fuzz_folder_memory(void) {
    static char path[FUZZ_PATH_BYTES];
    return path;
}

static inline void fuzz_folder_destroy(void) {
    (void)rmdir(fuzz_folder_memory()); // the targets have removed what they wrote
}

// Made at the first call, removed at exit.
static inline const char *fuzz_folder(void) {
    char *path = fuzz_folder_memory();
    if (path[0] == '\0') {
        const char *parent = getenv("TMPDIR");
        parent = parent != NULL ? parent : access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp";
        require((size_t)snprintf(path, FUZZ_PATH_BYTES, "%s/sluice-fuzz-XXXXXX", parent) < FUZZ_PATH_BYTES);
        require(mkdtemp(path) != NULL && atexit(fuzz_folder_destroy) == 0);
    }
    return path;
}

static inline void fuzz_folder_path(const char *name, char *buf, size_t buf_bytes) {
    require((size_t)snprintf(buf, buf_bytes, "%s/%s", fuzz_folder(), name) < buf_bytes);
}

static inline void fuzz_folder_writev(const char *name, const struct iovec *parts, int n_parts) {
    char path[512];
    fuzz_folder_path(name, path, sizeof path);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    require(fd >= 0);
    size_t bytes = 0;
    for (int i = 0; i < n_parts; i++) {
        bytes += parts[i].iov_len;
    }
    require(writev(fd, parts, n_parts) == (ssize_t)bytes && close(fd) == 0);
}

static inline void fuzz_folder_write(const char *name, const void *data, size_t bytes) {
    struct iovec part = {(void *)data, bytes};
    fuzz_folder_writev(name, &part, 1);
}

static inline void fuzz_folder_remove(const char *name) {
    char path[512];
    fuzz_folder_path(name, path, sizeof path);
    unlink(path);
}

// Byte i of the data of fuzz_folder_write_tensors().
static inline unsigned char fuzz_data_byte(size_t i) {
    return (unsigned char)(1 + i % 251);
}

// A safetensors file from text: the size of its data in decimal digits, then its header; returns that size. The length
// field is written here, so that a mutation of the header is still a file.
static inline size_t fuzz_folder_write_tensors(const char *name, const char *text, size_t text_bytes) {
    static unsigned char data[FUZZ_MAX_DATA_BYTES];
    size_t n_digits = 0, data_bytes = 0;
    for (; n_digits < text_bytes && text[n_digits] >= '0' && text[n_digits] <= '9'; n_digits++) {
        data_bytes = (10 * data_bytes + (size_t)(text[n_digits] - '0')) % (FUZZ_MAX_DATA_BYTES + 1);
    }
    if (data[0] == 0) {
        for (size_t i = 0; i < sizeof data; i++) {
            data[i] = fuzz_data_byte(i);
        }
    }
    size_t header_bytes = text_bytes - n_digits;
    uint64_t length = htole64(header_bytes);
    struct iovec parts[] = {{&length, 8}, {(void *)(text + n_digits), header_bytes}, {data, data_bytes}};
    fuzz_folder_writev(name, parts, 3);
    return data_bytes;
}

// The next part of an input whose parts are separated by zero bytes; false when there is none.
static inline bool fuzz_next_part(const char **rest, size_t *rest_bytes, const char **part_out,
                                  size_t *part_bytes_out) {
    if (*rest == NULL) {
        return false;
    }
    const char *end = memchr(*rest, '\0', *rest_bytes);
    *part_out = *rest;
    *part_bytes_out = end != NULL ? (size_t)(end - *rest) : *rest_bytes;
    *rest_bytes -= end != NULL ? *part_bytes_out + 1 : *rest_bytes;
    *rest = end != NULL ? end + 1 : NULL;
    return true;
}
