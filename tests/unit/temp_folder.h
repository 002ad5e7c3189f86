// SPDX-License-Identifier: Apache-2.0
// Purpose: model folders for tests: a temporary folder, files written into it, safetensors files made from JSON text.
#pragma once

#include <dirent.h>
#include <endian.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct temp_folder {
    char path[64];
};

static inline struct temp_folder temp_folder_create(void) {
    struct temp_folder folder = {"/tmp/sluice-test-XXXXXX"};
    assert_non_null(mkdtemp(folder.path));
    return folder;
}

static inline void temp_folder_write(const struct temp_folder *folder, const char *name, const void *data,
                                     size_t bytes) {
    char path[384];
    snprintf(path, sizeof path, "%s/%s", folder->path, name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

static inline void temp_folder_write_text(const struct temp_folder *folder, const char *name, const char *text) {
    temp_folder_write(folder, name, text, strlen(text));
}

// Header length, header, data: byte i of the data is i mod 251.
static inline void temp_folder_write_tensors(const struct temp_folder *folder, const char *name, const char *header,
                                             size_t data_bytes) {
    size_t header_bytes = strlen(header), bytes = 8 + header_bytes + data_bytes;
    uint64_t length = htole64(header_bytes);
    unsigned char *file = malloc(bytes);
    assert_non_null(file);
    memcpy(file, &length, 8);
    memcpy(file + 8, header, header_bytes);
    for (size_t i = 0; i < data_bytes; i++) {
        file[8 + header_bytes + i] = (unsigned char)(i % 251);
    }
    temp_folder_write(folder, name, file, bytes);
    free(file);
}

// A copy of a file of the source tree.
static inline void temp_folder_copy(const struct temp_folder *folder, const char *from_folder, const char *name) {
    char path[384];
    snprintf(path, sizeof path, "%s/%s", from_folder, name);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    long bytes = ftell(file);
    assert_true(bytes >= 0);
    rewind(file);
    unsigned char *data = malloc((size_t)bytes + 1);
    assert_non_null(data);
    assert_int_equal(fread(data, 1, (size_t)bytes, file), bytes);
    fclose(file);
    temp_folder_write(folder, name, data, (size_t)bytes);
    free(data);
}

static inline void temp_folder_destroy(struct temp_folder *folder) {
    DIR *dir = opendir(folder->path);
    assert_non_null(dir);
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        char path[384];
        snprintf(path, sizeof path, "%s/%s", folder->path, entry->d_name);
        if (entry->d_name[0] != '.') {
            assert_int_equal(unlink(path), 0);
        }
    }
    closedir(dir);
    assert_int_equal(rmdir(folder->path), 0);
}
